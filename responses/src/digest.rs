//! Digests of texts, to compare the text that was sent with the text in responses without keeping either.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

/// Modulus of the hash: a Mersenne prime.
const PRIME: u64 = (1 << 61) - 1;

/// Random base of the hash. It differs from run to run, so a digest cannot confirm a guess of a text elsewhere. It is at least
/// 256, the highest number that stands for a byte.
static BASE: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0) % (PRIME - 256) + 256);

/// Length in bytes and hash of a text. Those of `ab` follow from those of `a` and `b`. Two texts of equal digests differ with a probability
/// of at most their length / 2^61.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Digest {
    len: u64,
    hash: u64,
}

impl Digest {
    /// Polynomial hash of the bytes, and their number.
    pub(crate) fn of_text(text: &str) -> Self {
        let base = *BASE;
        let mut hash = 0;
        for byte in text.bytes() {
            // No byte counts as 0, so that texts of zero bytes differ.
            hash = add_modulo(mul_modulo(hash, base), u64::from(byte) + 1);
        }
        Self { len: text.len() as u64, hash }
    }

    pub(super) fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Length of the text in bytes.
    pub(super) fn len(self) -> u64 {
        self.len
    }

    /// Digest of this text followed by `next`.
    pub(super) fn followed_by(self, next: Self) -> Self {
        // Each byte of `next` multiplies the hash of the bytes before it by the base.
        let shifted_hash = mul_modulo(self.hash, power_of_base(next.len));
        Self { len: self.len + next.len, hash: add_modulo(shifted_hash, next.hash) }
    }
}

/// Shows the length only.
impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

/// Sum modulo the prime 2^61 - 1.
fn add_modulo(a: u64, b: u64) -> u64 {
    // Both are below 2^61, so the sum fits.
    let sum = a + b;
    if sum >= PRIME { sum - PRIME } else { sum }
}

/// Product modulo the prime 2^61 - 1.
fn mul_modulo(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    // 2^61 is 1 modulo this prime, so the upper bits are added to the lower ones.
    add_modulo(product as u64 & PRIME, (product >> 61) as u64)
}

/// The base to the power of `exponent`.
fn power_of_base(mut exponent: u64) -> u64 {
    let mut result = 1;
    // The base to the power of 1, 2, 4, 8 and so on, for each bit of the exponent.
    let mut power = *BASE;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = mul_modulo(result, power);
        }
        power = mul_modulo(power, power);
        exponent >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_digest_of_two_texts_is_the_one_of_both_in_a_row(first in ".*", second in ".*") {
            let both = Digest::of_text(&first).followed_by(Digest::of_text(&second));
            prop_assert_eq!(both, Digest::of_text(&format!("{first}{second}")));
            let swapped = Digest::of_text(&second).followed_by(Digest::of_text(&first));
            prop_assert_eq!(both == swapped, format!("{first}{second}") == format!("{second}{first}"));
        }
    }

    #[test]
    fn equal_lengths_of_different_bytes_differ() {
        assert_ne!(Digest::of_text("\0"), Digest::of_text("\0\0"));
        assert_ne!(Digest::of_text("ab"), Digest::of_text("ba"));
        assert!(Digest::of_text("").is_empty());
    }
}
