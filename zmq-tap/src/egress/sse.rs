//! Server-sent events out of a body that comes in pieces: blocks that a blank line ends, and the data in them.

use memchr::memchr_iter;

/// Collects what is not yet a whole event. Events that lie whole in one piece are not copied.
#[derive(Clone, Debug, Default)]
pub(super) struct Events {
    buffer: Vec<u8>,
    /// The event under way is longer than allowed: it is passed over up to its end.
    skipping: bool,
    joined: Vec<u8>,
}

/// What a piece of body held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found<'a> {
    /// The data of one event, its lines joined.
    Data(&'a [u8]),
    /// An event that was longer than the limit.
    TooLong,
}

impl Events {
    /// Takes a piece of the body; no event may be longer than `limit` bytes.
    pub(super) fn feed(&mut self, piece: &[u8], limit: usize, mut see: impl FnMut(Found<'_>)) {
        if self.buffer.is_empty() {
            let used = self.blocks(piece, 0, &mut see);
            self.keep(&piece[used..], limit, &mut see);
            return;
        }
        // A blank line may be cut anywhere between its two line ends.
        let from = self.buffer.len().saturating_sub(2);
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.extend_from_slice(piece);
        let used = self.blocks(&buffer, from, &mut see);
        buffer.drain(..used);
        self.buffer = buffer;
        self.bound(limit, &mut see);
    }

    /// Forgets the event under way.
    pub(super) fn clear(&mut self) {
        self.buffer.clear();
        self.skipping = false;
    }

    /// Whether an event has begun and not ended.
    pub(super) fn is_inside(&self) -> bool {
        self.skipping || !self.buffer.trim_ascii().is_empty()
    }

    fn keep(&mut self, rest: &[u8], limit: usize, see: &mut impl FnMut(Found<'_>)) {
        self.buffer.extend_from_slice(rest);
        self.bound(limit, see);
    }

    fn bound(&mut self, limit: usize, see: &mut impl FnMut(Found<'_>)) {
        if self.buffer.len() <= limit {
            return;
        }
        if !std::mem::replace(&mut self.skipping, true) {
            see(Found::TooLong);
        }
        let tail = self.buffer.len().saturating_sub(2);
        self.buffer.drain(..tail);
    }

    /// Gives out every whole block, and how many bytes they take. The first `from` bytes hold no block's end.
    fn blocks(&mut self, bytes: &[u8], from: usize, see: &mut impl FnMut(Found<'_>)) -> usize {
        let mut start = 0;
        for newline in memchr_iter(b'\n', &bytes[from..]).map(|at| from + at) {
            let after = &bytes[newline + 1..];
            let blank = match after {
                [b'\n', ..] => 1,
                [b'\r', b'\n', ..] => 2,
                _ => continue,
            };
            // The second line end of a blank line is met again as a first one.
            if newline < start {
                continue;
            }
            if !std::mem::take(&mut self.skipping) {
                self.block(&bytes[start..newline], see);
            }
            start = newline + 1 + blank;
        }
        start
    }

    fn block(&mut self, block: &[u8], see: &mut impl FnMut(Found<'_>)) {
        let mut lines = block.split(|byte| *byte == b'\n').filter_map(data);
        let (Some(first), second) = (lines.next(), lines.next()) else {
            return;
        };
        let Some(second) = second else {
            return see(Found::Data(first));
        };
        self.joined.clear();
        self.joined.extend_from_slice(first);
        for line in std::iter::once(second).chain(lines) {
            self.joined.push(b'\n');
            self.joined.extend_from_slice(line);
        }
        see(Found::Data(&self.joined));
    }
}

/// The value of a `data:` line.
fn data(line: &[u8]) -> Option<&[u8]> {
    let value = line.strip_prefix(b"data:")?;
    let value = value.strip_prefix(b" ").unwrap_or(value);
    Some(value.strip_suffix(b"\r").unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(pieces: &[&[u8]], limit: usize) -> (Vec<String>, usize) {
        let (mut events, mut found, mut long) = (Events::default(), Vec::new(), 0);
        for piece in pieces {
            events.feed(piece, limit, |f| match f {
                Found::Data(data) => found.push(String::from_utf8_lossy(data).into_owned()),
                Found::TooLong => long += 1,
            });
        }
        (found, long)
    }

    #[test]
    fn either_line_end_comments_and_several_lines_of_data() {
        let text = b"data: a\n\n: ping\n\nevent: x\r\ndata:b\r\ndata: c\r\n\r\nid: 7\n\ndata: [DONE]\n\ndata: open";
        assert_eq!(read(&[text], 100).0, ["a", "b\nc", "[DONE]"]);
    }

    #[test]
    fn an_event_beyond_the_limit_is_told_and_the_next_one_read() {
        let (found, long) = read(&[b"data: 0123456789", b"0123456789", b"01234\n", b"\ndata: x\n\n"], 16);
        assert_eq!((found, long), (vec!["x".to_owned()], 1));
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_events(text in "(data: ?[a-z{}]{0,12}(\n|\r\n)|\n|\r\n|: p\n){0,24}", cuts in prop::collection::vec(1_usize..7, 1..40)) {
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
