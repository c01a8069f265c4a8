//! libzmq's calls: what was sent, refused, taken, and handled.
//!
//! One program for all places inside libzmq, which the attach cookie tells apart ([`probe_ebpf::site`]), and one for
//! returns: so a process needs one link, and one grace period when it goes. `zmq_sendmsg` and `zmq_recvmsg` end in the
//! `zmq_msg_*` calls, `zmq_send` and `zmq_recv` do not, so no message is seen twice. Minimum kernel: 5.15 (attach cookies).

use aya_ebpf::macros::{uprobe, uretprobe};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use probe_ebpf::{Call, Cookie, Kind, Loss, Site, Watched};

use crate::body::Body;
use crate::here::{self, Caller};
use crate::maps::{CALLS, WATCHED, lost};
use crate::regs::Registers;
use crate::report::{self, Moved};

/// `ZMQ_SNDMORE`: another part of the same message follows.
const SNDMORE: u64 = 2;
/// `ZMQ_RCVTIMEO`: pyzmq reads it before each receive, so it means "the application asks for the next message".
const RCVTIMEO: i32 = 27;

/// Every place inside a function.
#[uprobe]
pub(crate) fn zmq(ctx: ProbeContext) -> u32 {
    let _ = at_site(&ctx);
    0
}

/// Every return.
#[uretprobe]
pub(crate) fn zmq_returned(ctx: RetProbeContext) -> u32 {
    let _ = at_return(&ctx);
    0
}

#[inline(always)]
fn at_site(ctx: &ProbeContext) -> Option<()> {
    let cookie = here::cookie(ctx);
    let (regs, target) = (Registers::of(ctx.regs), cookie.target());
    let watched = WATCHED.get(target)?;
    let moved = match cookie.site()? {
        site @ (Site::Send | Site::Received) => message(ctx, watched, cookie, site)?,
        Site::BufferSend => {
            let (socket, place, room) = (regs.arg::<0>(), regs.arg::<1>(), regs.arg::<2>());
            enters(cookie, socket, place, room);
            Moved {
                kind: Kind::Sent,
                socket,
                body: Body::of_buffer(place, room, room),
                more: regs.arg::<3>() & SNDMORE != 0,
            }
        }
        Site::Option if regs.arg::<1>() as i32 == RCVTIMEO => return report::handled(target, regs.arg::<0>()),
        Site::Recv => {
            let (place, socket) = (regs.arg::<0>(), regs.arg::<1>());
            enters(cookie, socket, place, 0);
            return report::handled(target, socket);
        }
        Site::BufferRecv => {
            let socket = regs.arg::<0>();
            enters(cookie, socket, regs.arg::<1>(), regs.arg::<2>());
            return report::handled(target, socket);
        }
        Site::OptionAsked if regs.arg::<1>() as i32 != RCVTIMEO => return None,
        Site::OptionAsked | Site::Waits => return report::handled(target, regs.kept(cookie.socket())?),
        Site::Refused => return report::refused(target, regs.kept(cookie.socket())?),
        _ => return None,
    };
    report::message(&mut Caller::of(target)?, watched, &moved)
}

#[inline(always)]
fn at_return(ctx: &RetProbeContext) -> Option<()> {
    let cookie = here::cookie(ctx);
    let (result, target) = (Registers::of(ctx.regs).result(), cookie.target());
    let call = returns()?;
    let watched = WATCHED.get(target)?;
    let moved = match cookie.site()? {
        Site::SendReturn if result < 0 => return report::refused(target, call.socket),
        Site::RecvReturn if result >= 0 => taken(ctx, watched, call.socket, call.place, result)?,
        // The length of the message, which may be more than the buffer took.
        Site::BufferRecvReturn if result >= 0 => Moved {
            kind: Kind::Taken,
            socket: call.socket,
            body: Body::of_buffer(call.place, result as u64, call.room),
            more: false,
        },
        _ => return None,
    };
    report::message(&mut Caller::of(target)?, watched, &moved)
}

/// A message that is sent, or was taken. One place for both, so that its look at the message exists once and is inlined: a
/// function of its own would carry a symbol that depends on the folder it is built in.
#[inline(always)]
fn message(ctx: &ProbeContext, watched: &Watched, cookie: Cookie, site: Site) -> Option<Moved> {
    let regs = Registers::of(ctx.regs);
    let sent = matches!(site, Site::Send);
    let (kind, socket, place, look) = if sent {
        let (place, socket) = (regs.arg::<0>(), regs.arg::<1>());
        enters(cookie, socket, place, 0);
        (Kind::Sent, socket, place, true)
    } else {
        let (socket, place) = regs.both(cookie.socket(), cookie.message())?;
        if cookie.handles() {
            let _ = report::handled(cookie.target(), socket);
        }
        // Negative: nothing to take, or interrupted.
        if regs.result() < 0 {
            return None;
        }
        (Kind::Taken, socket, place, watched.capture.taken != 0)
    };
    let body = if look {
        Body::of_message(ctx, place)?
    } else {
        Body::unread(regs.result() as u64)
    };
    Some(Moved {
        kind,
        socket,
        body,
        more: if sent {
            regs.arg::<2>() & SNDMORE != 0
        } else {
            body.more
        },
    })
}

/// A message was taken whose receive returned `length`: without a look at the message if nothing of it is wanted, since each
/// read of the target's memory costs it 0.1 us.
#[inline(always)]
fn taken(ctx: &RetProbeContext, watched: &Watched, socket: u64, place: u64, length: i32) -> Option<Moved> {
    let body = if watched.capture.taken == 0 {
        Body::unread(length as u64)
    } else {
        Body::of_message(ctx, place)?
    };
    Some(Moved {
        kind: Kind::Taken,
        socket,
        body,
        more: body.more,
    })
}

/// The current thread enters a call; kept if its return is probed.
#[inline(always)]
fn enters(cookie: Cookie, socket: u64, place: u64, room: u64) {
    if !cookie.returns() {
        return;
    }
    let (key, call) = (here::key(), Call { socket, place, room });
    if let Some(known) = CALLS.get_ptr_mut(key) {
        // SAFETY: a map value, checked for null, of the current thread.
        unsafe { *known = call };
    } else if CALLS.insert(key, call, 0).is_err() {
        lost(Loss::InFlight);
    }
}

/// The call that the current thread returns from.
#[inline(always)]
fn returns() -> Option<Call> {
    // SAFETY: a map value, checked for null, of the current thread.
    let call = CALLS
        .get_ptr_mut(here::key())
        .and_then(|call| unsafe { (*call).returned() });
    if call.is_none() {
        lost(Loss::InFlight);
    }
    call
}
