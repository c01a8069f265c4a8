//! Lengths of repeated byte patterns, compared many bytes at a time.

/// Number of 8-byte words from `at` on that equal `pattern` under `mask`. Long runs of one short value make up most of a frame.
pub(super) fn words(b: &[u8], at: usize, mask: u64, pattern: u64) -> usize {
    let words = b[at..].as_chunks().0;
    let other = |bits, word: &[u8; 8]| bits | (u64::from_le_bytes(*word) ^ pattern) & mask;
    let all = |words: &&[[u8; 8]; 4]| words.iter().fold(0, other) == 0;
    let most = 4 * words.as_chunks().0.iter().take_while(all).count();
    most + words[most..].iter().take_while(|word| other(0, word) == 0).count()
}

/// Number of immediate repetitions of the `N` bytes at `at`: as long as each byte equals the one `N` further on.
pub(super) fn repeats<const N: usize>(b: &[u8], at: usize) -> usize {
    match (b.get(at..), b.get(at + N..)) {
        (Some(these), Some(those)) => common(these, those) / N,
        _ => 0,
    }
}

/// Length of the common prefix of two slices.
fn common(these: &[u8], those: &[u8]) -> usize {
    let blocks = these.as_chunks::<32>().0.iter().zip(those.as_chunks::<32>().0);
    let mut at = 32 * blocks.take_while(|(this, that)| this == that).count();
    let words = these[at..].as_chunks().0.iter().zip(those[at..].as_chunks().0);
    for (this, that) in words {
        let other = u64::from_le_bytes(*this) ^ u64::from_le_bytes(*that);
        if other != 0 {
            return at + (other.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    let bytes = these[at..].iter().zip(&those[at..]);
    at + bytes.take_while(|(this, that)| this == that).count()
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
