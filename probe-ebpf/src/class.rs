//! Size classes of the ring buffer's records. A reservation needs a constant size, so each record uses the smallest class
//! that holds its copied bytes. The unused rest only costs space in the ring.

/// Payload bytes of each class, ascending. A record without payload uses an unlisted class of 0 bytes.
pub const CLASSES: [usize; 8] = [192, 960, 4096, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Maximum number of bytes copied from a message: the size of the largest class.
pub const MAX_CAPTURE: u32 = CLASSES[CLASSES.len() - 1] as u32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_ascend_and_are_word_multiples() {
        assert!(CLASSES.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(CLASSES.iter().all(|class| class % 8 == 0));
    }
}
