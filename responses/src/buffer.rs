//! Bytes of incomplete responses. Their total is limited, because a server decides how many there are at once: thousands of connections,
//! with a thousand responses each.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum memory of all buffers of the program in bytes.
const MAX_TOTAL: usize = 256 << 20;
/// Memory that an empty buffer keeps, so that the next response allocates nothing.
const KEPT_WHEN_EMPTY: usize = 64 << 10;
/// Memory that a buffer has regardless of the limit, for prefixes of messages.
const ALWAYS_GRANTED: usize = 64;

static TOTAL: MemoryBudget = MemoryBudget { used_bytes: AtomicUsize::new(0) };

/// Memory that is in use.
struct MemoryBudget {
    used_bytes: AtomicUsize,
}

/// The limit of all buffers is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

impl MemoryBudget {
    /// Counts `bytes` as used. Fails, and counts nothing, if more than `limit` bytes would then be in use.
    fn reserve(&self, bytes: usize, limit: usize) -> Result<(), Full> {
        // Added before the test, because other threads reserve at the same time.
        let used_before = self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        if used_before.saturating_add(bytes) <= limit {
            return Ok(());
        }
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        Err(Full)
    }
}

/// Bytes that count towards the limit.
#[derive(Debug, Default)]
pub(super) struct BoundedBuffer {
    kept: Vec<u8>,
}

impl BoundedBuffer {
    /// Appends bytes. On an error, nothing is appended.
    pub(super) fn extend(&mut self, bytes: &[u8]) -> Result<(), Full> {
        let needed = self.kept.len() + bytes.len();
        if needed > self.kept.capacity() {
            // Doubled, so that a body that arrives in small pieces is copied few times.
            self.grow_to(needed.max(self.kept.capacity() * 2))?;
        }
        self.kept.extend_from_slice(bytes);
        Ok(())
    }

    /// Allocates memory for `capacity` bytes, which is above the present capacity. Fails, and changes nothing, at the limit of all buffers.
    fn grow_to(&mut self, capacity: usize) -> Result<(), Full> {
        let capacity_before = self.kept.capacity();
        // Small buffers are granted even at the limit, so that prefixes of messages can be kept.
        let limit = if capacity <= ALWAYS_GRANTED { usize::MAX } else { MAX_TOTAL };
        TOTAL.reserve(capacity - capacity_before, limit)?;
        // The argument counts from the length on.
        self.kept.reserve_exact(capacity - self.kept.len());
        // An allocator may give more than it was asked for.
        TOTAL.used_bytes.fetch_add(self.kept.capacity() - capacity, Ordering::Relaxed);
        Ok(())
    }

    /// Empties the buffer. A large one gives its memory back.
    pub(super) fn clear(&mut self) {
        if self.kept.capacity() > KEPT_WHEN_EMPTY {
            *self = Self::default();
        } else {
            self.kept.clear();
        }
    }

    /// Removes the first `count` bytes.
    pub(super) fn remove_first(&mut self, count: usize) {
        if count == self.kept.len() {
            self.clear();
        } else {
            self.kept.drain(..count);
        }
    }
}

impl Deref for BoundedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.kept
    }
}

impl Drop for BoundedBuffer {
    /// Counts the memory of the buffer as free.
    fn drop(&mut self) {
        TOTAL.used_bytes.fetch_sub(self.kept.capacity(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_taken_beyond_the_limit() {
        let budget = MemoryBudget { used_bytes: AtomicUsize::new(90) };
        assert_eq!(
            (budget.reserve(11, 100), budget.reserve(10, 100), budget.reserve(1, 100)),
            (Err(Full), Ok(()), Err(Full))
        );
        assert_eq!(budget.used_bytes.into_inner(), 100);
    }

    #[test]
    fn an_empty_buffer_keeps_little_memory() {
        let mut buffer = BoundedBuffer::default();
        buffer.extend(&vec![7; 2 * KEPT_WHEN_EMPTY]).expect("space");
        buffer.remove_first(2 * KEPT_WHEN_EMPTY - 5);
        assert_eq!(&buffer[..], &[7; 5]);
        buffer.remove_first(5);
        assert_eq!((buffer.len(), buffer.kept.capacity()), (0, 0));
        buffer.extend(&[7; 100]).expect("space");
        buffer.clear();
        assert!(buffer.is_empty() && buffer.kept.capacity() >= 100);
    }
}
