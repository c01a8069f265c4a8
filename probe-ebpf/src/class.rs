//! Size classes of the ring's records: a ring reservation needs a constant size, so a message takes the smallest class
//! that holds the part of it that is copied.

/// Payload bytes of each class.
pub const CLASSES: [usize; 8] = [192, 960, 4096, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Most bytes of a message that are ever copied: the largest class.
pub const MAX_CAPTURE: u32 = 1 << 20;

/// Payload bytes of the smallest class that holds `len` bytes; the largest class when none does.
#[inline(always)]
pub fn class_of(len: u32) -> usize {
    let mut i = 0;
    while i < CLASSES.len() - 1 && CLASSES[i] < len as usize {
        i += 1;
    }
    CLASSES[i]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_class_that_holds_it() {
        for pair in CLASSES.windows(2) {
            let (small, next) = (pair[0] as u32, pair[1]);
            assert_eq!(class_of(small), small as usize);
            assert_eq!(class_of(small + 1), next);
        }
        assert_eq!(class_of(0), 192);
        assert_eq!(class_of(MAX_CAPTURE), 1 << 20);
        assert_eq!(class_of(u32::MAX), 1 << 20);
    }
}
