//! Columns of a block: values of one kind are stored together, so that zstd finds repetitions.

use super::bytes::{ColumnCursor, MalformedBlock, PutNumber};

macro_rules! columns {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// One `T` per column: bytes to write, or a cursor over bytes to read. The order is part of the format: new columns
        /// are added at the end. A reader ignores unknown columns and treats missing ones as empty.
        #[derive(Debug, Default)]
        pub(in crate) struct BlockColumns<T> {
            $($(#[$doc])* pub(super) $name: T,)*
        }

        impl<T> BlockColumns<T> {
            /// All columns, in the order of the format.
            fn all(&self) -> [&T; [$(stringify!($name)),*].len()] {
                [$(&self.$name),*]
            }

            /// The same, to be changed.
            fn all_mut(&mut self) -> [&mut T; [$(stringify!($name)),*].len()] {
                [$(&mut self.$name),*]
            }
        }
    };
}

columns! {
    /// Kind of each record, with flags.
    op,
    /// Time, as the difference from the previous record.
    time,
    /// Lane, if it is not the stage's last one. A new lane has its hop and number.
    lane,
    /// Frame number, as the difference from the lane's expected next one.
    seq,
    /// Kind of a frame and the meaning of its ids.
    form,
    /// Length of a frame, as the difference from the lane's previous one.
    bytes,
    /// Number of chunks of a frame, as the difference from the lane's previous one.
    count,
    /// Requests of chunks: lengths of runs in the predicted order, and the exceptions between them.
    requests,
    /// Lengths of runs of chunks as predicted, and flags of the mispredicted fields between them.
    chunk_flags,
    completion,
    listed,
    prompt,
    cached,
    retractions,
    finish,
    worker,
    /// Number of ids, as the difference from those listed.
    id_count,
    ids,
    wakeup,
    /// Thread that received a frame, as a code and, if it is not the lane's last one, its ids.
    receiver,
    /// Mispredicted fields of deliveries.
    delivery,
    /// Records of all other kinds, each after its length.
    rare,
    /// Standing data (engine and hops) for readers that start at this block, in the form of `rare`.
    standing,
    /// Forms and lengths of texts, in order of first use.
    text,
    /// Texts of hexadecimal digits, as bytes.
    hex,
    /// All other texts.
    plain,
    /// Time of forwarding of a sent frame, as the difference from the send.
    forwarded,
}

impl BlockColumns<Vec<u8>> {
    /// Empties all columns, which keep their memory.
    pub(super) fn clear(&mut self) {
        self.all_mut().into_iter().for_each(Vec::clear);
    }

    /// Total length of all columns, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.all().into_iter().map(Vec::len).sum()
    }

    /// Appends all columns: their number, their lengths, their bytes.
    pub(crate) fn write_to(&self, out: &mut Vec<u8>) {
        let all = self.all();
        out.put_number(all.len() as u64);
        for column in all {
            out.put_number(column.len() as u64);
        }
        for column in all {
            out.extend_from_slice(column);
        }
    }
}

impl<'a> BlockColumns<ColumnCursor<'a>> {
    /// Finds the columns of a block in its bytes: their number, then their lengths, then their content. Ignores columns that this version
    /// does not know; missing ones are empty.
    pub(crate) fn from_bytes(bytes: &'a [u8]) -> Result<Self, MalformedBlock> {
        let mut lengths = ColumnCursor::new(bytes);
        let stored_count = lengths.read_number()?;
        // Each length takes at least one byte, so a damaged count is found before the loop below.
        if stored_count > bytes.len() as u64 {
            return Err(MalformedBlock("more columns than bytes"));
        }
        // The lengths of all columns come first, then their contents. So a second cursor skips the lengths.
        let mut contents = lengths;
        for _ in 0..stored_count {
            contents.read_number()?;
        }
        let mut columns = Self::default();
        // Later versions append columns, so the ones that this version knows are the first.
        for column in columns.all_mut().into_iter().take(stored_count as usize) {
            let length = lengths.read_number()?;
            let column_bytes = contents.read_bytes(length as usize)?;
            *column = ColumnCursor::new(column_bytes);
        }
        Ok(columns)
    }
}
