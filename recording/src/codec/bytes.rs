//! Numbers as bytes: LEB128, so small values are short. The reader accepts what the writer produces and refuses the rest.

/// Error for bytes that no writer of this format produces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Appends numbers to a column.
pub(super) trait Put {
    fn number(&mut self, value: u64);
    /// Appends a signed number. Values near 0 are short.
    fn signed(&mut self, value: i64);
    /// Appends an optional number.
    fn maybe(&mut self, value: Option<u64>);
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
}

/// Encoding of 2^64, which represents `Some(u64::MAX)`.
const LARGEST: [u8; 10] = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02];

/// Reads numbers from a column.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

const SHORT: Malformed = Malformed("a column ends too early");
const LONG: Malformed = Malformed("a count has more than 32 bits");

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
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

    /// Reads a number that must fit 32 bits: a count or an index.
    pub(super) fn small(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.number()?).map_err(|_| LONG)
    }
}

/// An enum with numeric codes.
pub(super) trait Code: Copy {
    fn code(self) -> u8;
    fn of(code: u8) -> Result<Self, Malformed>;
}

/// A column in one direction. Each function writes a field, or replaces it with the field read. A field that is as expected takes no bytes.
pub(super) trait Fields {
    /// An optional number, as its difference from the expected one.
    fn near(&mut self, differs: bool, value: &mut Option<u32>, expected: Option<u32>) -> Result<(), Malformed>;
    fn index(&mut self, differs: bool, value: &mut u32, expected: u32) -> Result<(), Malformed>;
    fn code<T: Code>(&mut self, differs: bool, value: &mut T, expected: T) -> Result<(), Malformed>;
}

/// Never fails.
impl Fields for Vec<u8> {
    fn near(&mut self, differs: bool, value: &mut Option<u32>, expected: Option<u32>) -> Result<(), Malformed> {
        if differs {
            let distance = value.map(|value| i64::from(value) - i64::from(expected.unwrap_or(0)));
            self.maybe(distance.map(zigzag));
        }
        Ok(())
    }

    fn index(&mut self, differs: bool, value: &mut u32, _: u32) -> Result<(), Malformed> {
        if differs {
            self.number((*value).into());
        }
        Ok(())
    }

    fn code<T: Code>(&mut self, differs: bool, value: &mut T, _: T) -> Result<(), Malformed> {
        if differs {
            self.push(value.code());
        }
        Ok(())
    }
}

impl Fields for Cursor<'_> {
    fn near(&mut self, differs: bool, value: &mut Option<u32>, expected: Option<u32>) -> Result<(), Malformed> {
        *value = expected;
        if differs {
            let near = |distance| i64::from(expected.unwrap_or(0)).checked_add(unzigzag(distance));
            let read =
                self.maybe()?.map(|distance| near(distance).and_then(|value| u32::try_from(value).ok()).ok_or(LONG));
            *value = read.transpose()?;
        }
        Ok(())
    }

    fn index(&mut self, differs: bool, value: &mut u32, expected: u32) -> Result<(), Malformed> {
        *value = if differs { self.small()? } else { expected };
        Ok(())
    }

    fn code<T: Code>(&mut self, differs: bool, value: &mut T, expected: T) -> Result<(), Malformed> {
        *value = if differs { T::of(self.byte()?)? } else { expected };
        Ok(())
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

    fn round_trip(number: u64, signed: i64, maybe: Option<u64>, near: Option<u32>, expected: Option<u32>) {
        let mut column = Vec::new();
        column.number(number);
        column.signed(signed);
        column.maybe(maybe);
        column.near(true, &mut { near }, expected).expect("it is written");
        let (mut cursor, mut read) = (Cursor::new(&column), None);
        assert_eq!(cursor.number(), Ok(number));
        assert_eq!(cursor.signed(), Ok(signed));
        assert_eq!(cursor.maybe(), Ok(maybe));
        assert_eq!(cursor.near(true, &mut read, expected), Ok(()));
        assert!(read == near && cursor.is_empty());
    }

    proptest! {
        #[test]
        fn numbers_round_trip(number: u64, signed: i64, maybe: Option<u64>, near: Option<u32>, expected: Option<u32>) {
            round_trip(number, signed, maybe, near, expected);
        }

        #[test]
        fn any_bytes_decode_or_are_rejected(bytes in prop::collection::vec(any::<u8>(), 0..30)) {
            let mut cursor = Cursor::new(&bytes);
            while cursor.number().is_ok() && cursor.maybe().is_ok() && cursor.near(true, &mut None, Some(7)).is_ok() {}
        }
    }

    #[test]
    fn the_largest_numbers_round_trip() {
        round_trip(u64::MAX, i64::MIN, Some(u64::MAX), Some(u32::MAX), Some(0));
        round_trip(0, i64::MAX, Some(u64::MAX - 1), Some(0), Some(u32::MAX));
    }
}
