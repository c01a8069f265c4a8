//! Frame headers: one flag byte, then the length in one byte or in eight (RFC 23, "framing"; ZMTP 2.0 is identical). Names of commands.

use super::greeting::ZmtpVersion;

/// Flags of a header's first byte: more parts follow, the length has eight bytes, a command.
const MORE: u8 = 0b001;
const LONG: u8 = 0b010;
const COMMAND: u8 = 0b100;

/// Longest header in bytes: flags and an 8-byte length.
pub(crate) const MAX_HEADER_BYTES: usize = 9;

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    /// More parts of the same message follow.
    pub(super) more: bool,
    /// A protocol command, not a part of a message.
    pub(super) is_command: bool,
    /// Length of the body in bytes, as claimed.
    pub(super) length: u64,
    /// Length of the header itself: 2 or 9 bytes.
    pub(super) size: usize,
}

/// Bytes that no ZMTP peer sends at the position of a frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Garbage {
    /// The flag byte sets reserved bits, or combines COMMAND with MORE.
    #[error("flag byte {0:#04x} is not one of ZMTP's")]
    Flags(u8),
    /// A length that no stream can hold.
    #[error("a frame claims {0} bytes, more than a stream can hold")]
    Length(u64),
}

/// Whether a header that begins with this byte belongs to a command.
pub(super) fn is_command(flags: u8) -> bool {
    flags & COMMAND != 0
}

/// Parses a header at the front of `bytes`: one byte of flags, then the length of the body in one byte or, with the flag `LONG`, in eight.
/// Returns `Ok(None)` if more bytes are needed.
pub(super) fn parse_header(bytes: &[u8], version: ZmtpVersion) -> Result<Option<FrameHeader>, Garbage> {
    let Some(&flags) = bytes.first() else { return Ok(None) };
    let known_flags = match version {
        ZmtpVersion::V2 => MORE | LONG,
        ZmtpVersion::V3 => MORE | LONG | COMMAND,
    };
    let is_command = is_command(flags);
    let more = flags & MORE != 0;
    let has_unknown_flag = flags & !known_flags != 0;
    // RFC 23: a command is a single frame.
    let is_multipart_command = is_command && more;
    if has_unknown_flag || is_multipart_command {
        return Err(Garbage::Flags(flags));
    }
    if flags & LONG == 0 {
        let Some(&length) = bytes.get(1) else { return Ok(None) };
        // The flags and the length.
        return Ok(Some(FrameHeader { more, is_command, length: length.into(), size: 2 }));
    }
    let Some(&length) = bytes.get(1..).and_then(|rest| rest.first_chunk::<8>()) else {
        return Ok(None);
    };
    let length = u64::from_be_bytes(length);
    // RFC 23: the most significant bit of a long length is zero.
    if length > u64::MAX >> 1 {
        return Err(Garbage::Length(length));
    }
    Ok(Some(FrameHeader { more, is_command, length, size: MAX_HEADER_BYTES }))
}

/// A command, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ZmtpCommand {
    /// Ends the handshake; carries the socket type.
    Ready,
    /// The peer refuses the connection.
    Error,
    /// Heartbeat, or the reply to one.
    Heartbeat,
    /// Any other name, or the identity frame that opens a ZMTP 2.0 stream.
    Other,
}

/// The first bytes of a command's body: the length of its name, and as much of the name as distinguishes the commands above.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CommandName {
    buffer: [u8; 6],
    filled: usize,
}

impl CommandName {
    /// Appends bytes from the front of `bytes` until the buffer is full.
    pub(super) fn append_from(&mut self, bytes: &[u8]) {
        let space = &mut self.buffer[self.filled..];
        let added = bytes.len().min(space.len());
        space[..added].copy_from_slice(&bytes[..added]);
        self.filled += added;
    }

    /// The command with this name; [`ZmtpCommand::Other`] also while too little of the name is known.
    pub(super) fn command(&self) -> ZmtpCommand {
        // The first byte is the length of the name.
        match &self.buffer[..self.filled] {
            b"\x05READY" => ZmtpCommand::Ready,
            b"\x05ERROR" => ZmtpCommand::Error,
            // `PING` or `PONG`.
            [4, b'P', b'I' | b'O', b'N', b'G', ..] => ZmtpCommand::Heartbeat,
            _ => ZmtpCommand::Other,
        }
    }
}
