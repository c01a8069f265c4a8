//! Numbers as bytes: LEB128, so small values are short. The reader accepts what the writer produces and refuses the rest.

/// Error for bytes that no writer of this format produces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(in crate::record) struct Malformed(pub(in crate::record) &'static str);

/// Appends numbers to a column.
pub(super) trait Put {
    fn number(&mut self, value: u64);
    /// Appends a signed number. Values near 0 are short.
    fn signed(&mut self, value: i64);
    /// Appends an optional number.
    fn maybe(&mut self, value: Option<u64>);
    /// Appends an optional number as its difference from `expected`.
    fn near(&mut self, value: Option<u32>, expected: Option<u32>);
}

impl Put for Vec<u8> {
    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.push(value as u8);
    }

    fn signed(&mut self, value: i64) {
        self.number(zigzag(value));
    }

    fn maybe(&mut self, value: Option<u64>) {
        match value {
            None => self.push(0),
            Some(u64::MAX) => self.extend(LARGEST),
            Some(value) => self.number(value + 1),
        }
    }

    fn near(&mut self, value: Option<u32>, expected: Option<u32>) {
        let distance = value.map(|value| i64::from(value) - i64::from(expected.unwrap_or(0)));
        self.maybe(distance.map(zigzag));
    }
}

/// Encoding of 2^64, which represents `Some(u64::MAX)`.
const LARGEST: [u8; 10] = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02];

/// Reads numbers from a column.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::record) struct Cursor<'a> {
    rest: &'a [u8],
}

const SHORT: Malformed = Malformed("a column ends too early");

impl<'a> Cursor<'a> {
    pub(in crate::record) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn bytes(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let (received, rest) = self.rest.split_at_checked(n).ok_or(SHORT)?;
        self.rest = rest;
        Ok(received)
    }

    pub(super) fn byte(&mut self) -> Result<u8, Malformed> {
        let (&byte, rest) = self.rest.split_first().ok_or(SHORT)?;
        self.rest = rest;
        Ok(byte)
    }

    pub(super) fn number(&mut self) -> Result<u64, Malformed> {
        let first = self.byte()?;
        if first < 0x80 {
            return Ok(u64::from(first));
        }
        let value = self.long(first)?;
        u64::try_from(value).map_err(|_| Malformed("a number has more than 64 bits"))
    }

    /// Reads the rest of a number that starts with `first`, at most 70 bits.
    fn long(&mut self, first: u8) -> Result<u128, Malformed> {
        let mut value = u128::from(first & 0x7f);
        for shift in (7..70).step_by(7) {
            let byte = self.byte()?;
            value |= u128::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed("unterminated number"))
    }

    pub(super) fn signed(&mut self) -> Result<i64, Malformed> {
        self.number().map(unzigzag)
    }

    pub(super) fn maybe(&mut self) -> Result<Option<u64>, Malformed> {
        let first = self.byte()?;
        if first < 0x80 {
            return Ok(u64::from(first).checked_sub(1));
        }
        match self.long(first)?.checked_sub(1) {
            None => Ok(None),
            Some(value) => u64::try_from(value).map(Some).map_err(|_| Malformed("a number has more than 64 bits")),
        }
    }

    pub(super) fn near(&mut self, expected: Option<u32>) -> Result<Option<u32>, Malformed> {
        let Some(distance) = self.maybe()? else {
            return Ok(None);
        };
        let value = i64::from(expected.unwrap_or(0)).checked_add(unzigzag(distance));
        let value = value.and_then(|value| u32::try_from(value).ok());
        value.map(Some).ok_or(Malformed("a count has more than 32 bits"))
    }

    /// Reads a number that must fit 32 bits: a count or an index.
    pub(super) fn small(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.number()?).map_err(|_| Malformed("a count has more than 32 bits"))
    }
}

/// Maps numbers near 0 to small ones.
pub(super) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

pub(super) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_round_trip(n in any::<u64>(), s in any::<i64>(), m in any::<Option<u64>>(), v in any::<Option<u32>>(), e in any::<Option<u32>>()) {
            let mut column = Vec::new();
            column.number(n);
            column.signed(s);
            column.maybe(m);
            column.near(v, e);
            let mut cursor = Cursor::new(&column);
            prop_assert_eq!(cursor.number(), Ok(n));
            prop_assert_eq!(cursor.signed(), Ok(s));
            prop_assert_eq!(cursor.maybe(), Ok(m));
            prop_assert_eq!(cursor.near(e), Ok(v));
            prop_assert!(cursor.is_empty());
        }

        #[test]
        fn any_bytes_decode_or_are_rejected(bytes in prop::collection::vec(any::<u8>(), 0..30)) {
            let mut cursor = Cursor::new(&bytes);
            while cursor.number().is_ok() && cursor.maybe().is_ok() && cursor.near(Some(7)).is_ok() {}
        }
    }

    #[test]
    fn the_largest_numbers_round_trip() {
        let mut column = Vec::new();
        column.maybe(Some(u64::MAX));
        column.maybe(Some(u64::MAX - 1));
        column.signed(i64::MIN);
        column.near(Some(u32::MAX), Some(0));
        column.near(Some(0), Some(u32::MAX));
        let mut cursor = Cursor::new(&column);
        assert_eq!(cursor.maybe(), Ok(Some(u64::MAX)));
        assert_eq!(cursor.maybe(), Ok(Some(u64::MAX - 1)));
        assert_eq!(cursor.signed(), Ok(i64::MIN));
        assert_eq!(cursor.near(Some(0)), Ok(Some(u32::MAX)));
        assert_eq!(cursor.near(Some(u32::MAX)), Ok(Some(0)));
    }
}
