//! The events of a prefill and a decode server.

use trace::event::{
    Capabilities, Chunk, Delivery, Dispatch, DispatchKind, DispatchedRequest, EngineTimes, Finish, Frame, Hop,
    PairMessage, PairMessageKind, Received, RequestTimes, What,
};
use trace::{FrameId, HopId, MonoNs};

const OUTPUT: HopId = HopId(0);
const REQUESTS: HopId = HopId(1);
pub(crate) const MS: u64 = 1_000_000;

/// A request of one server, with its moments in milliseconds.
#[derive(Clone, Copy, Default)]
pub(crate) struct Request<'a> {
    pub(crate) rid: &'a str,
    pub(crate) room: Option<u64>,
    pub(crate) dispatched: u64,
    pub(crate) received: u64,
    pub(crate) message: Option<(u64, PairMessageKind)>,
    pub(crate) queued: Option<u64>,
    pub(crate) batch: Option<u64>,
    pub(crate) ended: Option<u64>,
    pub(crate) frame: u64,
    pub(crate) token_received: u64,
    pub(crate) delivered: u64,
    /// Further chunks, every 100 ms, until this time.
    pub(crate) output_until: Option<u64>,
    pub(crate) prompt_tokens: u32,
}

impl Request<'_> {
    /// As a healthy prefill server serves it, from a time on.
    pub(crate) fn of_prefill(rid: &str, room: u64, from: u64) -> Request<'_> {
        Request {
            rid,
            room: Some(room),
            dispatched: from + 4,
            received: from + 5,
            message: Some((from + 144, PairMessageKind::Transferred)),
            queued: Some(from + 27),
            batch: Some(from + 28),
            ended: Some(from + 44),
            frame: from + 154,
            token_received: from + 155,
            delivered: from + 156,
            output_until: None,
            prompt_tokens: 50,
        }
    }

    /// As a healthy decode server serves it.
    pub(crate) fn of_decode(rid: &str, room: u64, from: u64) -> Request<'_> {
        Request {
            rid,
            room: Some(room),
            dispatched: from + 11,
            received: from + 12,
            message: Some((from + 20, PairMessageKind::Allocated)),
            queued: Some(from + 167),
            batch: Some(from + 168),
            ended: None,
            frame: from + 169,
            token_received: from + 170,
            delivered: from + 171,
            output_until: None,
            prompt_tokens: 50,
        }
    }
}

/// The events of a server with these requests, in their order, whose clock is ahead by some milliseconds.
pub(crate) fn server_events<'a>(requests: &[Request<'a>], ahead: u64) -> Vec<(u64, What<'a>)> {
    let all = Capabilities::SENT | Capabilities::RECEIVED | Capabilities::DELIVERED;
    let mut events = vec![
        (0, What::Hop(Hop::only(OUTPUT, "scheduler->tokenizer", all))),
        (
            0,
            What::Hop(Hop::with_requests(
                REQUESTS,
                "tokenizer->scheduler",
                Capabilities::SENT | Capabilities::RECEIVED,
            )),
        ),
    ];
    for (seq, request) in (0..).zip(requests) {
        let at = |ms: u64| (ms + ahead) * MS;
        let id = FrameId::new(REQUESTS, 0, seq);
        let named = Some(DispatchedRequest {
            prompt_tokens: Some(request.prompt_tokens),
            room: request.room,
            ..DispatchedRequest::new(request.rid)
        });
        let dispatch = Dispatch { id, bytes: 900, kind: DispatchKind::Requests, index: 0, request: named };
        events.push((at(request.dispatched), What::Dispatched(dispatch)));
        events.push((at(request.received), What::Received(Received::new(id))));
        if let Some(((ms, kind), room)) = request.message.zip(request.room) {
            events.push((at(ms), What::PairMessage(PairMessage { room, kind })));
        }
        let output = FrameId::new(OUTPUT, 0, seq);
        let is_last = request.output_until.is_none();
        let chunk = Chunk { finish: is_last.then_some(Finish::Length), ..Chunk::counted(request.rid, 1, 1) };
        let frame = Frame::token_ids(output, 300, vec![chunk].leak());
        events.push((at(request.frame), What::Sent(frame)));
        let time = |ms: Option<u64>| ms.map(|ms| MonoNs(at(ms)));
        let times = EngineTimes {
            queued: time(request.queued),
            batch_entered: time(request.batch),
            prefill_finished: time(request.ended),
        };
        events.push((at(request.frame), What::RequestTimes(RequestTimes { rid: request.rid, times, impossible: 0 })));
        events.push((at(request.token_received), What::Received(Received::new(output))));
        let delivery = Delivery { finished: is_last, ..Delivery::new(request.rid, 1, Some(1)) };
        events.push((at(request.delivered), What::Delivered(delivery)));
        let times = (request.frame + 100..=request.output_until.unwrap_or_default()).step_by(100);
        for (ms, count) in times.zip(2..) {
            let output = FrameId::new(OUTPUT, 0, 1_000_000 * (seq + 1) + u64::from(count));
            let frame = Frame::token_ids(output, 300, vec![Chunk::counted(request.rid, 1, count)].leak());
            events.push((at(ms), What::Sent(frame)));
            events.push((at(ms) + MS, What::Received(Received::new(output))));
        }
    }
    events.sort_by_key(|(at, _)| *at);
    events
}
