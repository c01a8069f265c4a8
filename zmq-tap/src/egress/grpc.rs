//! Count of the length-prefixed messages in a gRPC body.

/// Size of a message's prefix: a flag and the length.
const PREFIX: usize = 5;

/// Position within a gRPC body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Messages {
    prefix: [u8; PREFIX],
    /// Number of bytes of the prefix that are known.
    known: usize,
    /// Number of bytes left of the current message.
    left: u64,
}

impl Messages {
    /// Consumes a piece of the body and returns the number of messages that end in it.
    pub(super) fn feed(&mut self, mut piece: &[u8]) -> u64 {
        let mut ended = 0;
        while !piece.is_empty() {
            if self.known < PREFIX {
                let take = piece.len().min(PREFIX - self.known);
                self.prefix[self.known..self.known + take].copy_from_slice(&piece[..take]);
                (self.known, piece) = (self.known + take, &piece[take..]);
                if self.known < PREFIX {
                    break;
                }
                let [_, length @ ..] = self.prefix;
                self.left = u64::from(u32::from_be_bytes(length));
            }
            let take = piece.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
            piece = &piece[take..];
            self.left -= take as u64;
            if self.left == 0 {
                (self.known, ended) = (0, ended + 1);
            }
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_are_counted_wherever_the_body_is_cut(
            sizes in prop::collection::vec(0_usize..40, 0..20), cuts in prop::collection::vec(1_usize..9, 1..20),
        ) {
            let body: Vec<u8> = sizes.iter().flat_map(|size| {
                let prefix = std::iter::once(0).chain((*size as u32).to_be_bytes());
                prefix.chain(std::iter::repeat_n(7, *size)).collect::<Vec<u8>>()
            }).collect();
            let (mut messages, mut rest, mut count) = (Messages::default(), &body[..], 0);
            for cut in cuts.iter().cycle() {
                if rest.is_empty() { break; }
                let (now, later) = rest.split_at(rest.len().min(*cut));
                count += messages.feed(now);
                rest = later;
            }
            prop_assert_eq!(count, sizes.len() as u64);
        }
    }
}
