//! Numbers as bytes: LEB128, so small values are short. The reader accepts what the writer produces and refuses the rest.

/// Error for bytes that no writer of this format produces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct MalformedBlock(pub(crate) &'static str);

/// Appends numbers to a column.
pub(super) trait PutNumber {
    /// Appends a number in groups of seven bits, the lowest first.
    fn put_number(&mut self, value: u64);
    /// Appends a signed number. Values near 0 are short.
    fn put_signed(&mut self, value: i64);
    /// Appends an optional number.
    fn put_optional(&mut self, value: Option<u64>);
}

impl PutNumber for Vec<u8> {
    /// Appends a number in groups of seven bits, the lowest first.
    fn put_number(&mut self, mut value: u64) {
        // The upper bit of a byte says that another group follows.
        while value >= 0x80 {
            self.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.push(value as u8);
    }

    /// Appends a signed number. Values near 0 are short.
    fn put_signed(&mut self, value: i64) {
        self.put_number(zigzag(value));
    }

    /// Appends an optional number: 0 for `None`, else one more than the number.
    fn put_optional(&mut self, value: Option<u64>) {
        match value {
            None => self.push(0),
            // One more than the largest number does not fit into 64 bits.
            Some(u64::MAX) => self.extend(U64_MAX_PLUS_ONE),
            Some(value) => self.put_number(value + 1),
        }
    }
}

/// Encoding of 2^64, which represents `Some(u64::MAX)`.
const U64_MAX_PLUS_ONE: [u8; 10] = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02];

/// Reads numbers from a column.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ColumnCursor<'a> {
    rest: &'a [u8],
}

const COLUMN_TOO_SHORT: MalformedBlock = MalformedBlock("a column ends too early");
const COUNT_TOO_LARGE: MalformedBlock = MalformedBlock("a count has more than 32 bits");

impl<'a> ColumnCursor<'a> {
    /// Cursor at the first of these bytes.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads the next bytes.
    pub(super) fn read_bytes(&mut self, count: usize) -> Result<&'a [u8], MalformedBlock> {
        let (bytes, rest) = self.rest.split_at_checked(count).ok_or(COLUMN_TOO_SHORT)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Reads the next byte.
    pub(super) fn read_byte(&mut self) -> Result<u8, MalformedBlock> {
        let (&byte, rest) = self.rest.split_first().ok_or(COLUMN_TOO_SHORT)?;
        self.rest = rest;
        Ok(byte)
    }

    /// Reads a number in groups of seven bits, the lowest first.
    pub(super) fn read_number(&mut self) -> Result<u64, MalformedBlock> {
        let first = self.read_byte()?;
        // Most numbers have one byte.
        if first < 0x80 {
            return Ok(u64::from(first));
        }
        let value = self.read_rest_of_long_number(first)?;
        u64::try_from(value).map_err(|_| MalformedBlock("a number has more than 64 bits"))
    }

    /// Reads the rest of a number whose first byte is `first_byte`, and returns the whole, which has at most 70 bits.
    fn read_rest_of_long_number(&mut self, first_byte: u8) -> Result<u128, MalformedBlock> {
        let mut value = u128::from(first_byte & 0x7f);
        // Ten groups of seven bits: an optional number is stored plus one, so it may need 65 bits.
        for shift in (7..70).step_by(7) {
            let byte = self.read_byte()?;
            value |= u128::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(MalformedBlock("unterminated number"))
    }

    /// Reads a number that [`PutNumber::put_signed`] has written.
    pub(super) fn read_signed(&mut self) -> Result<i64, MalformedBlock> {
        self.read_number().map(unzigzag)
    }

    /// Reads an optional number, which is stored as 0 for `None`, else one more than itself.
    pub(super) fn read_optional(&mut self) -> Result<Option<u64>, MalformedBlock> {
        let first = self.read_byte()?;
        if first < 0x80 {
            // Gives `None` for 0.
            return Ok(u64::from(first).checked_sub(1));
        }
        match self.read_rest_of_long_number(first)?.checked_sub(1) {
            // A 0 in several bytes, which the writer never produces.
            None => Ok(None),
            Some(value) => u64::try_from(value).map(Some).map_err(|_| MalformedBlock("a number has more than 64 bits")),
        }
    }

    /// Reads a number that must fit 32 bits: a count or an index.
    pub(super) fn read_u32(&mut self) -> Result<u32, MalformedBlock> {
        u32::try_from(self.read_number()?).map_err(|_| COUNT_TOO_LARGE)
    }
}

/// An enum with numeric codes.
pub(super) trait EnumCode: Copy {
    /// Its code in recordings.
    fn to_code(self) -> u8;
    /// The value with this code; an error for an unknown one.
    fn from_code(code: u8) -> Result<Self, MalformedBlock>;
}

/// A column that is written or read. One list of a record's fields serves both: a writer (`Vec<u8>`) appends each field, and a reader
/// ([`ColumnCursor`]) replaces it with the value in the column. A field that is as expected takes no bytes.
pub(super) trait FieldTransfer {
    /// Writes or reads an optional number, stored as its difference from the expected one. Only a field that `differs` from that has bytes
    /// in the column.
    fn write_or_read_optional(
        &mut self,
        differs: bool,
        field: &mut Option<u32>,
        expected: Option<u32>,
    ) -> Result<(), MalformedBlock>;
    /// Writes or reads a number, stored as it is if it `differs` from the expected one.
    fn write_or_read_number(&mut self, differs: bool, field: &mut u32, expected: u32) -> Result<(), MalformedBlock>;
    /// Writes or reads the value of an enum, stored as its code if it `differs` from the expected one.
    fn write_or_read_code<T: EnumCode>(
        &mut self,
        differs: bool,
        field: &mut T,
        expected: T,
    ) -> Result<(), MalformedBlock>;
}

/// The writer. Never fails, and changes no field.
impl FieldTransfer for Vec<u8> {
    /// Appends the distance from the expected value if the field `differs` from it.
    fn write_or_read_optional(
        &mut self,
        differs: bool,
        field: &mut Option<u32>,
        expected: Option<u32>,
    ) -> Result<(), MalformedBlock> {
        if differs {
            // Values near the expected one are short.
            let distance = field.map(|value| i64::from(value) - i64::from(expected.unwrap_or(0)));
            self.put_optional(distance.map(zigzag));
        }
        Ok(())
    }

    /// Appends the number if it `differs` from the expected one.
    fn write_or_read_number(&mut self, differs: bool, field: &mut u32, _: u32) -> Result<(), MalformedBlock> {
        if differs {
            self.put_number((*field).into());
        }
        Ok(())
    }

    /// Appends the code if the value `differs` from the expected one.
    fn write_or_read_code<T: EnumCode>(&mut self, differs: bool, field: &mut T, _: T) -> Result<(), MalformedBlock> {
        if differs {
            self.push(field.to_code());
        }
        Ok(())
    }
}

/// The reader. Fails where the column ends too early or holds a value that no writer produces.
impl FieldTransfer for ColumnCursor<'_> {
    /// Sets the field to the expected value. If it `differs`, reads the field instead, as a distance from the expected value.
    fn write_or_read_optional(
        &mut self,
        differs: bool,
        field: &mut Option<u32>,
        expected: Option<u32>,
    ) -> Result<(), MalformedBlock> {
        *field = expected;
        if !differs {
            return Ok(());
        }
        let Some(distance) = self.read_optional()? else {
            *field = None;
            return Ok(());
        };
        let number = i64::from(expected.unwrap_or(0)).checked_add(unzigzag(distance)).ok_or(COUNT_TOO_LARGE)?;
        *field = Some(u32::try_from(number).map_err(|_| COUNT_TOO_LARGE)?);
        Ok(())
    }

    /// Sets the field to the expected number, or to that in the column if it `differs`.
    fn write_or_read_number(&mut self, differs: bool, field: &mut u32, expected: u32) -> Result<(), MalformedBlock> {
        *field = if differs { self.read_u32()? } else { expected };
        Ok(())
    }

    /// Sets the field to the expected value, or to that in the column if it `differs`.
    fn write_or_read_code<T: EnumCode>(
        &mut self,
        differs: bool,
        field: &mut T,
        expected: T,
    ) -> Result<(), MalformedBlock> {
        *field = if differs { T::from_code(self.read_byte()?)? } else { expected };
        Ok(())
    }
}

/// Maps numbers near 0 to small ones: 0, -1, 1, -2 to 0, 1, 2, 3.
pub(super) fn zigzag(value: i64) -> u64 {
    // The sign moves to the lowest bit. The shift by 63 gives 0, or all ones for a negative number.
    ((value << 1) ^ (value >> 63)) as u64
}

/// Inverse of [`zigzag`].
pub(super) fn unzigzag(value: u64) -> i64 {
    // The lowest bit is the sign. Its negation gives 0, or all ones for a negative number.
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(number: u64, signed: i64, maybe: Option<u64>, near: Option<u32>, expected: Option<u32>) {
        let mut column = Vec::new();
        column.put_number(number);
        column.put_signed(signed);
        column.put_optional(maybe);
        column.write_or_read_optional(true, &mut { near }, expected).expect("it is written");
        let (mut cursor, mut read) = (ColumnCursor::new(&column), None);
        assert_eq!(cursor.read_number(), Ok(number));
        assert_eq!(cursor.read_signed(), Ok(signed));
        assert_eq!(cursor.read_optional(), Ok(maybe));
        assert_eq!(cursor.write_or_read_optional(true, &mut read, expected), Ok(()));
        assert!(read == near && cursor.is_empty());
    }

    proptest! {
        #[test]
        fn numbers_round_trip(number: u64, signed: i64, maybe: Option<u64>, near: Option<u32>, expected: Option<u32>) {
            round_trip(number, signed, maybe, near, expected);
        }

        #[test]
        fn any_bytes_decode_or_are_rejected(bytes in prop::collection::vec(any::<u8>(), 0..30)) {
            let mut cursor = ColumnCursor::new(&bytes);
            while cursor.read_number().is_ok() && cursor.read_optional().is_ok() && cursor.write_or_read_optional(true, &mut None, Some(7)).is_ok() {}
        }
    }

    #[test]
    fn the_largest_numbers_round_trip() {
        round_trip(u64::MAX, i64::MIN, Some(u64::MAX), Some(u32::MAX), Some(0));
        round_trip(0, i64::MAX, Some(u64::MAX - 1), Some(0), Some(u32::MAX));
    }
}
