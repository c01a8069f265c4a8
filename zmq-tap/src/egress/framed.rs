//! Reassembly of messages behind prefixes that state their lengths.

use super::Unreadable;

/// The incomplete message of a connection, or the rest of one that is skipped. `N` is the length of a prefix.
#[derive(Clone, Debug, Default)]
pub(super) struct Framed<const N: usize> {
    buffer: Vec<u8>,
    /// The message in `buffer` was returned.
    returned: bool,
    skip: u64,
}

/// Length of a message with its prefix.
pub(super) enum Length {
    Kept(usize),
    /// The message is too long to be kept.
    Skipped(u64),
}

/// Content of the next message.
pub(super) enum Found<'a, const N: usize> {
    /// Its prefix, and the bytes behind it.
    Message(&'a [u8; N], &'a [u8]),
    TooLong,
}

impl<const N: usize> Framed<N> {
    /// Removes the next message from `input`; `None` if it is incomplete. A message that is complete within `input` is not copied.
    pub(super) fn next<'a, 'i: 'a>(
        &'a mut self,
        input: &mut &'i [u8],
        length: impl Fn(&[u8; N]) -> Result<Length, Unreadable>,
    ) -> Result<Option<Found<'a, N>>, Unreadable> {
        skip(input, &mut self.skip);
        if std::mem::take(&mut self.returned) {
            self.buffer.clear();
        }
        loop {
            let known = if self.buffer.is_empty() { *input } else { &self.buffer };
            let needed = match known.first_chunk().map(&length).transpose()? {
                None => N,
                Some(Length::Kept(length)) => length,
                Some(Length::Skipped(length)) => {
                    self.skip = length - self.buffer.len() as u64;
                    self.buffer.clear();
                    return Ok(Some(Found::TooLong));
                }
            };
            if self.buffer.is_empty() {
                if let Some((message, rest)) = input.split_at_checked(needed) {
                    *input = rest;
                    return Ok(message.split_first_chunk().map(|(prefix, message)| Found::Message(prefix, message)));
                }
            } else if self.buffer.len() == needed {
                break;
            }
            if input.is_empty() {
                return Ok(None);
            }
            let (now, rest) = input.split_at(input.len().min(needed - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            *input = rest;
        }
        self.returned = true;
        Ok(self.buffer.split_first_chunk().map(|(prefix, message)| Found::Message(prefix, message)))
    }
}

/// Removes bytes that are to be skipped from `input`.
pub(super) fn skip(input: &mut &[u8], bytes: &mut u64) {
    let skipped = input.len().min(usize::try_from(*bytes).unwrap_or(usize::MAX));
    *input = &input[skipped..];
    *bytes -= skipped as u64;
}
