//! The answer of a locator: the probe points of a library, in a bounded number of bytes.

use crate::message::encode_message;
use crate::probe_points::ProbePoints;

/// Maximum length of an error's text.
const MAX_TEXT: usize = 200;
/// Maximum size of an answer.
pub(crate) const ANSWER_BYTES: usize = 1024;

/// The probe points, or why there are none.
pub(crate) type LocatorAnswer = Result<ProbePoints, String>;

/// Encodes an answer. Cuts the reason of a failure to [`MAX_TEXT`] bytes, so that the answer fits into [`ANSWER_BYTES`].
pub(crate) fn answer_to_bytes(answer: LocatorAnswer) -> Vec<u8> {
    let bounded_answer = answer.map_err(|mut why| {
        why.truncate(why.floor_char_boundary(MAX_TEXT));
        why
    });
    encode_message(&bounded_answer)
}

#[cfg(test)]
mod tests {
    use probe_ebpf::{Kept, Register};

    use super::*;
    use crate::message::decode_message;
    use crate::probe_points::{FUNCTIONS, ReceivedPoint, SocketPoint};

    #[test]
    fn the_longest_answer_fits_and_is_read_as_it_was_sent() {
        let socket = Kept::At(Register::Rsp, -128);
        let point = Some(SocketPoint { at: u64::MAX, socket });
        let answer = Ok(ProbePoints {
            functions: [Some(u64::MAX); FUNCTIONS.len()],
            received: Some(ReceivedPoint { at: u64::MAX, socket, message: Kept::In(Register::R12) }),
            refused: point,
            option_request: point,
            waits: point,
            tls_write: Some(u64::MAX),
            method: Some(u64::MAX),
        });
        let bytes = answer_to_bytes(answer.clone());
        assert!(bytes.len() <= ANSWER_BYTES, "{}", bytes.len());
        assert_eq!(decode_message(&bytes), Some(answer));
        assert_eq!(decode_message::<LocatorAnswer>(&bytes[..bytes.len() - 1]), None);
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let cut = answer_to_bytes(Err(format!("{}ä", "x".repeat(MAX_TEXT - 1))));
        assert_eq!(decode_message::<LocatorAnswer>(&cut), Some(Err("x".repeat(MAX_TEXT - 1))));
    }
}
