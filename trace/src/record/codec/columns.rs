//! The columns of a block: values of one kind stand beside each other, so that zstd finds what repeats.

use super::bytes::{Cursor, Malformed, Put};

macro_rules! columns {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// One `T` a column: bytes being written, or a cursor over bytes being read. Their order is the format's: new columns
        /// are added at the end, and a reader takes one it does not know for nothing and one that is not there for empty.
        #[derive(Debug, Default)]
        pub(in crate::record) struct Columns<T> {
            $($(#[$doc])* pub(super) $name: T,)*
        }

        impl<T> Columns<T> {
            fn all(&self) -> [&T; [$(stringify!($name)),*].len()] {
                [$(&self.$name),*]
            }

            fn all_mut(&mut self) -> [&mut T; [$(stringify!($name)),*].len()] {
                [$(&mut self.$name),*]
            }
        }
    };
}

columns! {
    /// What each record is, with flags.
    op,
    /// When, as a distance from the record before.
    time,
    /// Which lane, where it is not the stage's last; a new one with its hop and number.
    lane,
    /// The frame's number, as a distance from the lane's next.
    seq,
    /// A frame's kind and what its ids are.
    form,
    /// A frame's length, as a distance from the lane's last.
    bytes,
    /// A frame's number of chunks, likewise.
    count,
    /// Whose chunks: runs of requests that follow each other as they did before, and what breaks them.
    whose,
    /// Chunks as expected: their runs, and for each other one which of its fields are not.
    shape,
    completion,
    listed,
    prompt,
    cached,
    retractions,
    finish,
    worker,
    /// How many ids, as a distance from those listed.
    id_count,
    ids,
    wakeup,
    by,
    /// Deliveries that are not as expected.
    delivery,
    /// Records of all other kinds, each with its length.
    rare,
    /// What the source has said that still stands, for readers who begin here; in the form of `rare`.
    standing,
    /// Forms and lengths of texts, in the order of their first use.
    text,
    /// Texts of hexadecimal digits, as bytes.
    hex,
    /// All other texts.
    plain,
}

impl Columns<Vec<u8>> {
    pub(super) fn clear(&mut self) {
        self.all_mut().into_iter().for_each(Vec::clear);
    }

    /// Bytes in all columns.
    pub(in crate::record) fn len(&self) -> usize {
        self.all().into_iter().map(Vec::len).sum()
    }

    /// Appends all columns: how many, their lengths, their bytes.
    pub(in crate::record) fn join(&self, out: &mut Vec<u8>) {
        let all = self.all();
        out.number(all.len() as u64);
        for column in all {
            out.number(column.len() as u64);
        }
        for column in all {
            out.extend_from_slice(column);
        }
    }
}

impl<'a> Columns<Cursor<'a>> {
    pub(in crate::record) fn split(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes);
        let stored = cursor.number()?;
        if stored > bytes.len() as u64 {
            return Err(Malformed("more columns than bytes"));
        }
        let mut lengths = cursor;
        for _ in 0..stored {
            cursor.number()?;
        }
        let mut columns = Self::default();
        let known = columns.all_mut();
        for known in known.into_iter().take(stored as usize) {
            *known = Cursor::new(cursor.bytes(lengths.number()? as usize)?);
        }
        Ok(columns)
    }
}
