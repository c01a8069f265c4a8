//! What a frame looks like, small enough to keep for every frame on its way.

/// Frames are told apart by so many first bytes and as many last ones when one of the two sides copied no more: successive
/// frames of one batch begin with the same rids, and end with the counts that differ.
const END: usize = 512;

/// Length and content of a frame, as far as it was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    bytes: u64,
    /// Hash of the first and the last [`END`] bytes, or of all if there are fewer; `None` when fewer than that were copied.
    ends: Option<u64>,
    /// Hash of all bytes; `None` when not all were copied.
    whole: Option<u64>,
}

/// How far two fingerprints agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Agreement {
    /// They are of different frames.
    No,
    /// Same length, nothing to compare: one side copied too little.
    Length,
    /// Same length, same first and last bytes.
    Ends,
    /// Same in every byte.
    Whole,
}

impl Fingerprint {
    /// Of a frame of `bytes` bytes of which `payload` was copied: all of them, or as many first ones as last ones.
    pub(super) fn of(bytes: u64, payload: &[u8]) -> Self {
        let all = payload.len() as u64 == bytes;
        if all && payload.len() <= 2 * END {
            let whole = Some(hash(payload));
            return Self {
                bytes,
                ends: whole,
                whole,
            };
        }
        let ends = || hash(&payload[..END]).rotate_left(32) ^ hash(&payload[payload.len() - END..]);
        Self {
            bytes,
            ends: (payload.len() >= 2 * END).then(ends),
            whole: all.then(|| hash(payload)),
        }
    }

    pub(super) fn agrees(&self, other: &Self) -> Agreement {
        let same = |a: Option<u64>, b: Option<u64>| a.zip(b).map(|(a, b)| a == b);
        match (
            self.bytes == other.bytes,
            same(self.whole, other.whole),
            same(self.ends, other.ends),
        ) {
            (false, ..) | (_, Some(false), _) | (_, _, Some(false)) => Agreement::No,
            (_, Some(true), _) => Agreement::Whole,
            (_, _, Some(true)) => Agreement::Ends,
            _ => Agreement::Length,
        }
    }
}

/// Not for strangers' keys: a fast 64-bit mix in four lanes, which memory bandwidth limits and not the multiplier.
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
    let rest = blocks
        .remainder()
        .chunks(8)
        .fold(folded, |state, chunk| mix(state, word(chunk)));
    rest ^ rest >> 29
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the probe copies of a frame when it is asked for so many bytes.
    fn cut(frame: &[u8], to: usize) -> Vec<u8> {
        [&frame[..to / 2], &frame[frame.len() - to / 2..]].concat()
    }

    #[test]
    fn compares_what_both_sides_have() {
        let frame: Vec<u8> = (0..20_000_u32).map(|i| (i % 251) as u8).collect();
        let whole = Fingerprint::of(20_000, &frame);
        let of = |frame: &[u8], to| Fingerprint::of(20_000, &cut(frame, to));
        assert_eq!(whole.agrees(&whole), Agreement::Whole);
        assert_eq!(whole.agrees(&of(&frame, 9_000)), Agreement::Ends);
        assert_eq!(of(&frame, 1_024).agrees(&of(&frame, 4_096)), Agreement::Ends);
        assert_eq!(whole.agrees(&of(&frame, 100)), Agreement::Length);
        assert_eq!(whole.agrees(&Fingerprint::of(20_001, &frame)), Agreement::No);
        let (mut middle, mut end) = (frame.clone(), frame.clone());
        middle[10_000] ^= 1;
        assert_eq!(whole.agrees(&Fingerprint::of(20_000, &middle)), Agreement::No);
        assert_eq!(whole.agrees(&of(&middle, 9_000)), Agreement::Ends);
        end[19_999] ^= 1;
        assert_eq!(whole.agrees(&of(&end, 1_024)), Agreement::No);
    }

    #[test]
    fn an_empty_frame_is_all_there() {
        assert_eq!(
            Fingerprint::of(0, &[]).agrees(&Fingerprint::of(0, &[])),
            Agreement::Whole
        );
        assert_eq!(
            Fingerprint::of(9, &[]).agrees(&Fingerprint::of(9, &[])),
            Agreement::Length
        );
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
