//! Lengths of repeated byte patterns, compared many bytes at a time.

/// Number of consecutive 8-byte words from `at` on that equal `pattern` in the bits of `mask`. It must be fast, because long runs of one
/// short value make up most of a frame.
pub(crate) fn count_equal_words(bytes: &[u8], at: usize, mask: u64, pattern: u64) -> usize {
    /// Number of words that are compared without a branch for each.
    const BLOCK_WORDS: usize = 4;
    let words: &[[u8; 8]] = bytes[at..].as_chunks().0;
    let blocks = words.as_chunks::<BLOCK_WORDS>().0.iter();
    let equal_blocks = blocks.take_while(|block| {
        // The differences are collected in one word, which stays 0 if all words of the block are equal.
        let differences = block.iter().fold(0, |bits, word| bits | differing_bits(*word, mask, pattern));
        differences == 0
    });
    let words_in_blocks = BLOCK_WORDS * equal_blocks.count();
    // The next block may begin with equal words.
    let rest = words[words_in_blocks..].iter();
    let equal_in_rest = rest.take_while(|word| differing_bits(**word, mask, pattern) == 0).count();
    words_in_blocks + equal_in_rest
}

/// The bits of `mask` in which the word differs from `pattern`.
#[inline]
fn differing_bits(word: [u8; 8], mask: u64, pattern: u64) -> u64 {
    (u64::from_le_bytes(word) ^ pattern) & mask
}

/// Number of times that the `N` bytes at `at` are repeated directly behind themselves. The first time does not count.
pub(crate) fn count_repeats<const N: usize>(bytes: &[u8], at: usize) -> usize {
    // As long as each byte equals the one `N` further on, the bytes repeat. Only complete repetitions count.
    match (bytes.get(at..), bytes.get(at + N..)) {
        (Some(bytes_here), Some(bytes_further_on)) => common_prefix_len(bytes_here, bytes_further_on) / N,
        _ => 0,
    }
}

/// Length of the common prefix of two slices.
fn common_prefix_len(left: &[u8], right: &[u8]) -> usize {
    /// Number of bytes that are compared with vector instructions.
    const BLOCK_BYTES: usize = 32;
    let blocks = left.as_chunks::<BLOCK_BYTES>().0.iter().zip(right.as_chunks::<BLOCK_BYTES>().0);
    let mut equal_bytes = BLOCK_BYTES * blocks.take_while(|(a, b)| a == b).count();
    // Compare the rest in words of eight bytes, without a branch for each byte.
    let words = left[equal_bytes..].as_chunks().0.iter().zip(right[equal_bytes..].as_chunks().0);
    for (a, b) in words {
        let difference = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if difference != 0 {
            // Little endian, so the lowest bits are the first byte.
            return equal_bytes + (difference.trailing_zeros() / 8) as usize;
        }
        equal_bytes += 8;
    }
    // Fewer than eight bytes are left of one of them.
    let bytes = left[equal_bytes..].iter().zip(&right[equal_bytes..]);
    equal_bytes + bytes.take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slowly<const N: usize>(bytes: &[u8]) -> usize {
        let groups = bytes.as_chunks::<N>().0.iter();
        groups.skip(1).take_while(|next| **next == bytes[..N]).count()
    }

    proptest! {
        /// Compares `count_repeats` with counting group by group.
        #[test]
        fn repeats_are_counted(bytes in prop::collection::vec(0..2u8, 0..9), times in 1..60usize, tail in any::<u8>()) {
            let all = [bytes.repeat(times), vec![tail]].concat();
            prop_assert_eq!(count_repeats::<1>(&all, 0), slowly::<1>(&all));
            prop_assert_eq!(count_repeats::<2>(&all, 0), slowly::<2>(&all));
            prop_assert_eq!(count_repeats::<5>(&all, 0), slowly::<5>(&all));
            prop_assert_eq!(count_repeats::<11>(&all, 0), slowly::<11>(&all));
        }

        /// Compares `count_equal_words` with counting word by word.
        #[test]
        fn words_are_counted(bytes in prop::collection::vec(0..3u8, 0..200), mask in any::<u64>()) {
            let slowly = bytes.as_chunks::<8>().0.iter().take_while(|word| u64::from_le_bytes(**word) & mask == 0).count();
            prop_assert_eq!(count_equal_words(&bytes, 0, mask, 0), slowly);
        }
    }
}
