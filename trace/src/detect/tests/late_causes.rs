//! What is said, and what is not said, about the causes of late first tokens.

mod order;

use super::{MS, SECOND, Scene};
use crate::clock::MonoNs;
use crate::detect::{Severity, Verdict};
use crate::engine::example;
use crate::event::{
    Arrival, ArrivalTimes, Away, AwayState, Capabilities, Chunk, CpuSample, Dispatch, DispatchKind, DispatchedRequest,
    EngineTimes, Hop, Received, RequestTimes, ThreadPart, What,
};
use crate::id::{FrameId, HopId, ThreadId};
use crate::ledger::Limits;

const REQUESTS: HopId = HopId(7);
const SCHEDULER: ThreadId = ThreadId { pid: 9, tid: 9 };

/// A request, with its moments from its start on.
#[derive(Clone, Copy)]
struct Request {
    arrived: u64,
    read: u64,
    dispatched: u64,
    received: u64,
    /// Entry to the queue and to the batch; `None` if the engine does not send them.
    entries: Option<[u64; 2]>,
    sent: u64,
    prompt_tokens: Option<u32>,
    /// Number of tokens in its first chunk.
    first_tokens: u32,
    /// Thread that receives it.
    receiver: ThreadId,
}

const QUICK: Request = Request {
    arrived: 0,
    read: MS,
    dispatched: 2 * MS,
    received: 3 * MS,
    entries: Some([4 * MS, 5 * MS]),
    sent: 15 * MS,
    prompt_tokens: Some(200),
    first_tokens: 1,
    receiver: SCHEDULER,
};

impl Request {
    /// The same with a wait of this length in the queue.
    fn queued_for(self, ns: u64) -> Self {
        Self { entries: Some([4 * MS, 5 * MS + ns]), sent: self.sent + ns, ..self }
    }

    fn read_after(self, ns: u64) -> Self {
        Self {
            read: self.read + ns,
            dispatched: self.dispatched + ns,
            received: self.received + ns,
            entries: self.entries.map(|entries| entries.map(|at| at + ns)),
            sent: self.sent + ns,
            ..self
        }
    }

    fn dispatched_after(self, ns: u64) -> Self {
        Self { read: self.read, ..self.read_after(ns) }
    }

    fn received_after(self, ns: u64) -> Self {
        Self { dispatched: self.dispatched, ..self.dispatched_after(ns) }
    }
}

fn scene() -> Scene {
    let mut scene = Scene::delivering();
    scene.hop(Hop::with_requests(REQUESTS, "tokenizer->scheduler", Capabilities::SENT | Capabilities::RECEIVED));
    scene.tick(0);
    scene
}

fn dispatch(scene: &mut Scene, number: u64, start: u64, request: Request) {
    let rid = number.to_string();
    let id = FrameId::new(REQUESTS, 0, number);
    let named = DispatchedRequest { prompt_tokens: request.prompt_tokens, ..DispatchedRequest::new(&rid) };
    let dispatch = Dispatch { id, bytes: 900, kind: DispatchKind::Requests, index: 0, request: Some(named) };
    scene.apply(start + request.dispatched, What::Dispatched(dispatch));
    let by = Some(request.receiver);
    scene.apply(start + request.received, What::Received(Received { by, ..Received::new(id) }));
}

fn answer(scene: &mut Scene, number: u64, start: u64, request: Request) {
    let rid = number.to_string();
    let at = |ns: u64| MonoNs(start + ns);
    let sent = start + request.sent;
    let tokens = request.first_tokens;
    scene.send_chunk(0, sent, Chunk { cached_tokens: Some(0), ..Chunk::counted(&rid, tokens, tokens) });
    if let Some([queued, batch_entered]) = request.entries {
        let times =
            EngineTimes { queued: Some(at(queued)), batch_entered: Some(at(batch_entered)), prefill_finished: None };
        scene.apply(sent, What::RequestTimes(RequestTimes { rid: &rid, times, impossible: 0 }));
    }
    let times = ArrivalTimes { arrived: at(request.arrived), read: at(request.read), connection: None };
    scene.apply(sent, What::Arrived(Arrival { rid: &rid, times: Ok(times) }));
    let last = scene.next[0] - 1;
    scene.receive(sent + MS, last);
    scene.deliver(sent + 2 * MS, &rid, tokens, tokens, false);
}

fn add(scene: &mut Scene, number: u64, start: u64, request: Request) {
    dispatch(scene, number, start, request);
    answer(scene, number, start, request);
}

/// Requests that begin 10 ms after each other.
fn scene_of(count: u64, request: Request) -> Scene {
    let mut scene = scene();
    for number in 0..count {
        dispatch(&mut scene, number, number * 10 * MS, request);
    }
    for number in 0..count {
        answer(&mut scene, number, number * 10 * MS, request);
    }
    scene.tick(count * 10 * MS + request.sent + 2 * SECOND);
    scene
}

fn only(found: Vec<Verdict>) -> Verdict {
    assert_eq!(found.len(), 1, "{found:?}");
    found.into_iter().next().expect("one")
}

fn advice(verdict: &Verdict) -> &str {
    verdict.advice.as_deref().unwrap_or_default()
}

/// SGLang sends no times of its own by default.
#[test]
fn an_overload_is_found_where_queue_and_prefill_cannot_be_told_apart() {
    let scene = scene_of(40, Request { entries: None, sent: 30 * SECOND, ..QUICK });
    let found = only(scene.check("slow-first-token", 40 * SECOND));
    assert_eq!(found.severity, Severity::Critical);
    let place = "was spent in the scheduler before the first token (queue and prefill cannot be told apart: the engine is unknown): 1.000 s or \
                 more, up to 29.997 s; when most waited, 0 others had output and 39 waited for their first token, in the queue or in a prefill";
    assert!(found.summary.starts_with("100 % of the TTFT of 40 of 40 requests "), "{}", found.summary);
    assert!(found.summary.ends_with(place), "{}", found.summary);
    assert_eq!(found.evidence["leg"], "intake+queue+prefill");
}

#[test]
fn a_prompt_explains_a_time_to_first_token_whose_parts_cannot_be_told_apart() {
    for (prompt_tokens, found) in [(Some(500), 1), (Some(30_000), 0), (None, 0)] {
        let scene = scene_of(5, Request { entries: None, sent: 20 * SECOND, prompt_tokens, ..QUICK });
        assert_eq!(scene.check("slow-first-token", 30 * SECOND).len(), found, "{prompt_tokens:?}");
        let judged = scene.ledger.ttft().judged();
        assert_eq!((judged.requests, judged.until_first_token > 0), (5, prompt_tokens.is_some()));
    }
}

/// The first chunk of a response that is not streamed has many tokens, so the end of its prefill is not known.
#[test]
fn requests_that_are_not_streamed_are_judged_until_their_batch() {
    let request = Request { first_tokens: 50, ..QUICK };
    let queued = scene_of(5, request.queued_for(3 * SECOND));
    let found = only(queued.check("queued", 9 * SECOND));
    assert_eq!((found.severity, &found.evidence["requests_late"]), (Severity::Warning, &5.into()));
    for entries in [QUICK.entries, None] {
        let slow = scene_of(5, Request { entries, sent: 20 * SECOND, ..request });
        for kind in ["queued", "slow-prefill", "slow-first-token"] {
            assert!(slow.check(kind, 30 * SECOND).is_empty(), "{kind}");
        }
    }
}

/// A request waits for its grammar in the queue of an engine that has nothing else to do.
#[test]
fn a_queue_is_full_only_if_others_ran() {
    let idle = scene_of(1, QUICK.queued_for(3 * SECOND));
    let found = only(idle.check("queued", 9 * SECOND));
    assert!(advice(&found).starts_with("whether its batches were full is not known"), "{found:?}");

    let mut busy = scene();
    let request = QUICK.queued_for(3 * SECOND);
    dispatch(&mut busy, 1, 0, request);
    for number in 0..30 {
        busy.send_chunk(0, number * 100 * MS, Chunk::counted("stream", 1, number as u32 + 1));
    }
    answer(&mut busy, 1, 0, request);
    busy.tick(6 * SECOND);
    let found = only(busy.check("queued", 6 * SECOND));
    assert!(advice(&found).starts_with("more requests arrive than fit into its batches"), "{found:?}");
    assert!(
        found.summary.ends_with(
            "when most waited, 1 other had output and 0 waited for their first token, in the queue or in a prefill"
        ),
        "{}",
        found.summary
    );
}

/// Samples of a scheduler's thread every 100 ms: its time on a CPU and waiting for one, and its state at the end.
fn sample(scene: &mut Scene, at: u64, [on, wait]: [u64; 2], away: Option<AwayState>) {
    let sample = CpuSample {
        part: ThreadPart::Main,
        wait_ns: Some(wait * MS),
        away: away.map(|state| Away { state, place: "" }),
        ..CpuSample::new(SCHEDULER, "scheduler", 100 * MS, on * MS)
    };
    scene.apply(at, What::Cpu(sample));
}

/// What held up the scheduler long before does not explain a wait.
#[test]
fn a_late_receive_names_the_state_of_the_scheduler_at_its_time() {
    let mut scene = scene();
    add(&mut scene, 0, 0, QUICK);
    // A message waits while the scheduler is stopped for three seconds.
    let id = FrameId::new(REQUESTS, 0, 1);
    let control = Dispatch { id, bytes: 90, kind: DispatchKind::Control, index: 0, request: None };
    scene.apply(10 * SECOND, What::Dispatched(control));
    for tenth in 1..=900 {
        let is_stopped = (100..130).contains(&tenth);
        let away = is_stopped.then_some(AwayState::Stopped);
        sample(&mut scene, tenth * 100 * MS, if is_stopped { [0, 0] } else { [90, 0] }, away);
        if tenth == 130 {
            scene.apply(13 * SECOND, What::Received(Received::new(id)));
        }
    }
    add(&mut scene, 2, 80 * SECOND, QUICK.received_after(3 * SECOND));
    scene.tick(90 * SECOND);
    let found = only(scene.check("late-receive", 90 * SECOND));
    assert_eq!(found.evidence["thread"], "CPU-bound");
    assert!(!advice(&found).contains("kill -CONT"), "{found:?}");
}

/// With several tokenizer workers, the main process passes requests on.
#[test]
fn the_receive_of_a_router_is_not_that_of_the_scheduler() {
    let mut scene = Scene::delivering();
    scene.hop(Hop::with_requests(REQUESTS, "worker->router", Capabilities::SENT | Capabilities::RECEIVED));
    let late = Request { entries: Some([3_004 * MS, 3_005 * MS]), ..QUICK.received_after(3 * SECOND) };
    add(&mut scene, 0, 0, late);
    scene.tick(9 * SECOND);
    for kind in ["late-receive", "late-intake"] {
        assert!(scene.check(kind, 9 * SECOND).is_empty(), "{kind}");
    }
    let found = only(scene.check("slow-first-token", 9 * SECOND));
    let place = "was spent between dispatch and the scheduler's queue (its receive by the scheduler is not observed)";
    assert!(found.summary.contains(place), "{}", found.summary);
}

/// A router that is stopped holds requests; the scheduler does not.
#[test]
fn a_router_that_holds_requests_is_named() {
    const FORWARDED: HopId = HopId(6);
    const ROUTER: ThreadId = ThreadId { pid: 77, tid: 77 };
    let both = Capabilities::SENT | Capabilities::RECEIVED;
    for is_stopped in [true, false] {
        let mut scene = scene();
        scene.hop(Hop::with_requests(REQUESTS, "worker->router", both));
        scene.hop(Hop::with_requests(FORWARDED, "router->scheduler", both));
        let id = FrameId::new(REQUESTS, 0, 0);
        let request = Some(DispatchedRequest::new("0"));
        let sent = Dispatch { id, bytes: 900, kind: DispatchKind::Requests, index: 0, request };
        scene.apply(MS, What::Dispatched(sent));
        for tenth in 1..=31 {
            let away = (is_stopped && tenth < 31).then_some(Away { state: AwayState::Stopped, place: "" });
            let sample = CpuSample { part: ThreadPart::Main, away, ..CpuSample::new(ROUTER, "router", 100 * MS, 0) };
            scene.apply(tenth * 100 * MS, What::Cpu(sample));
        }
        let late = 3_100 * MS;
        scene.apply(late, What::Received(Received { by: Some(ROUTER), ..Received::new(id) }));
        let forwarded = FrameId { hop: FORWARDED, ..id };
        scene.apply(late + MS, What::Dispatched(Dispatch { id: forwarded, ..sent }));
        scene.apply(late + 2 * MS, What::Received(Received::new(forwarded)));
        answer(&mut scene, 0, late + 3 * MS, QUICK);
        scene.tick(9 * SECOND);
        let found = only(scene.check("late-receive", 9 * SECOND));
        assert_eq!(found.evidence["requests_hop"], "worker->router");
        let named = "; the router's thread that receives them was stopped then";
        assert_eq!(found.summary.ends_with(named), is_stopped, "{}", found.summary);
        assert_eq!(advice(&found).contains("the router holds them"), !is_stopped, "{found:?}");
    }
}

/// Requests that one client sends slowly, one after the other, are never in the tokenizer at the same time.
#[test]
fn late_dispatches_one_after_the_other_are_information() {
    let late = QUICK.dispatched_after(6 * SECOND);
    let mut scene = scene();
    for number in 0..5 {
        add(&mut scene, number, number * 7 * SECOND, late);
    }
    scene.tick(60 * SECOND);
    assert_eq!(only(scene.check("late-dispatch", 60 * SECOND)).severity, Severity::Info);
}

/// Requests that are dispatched after six seconds, in which each second of the tokenizer has these shares, in percent.
fn scene_of_late_dispatches(shares: [u64; 3]) -> Scene {
    let mut scene = scene();
    for tenth in 1..=70 {
        scene.cpu(tenth * 100 * MS, 7, shares);
    }
    for number in 0..4 {
        add(&mut scene, number, number * 10 * MS, QUICK.dispatched_after(6 * SECOND));
    }
    scene.tick(9 * SECOND);
    scene
}

/// A tokenizer that hardly runs while requests are late does not prepare them.
#[test]
fn late_dispatches_beside_an_idle_tokenizer_are_information() {
    for (running, severity) in [(5, Severity::Info), (80, Severity::Critical)] {
        let found = only(scene_of_late_dispatches([running, 0, 0]).check("late-dispatch", 9 * SECOND));
        assert_eq!(found.severity, severity, "{found:?}");
        assert!(found.summary.ends_with(&format!("the tokenizer ran {running} % of that time")), "{}", found.summary);
    }
}

/// A thread that waits for a CPU does not run.
#[test]
fn late_dispatches_of_a_tokenizer_that_lacks_a_cpu_say_so() {
    let found = only(scene_of_late_dispatches([1, 98, 0]).check("late-dispatch", 9 * SECOND));
    let use_of_time = "; the tokenizer ran 1 % of that time, and its main thread waited for a CPU 98 %";
    assert!(found.summary.ends_with(use_of_time), "{}", found.summary);
    let numbers = ["process_running", "run_wait"].map(|name| found.evidence[name].as_f64());
    assert_eq!((numbers, &found.evidence["thread"]), ([Some(0.01), Some(0.98)], &"waiting for a CPU".into()));
    assert_eq!(found.severity, Severity::Critical);
    assert!(advice(&found).starts_with("the tokenizer was waiting for a CPU: "), "{found:?}");
    let own_work = only(scene_of_late_dispatches([97, 2, 0]).check("late-dispatch", 9 * SECOND));
    assert!(own_work.summary.ends_with("; the tokenizer ran 97 % of that time"), "{}", own_work.summary);
    assert!(advice(&own_work).starts_with("tokenisation, the chat template"), "{own_work:?}");
}

/// The function that runs most is not the one that ran while requests were late.
#[test]
fn stack_samples_name_the_function_of_late_requests() {
    for (late, kind) in
        [(QUICK.dispatched_after(2 * SECOND), "late-dispatch"), (QUICK.read_after(2 * SECOND), "late-read")]
    {
        let mut scene = scene();
        for second in 3..30 {
            scene.stack(second * SECOND, ("_handle_batch_output", "tokenizer_manager.py"), 40);
        }
        for half in 61..=64 {
            scene.stack(half * 500 * MS, ("apply_chat_template", "chat.py"), 30);
            scene.stack(half * 500 * MS, ("_handle_batch_output", "tokenizer_manager.py"), 10);
        }
        for number in 0..3 {
            add(&mut scene, number, 30 * SECOND + number * 10 * MS, late);
        }
        scene.tick(39 * SECOND);
        let found = only(scene.check(kind, 39 * SECOND));
        let function =
            "most frequent function of the tokenizer in that time: apply_chat_template (chat.py), 75 % of its samples";
        assert!(advice(&found).contains(function), "{found:?}");
    }
}

#[test]
fn without_stack_samples_of_late_requests_those_of_the_run_are_named() {
    let mut scene = scene_of(3, QUICK.dispatched_after(2 * SECOND));
    scene.stack(4 * SECOND, ("apply_chat_template", "chat.py"), 40);
    let found = only(scene.check("late-dispatch", 9 * SECOND));
    let function = "over the whole run: apply_chat_template (chat.py), 100 % of its samples";
    assert!(advice(&found).contains(function), "{found:?}");
}

/// Thirty prefills, then a slow one that begins at 4 s.
fn scene_of_slow_prefill(receiver: ThreadId, main: [u64; 2]) -> Vec<Verdict> {
    let mut scene = scene();
    let slow = Request { sent: 5 * MS + 3 * SECOND, receiver, ..QUICK };
    for number in 0..40 {
        add(&mut scene, number, number * 100 * MS, Request { receiver, ..QUICK });
    }
    for tenth in 1..=90 {
        sample(&mut scene, tenth * 100 * MS, main, None);
        let input = CpuSample {
            part: ThreadPart::Other,
            wait_ns: Some(0),
            ..CpuSample::new(receiver, "scheduler", 100 * MS, 0)
        };
        if receiver != SCHEDULER {
            scene.apply(tenth * 100 * MS, What::Cpu(input));
        }
    }
    add(&mut scene, 40, 4 * SECOND, slow);
    scene.tick(60 * SECOND);
    scene.check("slow-prefill", 60 * SECOND)
}

#[test]
fn a_scheduler_without_a_cpu_is_the_cause_of_a_slow_prefill() {
    let found = only(scene_of_slow_prefill(SCHEDULER, [30, 70]));
    assert!(found.summary.ends_with("the scheduler was waiting for a CPU meanwhile"), "{}", found.summary);
    assert!(advice(&found).contains("dedicated CPUs"), "{found:?}");
    let found = only(scene_of_slow_prefill(SCHEDULER, [90, 0]));
    assert!(advice(&found).starts_with("neither the number of tokens"), "{found:?}");
}

/// The thread that only receives requests sleeps while the main thread computes.
#[test]
fn an_idle_input_thread_does_not_excuse_a_slow_prefill() {
    let input = ThreadId { pid: SCHEDULER.pid, tid: 10 };
    assert_eq!(scene_of_slow_prefill(input, [90, 0]).len(), 1);
    assert_eq!(scene_of_slow_prefill(input, [0, 0]).len(), 0, "it was stopped");
}

/// With one stream, an engine that works on something else looks like a silent one.
#[test]
fn a_pause_of_one_stream_hides_no_late_requests() {
    for (streams, findings) in [(1, 1), (3, 0)] {
        let mut scene = scene();
        let names: Vec<String> = (0..streams).map(|number| format!("s{number}")).collect();
        let mut count = 0;
        let mut send = |scene: &mut Scene, at: u64| {
            count += 1;
            let chunks: Vec<_> = names.iter().map(|name| (name.as_str(), 1, count)).collect();
            scene.send(at, &chunks);
            let last = scene.next[0] - 1;
            scene.receive(at, last);
        };
        for step in 0..40 {
            send(&mut scene, step * 50 * MS);
            scene.tick(step * 50 * MS);
        }
        let request = QUICK.queued_for(2_900 * MS);
        dispatch(&mut scene, 1, 2 * SECOND, request);
        for tick in 40..100 {
            scene.tick(tick * 50 * MS);
        }
        for step in 100..102 {
            send(&mut scene, step * 50 * MS);
            scene.tick(step * 50 * MS);
        }
        answer(&mut scene, 1, 2_170 * MS, QUICK.queued_for(2_900 * MS));
        for step in 103..140 {
            send(&mut scene, step * 50 * MS);
            scene.tick(step * 50 * MS);
        }
        assert_eq!(scene.check("queued", 7 * SECOND).len(), findings, "{streams}");
        let silent = scene.check("engine-silent", 7 * SECOND);
        assert_eq!(silent.len(), 1 - findings, "{streams}");
        // The finding that stays names the request that waited.
        for verdict in silent {
            assert_eq!((&*verdict.rid, &verdict.evidence["requests_late"]), ("1", &1.into()));
            let share = "; 94 % of the TTFT of 1 of 1 request was spent between dispatch and first token: 1.000 s or more, up to 2";
            assert!(verdict.summary.contains(share), "{}", verdict.summary);
            assert!(verdict.summary.contains("; meanwhile, 3 streams were open (usual"), "{}", verdict.summary);
            assert!(verdict.concerns_hop("tokenizer->scheduler") && verdict.concerns_hop("scheduler->tokenizer"));
        }
    }
}

/// The first chunk of the first attempt would be taken for that of the second.
#[test]
fn attempts_with_one_rid_at_the_same_time_are_not_judged() {
    let mut scene = scene();
    for attempt in 0..2 {
        let id = FrameId::new(REQUESTS, 0, attempt);
        let request = Some(DispatchedRequest::new("0"));
        let dispatch = Dispatch { id, bytes: 900, kind: DispatchKind::Requests, index: 0, request };
        scene.apply(attempt * SECOND, What::Dispatched(dispatch));
        scene.apply(attempt * SECOND + MS, What::Received(Received::new(id)));
    }
    answer(&mut scene, 0, SECOND, QUICK.queued_for(3 * SECOND));
    scene.tick(9 * SECOND);
    assert!(scene.check("queued", 9 * SECOND).is_empty());
    let judged = scene.ledger.ttft().judged();
    assert_eq!((scene.ledger.ttft().requests(), judged.requests, judged.shared_rids), (0, 0, 1));
}

/// A controller between the tokenizer and the schedulers sends each request again.
#[test]
fn a_forwarded_request_is_judged() {
    let mut scene = Scene::empty(example::ENGINES, Limits::default());
    let observed = Capabilities::SENT | Capabilities::RECEIVED;
    scene.hop(Hop::only(HopId(0), "scheduler->tokenizer", observed | Capabilities::DELIVERED));
    scene.hop(Hop::with_requests(HopId(6), "tokenizer->controller", observed));
    scene.hop(Hop::with_requests(REQUESTS, "controller->scheduler", observed));
    let id = FrameId::new(HopId(6), 0, 0);
    let request = Some(DispatchedRequest::new("0"));
    let dispatched = Dispatch { id, bytes: 900, kind: DispatchKind::Requests, index: 0, request };
    scene.apply(MS, What::Dispatched(dispatched));
    scene.apply(MS, What::Received(Received::new(id)));
    add(&mut scene, 0, 0, QUICK.queued_for(3 * SECOND));
    scene.tick(9 * SECOND);
    assert_eq!(scene.check("queued", 9 * SECOND).len(), 1);
}
