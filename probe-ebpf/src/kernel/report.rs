//! Numbers what happens on a socket, counts it, and sends its record.
//!
//! The counts go on when a record is lost, so user space knows which. A ZMQ socket is used by one thread at a time: its
//! channel needs no lock.

use probe_ebpf::{Channel, Header, Kind, Loss, Watched, channel_key, class};

use crate::body::Body;
use crate::here::{self, Caller};
use crate::maps::{CHANNELS, lost};
use crate::ring;

/// A message and which way it went.
pub(crate) struct Moved {
    /// Sent or taken.
    pub(crate) kind: Kind,
    /// The application's socket.
    pub(crate) socket: u64,
    /// Its bytes.
    pub(crate) body: Body,
    /// Another part of it follows.
    pub(crate) more: bool,
}

/// A message was sent or taken.
#[inline(always)]
pub(crate) fn message(caller: &mut Caller, watched: &Watched, moved: &Moved) -> Option<()> {
    let sent = matches!(moved.kind, Kind::Sent);
    if sent && watched.sends == 0 {
        return None;
    }
    let Some(channel) = channel(caller.target, moved.socket) else {
        lost(Loss::Channels);
        return None;
    };
    let count = if sent { &mut channel.sent } else { &mut channel.taken };
    let seq = *count;
    *count = seq.wrapping_add(1);
    let limit = if sent {
        watched.capture.sent
    } else {
        watched.capture.taken
    }
    .min(class::MAX_CAPTURE);
    // What is cut has two halves.
    let captured = if moved.body.readable > u64::from(limit) {
        limit & !1
    } else {
        moved.body.readable as u32
    };
    let mut header = head(moved.kind, caller, moved.socket, seq);
    header.bytes = moved.body.len;
    header.message_type = moved.body.kind;
    header.more = u8::from(moved.more);
    header.captured = captured;
    ring::send(&mut header, moved.body.at, moved.body.readable);
    Some(())
}

/// The message that was sent last was refused: its number is free again.
#[inline(always)]
pub(crate) fn refused(target: u32, socket: u64) -> Option<()> {
    let channel = known(target, socket)?;
    // A send that was entered before its sends counted.
    channel.sent = channel.sent.checked_sub(1)?;
    let mut caller = Caller::of(target)?;
    ring::note(head(Kind::Unsent, &mut caller, socket, channel.sent));
    Some(())
}

/// The application asks for the next message: it is done with the one taken last, which is said once.
#[inline(always)]
pub(crate) fn handled(target: u32, socket: u64) -> Option<()> {
    let channel = known(target, socket)?;
    if channel.taken != channel.handled {
        channel.handled = channel.taken;
        let mut caller = Caller::of(target)?;
        ring::note(head(Kind::Handled, &mut caller, socket, channel.taken.wrapping_sub(1)));
    }
    Some(())
}

#[inline(always)]
fn known(target: u32, socket: u64) -> Option<&'static mut Channel> {
    let known = CHANNELS.get_ptr_mut(channel_key(target, socket));
    // SAFETY: a map value, checked for null; map memory outlives the program.
    known.map(|channel| unsafe { &mut *channel })
}

#[inline(always)]
fn channel(target: u32, socket: u64) -> Option<&'static mut Channel> {
    known(target, socket).or_else(|| {
        let _ = CHANNELS.insert(channel_key(target, socket), Channel::default(), 0);
        known(target, socket)
    })
}

#[inline(always)]
fn head(kind: Kind, caller: &mut Caller, socket: u64, seq: u64) -> Header {
    let at_ns = here::now();
    let (target, tid) = (caller.target, caller.tid);
    let ((on_ns, wait_ns, blocked_ns), wakeup) = caller
        .thread()
        .map_or(((0, 0, 0), 0), |thread| (thread.at(at_ns), thread.waits));
    Header {
        at_ns,
        socket,
        seq,
        on_ns,
        wait_ns,
        blocked_ns,
        wakeup,
        target,
        tid,
        kind: kind as u8,
        ..Header::default()
    }
}
