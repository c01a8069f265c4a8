//! Compact fingerprint of a frame, kept for every frame in flight.

/// Number of bytes compared at each end of a frame when one side copied only a part. Successive frames of one batch begin with the same
/// rids and end with counts that differ. Frames of two ranks differ in their rids, which follow the names of a dozen columns.
const END: usize = 2048;

/// Length and content hashes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    bytes: u64,
    /// Hash of the first and the last [`END`] bytes, or of all bytes if there are fewer; `None` when less was copied.
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
    /// Fingerprint of a frame of `bytes` bytes. `payload` is the whole frame, or equally many first and last bytes of it.
    pub(super) fn of(bytes: u64, payload: &[u8]) -> Self {
        let all = payload.len() as u64 == bytes;
        if all && payload.len() <= 2 * END {
            let whole = Some(hash(payload));
            return Self { bytes, ends: whole, whole };
        }
        let ends = || hash(&payload[..END]).rotate_left(32) ^ hash(&payload[payload.len() - END..]);
        Self { bytes, ends: (payload.len() >= 2 * END).then(ends), whole: all.then(|| hash(payload)) }
    }

    pub(super) fn agrees(&self, other: &Self) -> Agreement {
        let same = |a: Option<u64>, b: Option<u64>| a.zip(b).map(|(a, b)| a == b);
        match (self.bytes == other.bytes, same(self.whole, other.whole), same(self.ends, other.ends)) {
            (false, ..) | (_, Some(false), _) | (_, _, Some(false)) => Agreement::No,
            (_, Some(true), _) => Agreement::Whole,
            (_, _, Some(true)) => Agreement::Ends,
            _ => Agreement::Length,
        }
    }
}

/// A fast 64-bit hash in four lanes, limited by memory bandwidth. It does not resist crafted collisions.
fn hash(bytes: &[u8]) -> u64 {
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    let word = |chunk: &[u8]| {
        let mut padded = [0; 8];
        padded[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(padded)
    };
    let mix = |state: u64, word: u64| (state.rotate_left(23) ^ word).wrapping_mul(MIX);
    let mut lanes = [1, 2, 3, bytes.len() as u64];
    let mut blocks = bytes.chunks_exact(32);
    for block in &mut blocks {
        for (lane, chunk) in lanes.iter_mut().zip(block.chunks_exact(8)) {
            *lane = mix(*lane, word(chunk));
        }
    }
    let folded = lanes.into_iter().fold(0, mix);
    let rest = blocks.remainder().chunks(8).fold(folded, |state, chunk| mix(state, word(chunk)));
    rest ^ rest >> 29
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
        let whole = Fingerprint::of(20_000, &frame);
        let of = |frame: &[u8], to| Fingerprint::of(20_000, &cut(frame, to));
        assert_eq!(whole.agrees(&whole), Agreement::Whole);
        assert_eq!(whole.agrees(&of(&frame, 9_000)), Agreement::Ends);
        assert_eq!(of(&frame, 4_096).agrees(&of(&frame, 9_000)), Agreement::Ends);
        assert_eq!(whole.agrees(&of(&frame, 100)), Agreement::Length);
        assert_eq!(whole.agrees(&Fingerprint::of(20_001, &frame)), Agreement::No);
        let (mut middle, mut end) = (frame.clone(), frame.clone());
        middle[10_000] ^= 1;
        assert_eq!(whole.agrees(&Fingerprint::of(20_000, &middle)), Agreement::No);
        assert_eq!(whole.agrees(&of(&middle, 9_000)), Agreement::Ends);
        end[19_999] ^= 1;
        assert_eq!(whole.agrees(&of(&end, 4_096)), Agreement::No);
    }

    #[test]
    fn an_empty_frame_matches_completely() {
        assert_eq!(Fingerprint::of(0, &[]).agrees(&Fingerprint::of(0, &[])), Agreement::Whole);
        assert_eq!(Fingerprint::of(9, &[]).agrees(&Fingerprint::of(9, &[])), Agreement::Length);
    }

    proptest! {
        #[test]
        fn one_changed_byte_is_another_frame(frame in prop::collection::vec(any::<u8>(), 1..9000), at: prop::sample::Index, by in 1..=255_u8) {
            let mut other = frame.clone();
            *at.get_mut(&mut other) ^= by;
            let of = |f: &[u8]| Fingerprint::of(f.len() as u64, f);
            prop_assert_eq!(of(&frame).agrees(&of(&other)), Agreement::No);
        }
    }
}
