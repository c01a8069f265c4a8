//! Observes libzmq: messages sent, refused, received and processed. A method that receives messages in the sender's process counts as a
//! send on its object.
//!
//! One program serves all probe points, distinguished by the attach cookie ([`probe_ebpf::probe_point`]), and another serves all
//! returns. Each process therefore needs only one link per program, and one grace period to detach. `zmq_sendmsg` and
//! `zmq_recvmsg` call `zmq_msg_*`, while `zmq_send` and `zmq_recv` do not, so no message is reported twice. Minimum kernel:
//! 5.15 (attach cookies).

use aya_ebpf::macros::{uprobe, uretprobe};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use probe_ebpf::{Call, Cookie, Kind, Loss, ProbePoint, Watched};

use crate::body::Body;
use crate::here::{self, Caller};
use crate::maps::{CALLS, WATCHED, count_loss};
use crate::python;
use crate::regs::Registers;
use crate::report::{self, Moved};
use crate::stack::refuse_private_stack;

/// `ZMQ_SNDMORE`: another part of the same message follows.
const SNDMORE: u64 = 2;
/// `ZMQ_RCVTIMEO`. pyzmq reads this option before each receive, so reading it means that the application asks for the next
/// message.
const RCVTIMEO: i32 = 27;

/// Runs at every probe point of messages, except at returns. Reports the message or the event that the point stands for.
#[uprobe]
pub(crate) fn zmq(ctx: ProbeContext) -> u32 {
    refuse_private_stack(&ctx);
    let _ = report_probe_point(&ctx);
    0
}

/// Runs at every probed return of a function that moves messages. Reports the message or the event that the return completes.
#[uretprobe]
pub(crate) fn zmq_returned(ctx: RetProbeContext) -> u32 {
    refuse_private_stack(&ctx);
    let _ = report_probed_return(&ctx);
    0
}

#[inline(always)]
fn report_probe_point(ctx: &ProbeContext) -> Option<()> {
    let cookie = here::cookie(ctx);
    let (regs, target) = (Registers::of(ctx.regs), cookie.target());
    let watched = WATCHED.get(target)?;
    let moved = match cookie.probe_point()? {
        probe_point @ (ProbePoint::Send | ProbePoint::Received) => moved_message(ctx, watched, cookie, probe_point)?,
        ProbePoint::BufferSend => {
            let (socket, place, room) = (regs.arg::<0>(), regs.arg::<1>(), regs.arg::<2>());
            save_entered_call(cookie, socket, place, room);
            Moved {
                kind: Kind::Sent,
                socket,
                body: Body::of_buffer(place, room, room),
                more: regs.arg::<3>() & SNDMORE != 0,
            }
        }
        ProbePoint::Method => {
            save_entered_call(cookie, regs.arg::<0>(), 0, 0);
            Moved {
                kind: Kind::Sent,
                socket: regs.arg::<0>(),
                body: python::body_of_first_argument(ctx, regs.arg::<1>())?,
                more: false,
            }
        }
        ProbePoint::Option if regs.arg::<1>() as i32 == RCVTIMEO => return report::processed(target, regs.arg::<0>()),
        ProbePoint::Recv => {
            let (place, socket) = (regs.arg::<0>(), regs.arg::<1>());
            save_entered_call(cookie, socket, place, 0);
            return report::processed(target, socket);
        }
        ProbePoint::BufferRecv => {
            let socket = regs.arg::<0>();
            save_entered_call(cookie, socket, regs.arg::<1>(), regs.arg::<2>());
            return report::processed(target, socket);
        }
        ProbePoint::OptionAsked if regs.arg::<1>() as i32 != RCVTIMEO => return None,
        ProbePoint::OptionAsked | ProbePoint::Waits => return report::processed(target, regs.kept(cookie.socket())?),
        ProbePoint::Refused => return report::report_refused_send(target, regs.kept(cookie.socket())?),
        _ => return None,
    };
    report::message(&mut Caller::of(target)?, watched, &moved)
}

#[inline(always)]
fn report_probed_return(ctx: &RetProbeContext) -> Option<()> {
    let cookie = here::cookie(ctx);
    let (result, target) = (Registers::of(ctx.regs).result(), cookie.target());
    let probe_point = cookie.probe_point()?;
    // The return of a method adds only the time in it.
    let call = take_saved_call(target, !matches!(probe_point, ProbePoint::MethodReturn))?;
    let watched = WATCHED.get(target)?;
    let moved = match probe_point {
        ProbePoint::SendReturn if result < 0 => return report::report_refused_send(target, call.socket),
        ProbePoint::MethodReturn => return report::report_method_return(target, call.socket),
        ProbePoint::RecvReturn if result >= 0 => received(ctx, watched, call.socket, call.place, result)?,
        // The result is the message length, which may exceed the buffer.
        ProbePoint::BufferRecvReturn if result >= 0 => Moved {
            kind: Kind::Received,
            socket: call.socket,
            body: Body::of_buffer(call.place, result as u64, call.room),
            more: false,
        },
        _ => return None,
    };
    report::message(&mut Caller::of(target)?, watched, &moved)
}

/// Returns the message that is being sent or was received. One function serves both, so that the code that reads the message
/// exists once. It is inlined, because the symbol of a separate function would contain a hash of the build folder.
#[inline(always)]
fn moved_message(ctx: &ProbeContext, watched: &Watched, cookie: Cookie, probe_point: ProbePoint) -> Option<Moved> {
    let regs = Registers::of(ctx.regs);
    let sent = matches!(probe_point, ProbePoint::Send);
    let (kind, socket, place, read) = if sent {
        let (place, socket) = (regs.arg::<0>(), regs.arg::<1>());
        save_entered_call(cookie, socket, place, 0);
        (Kind::Sent, socket, place, true)
    } else {
        let (socket, place) = regs.kept_pair(cookie.socket(), cookie.message())?;
        if cookie.marks_processed() {
            let _ = report::processed(cookie.target(), socket);
        }
        // Negative: no message available, or interrupted.
        if regs.result() < 0 {
            return None;
        }
        (Kind::Received, socket, place, watched.capture.received != 0)
    };
    let body = if read { Body::of_message(ctx, place)? } else { Body::unread(regs.result() as u64) };
    Some(Moved { kind, socket, body, more: if sent { regs.arg::<2>() & SNDMORE != 0 } else { body.more } })
}

/// Returns the received message of `length` bytes. Reads the message only if its payload is captured, since each read of the
/// target's memory costs it 0.1 us.
#[inline(always)]
fn received(ctx: &RetProbeContext, watched: &Watched, socket: u64, place: u64, length: i32) -> Option<Moved> {
    let body = if watched.capture.received == 0 { Body::unread(length as u64) } else { Body::of_message(ctx, place)? };
    Some(Moved { kind: Kind::Received, socket, body, more: body.more })
}

/// Saves the call that the current thread enters, if its return is probed.
#[inline(always)]
fn save_entered_call(cookie: Cookie, socket: u64, buffer_address: u64, room: u64) {
    if !cookie.returns() {
        return;
    }
    let (key, call) = (here::key(), Call { socket, place: buffer_address, room, target: cookie.target(), reserved: 0 });
    if let Some(known) = CALLS.get_ptr_mut(key) {
        // SAFETY: the current thread's map value, checked for null.
        unsafe { *known = call };
    } else if CALLS.insert(key, call, 0).is_err() {
        count_loss(Loss::InFlight);
    }
}

/// Returns the saved call of `target` that the current thread returns from. `counts_missing`: an unsaved call is a missed observation.
#[inline(always)]
fn take_saved_call(target: u32, counts_missing: bool) -> Option<Call> {
    let saved = CALLS.get_ptr_mut(here::key());
    // SAFETY: the current thread's map value, checked for null.
    if saved.is_some_and(|call| unsafe { !(*call).is_of(target) }) {
        return None;
    }
    // SAFETY: as above.
    let call = saved.and_then(|call| unsafe { (*call).returned() });
    if call.is_none() && counts_missing {
        count_loss(Loss::InFlight);
    }
    call
}
