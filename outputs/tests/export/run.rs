//! A run with everything an export can show. It has two hops, a backlog, bursts of receives and a waiter that keeps the last chunk.
//! It also has samples, log lines, an undecoded frame, missed observations, an abort, and requests in flight at the end.

use trace::engine::{Mode, Waiter};
use trace::event::{
    Answer, AnswerEnd, Arrival, ArrivalTimes, Capabilities, Chunk, ConnectionTimes, CpuSample, Delivery, Dispatch,
    DispatchKind, DispatchedRequest, Engine, EngineTimes, Event, Finish, Frame, FrontendWait, Hop, Kind, LoggedState,
    Merged, Missed, MissedCause, PairMessage, PairMessageKind, PollUse, QueueSample, Received, Rejection, RequestTimes,
    SendWait, StackSample, Stage, TraceParent, Traced, Undecoded, UnknownArrival, What,
};
use trace::{FrameId, HopId, MonoNs, ThreadId};

pub(crate) const START: u64 = 5_000_000_000_000;
pub(crate) const MS: u64 = 1_000_000;
/// Wall time at `START`.
pub(crate) const WALL: u64 = 1_763_690_000_123_456_789;
/// A room that a JSON number of many readers cannot hold.
pub(crate) const ROOM: u64 = (1 << 53) + 1;
const REQUESTS: usize = 12;
const TOKENS: u32 = 40;
const UP: HopId = HopId(0);
const DOWN: HopId = HopId(1);
const REQUESTS_HOP: HopId = HopId(2);
const TOKENIZER: ThreadId = ThreadId { pid: 4242, tid: 4242 };

/// Events of the run, ordered by time. Their borrowed parts are leaked.
pub(crate) fn events() -> Vec<Event<'static>> {
    let mut events = Vec::new();
    let mut enter = |at: u64, what| events.push(Event { at: MonoNs(at), what });
    announce(&mut enter);
    samples(&mut enter);
    for frame in 0..u64::from(TOKENS) {
        let sent = START + 10 * MS + frame * 10 * MS;
        let chunks: &[Chunk<'_>] = chunks(frame as u32).leak();
        let (up, down) = (id(UP, frame), id(DOWN, frame));
        let content = Frame { bytes: 800 + 60 * chunks.len() as u64, ..Frame::token_ids(up, 0, chunks) };
        enter(sent, What::Sent(Frame { forwarded: Some(MonoNs(sent + 20_000)), ..content }));
        enter(sent + MS, receive(up, None, None));
        enter(sent + 2 * MS, What::Processed(up));
        // The tokenizer receives two frames per wakeup and falls behind by 5 ms with each frame.
        let wakeup = frame / 2;
        let received = START + 30 * MS + wakeup * 30 * MS + frame % 2 * 200_000;
        enter(received, receive(down, Some(wakeup), Some(TOKENIZER)));
        enter(received + 150_000, What::Processed(down));
        enter(sent + 2 * MS, What::Sent(Frame { id: down, kind: Kind::Text, ..content }));
        // Its waiters keep only the last chunk of a wakeup.
        for chunk in chunks.iter().filter(|chunk| chunk.finish != Some(Finish::Abort)) {
            if frame % 2 == 1 || chunk.rid == "5b8efff798038103d269b633813fc60c" {
                let delivery = Delivery::new(chunk.rid, 1, chunk.completion_tokens);
                let finished = chunk.finish.is_some();
                enter(received + 400_000, What::Delivered(Delivery { finished, ..delivery }));
            }
        }
    }
    events.sort_by_key(|event| event.at);
    events
}

/// A UUID, other rids, and one with characters that formats must escape.
fn rid(request: usize) -> &'static str {
    match request {
        0 => "5b8efff798038103d269b633813fc60c",
        1 => "special \"rid\", with\\all\nof it",
        n => format!("request-{n}").leak(),
    }
}

fn chunks(frame: u32) -> Vec<Chunk<'static>> {
    let of = |request: usize| {
        // The last two requests start late and another is long: three are in flight at the end.
        let first = if request >= REQUESTS - 2 { TOKENS - 6 } else { request as u32 };
        let count = (frame + 1).checked_sub(first).filter(|&count| count > 0)?;
        let last = 24 + request as u32;
        let finish = match request {
            3 => Finish::Abort,
            n if n % 2 == 0 => Finish::Stop,
            _ => Finish::Length,
        };
        (count <= last).then(|| Chunk {
            prompt_tokens: Some(16),
            cached_tokens: Some(8),
            finish: (count == last).then_some(finish),
            ids: &[1001],
            ..Chunk::counted(rid(request), 1, count)
        })
    };
    (0..REQUESTS).filter_map(of).collect()
}

fn id(hop: HopId, seq: u64) -> FrameId {
    FrameId { hop, lane: 0, seq }
}

fn receive(id: FrameId, wakeup: Option<u64>, by: Option<ThreadId>) -> What<'static> {
    What::Received(Received { id, wakeup, by, frame: None })
}

fn announce(enter: &mut impl FnMut(u64, What<'static>)) {
    let all = Capabilities::SENT | Capabilities::FORWARDED | Capabilities::RECEIVED | Capabilities::PROCESSED;
    let engine = Engine {
        version: Some("0.5.9"),
        mode: Some(Mode::Incremental),
        waiter: Some(Waiter::KeepsLast),
        turnaround: Some(3),
        ..Engine::default()
    };
    enter(START, What::Engine(engine));
    let up = Hop { endpoint: "ipc:///tmp/detokenizer", origin: true, ..Hop::new(UP, "scheduler->detokenizer", all) };
    enter(START, What::Hop(up));
    let down = Hop {
        id: DOWN,
        ends: "detokenizer->tokenizer".into(),
        endpoint: "ipc:///tmp/tokenizer",
        origin: false,
        last: true,
        capabilities: Capabilities { forwarded: false, delivered: true, ..all },
        ..up
    };
    enter(START, What::Hop(down));
    enter(START, What::Hop(Hop::with_requests(REQUESTS_HOP, "tokenizer->scheduler", all)));
    let request =
        Some(DispatchedRequest { prompt_tokens: Some(16), room: Some(ROOM), ..DispatchedRequest::new(rid(0)) });
    let id = id(REQUESTS_HOP, 0);
    let dispatch = Dispatch { id, bytes: 1303, kind: DispatchKind::Requests, index: 0, request };
    enter(START + 2 * MS, What::Dispatched(dispatch));
    enter(START + 4 * MS, receive(id, None, None));
    enter(START + 5 * MS, What::Processed(id));
}

fn samples(enter: &mut impl FnMut(u64, What<'static>)) {
    let cpu = CpuSample {
        name: "python3",
        wait_ns: Some(MS),
        poll: Some(PollUse { interval_ns: 100 * MS, polled_ns: 2 * MS, wakeups: 7 }),
        ..CpuSample::new(TOKENIZER, "tokenizer", 100 * MS, 97 * MS)
    };
    let scheduler =
        CpuSample { thread: ThreadId { pid: 4100, tid: 4100 }, role: "scheduler", poll: None, away: None, ..cpu };
    for interval in 1..8 {
        enter(START + interval * 100 * MS, What::Cpu(cpu));
        enter(START + interval * 100 * MS, What::Cpu(scheduler));
        let queue = QueueSample { hop: "detokenizer->tokenizer", receive_bytes: Some(0), send_bytes: None };
        enter(START + interval * 100 * MS, What::Queue(queue));
    }
    let before_start = Some(MonoNs(START - MS));
    let times =
        EngineTimes { queued: before_start, batch_entered: Some(MonoNs(START + 3 * MS)), prefill_finished: None };
    enter(START + 300 * MS, What::RequestTimes(RequestTimes { rid: rid(0), times, impossible: 1 }));
    let wait = SendWait { hop: UP, ns: 80_000 };
    enter(START + 300 * MS, What::SendWait(wait));
    let stacks = StackSample {
        thread: TOKENIZER,
        role: "tokenizer",
        function: "_handle_batch_output",
        file: "tokenizer_manager.py",
        interval_ns: 1_000 * MS,
        samples: 100,
        total: 80,
        own: 40,
        gil: Some(39),
    };
    enter(START + 310 * MS, What::Stack(stacks));
    let stage =
        Stage { tokens: Some(1), pending: Some(256), ..Stage::new("request-4", "tokenizer_first_token", "tokenizer") };
    enter(START + 320 * MS, What::Stage(stage));
    let logged_state = LoggedState {
        by: "tokenizer",
        states: Some(850),
        rids: Some(12),
        recv_wait_ns: Some(200_000),
        more: Some(true),
        cpu: Some(2.25),
        cpu_system: None,
        unanswered_since: None,
    };
    enter(START + 330 * MS, What::LoggedState(logged_state));
    let connection = Some(ConnectionTimes { opened: MonoNs(START), accepted: Some(MonoNs(START + 5 * MS)) });
    let times = ArrivalTimes { arrived: MonoNs(START + MS), read: MonoNs(START + 6 * MS), connection };
    for (rid, times) in [("request-4", Ok(times)), ("request-5", Err(UnknownArrival::Tls))] {
        enter(START + 335 * MS, What::Arrived(Arrival { rid, times }));
    }
    let parent = TraceParent {
        trace_id_high: 0x4bf9_2f35_77b3_4da6,
        trace_id_low: 0xa3ce_929d_0e0e_4736,
        parent_id: 0x00f0_67aa_0ba9_02b7,
        is_sampled: true,
    };
    enter(START + 335 * MS, What::Traced(Traced { rid: "request-4", parent }));
    for kind in [PairMessageKind::Allocated, PairMessageKind::Failed] {
        enter(START + 335 * MS, What::PairMessage(PairMessage { room: ROOM, kind }));
    }
    let merged = Merged { rid: "request-4", chunks: 21, by: "tokenizer" };
    enter(START + 340 * MS, What::Merged(merged));
    let answer = Answer {
        end: AnswerEnd::ClientLeft,
        short_writes: 2,
        unacknowledged: Some(512),
        ..Answer::new("request-4", Some(12), Some(24))
    };
    enter(START + 780 * MS, What::Answered(answer));
    let frontend = FrontendWait { rid: "request-4", first_token_ns: Some(90 * MS), last_token_ns: None };
    enter(START + 785 * MS, What::FrontendWait(frontend));
    enter(START + 786 * MS, What::Rejected(Rejection { status: 429 }));
    let undecoded = Undecoded::new(FrameId::new(UP, 1, 0), 77, "no known class");
    enter(START + 700 * MS, What::Undecoded(undecoded));
    enter(START + 790 * MS, What::Missed(Missed::new(None, 3, MissedCause::QueueFull)));
}
