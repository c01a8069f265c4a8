//! Incremental scanner of HTTP/2 frames: RFC 9113, section 4.1.

/// Size of a frame's header.
pub(super) const HEAD: usize = 9;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PUSH_PROMISE: u8 = 5;
pub(super) const CONTINUATION: u8 = 9;

pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;
pub(super) const PADDED: u8 = 8;
pub(super) const PRIORITY: u8 = 0x20;

/// Header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Size of the payload in bytes.
    pub(super) length: u32,
    pub(super) kind: u8,
    pub(super) flags: u8,
    /// Stream, or 0 for the connection.
    pub(super) stream: u32,
}

impl Head {
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let [a, b, c, kind, flags, stream @ ..] = bytes.first_chunk::<HEAD>()?;
        Some(Self {
            length: u32::from_be_bytes([0, *a, *b, *c]),
            kind: *kind,
            flags: *flags,
            stream: u32::from_be_bytes(*stream) & 0x7fff_ffff,
        })
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Whether a server may send it. Clients open the streams with odd numbers.
    pub(super) fn is_valid(&self) -> bool {
        match self.kind {
            DATA | HEADERS | PUSH_PROMISE | CONTINUATION => self.stream % 2 == 1,
            RST_STREAM => self.stream != 0 && self.length == 4,
            SETTINGS => self.stream == 0 && self.length.is_multiple_of(6),
            _ => true,
        }
    }
}

/// A step through the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step<'a> {
    Head(Head),
    /// A piece of the current frame's payload.
    Payload(&'a [u8]),
    /// The current frame is complete.
    End,
}

/// Position within the frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Frames {
    head: [u8; HEAD],
    /// Number of bytes of the header that are known.
    known: usize,
    /// Number of bytes left of the current payload.
    left: u32,
}

impl Frames {
    /// Takes the next step from `input`; `None` if more bytes are needed.
    pub(super) fn next<'a>(&mut self, input: &mut &'a [u8]) -> Option<Step<'a>> {
        if self.known == HEAD {
            if self.left == 0 {
                self.known = 0;
                return Some(Step::End);
            }
            if input.is_empty() {
                return None;
            }
            let (piece, rest) = input.split_at(input.len().min(self.left as usize));
            *input = rest;
            self.left -= piece.len() as u32;
            return Some(Step::Payload(piece));
        }
        let (piece, rest) = input.split_at(input.len().min(HEAD - self.known));
        self.head[self.known..self.known + piece.len()].copy_from_slice(piece);
        (self.known, *input) = (self.known + piece.len(), rest);
        let head = Head::parse(&self.head).filter(|_| self.known == HEAD)?;
        self.left = head.length;
        Some(Step::Head(head))
    }
}
