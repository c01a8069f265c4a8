//! Numbers what happens on a socket, counts it, and sends its record.
//!
//! The counts go on when a record is lost, so user space knows which. A ZMQ socket is used by one thread at a time: its
//! channel needs no lock.

use probe_ebpf::{Call, Channel, ChannelKey, Header, Kind, Loss, class};

use crate::here::{self, Caller};
use crate::maps::{CAPTURES, CHANNELS, lost};
use crate::ring;

use crate::body::Body;

/// A message was sent or taken.
#[inline(always)]
pub(crate) fn message(caller: &mut Caller, kind: Kind, call: &Call, body: Body, more: bool) {
    let Some(channel) = channel(caller.target, call.socket) else {
        return lost(Loss::Channels);
    };
    let sent = matches!(kind, Kind::Sent);
    let count = if sent { &mut channel.sent } else { &mut channel.taken };
    let seq = *count;
    *count = seq.wrapping_add(1);
    let capture = CAPTURES.get(caller.target).copied().unwrap_or_default();
    let limit = if sent { capture.sent } else { capture.taken }.min(class::MAX_CAPTURE);
    let mut header = head(kind, caller, call.socket, seq);
    header.bytes = body.len;
    header.message_type = body.kind;
    header.more = u8::from(more);
    header.captured = body.readable.min(u64::from(limit)) as u32;
    if !sent {
        header.waited_ns = header.at_ns.saturating_sub(call.at_ns);
    }
    ring::send(&mut header, body.at);
}

/// The message that was sent last was refused: its number is free again.
#[inline(always)]
pub(crate) fn refused(caller: &mut Caller, call: &Call) {
    if let Some(channel) = channel(caller.target, call.socket) {
        channel.sent = channel.sent.wrapping_sub(1);
        ring::note(head(Kind::Unsent, caller, call.socket, channel.sent));
    }
}

/// The application asks for the next message: it is done with the one taken last, which is said once.
#[inline(always)]
pub(crate) fn handled(caller: &mut Caller, socket: u64) {
    let key = ChannelKey {
        target: u64::from(caller.target),
        socket,
    };
    let Some(channel) = CHANNELS.get_ptr_mut(key) else {
        return;
    };
    // SAFETY: a map value, checked for null.
    let channel = unsafe { &mut *channel };
    if channel.taken != channel.handled {
        channel.handled = channel.taken;
        ring::note(head(Kind::Handled, caller, socket, channel.taken.wrapping_sub(1)));
    }
}

#[inline(always)]
fn channel(target: u32, socket: u64) -> Option<&'static mut Channel> {
    let key = ChannelKey {
        target: u64::from(target),
        socket,
    };
    let known = CHANNELS.get_ptr_mut(key).or_else(|| {
        let _ = CHANNELS.insert(key, Channel::default(), 0);
        CHANNELS.get_ptr_mut(key)
    });
    // SAFETY: a map value, checked for null; map memory outlives the program.
    known.map(|channel| unsafe { &mut *channel })
}

#[inline(always)]
fn head(kind: Kind, caller: &mut Caller, socket: u64, seq: u64) -> Header {
    let at_ns = here::now();
    let (target, tid) = (caller.target, caller.tid);
    let thread = caller.thread();
    let (on_ns, wait_ns, blocked_ns) = thread.at(at_ns);
    let wakeup = thread.waits;
    let kind = kind as u8;
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
        kind,
        ..Header::default()
    }
}
