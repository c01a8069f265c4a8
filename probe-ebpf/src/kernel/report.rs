//! Numbers and counts the messages of each socket, and sends a record for each.
//!
//! A dropped record still advances the count, so user space can identify it. Only one thread uses a ZMQ socket at a time, so
//! its channel needs no lock.

use probe_ebpf::{Channel, Header, Kind, Loss, Watched, channel_key, class};

use crate::body::Body;
use crate::here::{self, Caller};
use crate::maps::{CHANNELS, count_loss};
use crate::ring;

/// A sent or received message.
pub(crate) struct Moved {
    /// [`Kind::Sent`] or [`Kind::Received`].
    pub(crate) kind: Kind,
    /// The application's socket.
    pub(crate) socket: u64,
    /// Bytes of the message.
    pub(crate) body: Body,
    /// Whether another part of the same message follows.
    pub(crate) more: bool,
}

/// Reports a sent or received message, with the next number of its socket and direction, and a copy up to the target's limit.
#[inline(always)]
pub(crate) fn message(caller: &mut Caller, watched: &Watched, moved: &Moved) -> Option<()> {
    let sent = matches!(moved.kind, Kind::Sent);
    if sent && watched.sends == 0 {
        return None;
    }
    let Some(channel) = known_or_new_channel(caller.target, moved.socket) else {
        count_loss(Loss::Channels);
        return None;
    };
    let count = if sent { &mut channel.sent } else { &mut channel.received };
    let seq = *count;
    *count = seq.wrapping_add(1);
    let limit = if sent { watched.capture.sent } else { watched.capture.received }.min(class::MAX_CAPTURE);
    // A truncated copy has two halves, so its length must be even.
    let captured = if moved.body.readable > u64::from(limit) { limit & !1 } else { moved.body.readable as u32 };
    let mut header = head(moved.kind, caller, moved.socket, seq);
    header.bytes = moved.body.len;
    header.message_type = moved.body.kind;
    header.more = u8::from(moved.more);
    header.captured = captured;
    ring::send_with_payload(&mut header, moved.body.at, moved.body.readable);
    Some(())
}

/// Reports that the last send was refused and frees its sequence number.
#[inline(always)]
pub(crate) fn report_refused_send(target: u32, socket: u64) -> Option<()> {
    let channel = known_channel(target, socket)?;
    // `None` if the send was entered before sends were counted.
    channel.sent = channel.sent.checked_sub(1)?;
    let mut caller = Caller::of(target)?;
    ring::note(head(Kind::Unsent, &mut caller, socket, channel.sent));
    Some(())
}

/// Reports that the method returned that was passed the last message.
#[inline(always)]
pub(crate) fn report_method_return(target: u32, socket: u64) -> Option<()> {
    // No message was counted if the method was entered before sends were.
    let last = known_channel(target, socket)?.sent.checked_sub(1)?;
    let mut caller = Caller::of(target)?;
    ring::note(head(Kind::Returned, &mut caller, socket, last));
    Some(())
}

/// Reports the last received message as processed, because the application asks for the next one. Repeated calls report
/// nothing.
#[inline(always)]
pub(crate) fn processed(target: u32, socket: u64) -> Option<()> {
    let channel = known_channel(target, socket)?;
    if channel.received != channel.processed {
        channel.processed = channel.received;
        let mut caller = Caller::of(target)?;
        ring::note(head(Kind::Processed, &mut caller, socket, channel.received.wrapping_sub(1)));
    }
    Some(())
}

#[inline(always)]
fn known_channel(target: u32, socket: u64) -> Option<&'static mut Channel> {
    let known = CHANNELS.get_ptr_mut(channel_key(target, socket));
    // SAFETY: a map value, checked for null; map memory outlives the program.
    known.map(|channel| unsafe { &mut *channel })
}

#[inline(always)]
fn known_or_new_channel(target: u32, socket: u64) -> Option<&'static mut Channel> {
    known_channel(target, socket).or_else(|| {
        let _ = CHANNELS.insert(channel_key(target, socket), Channel::default(), 0);
        known_channel(target, socket)
    })
}

#[inline(always)]
fn head(kind: Kind, caller: &mut Caller, socket: u64, seq: u64) -> Header {
    let at_ns = here::now();
    let (target, tid) = (caller.target, caller.tid);
    let ((on_ns, wait_ns, blocked_ns), wakeup) =
        caller.thread().map_or(((0, 0, 0), 0), |thread| (thread.at(at_ns), thread.waits));
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
