//! Strategies for arbitrary events. Their borrowed parts are leaked, which is acceptable in short tests.

use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use proptest::string::string_regex;
use trace::engine::{Mode, Waiter};
use trace::event::{
    Answer, AnswerEnd, ArgumentsPart, Away, AwayState, Capabilities, Chunk, CpuSample, Delivery, Engine, Event, Finish,
    Frame, FrontendWait, Hop, IdColumn, Kind, LoggedState, Merged, Missed, MissedCause, PollUse, QueueSample, Received,
    Response, SendWait, StackSample, Stage, ThreadPart, ToolCallOutcome, ToolCalls, Undecoded, What,
};
use trace::{FrameId, HopId, MonoNs, ThreadId};

use super::Input;

fn leak(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

/// A few repeated words, rids, and arbitrary text.
fn text() -> impl Strategy<Value = &'static str> {
    // Parsed once: a pattern passed as text would be parsed again for every string.
    let pattern = |pattern| string_regex(pattern).expect("a pattern");
    let rid = pattern("[0-9a-f]{32}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}");
    prop_oneof![
        6 => prop::sample::select(vec!["a", "b", "c", "", "20cba755fa2c4d6aa1e2b0c1d2e3f405"]),
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

fn id() -> impl Strategy<Value = FrameId> {
    let lane = prop_oneof![8 => 0_u32..2, 1 => any::<u32>()];
    (hop_id(), lane, large()).prop_map(|(hop, lane, seq)| FrameId::new(hop, lane, seq))
}

fn thread() -> impl Strategy<Value = ThreadId> {
    (small(), small()).prop_map(|(pid, tid)| ThreadId { pid, tid })
}

/// A struct of which each field has its own strategy.
macro_rules! strategy {
    ($type:ident { $($field:ident: $strategy:expr),+ $(,)? }) => {
        ($($strategy,)+).prop_map(|($($field,)+)| $type { $($field),+ })
    };
}

/// One of the variants.
macro_rules! one_of {
    ($type:ident: $($variant:ident)+) => {
        prop::sample::select(vec![$($type::$variant),+])
    };
}

fn finish() -> impl Strategy<Value = Finish> {
    one_of!(Finish: Length Stop Abort Other)
}

fn mode() -> impl Strategy<Value = Mode> {
    one_of!(Mode: Incremental Cumulative)
}

fn hop_id() -> impl Strategy<Value = HopId> {
    prop_oneof![8 => 0_u16..3, 1 => any::<u16>()].prop_map(HopId)
}

fn chunk() -> impl Strategy<Value = Chunk<'static>> {
    let ids = prop_oneof![3 => Just(vec![]), 1 => vec(any::<i64>(), 0..5)];
    strategy!(Chunk {
        rid: text(),
        listed: of(small()),
        completion_tokens: of(small()),
        prompt_tokens: of(small()),
        cached_tokens: of(small()),
        finish: prop_oneof![6 => Just(None), 1 => finish().prop_map(Some)],
        retractions: of(small()),
        worker: of(text()),
        ids: ids.prop_map(|ids| &*ids.leak()),
        text: Just(None),
    })
}

fn frame() -> impl Strategy<Value = Frame<'static>> {
    strategy!(Frame {
        id: id(),
        bytes: large(),
        forwarded: Just(None),
        kind: one_of!(Kind: TokenIds Text Embedding Multimodal Abort Control),
        ids: one_of!(IdColumn: Delta Cumulative DeltaAfterPromptTail Absent Undecided),
        chunks: vec(chunk(), 0..6).prop_map(|chunks| &*chunks.leak()),
    })
}

fn forwarded() -> impl Strategy<Value = Option<MonoNs>> {
    of(large().prop_map(MonoNs))
}

fn hop() -> impl Strategy<Value = Hop<'static>> {
    let flag = any::<bool>;
    strategy!(Hop {
        id: hop_id(),
        ends: text().prop_map(Into::into),
        endpoint: text(),
        worker: of(any::<u16>()),
        origin: flag(),
        last: flag(),
        capabilities: strategy!(Capabilities {
            sent: flag(),
            forwarded: flag(),
            received: flag(),
            processed: flag(),
            delivered: flag(),
        }),
    })
}

fn cpu() -> impl Strategy<Value = CpuSample<'static>> {
    strategy!(CpuSample {
        thread: thread(),
        role: text(),
        name: text(),
        part: one_of!(ThreadPart: Main Io Other),
        interval_ns: large(),
        on_ns: large(),
        wait_ns: of(large()),
        throttled_ns: of(large()),
        poll: of(strategy!(PollUse {
            interval_ns: large(),
            polled_ns: large(),
            wakeups: large(),
        })),
        away: of(strategy!(Away {
            state: prop::sample::select(AwayState::ALL.to_vec()),
            place: text(),
        })),
    })
}

fn stacks() -> impl Strategy<Value = StackSample<'static>> {
    strategy!(StackSample {
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
    let share = of(prop::num::f64::NORMAL | prop::num::f64::ZERO);
    strategy!(LoggedState {
        by: text(),
        states: of(small()),
        rids: of(small()),
        recv_wait_ns: of(large()),
        more: of(any::<bool>()),
        cpu: share.clone(),
        cpu_system: share,
    })
}

fn answer() -> impl Strategy<Value = Answer<'static>> {
    strategy!(Answer {
        rid: text(),
        tokens: of(small()),
        completion_tokens: of(small()),
        end: one_of!(AnswerEnd: Whole ClientLeft ServerLeft Unknown),
        short_writes: small(),
        unacknowledged: of(large()),
        tool_calls: of(tool_calls()),
    })
}

fn tool_calls() -> impl Strategy<Value = ToolCalls> {
    strategy!(ToolCalls {
        calls: 1..=u32::MAX,
        absent: small(),
        call: small(),
        outcome: one_of!(ToolCallOutcome: Complete Rewritten Unfinished Unjudged Absent Garbled Swapped Repeated Missing),
        finish: of(finish()),
        events: small(),
        part: of(strategy!(ArgumentsPart {
            at: small(),
            chars: small(),
            tokens: [small(), small()],
            whole_chunks: any::<bool>(),
            events: [small(), small()],
            whole_events: any::<bool>(),
        })),
    })
}

fn what() -> impl Strategy<Value = What<'static>> {
    let engine = strategy!(Engine {
        name: of(text()),
        version: of(text()),
        mode: of(mode()),
        waiter: of(one_of!(Waiter: KeepsLast YieldsAll Merges)),
        turnaround: of(any::<u8>()),
    });
    let delivery = strategy!(Delivery {
        rid: text(),
        tokens: small(),
        mode: mode(),
        completion_tokens: of(small()),
        finished: prop::bool::weighted(0.2),
        response: one_of!(Response: Streamed Whole Text),
        without_text: prop_oneof![9 => Just(0), 1 => any::<u32>()],
    });
    let undecoded = strategy!(Undecoded {
        id: id(),
        bytes: large(),
        reason: text(),
        forwarded: forwarded()
    });
    let queue = strategy!(QueueSample {
        hop: text(),
        receive_bytes: of(large()),
        send_bytes: of(large())
    });
    let stage = strategy!(Stage {
        rid: text(),
        name: text(),
        by: text(),
        tokens: of(small()),
        pending: of(small())
    });
    let wait = strategy!(FrontendWait {
        rid: text(),
        first_token_ns: of(large()),
        last_token_ns: of(large())
    });
    let missed = strategy!(Missed {
        hop: of(any::<u16>().prop_map(HopId)),
        count: large(),
        cause: one_of!(MissedCause: QueueFull Unframed TooLarge CutShort Ended),
    });
    prop_oneof![
        1 => engine.prop_map(What::Engine),
        1 => hop().prop_map(What::Hop),
        8 => (frame(), forwarded()).prop_map(|(frame, forwarded)| What::Sent(Frame { forwarded, ..frame })),
        1 => strategy!(SendWait { hop: any::<u16>().prop_map(HopId), ns: large() }).prop_map(What::SendWait),
        6 => (id(), of(large()), of(thread()), of(frame()), any::<bool>()).prop_map(|(id, wakeup, by, frame, same)| {
            let frame = frame.map(|f| Frame { id: if same { id } else { f.id }, ..f });
            What::Received(Received { id, wakeup, by, frame })
        }),
        2 => id().prop_map(What::Processed),
        5 => delivery.prop_map(What::Delivered),
        1 => undecoded.prop_map(What::Undecoded),
        1 => cpu().prop_map(What::Cpu),
        1 => queue.prop_map(What::Queue),
        1 => stacks().prop_map(What::Stack),
        1 => stage.prop_map(What::Stage),
        1 => logged_state().prop_map(What::LoggedState),
        1 => answer().prop_map(What::Answered),
        1 => wait.prop_map(What::FrontendWait),
        1 => strategy!(Merged { rid: text(), chunks: small(), by: text() }).prop_map(What::Merged),
        1 => missed.prop_map(What::Missed),
    ]
}

pub(crate) fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let at = prop_oneof![8 => 0_u64..1_000_000, 1 => any::<u64>()];
    let one = (at, prop_oneof![9 => what().prop_map(Some), 1 => Just(None)]).prop_map(|(at, what)| match what {
        Some(what) => Input::Event(Event { at: MonoNs(at), what }),
        None => Input::Tick(MonoNs(at)),
    });
    vec(one, 1..60)
}
