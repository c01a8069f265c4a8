//! Strategies for arbitrary events. Their borrowed parts are leaked, which is acceptable in short tests.

use proptest::collection::vec;
use proptest::option::{of, weighted};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::string::string_regex;
use recording::Record;
use trace::engine::{Mode, Waiter};
use trace::event::{
    Answer, AnswerContent, AnswerEnd, AnswerFinish, AnswerForm, ArgumentsPart, Arrival, ArrivalTimes, Away, AwayState,
    Capabilities, Chunk, ConnectionTimes, CpuSample, Delivery, Dispatch, DispatchKind, DispatchedRequest, Engine,
    EngineTimes, Event, Finish, Frame, FrontendWait, Hop, IdColumn, Kind, LoggedState, Merged, Missed, MissedCause,
    PairMessage, PairMessageKind, PollUse, QueueSample, Received, Rejection, RequestTimes, Response, SendWait,
    StackSample, Stage, ThreadPart, ToolCallOutcome, ToolCalls, TraceParent, Traced, Undecoded, UnjudgedReason,
    UnknownArrival, What,
};
use trace::{FrameId, HopId, MonoNs, ThreadId};

/// Strategy for a struct, from a strategy for each field.
macro_rules! any {
    ($type:ident { $($field:ident: $strategy:expr),+ $(,)? }) => {
        ($($strategy,)+).prop_map(|($($field,)+)| $type { $($field),+ })
    };
}

fn leak(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

/// A few repeated words, rids, and arbitrary text.
fn text() -> impl Strategy<Value = &'static str> {
    // Parsed once: a pattern passed as text would be parsed again for every string.
    let pattern = |pattern| string_regex(pattern).expect("a pattern");
    // Rids, and texts that nearly are.
    let rid = pattern("[0-9a-f]{31,33}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-g-]{36}");
    prop_oneof![
        6 => select(vec!["a", "b", "c", "", "HEALTH_CHECK_1", "20cba755fa2c4d6aa1e2b0c1d2e3f405"]),
        1 => rid.prop_map(leak),
        1 => pattern("\\PC{0,40}").prop_map(leak),
    ]
}

fn small() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0_u32..4, 1 => any::<u32>(), 1 => Just(u32::MAX)]
}

fn large() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0_u64..1000, 1 => any::<u64>(), 1 => Just(u64::MAX)]
}

fn hop_id() -> impl Strategy<Value = HopId> {
    prop_oneof![8 => 0_u16..3, 1 => any::<u16>()].prop_map(HopId)
}

fn id() -> impl Strategy<Value = FrameId> {
    let lane = prop_oneof![8 => 0_u32..2, 1 => any::<u32>()];
    // Mostly so small that a receive finds its send.
    any!(FrameId { hop: hop_id(), lane: lane, seq: prop_oneof![2 => 0_u64..12, 1 => large()] })
}

fn thread() -> impl Strategy<Value = ThreadId> {
    any!(ThreadId { pid: small(), tid: small() })
}

fn chunk() -> impl Strategy<Value = Chunk<'static>> {
    let ids = prop_oneof![3 => Just(vec![]), 1 => vec(any::<i64>(), 0..5)];
    any!(Chunk {
        rid: text(),
        listed: of(small()),
        completion_tokens: of(small()),
        prompt_tokens: of(small()),
        cached_tokens: of(small()),
        finish: weighted(0.15, select(Finish::ALL)),
        retractions: of(small()),
        worker: of(text()),
        ids: ids.prop_map(|ids| &*ids.leak()),
        text: Just(None),
    })
}

fn frame() -> impl Strategy<Value = Frame<'static>> {
    let columns = vec![
        IdColumn::Delta,
        IdColumn::Cumulative,
        IdColumn::DeltaAfterPromptTail,
        IdColumn::Absent,
        IdColumn::Undecided,
        IdColumn::Uncounted,
    ];
    any!(Frame {
        id: id(),
        bytes: large(),
        forwarded: Just(None),
        kind: select(Kind::ALL),
        ids: select(columns),
        chunks: vec(chunk(), 0..6).prop_map(|chunks| &*chunks.leak()),
    })
}

fn forwarded() -> impl Strategy<Value = Option<MonoNs>> {
    of(large().prop_map(MonoNs))
}

fn hop() -> impl Strategy<Value = Hop<'static>> {
    let capabilities = any!(Capabilities {
        sent: any::<bool>(),
        forwarded: any::<bool>(),
        received: any::<bool>(),
        processed: any::<bool>(),
        delivered: any::<bool>(),
    });
    any!(Hop {
        id: hop_id(),
        ends: text().prop_map(Into::into),
        endpoint: text(),
        worker: of(any::<u16>()),
        origin: any::<bool>(),
        last: any::<bool>(),
        carries_requests: any::<bool>(),
        capabilities: capabilities,
    })
}

fn cpu() -> impl Strategy<Value = CpuSample<'static>> {
    any!(CpuSample {
        thread: thread(),
        role: text(),
        name: text(),
        part: select(ThreadPart::ALL),
        interval_ns: large(),
        on_ns: large(),
        wait_ns: of(large()),
        throttled_ns: of(large()),
        poll: of(any!(PollUse { interval_ns: large(), polled_ns: large(), wakeups: large() })),
        away: of(any!(Away { state: select(AwayState::ALL), place: text() })),
    })
}

fn stacks() -> impl Strategy<Value = StackSample<'static>> {
    any!(StackSample {
        thread: thread(),
        role: text(),
        function: text(),
        file: text(),
        interval_ns: large(),
        samples: small(),
        total: small(),
        own: small(),
        gil: of(small()),
    })
}

fn logged_state() -> impl Strategy<Value = LoggedState<'static>> {
    let share = || of(prop::num::f64::NORMAL | prop::num::f64::ZERO);
    any!(LoggedState {
        by: text(),
        states: of(small()),
        rids: of(small()),
        recv_wait_ns: of(large()),
        more: of(any::<bool>()),
        cpu: share(),
        cpu_system: share(),
        unanswered_since: of(large().prop_map(MonoNs)),
    })
}

fn delivery() -> impl Strategy<Value = Delivery<'static>> {
    any!(Delivery {
        rid: text(),
        tokens: small(),
        mode: select(Mode::ALL),
        completion_tokens: of(small()),
        finished: prop::bool::weighted(0.2),
        response: select(vec![Response::Streamed, Response::Whole, Response::Text]),
        without_text: prop_oneof![9 => Just(0), 1 => any::<u32>()],
    })
}

fn answer() -> impl Strategy<Value = Answer<'static>> {
    any!(Answer {
        rid: text(),
        tokens: of(small()),
        completion_tokens: of(small()),
        end: select(AnswerEnd::ALL),
        short_writes: small(),
        unacknowledged: of(large()),
        content: of(answer_content()),
        tool_calls: of(tool_calls()),
    })
}

fn dispatch() -> impl Strategy<Value = Dispatch<'static>> {
    let request = any!(DispatchedRequest {
        rid: text(),
        prompt_tokens: of(small()),
        room: of(large()),
        arrived_unix_ns: of(large()),
    });
    any!(Dispatch { id: id(), bytes: large(), kind: select(DispatchKind::ALL), index: 0_u32..3, request: of(request) })
}

fn request_times() -> impl Strategy<Value = RequestTimes<'static>> {
    let time = || of(large().prop_map(MonoNs));
    let times = any!(EngineTimes { queued: time(), batch_entered: time(), prefill_finished: time() });
    any!(RequestTimes { rid: text(), times: times, impossible: any::<u8>() })
}

fn answer_content() -> impl Strategy<Value = AnswerContent> {
    any!(AnswerContent {
        form: select(vec![AnswerForm::Generate, AnswerForm::OpenAi]),
        events: small(),
        event_tokens_max: of(small()),
        lacks_end: any::<bool>(),
        finish: of(select(AnswerFinish::ALL)),
        done: of(any::<bool>()),
    })
}

fn tool_calls() -> impl Strategy<Value = ToolCalls> {
    let part = any!(ArgumentsPart {
        at: small(),
        chars: small(),
        tokens: [small(), small()],
        whole_chunks: any::<bool>(),
        events: [small(), small()],
        whole_events: any::<bool>(),
    });
    any!(ToolCalls {
        calls: 1..=u32::MAX,
        absent: small(),
        call: small(),
        outcome: select(ToolCallOutcome::ALL),
        reason: of(select(UnjudgedReason::ALL)),
        finish: of(select(Finish::ALL)),
        events: small(),
        part: of(part),
    })
}

fn arrival() -> impl Strategy<Value = Arrival<'static>> {
    let at = || large().prop_map(MonoNs);
    let times = any!(ArrivalTimes {
        arrived: at(),
        read: at(),
        connection: of(any!(ConnectionTimes { opened: at(), accepted: of(at()) })),
    });
    let unknown = select(UnknownArrival::ALL).prop_map(Err);
    any!(Arrival { rid: text(), times: prop_oneof![3 => times.prop_map(Ok), 1 => unknown] })
}

fn trace_parent() -> impl Strategy<Value = TraceParent> {
    any!(TraceParent {
        trace_id_high: any::<u64>(),
        trace_id_low: any::<u64>(),
        parent_id: any::<u64>(),
        is_sampled: any::<bool>(),
    })
}

/// Any observation.
pub(crate) fn what() -> impl Strategy<Value = What<'static>> {
    let engine = any!(Engine {
        name: of(text()),
        version: of(text()),
        mode: of(select(Mode::ALL)),
        waiter: of(select(Waiter::ALL)),
        turnaround: of(any::<u8>()),
    });
    let undecoded = any!(Undecoded { id: id(), bytes: large(), forwarded: forwarded(), reason: text() });
    let queue = any!(QueueSample { hop: text(), receive_bytes: of(large()), send_bytes: of(large()) });
    let stage = any!(Stage {
        rid: text(),
        name: text(),
        by: text(),
        tokens: of(small()),
        pending: of(small()),
        gap_ns: of(large()),
    });
    let wait = any!(FrontendWait { rid: text(), first_token_ns: of(large()), last_token_ns: of(large()) });
    let missed =
        any!(Missed { hop: of(any::<u16>().prop_map(HopId)), count: large(), cause: select(MissedCause::ALL) });
    prop_oneof![
        1 => engine.prop_map(What::Engine),
        1 => hop().prop_map(What::Hop),
        2 => dispatch().prop_map(What::Dispatched),
        1 => any!(PairMessage { room: large(), kind: select(PairMessageKind::ALL) }).prop_map(What::PairMessage),
        2 => request_times().prop_map(What::RequestTimes),
        8 => (frame(), forwarded()).prop_map(|(frame, forwarded)| What::Sent(Frame { forwarded, ..frame })),
        1 => any!(SendWait { hop: any::<u16>().prop_map(HopId), ns: large() }).prop_map(What::SendWait),
        6 => (id(), of(large()), of(thread()), of(frame()), any::<bool>()).prop_map(|(id, wakeup, by, frame, same)| {
            let frame = frame.map(|f| Frame { id: if same { id } else { f.id }, ..f });
            What::Received(Received { id, wakeup, by, frame })
        }),
        2 => id().prop_map(What::Processed),
        1 => arrival().prop_map(What::Arrived),
        1 => any!(Traced { rid: text(), parent: trace_parent() }).prop_map(What::Traced),
        5 => delivery().prop_map(What::Delivered),
        1 => undecoded.prop_map(What::Undecoded),
        1 => cpu().prop_map(What::Cpu),
        1 => queue.prop_map(What::Queue),
        1 => stacks().prop_map(What::Stack),
        1 => stage.prop_map(What::Stage),
        1 => logged_state().prop_map(What::LoggedState),
        1 => answer().prop_map(What::Answered),
        1 => any::<u16>().prop_map(|status| What::Rejected(Rejection { status })),
        1 => wait.prop_map(What::FrontendWait),
        1 => any!(Merged { rid: text(), chunks: small(), by: text() }).prop_map(What::Merged),
        1 => missed.prop_map(What::Missed),
    ]
}

/// Events and ticks in any order.
#[allow(dead_code, reason = "shared by several test programs")]
pub(crate) fn inputs() -> impl Strategy<Value = Vec<Record<'static>>> {
    let at = prop_oneof![8 => 0_u64..1_000_000, 1 => any::<u64>()].prop_map(MonoNs);
    let one = (at, weighted(0.9, what())).prop_map(|(at, what)| match what {
        Some(what) => Record::Event(Event { at, what }),
        None => Record::Tick(at),
    });
    vec(one, 1..60)
}
