//! Reassembly of messages behind prefixes that state their lengths.

use super::Unreadable;
use super::buffer::BoundedBuffer;

/// The incomplete message of a connection, or the rest of one that is skipped. `N` is the length of a prefix.
#[derive(Debug, Default)]
pub struct Framed<const N: usize> {
    buffer: BoundedBuffer,
    /// Whether the message in `buffer` was returned, so that the buffer can be cleared.
    is_returned: bool,
    /// Number of bytes left of a message that is skipped.
    left_to_skip: u64,
}

/// The next message of a connection.
pub enum NextMessage<'a, const N: usize> {
    /// More bytes are needed.
    Incomplete,
    /// A complete message.
    Complete {
        /// The bytes before it, which state its length.
        prefix: &'a [u8; N],
        /// The message itself.
        message: &'a [u8],
    },
    /// The message is too long to be kept, so its bytes are skipped.
    Skipped,
}

impl<'a, const N: usize> NextMessage<'a, N> {
    /// Splits a complete message into its prefix and its content. `Incomplete` if the bytes are shorter than a prefix.
    fn from_bytes(bytes: &'a [u8]) -> Self {
        match bytes.split_first_chunk() {
            Some((prefix, message)) => Self::Complete { prefix, message },
            None => Self::Incomplete,
        }
    }
}

impl<const N: usize> Framed<N> {
    /// Removes the next message from `input`. A message that is complete within `input` is not copied. One of more than `limit` bytes
    /// behind its prefix, or without space in memory, is skipped. `read_length`: reads from a prefix the number of bytes behind it.
    pub fn next_message<'a, 'i: 'a>(
        &'a mut self,
        input: &mut &'i [u8],
        limit: usize,
        read_length: impl Fn(&[u8; N]) -> Result<u64, Unreadable>,
    ) -> Result<NextMessage<'a, N>, Unreadable> {
        // The rest of a skipped message is of no interest.
        _ = take_bytes(input, &mut self.left_to_skip);
        // The last message was borrowed from the buffer until now.
        let was_returned = std::mem::take(&mut self.is_returned);
        if was_returned {
            self.buffer.clear();
        }
        // The buffer gets the prefix first. Once that states a length, a second round goes on to the end of the message.
        loop {
            let start_of_message = if self.buffer.is_empty() { *input } else { &self.buffer };
            let stated_length = start_of_message.first_chunk().map(&read_length).transpose()?;
            let needed = match stated_length {
                None => N,
                Some(length) if length <= limit as u64 => N + length as usize,
                Some(length) => {
                    self.skip_message(length);
                    return Ok(NextMessage::Skipped);
                }
            };
            // Not copied, because all of it is within `input`.
            if self.buffer.is_empty()
                && let Some((message, rest)) = input.split_at_checked(needed)
            {
                *input = rest;
                return Ok(NextMessage::from_bytes(message));
            }
            let is_complete = self.buffer.len() == needed;
            if is_complete {
                break;
            }
            if input.is_empty() {
                return Ok(NextMessage::Incomplete);
            }
            let (piece, rest) = input.split_at(input.len().min(needed - self.buffer.len()));
            let is_kept = self.buffer.extend(piece).is_ok();
            if !is_kept {
                // Without memory for the piece, the whole message is skipped. Its length must be known for that.
                self.skip_message(stated_length.ok_or(Unreadable::Frames)?);
                return Ok(NextMessage::Skipped);
            }
            *input = rest;
        }
        // The next call clears the buffer.
        self.is_returned = true;
        Ok(NextMessage::from_bytes(&self.buffer))
    }

    /// Drops what the buffer has of the current message, and skips its other bytes. `length`: number of bytes behind its prefix.
    fn skip_message(&mut self, length: u64) {
        self.left_to_skip = N as u64 + length - self.buffer.len() as u64;
        self.buffer.clear();
    }
}

/// Removes and returns up to `left` bytes of `input`, and subtracts their number from `left`.
pub fn take_bytes<'a>(input: &mut &'a [u8], left: &mut u64) -> &'a [u8] {
    let max_bytes = usize::try_from(*left).unwrap_or(usize::MAX);
    let (taken, rest) = input.split_at(input.len().min(max_bytes));
    *input = rest;
    *left -= taken.len() as u64;
    taken
}
