//! libzmq's calls: what was sent, refused, taken, and handled.
//!
//! `zmq_sendmsg` and `zmq_recvmsg` end in the `zmq_msg_*` calls, `zmq_send` and `zmq_recv` do not, so no message is seen
//! twice. Minimum kernel of every program here: 5.15 (uprobes with attach cookies).

use aya_ebpf::EbpfContext;
use aya_ebpf::helpers::bpf_probe_read_user;
use aya_ebpf::macros::{uprobe, uretprobe};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use aya_log_ebpf::{debug, warn};
use probe_ebpf::{Channel, ChannelKey, Header, Kind, Loss, Payload, class, message};

use crate::here;
use crate::maps::{CALLS, CAPTURES, CHANNELS, Call, lost};
use crate::ring;

/// `ZMQ_SNDMORE`: another part of the same message follows.
const SNDMORE: i32 = 2;
/// `ZMQ_RCVTIMEO`: pyzmq reads it before each receive, so it means "the application asks for the next message".
const RCVTIMEO: i32 = 27;

/// `int zmq_msg_send(zmq_msg_t *msg, void *socket, int flags)`
#[uprobe]
pub(crate) fn msg_send(ctx: ProbeContext) -> u32 {
    if let (Some(place), Some(socket), Some(flags)) = (ctx.arg(0), ctx.arg(1), ctx.arg::<i32>(2)) {
        let call = Call {
            socket,
            place,
            room: 0,
            at_ns: here::now(),
        };
        let _ = CALLS.insert(here::key(), call, 0);
        if let Some(body) = body(&ctx, place) {
            report(&ctx, Kind::Sent, &call, body, flags & SNDMORE != 0);
        }
    }
    0
}

/// `int zmq_send(void *socket, const void *buffer, size_t length, int flags)`, and `zmq_send_const` alike
#[uprobe]
pub(crate) fn buffer_send(ctx: ProbeContext) -> u32 {
    if let (Some(socket), Some(place), Some(room), Some(flags)) =
        (ctx.arg(0), ctx.arg(1), ctx.arg(2), ctx.arg::<i32>(3))
    {
        let call = Call {
            socket,
            place,
            room,
            at_ns: here::now(),
        };
        let _ = CALLS.insert(here::key(), call, 0);
        let body = Body {
            at: place,
            len: room,
            readable: room,
            kind: 0,
            more: false,
        };
        report(&ctx, Kind::Sent, &call, body, flags & SNDMORE != 0);
    }
    0
}

/// The return of either: a send that failed is taken back.
#[uretprobe]
pub(crate) fn send_returned(ctx: RetProbeContext) -> u32 {
    let Some(call) = returned() else { return 0 };
    if ctx.ret::<i32>() >= 0 {
        return 0;
    }
    let target = here::target(&ctx);
    let Some(channel) = channel(target, call.socket) else {
        return 0;
    };
    // SAFETY: a map value, checked for null; a ZMQ socket is used by one thread at a time.
    let seq = unsafe {
        (*channel).sent = (*channel).sent.wrapping_sub(1);
        (*channel).sent
    };
    let mut header = head(Kind::Unsent, target, &call, seq);
    ring::send(&mut header, 0);
    0
}

/// `int zmq_msg_recv(zmq_msg_t *msg, void *socket, int flags)`
#[uprobe]
pub(crate) fn msg_recv(ctx: ProbeContext) -> u32 {
    if let (Some(place), Some(socket)) = (ctx.arg(0), ctx.arg(1)) {
        handled(&ctx, socket);
        let _ = CALLS.insert(
            here::key(),
            Call {
                socket,
                place,
                room: 0,
                at_ns: here::now(),
            },
            0,
        );
    }
    0
}

/// Its return, with the message in place.
#[uretprobe]
pub(crate) fn msg_received(ctx: RetProbeContext) -> u32 {
    let Some(call) = returned() else { return 0 };
    // Negative: nothing to take, or interrupted.
    if ctx.ret::<i32>() >= 0
        && let Some(body) = body(&ctx, call.place)
    {
        report(&ctx, Kind::Taken, &call, body, body.more);
    }
    0
}

/// `int zmq_recv(void *socket, void *buffer, size_t length, int flags)`
#[uprobe]
pub(crate) fn buffer_recv(ctx: ProbeContext) -> u32 {
    if let (Some(socket), Some(place), Some(room)) = (ctx.arg(0), ctx.arg(1), ctx.arg(2)) {
        handled(&ctx, socket);
        let _ = CALLS.insert(
            here::key(),
            Call {
                socket,
                place,
                room,
                at_ns: here::now(),
            },
            0,
        );
    }
    0
}

/// Its return: the length of the message, which may be more than the buffer took.
#[uretprobe]
pub(crate) fn buffer_received(ctx: RetProbeContext) -> u32 {
    let Some(call) = returned() else { return 0 };
    let len = ctx.ret::<i32>();
    if len >= 0 {
        let len = len as u64;
        let body = Body {
            at: call.place,
            len,
            readable: len.min(call.room),
            kind: 0,
            more: false,
        };
        report(&ctx, Kind::Taken, &call, body, false);
    }
    0
}

/// `int zmq_getsockopt(void *socket, int option, void *value, size_t *length)`
#[uprobe]
pub(crate) fn getsockopt(ctx: ProbeContext) -> u32 {
    if let (Some(socket), Some(RCVTIMEO)) = (ctx.arg(0), ctx.arg::<i32>(1)) {
        handled(&ctx, socket);
    }
    0
}

/// A message's bytes in the target's memory.
#[derive(Clone, Copy)]
struct Body {
    at: u64,
    len: u64,
    readable: u64,
    kind: u8,
    more: bool,
}

#[inline(always)]
fn body<C: EbpfContext>(ctx: &C, place: u64) -> Option<Body> {
    // SAFETY: a read of the target's memory; a fault is an error value.
    let Ok(raw) = (unsafe { bpf_probe_read_user(place as *const [u8; message::SIZE]) }) else {
        lost(Loss::HeaderFault);
        warn!(ctx, "zmq_msg_t at {:x} is not readable", place);
        return None;
    };
    let (at, len) = match message::payload(&raw) {
        Payload::Inline { len } => (place + message::AT_DATA as u64, len),
        Payload::Direct { data, len } => (data, len),
        Payload::Content { content } => {
            // SAFETY: as above. content_t begins with the data pointer and the size.
            let Ok([data, size]) = (unsafe { bpf_probe_read_user(content as *const [u64; 2]) }) else {
                lost(Loss::HeaderFault);
                warn!(ctx, "content_t at {:x} is not readable", content);
                return None;
            };
            (data, size)
        }
        Payload::Unknown => {
            lost(Loss::UnknownMessage);
            debug!(ctx, "zmq_msg_t of unknown type {}", message::kind(&raw));
            return None;
        }
    };
    Some(Body {
        at,
        len,
        readable: len,
        kind: message::kind(&raw),
        more: message::more(&raw),
    })
}

/// Numbers the message, counts it, and sends its record.
#[inline(always)]
fn report<C: EbpfContext>(ctx: &C, kind: Kind, call: &Call, body: Body, more: bool) {
    let target = here::target(ctx);
    let Some(channel) = channel(target, call.socket) else {
        return lost(Loss::Channels);
    };
    let capture = CAPTURES.get(target).copied().unwrap_or_default();
    let sent = matches!(kind, Kind::Sent);
    // SAFETY: a map value, checked for null; a ZMQ socket is used by one thread at a time.
    let seq = unsafe {
        let count = if sent {
            &raw mut (*channel).sent
        } else {
            &raw mut (*channel).taken
        };
        let seq = *count;
        *count = seq + 1;
        seq
    };
    let mut header = head(kind, target, call, seq);
    header.bytes = body.len;
    header.message_type = body.kind;
    header.more = u8::from(more);
    let limit = if sent { capture.sent } else { capture.taken }.min(class::MAX_CAPTURE);
    header.captured = body.readable.min(u64::from(limit)) as u32;
    if !sent {
        header.waited_ns = header.at_ns.saturating_sub(call.at_ns);
    }
    ring::send(&mut header, body.at);
}

/// Marks the last message taken from `socket` as handled, once.
#[inline(always)]
fn handled<C: EbpfContext>(ctx: &C, socket: u64) {
    let target = here::target(ctx);
    let Some(channel) = CHANNELS.get_ptr_mut(ChannelKey {
        target: u64::from(target),
        socket,
    }) else {
        return;
    };
    // SAFETY: a map value, checked for null; a ZMQ socket is used by one thread at a time.
    let taken = unsafe {
        let Channel { taken, handled, .. } = *channel;
        if taken == handled {
            return;
        }
        (*channel).handled = taken;
        taken
    };
    let call = Call {
        socket,
        place: 0,
        room: 0,
        at_ns: 0,
    };
    let mut header = head(Kind::Handled, target, &call, taken - 1);
    ring::send(&mut header, 0);
}

#[inline(always)]
fn channel(target: u32, socket: u64) -> Option<*mut Channel> {
    let key = ChannelKey {
        target: u64::from(target),
        socket,
    };
    if let Some(known) = CHANNELS.get_ptr_mut(key) {
        return Some(known);
    }
    let _ = CHANNELS.insert(key, Channel::default(), 0);
    CHANNELS.get_ptr_mut(key)
}

/// The call that the current thread returns from.
#[inline(always)]
fn returned() -> Option<Call> {
    let key = here::key();
    // SAFETY: copied at once; only this thread writes its entry.
    let Some(call) = (unsafe { CALLS.get(key) }).copied() else {
        lost(Loss::InFlight);
        return None;
    };
    let _ = CALLS.remove(key);
    Some(call)
}

#[inline(always)]
fn head(kind: Kind, target: u32, call: &Call, seq: u64) -> Header {
    let at_ns = here::now();
    let tid = here::tid();
    let mut header = Header {
        at_ns,
        socket: call.socket,
        seq,
        target,
        tid,
        kind: kind as u8,
        ..Header::default()
    };
    if let Some(thread) = here::thread(target, tid) {
        // SAFETY: a map value, checked for null, copied field by field while other CPUs may advance it.
        let thread = unsafe { &*thread };
        (header.on_ns, header.wait_ns, header.blocked_ns) = thread.at(at_ns);
        header.wakeup = thread.waits;
    }
    header
}
