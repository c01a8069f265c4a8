//! Strategies for arbitrary events. Their borrowed parts are leaked, which is acceptable in short tests.

use proptest::collection::vec;
use proptest::option::{of, weighted};
use proptest::prelude::*;
use proptest::string::string_regex;
use trace::engine::{Mode, Waiter};
use trace::event::{
    Answer, AnswerEnd, ArgumentsPart, Away, AwayState, Capabilities, Chunk, CpuSample, Delivery, Engine, Event, Finish,
    Frame, FrontendWait, Hop, IdColumn, Kind, LoggedState, Merged, Missed, MissedCause, PollUse, QueueSample, Received,
    Response, SendWait, StackSample, Stage, ThreadPart, ToolCallOutcome, ToolCalls, Undecoded, UnjudgedReason, What,
};
use trace::record::Record;
use trace::{FrameId, HopId, MonoNs, ThreadId};

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
        6 => prop::sample::select(vec!["a", "b", "c", "", "HEALTH_CHECK_1", "20cba755fa2c4d6aa1e2b0c1d2e3f405"]),
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
    let hop = prop_oneof![8 => 0_u16..3, 1 => any::<u16>()];
    let lane = prop_oneof![8 => 0_u32..2, 1 => any::<u32>()];
    // Mostly so small that a receive finds its send.
    let seq = prop_oneof![2 => 0_u64..12, 1 => large()];
    (hop, lane, seq).prop_map(|(hop, lane, seq)| FrameId::new(HopId(hop), lane, seq))
}

fn thread() -> impl Strategy<Value = ThreadId> {
    (small(), small()).prop_map(|(pid, tid)| ThreadId { pid, tid })
}

fn finish() -> impl Strategy<Value = Finish> {
    prop::sample::select(vec![Finish::Length, Finish::Stop, Finish::Abort, Finish::Other])
}

fn mode() -> impl Strategy<Value = Mode> {
    prop::sample::select(vec![Mode::Incremental, Mode::Cumulative])
}

fn chunk() -> impl Strategy<Value = Chunk<'static>> {
    let counts = (of(small()), of(small()), of(small()), of(small()), of(small()));
    let ids = prop_oneof![3 => Just(vec![]), 1 => vec(any::<i64>(), 0..5)];
    let finish = prop_oneof![6 => Just(None), 1 => finish().prop_map(Some)];
    (text(), counts, finish, of(text()), ids).prop_map(
        |(rid, (listed, completion_tokens, prompt_tokens, cached_tokens, retractions), finish, worker, ids)| Chunk {
            listed,
            completion_tokens,
            prompt_tokens,
            cached_tokens,
            finish,
            retractions,
            worker,
            ids: ids.leak(),
            ..Chunk::new(rid)
        },
    )
}

fn frame() -> impl Strategy<Value = Frame<'static>> {
    let kind = prop::sample::select(vec![
        Kind::TokenIds,
        Kind::Text,
        Kind::Embedding,
        Kind::Multimodal,
        Kind::Abort,
        Kind::Control,
    ]);
    let ids = prop::sample::select(vec![
        IdColumn::Delta,
        IdColumn::Cumulative,
        IdColumn::DeltaAfterPromptTail,
        IdColumn::Absent,
        IdColumn::Undecided,
    ]);
    (id(), large(), kind, ids, vec(chunk(), 0..6)).prop_map(|(id, bytes, kind, ids, chunks)| Frame {
        id,
        bytes,
        forwarded: None,
        kind,
        ids,
        chunks: chunks.leak(),
    })
}

fn forwarded() -> impl Strategy<Value = Option<MonoNs>> {
    of(large().prop_map(MonoNs))
}

fn hop() -> impl Strategy<Value = Hop<'static>> {
    let id = prop_oneof![8 => 0_u16..3, 1 => any::<u16>()];
    (id, text(), text(), of(any::<u16>()), any::<[bool; 7]>()).prop_map(|(id, name, endpoint, worker, flags)| Hop {
        id: HopId(id),
        ends: name.into(),
        endpoint,
        worker,
        origin: flags[0],
        last: flags[1],
        capabilities: Capabilities {
            sent: flags[2],
            forwarded: flags[3],
            received: flags[4],
            processed: flags[5],
            delivered: flags[6],
        },
    })
}

fn cpu() -> impl Strategy<Value = CpuSample<'static>> {
    let part = prop::sample::select(vec![ThreadPart::Main, ThreadPart::Io, ThreadPart::Other]);
    let poll = of((large(), large(), large()));
    let times = (large(), large(), of(large()), of(large()));
    let away = of((prop::sample::select(AwayState::ALL.to_vec()), text()));
    (thread(), text(), text(), part, times, poll, away).prop_map(
        |(thread, role, name, part, (interval_ns, on_ns, wait_ns, throttled_ns), poll, away)| CpuSample {
            thread,
            role,
            name,
            part,
            interval_ns,
            on_ns,
            wait_ns,
            throttled_ns,
            poll: poll.map(|(interval_ns, polled_ns, wakeups)| PollUse { interval_ns, polled_ns, wakeups }),
            away: away.map(|(state, place)| Away { state, place }),
        },
    )
}

fn stacks() -> impl Strategy<Value = StackSample<'static>> {
    (thread(), text(), text(), text(), large(), [small(), small(), small()], of(small())).prop_map(
        |(thread, role, function, file, interval_ns, [samples, total, own], gil)| StackSample {
            thread,
            role,
            function,
            file,
            interval_ns,
            samples,
            total,
            own,
            gil,
        },
    )
}

fn logged_state() -> impl Strategy<Value = LoggedState<'static>> {
    let share = of(prop::num::f64::NORMAL | prop::num::f64::ZERO);
    (text(), of(small()), of(small()), of(large()), of(any::<bool>()), share.clone(), share).prop_map(
        |(by, states, rids, recv_wait_ns, more, cpu, cpu_system)| LoggedState {
            by,
            states,
            rids,
            recv_wait_ns,
            more,
            cpu,
            cpu_system,
        },
    )
}

fn answer() -> impl Strategy<Value = Answer<'static>> {
    let end =
        prop::sample::select(vec![AnswerEnd::Whole, AnswerEnd::ClientLeft, AnswerEnd::ServerLeft, AnswerEnd::Unknown]);
    (text(), of(small()), of(small()), end, small(), of(large()), of(tool_calls())).prop_map(
        |(rid, tokens, completion_tokens, end, short_writes, unacknowledged, tool_calls)| Answer {
            rid,
            tokens,
            completion_tokens,
            end,
            short_writes,
            unacknowledged,
            tool_calls,
        },
    )
}

fn tool_calls() -> impl Strategy<Value = ToolCalls> {
    let outcome = prop::sample::select(vec![
        ToolCallOutcome::Complete,
        ToolCallOutcome::Rewritten,
        ToolCallOutcome::Unfinished,
        ToolCallOutcome::Unjudged,
        ToolCallOutcome::Absent,
        ToolCallOutcome::Garbled,
        ToolCallOutcome::Swapped,
        ToolCallOutcome::Repeated,
        ToolCallOutcome::Missing,
    ]);
    let reason = prop::sample::select(vec![
        UnjudgedReason::Differs,
        UnjudgedReason::Missed,
        UnjudgedReason::EndedEarly,
        UnjudgedReason::NoText,
        UnjudgedReason::Unreadable,
    ]);
    let finish = prop::sample::select(vec![Finish::Length, Finish::Stop, Finish::Abort, Finish::Other]);
    let ends = (any::<bool>(), [small(), small()], any::<bool>());
    let part = (small(), small(), [small(), small()], ends);
    let part = part.prop_map(|(at, chars, tokens, (whole_chunks, events, whole_events))| ArgumentsPart {
        at,
        chars,
        tokens,
        whole_chunks,
        events,
        whole_events,
    });
    let counts = (1..=u32::MAX, small(), small(), small());
    let outcome = (outcome, of(reason));
    (counts, outcome, of(finish), of(part)).prop_map(
        |((calls, absent, call, events), (outcome, reason), finish, part)| ToolCalls {
            calls,
            absent,
            call,
            outcome,
            reason,
            finish,
            events,
            part,
        },
    )
}

/// Any observation.
pub(crate) fn what() -> impl Strategy<Value = What<'static>> {
    let waiter = prop::sample::select(vec![Waiter::KeepsLast, Waiter::YieldsAll, Waiter::Merges]);
    let engine = (of(text()), of(text()), of(mode()), of(waiter), of(any::<u8>()));
    let response = prop::sample::select(vec![Response::Streamed, Response::Whole, Response::Text]);
    let delivery = (text(), small(), mode(), of(small()), prop::bool::weighted(0.2), response);
    let causes = vec![
        MissedCause::QueueFull,
        MissedCause::Unframed,
        MissedCause::TooLarge,
        MissedCause::CutShort,
        MissedCause::Ended,
    ];
    let missed = (of(any::<u16>()), large(), prop::sample::select(causes));
    prop_oneof![
        1 => engine.prop_map(|(name, version, mode, waiter, turnaround)| {
            What::Engine(Engine { name, version, mode, waiter, turnaround })
        }),
        1 => hop().prop_map(What::Hop),
        8 => (frame(), forwarded()).prop_map(|(frame, forwarded)| What::Sent(Frame { forwarded, ..frame })),
        1 => (any::<u16>(), large()).prop_map(|(hop, ns)| What::SendWait(SendWait { hop: HopId(hop), ns })),
        6 => (id(), of(large()), of(thread()), of(frame()), any::<bool>()).prop_map(|(id, wakeup, by, frame, same)| {
            let frame = frame.map(|f| Frame { id: if same { id } else { f.id }, ..f });
            What::Received(Received { id, wakeup, by, frame })
        }),
        2 => id().prop_map(What::Processed),
        5 => (delivery, prop_oneof![9 => Just(0), 1 => any::<u32>()]).prop_map(|(delivery, without_text)| {
            let (rid, tokens, mode, completion_tokens, finished, response) = delivery;
            What::Delivered(Delivery { rid, tokens, mode, completion_tokens, finished, response, without_text })
        }),
        1 => (id(), large(), text(), forwarded()).prop_map(|(id, bytes, reason, forwarded)| {
            What::Undecoded(Undecoded { forwarded, ..Undecoded::new(id, bytes, reason) })
        }),
        1 => cpu().prop_map(What::Cpu),
        1 => (text(), of(large()), of(large())).prop_map(|(hop, receive_bytes, send_bytes)| {
            What::Queue(QueueSample { hop, receive_bytes, send_bytes })
        }),
        1 => stacks().prop_map(What::Stack),
        1 => (text(), text(), text(), of(small()), of(small())).prop_map(|(rid, name, by, tokens, pending)| {
            What::Stage(Stage { rid, name, by, tokens, pending })
        }),
        1 => logged_state().prop_map(What::LoggedState),
        1 => answer().prop_map(What::Answered),
        1 => (text(), of(large()), of(large())).prop_map(|(rid, first_token_ns, last_token_ns)| {
            What::FrontendWait(FrontendWait { rid, first_token_ns, last_token_ns })
        }),
        1 => (text(), small(), text()).prop_map(|(rid, chunks, by)| What::Merged(Merged { rid, chunks, by })),
        1 => missed.prop_map(|(hop, count, cause)| What::Missed(Missed { hop: hop.map(HopId), count, cause })),
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
