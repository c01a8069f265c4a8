//! Incremental parser of server-sent events: blocks that end with a blank line, and their data.

use memchr::memchr_iter;

use super::buffer::BoundedBuffer;

/// Number of bytes of the end of an event (`\n\r\n`) that may have arrived without the rest of it.
const LONGEST_PART_OF_END: usize = 2;

/// Buffer of an incomplete event. Events that are complete within one piece are not copied.
#[derive(Debug, Default)]
pub(super) struct EventParser {
    buffer: BoundedBuffer,
    /// The current event exceeds a limit and is skipped up to its end.
    is_skipping: bool,
    /// Buffer for the lines of an event with several.
    joined: Vec<u8>,
}

impl EventParser {
    /// Parses a piece of the body. Emits the data of each event that is complete with it, its lines joined. `None` stands for an event that
    /// is skipped, because it is longer than `limit` bytes or memory is short. An incomplete event is kept for the next piece.
    pub(super) fn parse(&mut self, piece: &[u8], limit: usize, mut emit: impl FnMut(Option<&[u8]>)) {
        // Moved out for this call, because parsing its bytes changes `self`.
        let mut buffer = std::mem::take(&mut self.buffer);
        let has_incomplete_event = !buffer.is_empty();
        // A piece that begins an event is not copied before it is parsed.
        let is_appended = has_incomplete_event && buffer.extend(piece).is_ok();
        if is_appended {
            // The end of the event may be cut: its first bytes are then in the buffer already.
            let search_from = (buffer.len() - piece.len()).saturating_sub(LONGEST_PART_OF_END);
            let parsed_bytes = self.parse_blocks(&buffer, search_from, &mut emit);
            buffer.remove_first(parsed_bytes);
        } else {
            if has_incomplete_event {
                // Without memory for its rest, the event is lost.
                self.skip_event(&mut emit);
                buffer.clear();
            }
            let search_from = 0;
            let parsed_bytes = self.parse_blocks(piece, search_from, &mut emit);
            let is_rest_kept = buffer.extend(&piece[parsed_bytes..]).is_ok();
            if !is_rest_kept {
                self.skip_event(&mut emit);
            }
        }
        self.buffer = buffer;
        self.skip_oversized(limit, &mut emit);
    }

    /// Whether an event is incomplete.
    pub(super) fn is_inside_event(&self) -> bool {
        self.is_skipping || !self.buffer.trim_ascii().is_empty()
    }

    /// Drops an event that exceeds the limit, except for its last bytes, which may be the start of its end.
    fn skip_oversized(&mut self, limit: usize, emit: &mut impl FnMut(Option<&[u8]>)) {
        if self.buffer.len() <= limit {
            return;
        }
        self.skip_event(emit);
        self.buffer.remove_first(self.buffer.len().saturating_sub(LONGEST_PART_OF_END));
    }

    /// Skips the current event up to its end. Emits `None` once for it.
    fn skip_event(&mut self, emit: &mut impl FnMut(Option<&[u8]>)) {
        if !self.is_skipping {
            self.is_skipping = true;
            emit(None);
        }
    }

    /// Parses every complete event, which is a block of lines before a blank line. Returns the number of bytes they take. The first
    /// `search_from` bytes contain no end of a block.
    fn parse_blocks(&mut self, bytes: &[u8], search_from: usize, emit: &mut impl FnMut(Option<&[u8]>)) -> usize {
        let mut block_start = 0;
        for offset in memchr_iter(b'\n', &bytes[search_from..]) {
            let newline = search_from + offset;
            // Only a line end before a blank line ends a block.
            let blank_line_bytes = match &bytes[newline + 1..] {
                [b'\n', ..] => 1,
                [b'\r', b'\n', ..] => 2,
                _ => continue,
            };
            // The second line end of a blank line is itself found as a newline; skip it.
            if newline < block_start {
                continue;
            }
            // The first block is the rest of an event that is skipped. The next ones are read again.
            let is_skipped = std::mem::take(&mut self.is_skipping);
            if !is_skipped {
                self.parse_block(&bytes[block_start..newline], emit);
            }
            block_start = newline + 1 + blank_line_bytes;
        }
        block_start
    }

    /// Emits the data of an event. Several lines are joined, as the specification says.
    fn parse_block(&mut self, block: &[u8], emit: &mut impl FnMut(Option<&[u8]>)) {
        let mut lines = block.split(|byte| *byte == b'\n').filter_map(data_value);
        let Some(first) = lines.next() else { return };
        // Nearly every event has one line of data, which needs no copy.
        let Some(second) = lines.next() else { return emit(Some(first)) };
        self.joined.clear();
        self.joined.extend_from_slice(first);
        for line in std::iter::once(second).chain(lines) {
            self.joined.push(b'\n');
            self.joined.extend_from_slice(line);
        }
        emit(Some(&self.joined));
    }
}

/// The value of a `data:` line. `None` for any other line.
fn data_value(line: &[u8]) -> Option<&[u8]> {
    let behind_colon = line.strip_prefix(b"data:")?;
    // One space belongs to the notation, and further ones to the value.
    let value = behind_colon.strip_prefix(b" ").unwrap_or(behind_colon);
    Some(value.strip_suffix(b"\r").unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(pieces: &[&[u8]], limit: usize) -> (Vec<String>, usize) {
        let (mut events, mut found, mut long) = (EventParser::default(), Vec::new(), 0);
        for piece in pieces {
            events.parse(piece, limit, |event| match event {
                Some(data) => found.push(String::from_utf8_lossy(data).into_owned()),
                None => long += 1,
            });
        }
        (found, long)
    }

    #[test]
    fn line_endings_comments_and_multi_line_data_parse() {
        let text = b"data: a\n\n: ping\n\nevent: x\r\ndata:b\r\ndata: c\r\n\r\nid: 7\n\ndata: [DONE]\n\ndata: open";
        assert_eq!(read(&[text], 100).0, ["a", "b\nc", "[DONE]"]);
    }

    #[test]
    fn an_oversized_event_is_reported_and_the_next_one_parses() {
        let (found, long) = read(&[b"data: 0123456789", b"0123456789", b"01234\n", b"\ndata: x\n\n"], 16);
        assert_eq!((found, long), (vec!["x".to_owned()], 1));
    }

    proptest! {
        #[test]
        fn events_are_independent_of_read_boundaries(text in "(data: ?[a-z{}]{0,12}(\n|\r\n)|\n|\r\n|: p\n){0,24}", cuts in prop::collection::vec(1_usize..7, 1..40)) {
            let whole = read(&[text.as_bytes()], 1000).0;
            let (mut pieces, mut rest) = (Vec::new(), text.as_bytes());
            for cut in cuts.iter().cycle() {
                if rest.is_empty() { break; }
                let (now, later) = rest.split_at(rest.len().min(*cut));
                pieces.push(now);
                rest = later;
            }
            prop_assert_eq!(read(&pieces, 1000).0, whole);
        }
    }
}
