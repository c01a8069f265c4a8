//! Incremental decoder of HTTP/1.1 chunked transfer coding: RFC 9112, section 7.1.

use super::Unreadable;
use super::framed::take_bytes;

/// Length in bytes of the longest size line, including extensions.
const LONGEST_LINE: usize = 256;
/// Maximum size of the trailers in bytes.
const LONGEST_TRAILER: usize = 16 << 10;

/// Position of the stream within one chunked body.
#[derive(Clone, Debug, Default)]
pub(super) struct ChunkedDecoder {
    state: ChunkedState,
    /// An incomplete line between data.
    line: Vec<u8>,
    /// Number of bytes of the trailers so far.
    trailer_bytes: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ChunkedState {
    #[default]
    Size,
    Data(u64),
    /// The line end after a chunk's data.
    AfterData,
    Trailer,
}

impl ChunkedDecoder {
    /// Removes bytes from `input`, and emits the decoded body piece by piece: the data of its chunks, without the lines with their sizes.
    /// Returns whether the body is complete. Then the rest of `input` does not belong to it.
    pub(super) fn parse(&mut self, input: &mut &[u8], mut emit_data: impl FnMut(&[u8])) -> Result<bool, Unreadable> {
        while !input.is_empty() {
            if let ChunkedState::Data(left) = &mut self.state {
                emit_data(take_bytes(input, left));
                if *left == 0 {
                    self.state = ChunkedState::AfterData;
                }
                continue;
            }
            let is_line_complete = self.read_line(input);
            if !is_line_complete {
                // The input ends within the line, whose rest follows with the next bytes.
                return if self.is_line_too_long() { Err(Unreadable::Chunks) } else { Ok(false) };
            }
            let ends_body = self.interpret_line()?;
            if ends_body {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the line so far is longer than any valid one. A line without an end must not be collected forever.
    #[inline]
    fn is_line_too_long(&self) -> bool {
        let longest_valid = if self.state == ChunkedState::Trailer { LONGEST_TRAILER } else { LONGEST_LINE };
        self.line.len() > longest_valid
    }

    /// Moves bytes of `input` into `line`, up to and including the next line end. Returns false if the input has no line end.
    fn read_line(&mut self, input: &mut &[u8]) -> bool {
        let line_end = memchr::memchr(b'\n', input);
        let (part_of_line, rest) = input.split_at(line_end.map_or(input.len(), |newline| newline + 1));
        *input = rest;
        // Of all lines, those of the trailers have the highest limit. One byte more shows that a line exceeds it.
        let space = LONGEST_TRAILER.saturating_sub(self.line.len()) + 1;
        self.line.extend_from_slice(&part_of_line[..part_of_line.len().min(space)]);
        line_end.is_some()
    }

    /// Interprets the complete line in `line`: the size of a chunk, the end of one, or a trailer, which is a header behind the last chunk.
    /// Returns whether it ends the body.
    fn interpret_line(&mut self) -> Result<bool, Unreadable> {
        let line = self.line.trim_ascii_end();
        match self.state {
            ChunkedState::Size => {
                let size = parse_size_line(line).ok_or(Unreadable::Chunks)?;
                // The last chunk is the one without data.
                self.state = if size == 0 { ChunkedState::Trailer } else { ChunkedState::Data(size) };
            }
            ChunkedState::AfterData if line.is_empty() => self.state = ChunkedState::Size,
            // A blank line ends the trailers and the body.
            ChunkedState::Trailer if line.is_empty() => return Ok(true),
            // Trailers are of no interest, only their size is limited.
            ChunkedState::Trailer if self.trailer_bytes + self.line.len() <= LONGEST_TRAILER => {
                self.trailer_bytes += self.line.len();
            }
            ChunkedState::Trailer | ChunkedState::AfterData | ChunkedState::Data(_) => return Err(Unreadable::Chunks),
        }
        self.line.clear();
        Ok(false)
    }
}

/// Size of a chunk in bytes, from its size line. `None` if the line is too long or invalid.
fn parse_size_line(line: &[u8]) -> Option<u64> {
    if line.len() > LONGEST_LINE {
        return None;
    }
    // Extensions may follow the size.
    let digits = line.split(|byte| *byte == b';').next()?;
    parse_hex(digits.trim_ascii())
}

/// Parses 1 to 15 hexadecimal digits, upper or lower case. `None` for anything else.
pub(super) fn parse_hex(digits: &[u8]) -> Option<u64> {
    // 15 digits fit into 64 bits.
    if digits.is_empty() || digits.len() > 15 {
        return None;
    }
    let mut number = 0;
    for digit in digits {
        let value = char::from(*digit).to_digit(16)?;
        number = (number << 4) | u64::from(value);
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The body, whether it is complete, and the number of bytes behind it.
    fn all(mut input: &[u8]) -> (Vec<u8>, Result<bool, Unreadable>, usize) {
        let mut body = Vec::new();
        let complete = ChunkedDecoder::default().parse(&mut input, |data| body.extend_from_slice(data));
        (body, complete, input.len())
    }

    #[test]
    fn hex_sizes_in_either_case_extensions_and_trailers_parse() {
        let text = b"A;x=1\r\n0123456789\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\nHTTP/1.1";
        assert_eq!(all(text), (b"0123456789abc".to_vec(), Ok(true), 8));
    }

    #[test]
    fn an_invalid_size_is_rejected() {
        for text in [&b"data: x\r\n"[..], b"-1\r\n", b"\r\n", b"ffffffffffffffff\r\n", b"1\r\nab\r\n"] {
            assert_eq!(all(text).1, Err(Unreadable::Chunks), "{text:?}");
        }
        assert_eq!(all(&[b'1'; 400]).1, Err(Unreadable::Chunks));
    }

    proptest! {
        #[test]
        fn the_body_is_independent_of_read_boundaries(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..8), cuts in prop::collection::vec(1_usize..9, 1..60)) {
            let mut wire = Vec::new();
            for chunk in &chunks {
                wire.extend(format!("{:x}\r\n", chunk.len()).bytes());
                wire.extend(chunk);
                wire.extend(b"\r\n");
            }
            wire.extend(b"0\r\n\r\n");
            let (mut chunked, mut body, mut at, mut complete) = (ChunkedDecoder::default(), Vec::new(), 0, Ok(false));
            for cut in cuts.iter().cycle() {
                if at == wire.len() { break; }
                let end = wire.len().min(at + cut);
                let mut piece = &wire[at..end];
                complete = chunked.parse(&mut piece, |data| body.extend_from_slice(data));
                at = end;
            }
            prop_assert_eq!(complete, Ok(true));
            prop_assert_eq!(body, chunks.concat());
        }

        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let (body, _, rest) = all(&bytes);
            prop_assert!(body.len() + rest <= bytes.len());
        }
    }
}
