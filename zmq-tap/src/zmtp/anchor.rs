//! Frame headers that can be trusted in a stream entered in its middle: a header directly before a payload that begins like an SGLang
//! message.
//!
//! Probability of a false anchor at one position of random bytes:
//! - pickle 4 and 5 (Python 3.8 and later): flags (2^-7) and `80 04|05 95` (2^-23), then the pickle's own eight-byte frame length. That
//!   length must be the ZMTP length less 11 or, in a large pickle of several frames, lie between 4 and that. Together below 2^-30 for any
//!   frame length;
//! - msgpack: flags (2^-7), array header with a string header (2^-6), and a class name of 8 to 64 characters, a capital followed by
//!   letters, digits or underscores (2^-3.3 and 7 times 2^-2 or less). Together below 2^-30.
//!
//! [`super::seek`] accepts only two anchors where the length of the first leads exactly to the second: 2^-60 per position. Over a tebibyte
//! of random bytes that is one false sync in a million attempts. Payloads are not random, but a payload that deceives the check must hold
//! whole ZMTP frames of such messages back to back: a recording of a stream inside a stream.

use super::greeting::Version;
use super::header;

const MIN_NAME: usize = 8;
const MAX_NAME: usize = 64;
/// Length of `PROTO n`, `FRAME` and the frame length of a pickle.
const PICKLE_HEAD: u64 = 11;

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
pub(super) fn look(bytes: &[u8], longest: u64) -> Verdict {
    let head = match bytes.first() {
        None => return Verdict::More,
        Some(&flags) if !may_begin_with(flags) => return Verdict::No,
        Some(0) => 2,
        Some(_) => header::LONGEST,
    };
    // Rejects nearly all positions with one comparison: no SGLang message begins with another byte.
    if !matches!(bytes.get(head), None | Some(0x80 | 0x91..=0x9f | 0xdc)) {
        return Verdict::No;
    }
    let header = match header::read(bytes, Version::V3 { minor: 1 }) {
        Ok(Some(header)) if header.length <= longest => header,
        Ok(None) => return Verdict::More,
        _ => return Verdict::No,
    };
    let body = &bytes[header.size..];
    let tail = match body.first() {
        None => return Verdict::More,
        Some(0x80) => pickle(body, header.length),
        Some(_) => msgpack(body, header.length),
    };
    match tail {
        Head::No => Verdict::No,
        Head::More => Verdict::More,
        Head::Yes(tail) => Verdict::Yes {
            length: header.size as u64 + header.length,
            tail,
        },
    }
}

enum Head {
    No,
    More,
    Yes(Option<u8>),
}

fn pickle(body: &[u8], length: u64) -> Head {
    match *body {
        [0x80, 4 | 5, 0x95, ref rest @ ..] => match rest.first_chunk::<8>() {
            None => Head::More,
            Some(&frame) => {
                let frame = u64::from_le_bytes(frame);
                // A pickler ends a frame at 64 KiB, or earlier when it writes a large object outside of any frame.
                let whole = length.checked_sub(PICKLE_HEAD);
                let fits = whole.is_some_and(|whole| frame == whole || (frame >= 4 && frame < whole && whole > 65_536));
                if fits { Head::Yes(Some(b'.')) } else { Head::No }
            }
        },
        [0x80] | [0x80, 4 | 5] => Head::More,
        _ => Head::No,
    }
}

fn msgpack(body: &[u8], length: u64) -> Head {
    let string = match *body {
        [0x91..=0x9f, ref rest @ ..] | [0xdc, _, _, ref rest @ ..] => rest,
        [0xdc, ..] => return Head::More,
        _ => return Head::No,
    };
    let (name_length, name) = match *string {
        [head @ 0xa0..=0xbf, ref rest @ ..] => (usize::from(head & 0x1f), rest),
        [0xd9, length, ref rest @ ..] => (usize::from(length), rest),
        [] | [0xd9] => return Head::More,
        _ => return Head::No,
    };
    if !(MIN_NAME..=MAX_NAME).contains(&name_length) || (name_length as u64) >= length {
        return Head::No;
    }
    let name = &name[..name.len().min(name_length)];
    let sound = name.iter().enumerate().all(|(at, byte)| match at {
        0 => byte.is_ascii_uppercase(),
        _ => byte.is_ascii_alphanumeric() || *byte == b'_',
    });
    match (sound, name.len() == name_length) {
        (false, _) => Head::No,
        (true, false) => Head::More,
        (true, true) => Head::Yes(None),
    }
}
