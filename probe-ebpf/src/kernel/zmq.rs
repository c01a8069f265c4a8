//! libzmq's calls: what was sent, refused, taken, and handled.
//!
//! `zmq_sendmsg` and `zmq_recvmsg` end in the `zmq_msg_*` calls, `zmq_send` and `zmq_recv` do not, so no message is seen
//! twice. Minimum kernel of every program here: 5.15 (uprobes with attach cookies).

use aya_ebpf::macros::{uprobe, uretprobe};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use probe_ebpf::{Call, Kind};

use crate::body::Body;
use crate::here::{self, Caller};
use crate::report;

/// `ZMQ_SNDMORE`: another part of the same message follows.
const SNDMORE: i32 = 2;
/// `ZMQ_RCVTIMEO`: pyzmq reads it before each receive, so it means "the application asks for the next message".
const RCVTIMEO: i32 = 27;

/// `int zmq_msg_send(zmq_msg_t *msg, void *socket, int flags)`
#[uprobe]
pub(crate) fn msg_send(ctx: ProbeContext) -> u32 {
    if let (Some(place), Some(socket), Some(flags)) = (ctx.arg(0), ctx.arg(1), ctx.arg::<i32>(2))
        && let Some(body) = Body::of_message(&ctx, place)
        && let Some(mut caller) = Caller::of(&ctx)
    {
        let call = Call {
            socket,
            place,
            room: 0,
            at_ns: here::now(),
        };
        caller.enters(call);
        report::message(&mut caller, Kind::Sent, &call, body, flags & SNDMORE != 0);
    }
    0
}

/// `int zmq_send(void *socket, const void *buffer, size_t length, int flags)`, and `zmq_send_const` alike
#[uprobe]
pub(crate) fn buffer_send(ctx: ProbeContext) -> u32 {
    if let (Some(socket), Some(place), Some(room), Some(flags)) =
        (ctx.arg(0), ctx.arg(1), ctx.arg(2), ctx.arg::<i32>(3))
        && let Some(mut caller) = Caller::of(&ctx)
    {
        let call = Call {
            socket,
            place,
            room,
            at_ns: here::now(),
        };
        caller.enters(call);
        report::message(
            &mut caller,
            Kind::Sent,
            &call,
            Body::of_buffer(place, room, room),
            flags & SNDMORE != 0,
        );
    }
    0
}

/// The return of either: a send that failed is taken back.
#[uretprobe]
pub(crate) fn send_returned(ctx: RetProbeContext) -> u32 {
    if let Some(mut caller) = Caller::of(&ctx)
        && let Some(call) = caller.returns()
        && ctx.ret::<i32>() < 0
    {
        report::refused(&mut caller, &call);
    }
    0
}

/// `int zmq_msg_recv(zmq_msg_t *msg, void *socket, int flags)`
#[uprobe]
pub(crate) fn msg_recv(ctx: ProbeContext) -> u32 {
    if let (Some(place), Some(socket), Some(mut caller)) = (ctx.arg(0), ctx.arg(1), Caller::of(&ctx)) {
        report::handled(&mut caller, socket);
        caller.enters(Call {
            socket,
            place,
            room: 0,
            at_ns: here::now(),
        });
    }
    0
}

/// Its return, with the message in place.
#[uretprobe]
pub(crate) fn msg_received(ctx: RetProbeContext) -> u32 {
    if let Some(mut caller) = Caller::of(&ctx)
        && let Some(call) = caller.returns()
        // Negative: nothing to take, or interrupted.
        && ctx.ret::<i32>() >= 0
        && let Some(body) = Body::of_message(&ctx, call.place)
    {
        report::message(&mut caller, Kind::Taken, &call, body, body.more);
    }
    0
}

/// `int zmq_recv(void *socket, void *buffer, size_t length, int flags)`
#[uprobe]
pub(crate) fn buffer_recv(ctx: ProbeContext) -> u32 {
    if let (Some(socket), Some(place), Some(room), Some(mut caller)) =
        (ctx.arg(0), ctx.arg(1), ctx.arg(2), Caller::of(&ctx))
    {
        report::handled(&mut caller, socket);
        caller.enters(Call {
            socket,
            place,
            room,
            at_ns: here::now(),
        });
    }
    0
}

/// Its return: the length of the message, which may be more than the buffer took.
#[uretprobe]
pub(crate) fn buffer_received(ctx: RetProbeContext) -> u32 {
    let len = ctx.ret::<i32>();
    if let Some(mut caller) = Caller::of(&ctx)
        && let Some(call) = caller.returns()
        && len >= 0
    {
        let body = Body::of_buffer(call.place, len as u64, call.room);
        report::message(&mut caller, Kind::Taken, &call, body, false);
    }
    0
}

/// `int zmq_getsockopt(void *socket, int option, void *value, size_t *length)`
#[uprobe]
pub(crate) fn getsockopt(ctx: ProbeContext) -> u32 {
    if let (Some(socket), Some(RCVTIMEO)) = (ctx.arg(0), ctx.arg::<i32>(1))
        && let Some(mut caller) = Caller::of(&ctx)
    {
        report::handled(&mut caller, socket);
    }
    0
}
