//! Compact fingerprint of a frame, kept for every frame in flight.

/// Number of bytes compared at each end of a frame when one side copied only a part. Successive frames of one batch begin with the same
/// rids and end with counts that differ. Frames of two ranks differ in their rids, which follow the names of a dozen columns.
const END_BYTES: usize = 2048;

/// Length and content hashes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    length_bytes: u64,
    /// Hash of the first and the last [`END_BYTES`] bytes, or of all bytes if there are fewer; `None` when less was copied.
    ends: Option<u64>,
    /// Hash of all bytes; `None` when not all were copied.
    whole: Option<u64>,
}

/// How far two fingerprints agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Agreement {
    /// The frames differ.
    No,
    /// Same length, and too few bytes on one side to compare.
    Length,
    /// Same length, same first and last bytes.
    Ends,
    /// Same length, same bytes.
    Whole,
}

impl Fingerprint {
    /// Fingerprint of a frame of `length_bytes` bytes. `payload` is the whole frame, or its first and last bytes, equally many of each. The
    /// ends of a frame are its first and last [`END_BYTES`] bytes. They have a hash of their own, because the other side may have copied
    /// only the ends.
    pub(super) fn of_frame(length_bytes: u64, payload: &[u8]) -> Self {
        let is_whole = payload.len() as u64 == length_bytes;
        let is_covered_by_ends = payload.len() <= 2 * END_BYTES;
        if is_whole && is_covered_by_ends {
            // Both sides copy all of such a short frame, so one hash serves for both.
            let whole = Some(hash_bytes(payload));
            return Self { length_bytes, ends: whole, whole };
        }
        let whole = is_whole.then(|| hash_bytes(payload));
        // With fewer bytes, the hash would not be comparable with that of the other side.
        let ends = (payload.len() >= 2 * END_BYTES).then(|| hash_ends(payload));
        Self { length_bytes, ends, whole }
    }

    /// How far the observations of a sent and a received frame agree: in the whole content, in the ends, or in the length alone. A hash is
    /// compared only if both sides copied enough bytes for it.
    pub(super) fn agreement_with(&self, other: &Self) -> Agreement {
        if self.length_bytes != other.length_bytes {
            return Agreement::No;
        }
        // The hashes of the whole content decide if both are known, because the ends are a part of it.
        if let (Some(whole), Some(other_whole)) = (self.whole, other.whole) {
            return if whole == other_whole { Agreement::Whole } else { Agreement::No };
        }
        if let (Some(ends), Some(other_ends)) = (self.ends, other.ends) {
            return if ends == other_ends { Agreement::Ends } else { Agreement::No };
        }
        Agreement::Length
    }
}

/// Hash of the first and the last [`END_BYTES`] bytes.
fn hash_ends(bytes: &[u8]) -> u64 {
    let first = hash_bytes(&bytes[..END_BYTES]);
    let last = hash_bytes(&bytes[bytes.len() - END_BYTES..]);
    // Rotated, so that equal ends do not cancel out.
    first.rotate_left(32) ^ last
}

/// A fast 64-bit hash in four lanes, limited by memory bandwidth. It does not resist crafted collisions.
fn hash_bytes(bytes: &[u8]) -> u64 {
    // The lanes do not depend on each other, so the CPU works on all four at a time. They begin differently, so that exchanged words change
    // the result.
    let mut lanes = [1, 2, 3, bytes.len() as u64];
    // A block has a word of eight bytes for each lane.
    let mut blocks = bytes.chunks_exact(32);
    for block in &mut blocks {
        for (lane, chunk) in lanes.iter_mut().zip(block.chunks_exact(8)) {
            *lane = mix_word(*lane, padded_word(chunk));
        }
    }
    let mut state = lanes.into_iter().fold(0, mix_word);
    for chunk in blocks.remainder().chunks(8) {
        state = mix_word(state, padded_word(chunk));
    }
    // A multiplication mixes upwards only; this brings the high bits down.
    state ^ (state >> 29)
}

/// The bytes as a number, filled up with zeros.
fn padded_word(chunk: &[u8]) -> u64 {
    let mut padded = [0; 8];
    padded[..chunk.len()].copy_from_slice(chunk);
    u64::from_ne_bytes(padded)
}

/// Next state of the hash, after this word.
fn mix_word(state: u64, word: u64) -> u64 {
    // 2^64 divided by the golden ratio: an odd number without a pattern in its bits.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    // The rotation brings high bits down, because the multiplication mixes upwards only.
    (state.rotate_left(23) ^ word).wrapping_mul(FACTOR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes that the probe copies of a frame with a capture limit of `to` bytes.
    fn cut(frame: &[u8], to: usize) -> Vec<u8> {
        [&frame[..to / 2], &frame[frame.len() - to / 2..]].concat()
    }

    #[test]
    fn compares_only_bytes_that_both_sides_have() {
        let frame: Vec<u8> = (0..20_000_u32).map(|i| (i % 251) as u8).collect();
        let whole = Fingerprint::of_frame(20_000, &frame);
        let of = |frame: &[u8], to| Fingerprint::of_frame(20_000, &cut(frame, to));
        assert_eq!(whole.agreement_with(&whole), Agreement::Whole);
        assert_eq!(whole.agreement_with(&of(&frame, 9_000)), Agreement::Ends);
        assert_eq!(of(&frame, 4_096).agreement_with(&of(&frame, 9_000)), Agreement::Ends);
        assert_eq!(whole.agreement_with(&of(&frame, 100)), Agreement::Length);
        assert_eq!(whole.agreement_with(&Fingerprint::of_frame(20_001, &frame)), Agreement::No);
        let (mut middle, mut end) = (frame.clone(), frame.clone());
        middle[10_000] ^= 1;
        assert_eq!(whole.agreement_with(&Fingerprint::of_frame(20_000, &middle)), Agreement::No);
        assert_eq!(whole.agreement_with(&of(&middle, 9_000)), Agreement::Ends);
        end[19_999] ^= 1;
        assert_eq!(whole.agreement_with(&of(&end, 4_096)), Agreement::No);
    }

    #[test]
    fn an_empty_frame_matches_completely() {
        assert_eq!(Fingerprint::of_frame(0, &[]).agreement_with(&Fingerprint::of_frame(0, &[])), Agreement::Whole);
        assert_eq!(Fingerprint::of_frame(9, &[]).agreement_with(&Fingerprint::of_frame(9, &[])), Agreement::Length);
    }

    proptest! {
        #[test]
        fn one_changed_byte_is_another_frame(frame in prop::collection::vec(any::<u8>(), 1..9000), at: prop::sample::Index, by in 1..=255_u8) {
            let mut other = frame.clone();
            *at.get_mut(&mut other) ^= by;
            let of = |f: &[u8]| Fingerprint::of_frame(f.len() as u64, f);
            prop_assert_eq!(of(&frame).agreement_with(&of(&other)), Agreement::No);
        }
    }
}
