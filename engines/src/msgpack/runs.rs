//! Lengths of repeated byte patterns, compared many bytes at a time.

/// Number of 8-byte words from `at` on that equal `pattern` under `mask`. Long runs of one short value make up most of a frame.
pub(crate) fn words(b: &[u8], at: usize, mask: u64, pattern: u64) -> usize {
    let words = b[at..].as_chunks().0;
    let difference = |bits, word: &[u8; 8]| bits | (u64::from_le_bytes(*word) ^ pattern) & mask;
    let all = |words: &&[[u8; 8]; 4]| words.iter().fold(0, difference) == 0;
    let aligned = 4 * words.as_chunks().0.iter().take_while(all).count();
    aligned + words[aligned..].iter().take_while(|word| difference(0, word) == 0).count()
}

/// Number of immediate repetitions of the `N` bytes at `at`: as long as each byte equals the one `N` further on.
pub(crate) fn repeats<const N: usize>(b: &[u8], at: usize) -> usize {
    match (b.get(at..), b.get(at + N..)) {
        (Some(left), Some(right)) => common(left, right) / N,
        _ => 0,
    }
}

/// Length of the common prefix of two slices.
fn common(left: &[u8], right: &[u8]) -> usize {
    let blocks = left.as_chunks::<32>().0.iter().zip(right.as_chunks::<32>().0);
    let mut at = 32 * blocks.take_while(|(a, b)| a == b).count();
    let words = left[at..].as_chunks().0.iter().zip(right[at..].as_chunks().0);
    for (a, b) in words {
        let difference = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if difference != 0 {
            return at + (difference.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    let bytes = left[at..].iter().zip(&right[at..]);
    at + bytes.take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slowly<const N: usize>(b: &[u8]) -> usize {
        let groups = b.as_chunks::<N>().0.iter();
        groups.skip(1).take_while(|next| **next == b[..N]).count()
    }

    proptest! {
        /// Compares `repeats` with counting group by group.
        #[test]
        fn repeats_are_counted(bytes in prop::collection::vec(0..2u8, 0..9), times in 1..60usize, tail in any::<u8>()) {
            let all = [bytes.repeat(times), vec![tail]].concat();
            prop_assert_eq!(repeats::<1>(&all, 0), slowly::<1>(&all));
            prop_assert_eq!(repeats::<2>(&all, 0), slowly::<2>(&all));
            prop_assert_eq!(repeats::<5>(&all, 0), slowly::<5>(&all));
            prop_assert_eq!(repeats::<11>(&all, 0), slowly::<11>(&all));
        }

        /// Compares `words` with counting word by word.
        #[test]
        fn words_are_counted(bytes in prop::collection::vec(0..3u8, 0..200), mask in any::<u64>()) {
            let slowly = bytes.as_chunks::<8>().0.iter().take_while(|word| u64::from_le_bytes(**word) & mask == 0).count();
            prop_assert_eq!(words(&bytes, 0, mask, 0), slowly);
        }
    }
}
