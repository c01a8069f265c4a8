//! Frame headers that can be trusted in a stream that is joined midway. An anchor is a header directly before a payload that begins like a
//! message of a known engine. At one position of random bytes, a false anchor must be less likely than 2^-30, of which the header's flags
//! give 2^-7.
//!
//! [`super::seek`] accepts only two anchors where the length of the first leads exactly to the second: 2^-60 per position. Over a tebibyte
//! of random bytes that is one false sync in a million attempts. Payloads are not random, but a payload that deceives the check must hold
//! whole ZMTP frames of such messages back to back: a recording of a stream inside a stream.

use super::greeting::Version;
use super::header;
use crate::decode::{Format, Opening};

/// Whether a message frame begins at the tested position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// No frame begins here.
    No,
    /// Too few bytes to tell.
    More,
    /// A frame begins here.
    Yes {
        /// Distance from the first byte of the header to the first byte after the body.
        length: u64,
        /// Required last byte of the body, if the codec defines one.
        tail: Option<u8>,
    },
}

/// Whether an anchor may begin with this byte: only single-part messages, with flags 0 (short) or 2 (long).
pub(super) fn may_begin_with(flags: u8) -> bool {
    flags & !2 == 0
}

/// Tests for an anchor at the front of `bytes`. Bodies longer than `longest` are rejected.
pub(super) fn test(bytes: &[u8], longest: u64, formats: &[Format]) -> Verdict {
    let head = match bytes.first() {
        None => return Verdict::More,
        Some(&flags) if !may_begin_with(flags) => return Verdict::No,
        Some(0) => 2,
        Some(_) => header::LONGEST,
    };
    // Rejects nearly all positions by one byte.
    if let Some(&first) = bytes.get(head)
        && !formats.iter().any(|format| (format.may_begin_with)(first))
    {
        return Verdict::No;
    }
    let header = match header::read(bytes, Version::V3 { minor: 1 }) {
        Ok(Some(header)) if header.length <= longest => header,
        Ok(None) => return Verdict::More,
        _ => return Verdict::No,
    };
    let body = &bytes[header.size..];
    let mut verdict = Verdict::No;
    for format in formats {
        match (format.opening)(body, header.length) {
            Opening::No => {}
            Opening::More => verdict = Verdict::More,
            Opening::Yes(tail) => {
                return Verdict::Yes { length: header.size as u64 + header.length, tail };
            }
        }
    }
    verdict
}
