//! Size classes of the ring's records: a ring reservation needs a constant size, so a message takes the smallest class
//! that holds the part of it that is copied. Unused room costs space in the ring and nothing else.

/// Payload bytes of each class, ascending; a class of 0 bytes, not listed, holds a header alone.
pub const CLASSES: [usize; 8] = [192, 960, 4096, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Most bytes of a message that are ever copied: the largest class.
pub const MAX_CAPTURE: u32 = CLASSES[CLASSES.len() - 1] as u32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ascending_and_of_whole_words() {
        assert!(CLASSES.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(CLASSES.iter().all(|class| class % 8 == 0));
    }
}
