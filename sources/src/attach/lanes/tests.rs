//! Events for missed message records, and for receivers that come and go.

use adapter::decode::{Decoders, LONGEST, SocketFormat};
use adapter::discover::Role;
use engines::sglang::discover::role;
use outputs::report::Report;
use probe_user::{Call, Message, SocketId, discover};
use trace::detect::Severity;
use trace::event::{Event, PairMessageKind, What};
use trace::{Analysis, Config, FrameId, HopId, MonoNs, ReportInput};

use super::super::observability::Observability;
use super::super::roles::Roles;
use super::Lanes;
use crate::translate::Clients;

const FRAME: &[u8] = include_bytes!("../../../../zmq-tap/fixtures/messages/0.5.9/skip_delta_256rid.pkl");

/// The recorded frame with a different first rid.
fn frame(seq: u64) -> Vec<u8> {
    let mut bytes = FRAME.to_vec();
    let rid = bytes.windows(8).position(|at| at == b"d5a06630").expect("the recorded rid");
    bytes[rid] = b'0' + seq as u8;
    bytes
}

fn message(pid: u32, seq: u64, bytes: &[u8]) -> Message<'_> {
    Message {
        call: Call {
            at: MonoNs(1_000_000 * (seq + u64::from(pid))),
            socket: SocketId { pid, address: 0x1000 },
            tid: pid,
            seq,
            wakeup: None,
        },
        bytes: bytes.len() as u64,
        more: false,
        payload: bytes,
    }
}

/// Lanes of an engine whose process 2 is watched.
fn lanes(engine: &str) -> Lanes {
    let mut observability = Observability::new(false, false);
    observability.mark_watched(2, MonoNs(0));
    let kind = engines::DISCOVERED.iter().find(|kind| kind.name() == engine).copied();
    Lanes::new(Roles::of_engine(&discover::Engine { kind, ..discover::Engine::default() }), observability)
}

#[test]
fn a_sequence_gap_is_reported_once_before_the_next_frame() {
    let mut lanes = lanes("sglang");
    let mut analysis = Analysis::new(Config { engines: engines::FACTS, ..Config::default() });
    let mut events = Vec::new();
    let mut enter = |event: &Event<'_>| {
        analysis.apply(event);
        match &event.what {
            What::Missed(missed) => events.push(("missed", missed.count)),
            What::Sent(frame) => events.push(("sent", frame.id.seq)),
            What::Received(received) => events.push(("received", received.id.seq)),
            _ => {}
        }
    };
    for seq in [0, 4] {
        lanes.record_send(&message(1, seq, &frame(seq)), &mut Clients::default(), &mut enter);
    }
    for seq in [0, 1, 4] {
        lanes.match_receive_with_send_and_emit(&message(2, seq, &frame(seq)), &mut enter);
    }
    assert_eq!(events[..3], [("sent", 0), ("missed", 3), ("sent", 4)]);
    assert_eq!(events[3..].iter().filter(|event| event.0 == "missed").collect::<Vec<_>>(), [&("missed", 2)]);
    // The kernel side counts seven, of which five are reported already.
    assert_eq!(
        (lanes.take_unreported_by_gaps(3), lanes.take_unreported_by_gaps(4), lanes.take_unreported_by_gaps(1)),
        (0, 2, 1)
    );
    let report = Report::of(&analysis, &ReportInput::for_source("attach"));
    assert_eq!((report.own.events_missed, report.own.frames_unannounced), (5, 0));
}

#[test]
fn the_parts_of_a_message_are_one_frame() {
    const PARTS: [&[u8]; 2] = [
        include_bytes!("../../../../engines/fixtures/vllm/0.11.2/prompt_logprobs.0"),
        include_bytes!("../../../../engines/fixtures/vllm/0.11.2/prompt_logprobs.1"),
    ];
    let mut lanes = lanes("vllm");
    let mut events = Vec::new();
    let mut analysis = Analysis::new(Config { engines: engines::FACTS, ..Config::default() });
    let mut enter = |event: &Event<'_>| {
        analysis.apply(event);
        match &event.what {
            What::Sent(frame) => events.push(("sent", frame.id.seq, frame.bytes, frame.chunks.len())),
            What::Received(received) => events.push(("received", received.id.seq, 0, 0)),
            What::Undecoded(undecoded) => panic!("{undecoded:?}"),
            _ => {}
        }
    };
    let parts = |pid: u32| {
        let of = move |seq: u64| {
            let part = seq as usize % PARTS.len();
            Message { more: part + 1 < PARTS.len(), ..message(pid, seq, PARTS[part]) }
        };
        (0..6).map(of)
    };
    parts(1).for_each(|part| lanes.record_send(&part, &mut Clients::default(), &mut enter));
    parts(2).for_each(|part| assert!(lanes.match_receive_with_send_and_emit(&part, &mut enter)));
    let bytes = PARTS.iter().map(|part| part.len() as u64).sum();
    let sent = [0, 1, 2].map(|seq| ("sent", seq, bytes, events[0].3));
    assert_eq!(events[..3], sent);
    assert!(events[0].3 > 0);
    assert_eq!(events[3..], [0, 1, 2].map(|seq| ("received", seq, 0, 0)));
    let report = Report::of(&analysis, &ReportInput::for_source("attach"));
    assert_eq!((report.own.events_missed, report.own.frames_unannounced), (0, 0));
}

/// Events of requests that process 2 sends and process 1, the scheduler, receives; each message has these parts.
fn request_events(tokenizer: Role, scheduler: Role, sent: &[&[u8]], received: &[&[u8]]) -> Vec<String> {
    let mut observability = Observability::new(false, false);
    observability.mark_watched(1, MonoNs(0));
    let mut lanes =
        Lanes::new(Roles::from_roles_and_connections(&[(1, scheduler), (2, tokenizer)], &[(1, 2)]), observability);
    let mut analysis = Analysis::new(Config { engines: engines::FACTS, ..Config::default() });
    let mut events = Vec::new();
    let mut enter = |event: &Event<'_>| {
        analysis.apply(event);
        match &event.what {
            What::Hop(hop) => events.push(format!("{} {}", hop.ends, hop.carries_requests)),
            What::Dispatched(dispatch) => {
                let request = dispatch.request.expect("it names a request");
                events.push(format!("{} {} {:?}", dispatch.id.seq, request.rid, request.prompt_tokens));
            }
            What::Received(received) => events.push(format!("received {}", received.id.seq)),
            other => panic!("{other:?}"),
        }
    };
    for (seq, bytes) in (0_u64..).zip(sent.iter().cycle()).take(2 * sent.len()) {
        let part = Message { more: !(seq as usize + 1).is_multiple_of(sent.len()), ..message(2, seq, bytes) };
        lanes.record_send(&part, &mut Clients::default(), &mut enter);
    }
    for (seq, bytes) in (0_u64..).zip(received.iter().cycle()).take(2 * received.len()) {
        assert!(lanes.match_receive_with_send_and_emit(&message(1, seq, bytes), &mut enter), "part {seq}");
    }
    let group = &analysis.ledger().groups()[0];
    assert_eq!(
        (group.backlog, group.queue_wait.count(), analysis.ledger().totals().missed.times.first()),
        (0, 2, None)
    );
    events
}

#[test]
fn a_request_is_one_frame_from_the_tokenizer_to_the_scheduler() {
    const REQUEST: &[u8] = include_bytes!("../../../../zmq-tap/fixtures/messages/0.5.9/req_text.pkl");
    let events = request_events(role::TOKENIZER, role::SCHEDULER, &[REQUEST], &[REQUEST]);
    let rid = events[1].split(' ').nth(1).expect("a rid");
    assert!(rid.len() == 32, "{events:?}");
    let expected =
        ["tokenizer->scheduler true", &events[1], &events[1].replacen('0', "1", 1), "received 0", "received 1"];
    assert_eq!(events, expected);
}

/// A router takes the first part as the address of its peer, which does not receive it.
#[test]
fn a_routed_request_is_received_with_its_second_part() {
    use engines::vllm::discover::{API_SERVER, ENGINE_CORE};
    const PARTS: [&[u8]; 3] = [
        include_bytes!("../../../../engines/fixtures/vllm/0.11.2/request_add.0"),
        include_bytes!("../../../../engines/fixtures/vllm/0.11.2/request_add.1"),
        include_bytes!("../../../../engines/fixtures/vllm/0.11.2/request_add.2"),
    ];
    let events = request_events(API_SERVER, ENGINE_CORE, &PARTS, &PARTS[1..]);
    assert_eq!((&*events[0], events.len()), ("api-server->engine-core true", 5), "{events:?}");
    assert_eq!(events[3..], ["received 0", "received 1"]);
}

/// A batch of three requests, of which the probe captured 600 bytes from each end.
#[test]
fn the_first_requests_of_a_batch_that_was_cut_are_dispatched() {
    const BATCH: &[u8] = include_bytes!("../../../../zmq-tap/fixtures/messages/0.5.23/req_batch_3rid.pkl");
    let captured = [&BATCH[..600], &BATCH[BATCH.len() - 600..]].concat();
    let roles = Roles::from_roles_and_connections(&[(1, role::SCHEDULER), (2, role::TOKENIZER)], &[(1, 2)]);
    let mut lanes = Lanes::new(roles, Observability::new(false, false));
    let mut analysis = Analysis::new(Config { engines: engines::FACTS, ..Config::default() });
    let mut undecoded = Vec::new();
    let mut enter = |event: &Event<'_>| {
        analysis.apply(event);
        if let What::Undecoded(message) = &event.what {
            undecoded.push(message.reason.to_owned());
        }
    };
    let batch = Message { bytes: BATCH.len() as u64, ..message(2, 0, &captured) };
    lanes.record_send(&batch, &mut Clients::default(), &mut enter);
    assert_eq!(undecoded, ["cut-by-capture"]);
    let ledger = analysis.ledger();
    let waiting: Vec<_> = ledger.waiting_requests().map(|(_, times)| (times.sent, times.prompt_tokens)).collect();
    assert_eq!(waiting, [(batch.call.at, Some(5))]);
    let hop = &ledger.hops()[0];
    assert_eq!((hop.carries_requests, hop.counts.frames_sent, hop.counts.undecoded), (true, 1, 1));
}

/// With several tokenizer workers, the main process sends requests to the scheduler on one socket, and output to the workers on others.
#[test]
fn a_router_forwards_requests_and_output() {
    const REQUEST: &[u8] = include_bytes!("../../../../zmq-tap/fixtures/messages/0.5.9/req_text.pkl");
    const ABORT: &[u8] = include_bytes!("../../../../zmq-tap/fixtures/messages/0.5.9/ctl_abort_req.pkl");
    const TEXT: &[u8] = include_bytes!("../../../../zmq-tap/fixtures/messages/0.5.9/str_delta_3rid.pkl");
    const FROM_WORKER: SocketId = SocketId { pid: 2, address: 0x1000 };
    const TO_SCHEDULER: SocketId = SocketId { pid: 3, address: 0x2000 };
    const TO_WORKER: SocketId = SocketId { pid: 3, address: 0x3000 };
    let mut observability = Observability::new(false, false);
    (1..=3).for_each(|pid| observability.mark_watched(pid, MonoNs(0)));
    let roles = [(1, role::SCHEDULER), (2, role::WORKER), (3, role::ROUTER)];
    let mut lanes = Lanes::new(Roles::from_roles_and_connections(&roles, &[(1, 3), (3, 2)]), observability);
    let mut analysis = Analysis::new(Config { engines: engines::FACTS, ..Config::default() });
    let mut events = Vec::new();
    let mut rid = String::new();
    let mut enter = |event: &Event<'_>| {
        analysis.apply(event);
        match &event.what {
            What::Hop(hop) => events.push(format!("{} {}", hop.ends, hop.carries_requests)),
            What::Dispatched(dispatch) => {
                rid = dispatch.request.expect("it names a request").rid.to_owned();
                events.push(format!("{:?} {}", dispatch.kind, dispatch.id.seq));
            }
            What::Received(received) => events.push(format!("received {}", received.id.seq)),
            What::Sent(frame) => events.push(format!("{:?} {}", frame.kind, frame.id.seq)),
            _ => {}
        }
    };
    let mut at = 0;
    let mut call = |socket: SocketId, seq: u64, bytes: &'static [u8]| {
        at += 1_000;
        let message = message(socket.pid, seq, bytes);
        Message { call: Call { at: MonoNs(at), socket, ..message.call }, ..message }
    };
    let receiver = |pid: u32| SocketId { pid, address: 0x9000 };
    // A router that is attached to in the middle of things; its abort may be for a worker, too.
    lanes.record_send(&call(TO_SCHEDULER, 0, ABORT), &mut Clients::default(), &mut enter);
    lanes.match_receive_with_send_and_emit(&call(receiver(1), 0, ABORT), &mut enter);
    lanes.record_send(&call(FROM_WORKER, 0, REQUEST), &mut Clients::default(), &mut enter);
    lanes.match_receive_with_send_and_emit(&call(receiver(3), 0, REQUEST), &mut enter);
    lanes.record_send(&call(TO_SCHEDULER, 1, REQUEST), &mut Clients::default(), &mut enter);
    lanes.match_receive_with_send_and_emit(&call(receiver(1), 1, REQUEST), &mut enter);
    lanes.record_send(&call(TO_WORKER, 0, TEXT), &mut Clients::default(), &mut enter);
    lanes.record_send(&call(TO_SCHEDULER, 2, ABORT), &mut Clients::default(), &mut enter);
    lanes.record_send(&call(TO_WORKER, 1, ABORT), &mut Clients::default(), &mut enter);
    let expected = [
        "worker->router true",
        "Requests 0",
        "received 0",
        "router->scheduler true",
        "Requests 1",
        "received 1",
        "router->worker false",
        "Text 0",
        "Aborts 2",
        "Abort 1",
    ];
    assert_eq!(events, expected);
    let ledger = analysis.ledger();
    // The text is the first output of the request.
    let dispatch =
        ledger.request(&rid).and_then(trace::ledger::Request::dispatch).map(|times| (times.sent.0, times.received));
    assert_eq!((ledger.totals().dispatched.requests, dispatch), (1, Some((3_000, Some(MonoNs(6_000))))));
}

#[test]
fn token_ids_are_in_events_only_if_requested() {
    for shows_ids in [false, true] {
        let mut clients = Clients { is_observed: true, ..Clients::default() };
        clients.server.content.enable();
        let lanes = || {
            let mut lanes = lanes("sglang");
            lanes.translator.prepare_comparison(&clients);
            if shows_ids {
                lanes.translator.show_ids();
            }
            lanes
        };
        let (mut one, mut other) = (lanes(), lanes());
        let mut expected = clients.server.clone();
        let mut emitted = Vec::new();
        let mut note = |event: &Event<'_>| {
            let frame = match &event.what {
                What::Sent(frame) => Some(frame),
                What::Received(received) => received.frame.as_ref(),
                _ => None,
            };
            emitted.extend(frame.map(|frame| frame.chunks.iter().all(|chunk| !chunk.ids.is_empty())));
        };
        let bytes = frame(0);
        one.record_send(&message(1, 0, &bytes), &mut clients, &mut note);
        // From a sender that is not watched.
        other.match_receive_with_send_and_emit(&message(2, 0, &bytes), &mut note);
        assert_eq!(emitted, [shows_ids; 2]);
        let mut decoders = Decoders::new(engines::FORMATS, LONGEST);
        decoders.keep_ids();
        let decoded = decoders.decode(&mut SocketFormat::default(), &[&bytes]).expect("decoded");
        assert!(decoded.chunks().iter().all(|chunk| !chunk.ids.is_empty()));
        expected.record_frame(&decoded.frame(FrameId::new(HopId(0), 0, 0), 1), None);
        assert_eq!(clients.server.content, expected.content, "responses are compared with the ids");
    }
}

#[test]
fn lanes_flow_while_a_message_waits_and_shortly_after_the_last() {
    let mut lanes = lanes("sglang");
    assert!(!lanes.has_traffic());
    for seq in 0..2 {
        lanes.record_send(&message(1, seq, &frame(seq)), &mut Clients::default(), &mut |_| {});
    }
    lanes.match_receive_with_send_and_emit(&message(2, 0, &frame(0)), &mut |_| {});
    assert!(lanes.has_traffic(), "a waiting message counts regardless of age");
    lanes.match_receive_with_send_and_emit(&message(2, 1, &frame(1)), &mut |_| {});
    assert!(!lanes.has_traffic());
    let bytes = frame(2);
    let mut now = message(1, 2, &bytes);
    now.call.at = MonoNs::now();
    lanes.record_send(&now, &mut Clients::default(), &mut |_| {});
    lanes.match_receive_with_send_and_emit(&message(2, 2, &bytes), &mut |_| {});
    assert!(lanes.has_traffic());
}

/// A scheduler (pid 1) that sends to one tokenizer (pid 2) and, from another socket, to a second one.
struct Engine {
    lanes: Lanes,
    analysis: Analysis,
    now: u64,
}

const SCHEDULER: u32 = 1;
const FIRST: u32 = 2;
const SECOND: u32 = 3;

impl Engine {
    fn new() -> Self {
        let roles = Roles::from_roles_and_connections(
            &[(SCHEDULER, role::SCHEDULER), (FIRST, role::TOKENIZER)],
            &[(SCHEDULER, FIRST)],
        );
        let mut observability = Observability::new(true, true);
        for pid in [SCHEDULER, FIRST] {
            observability.mark_watched(pid, MonoNs(0));
        }
        observability.mark_served(FIRST, MonoNs(0));
        Self {
            lanes: Lanes::new(roles, observability),
            analysis: Analysis::new(Config { engines: engines::FACTS, ..Config::default() }),
            now: 0,
        }
    }

    /// The recorded frame for request `rid`, carrying its `count`th token.
    fn frame(rid: u8, count: u64) -> Vec<u8> {
        let mut bytes = frame(count);
        let at = bytes.windows(8).position(|at| at[1..] == b"d5a06630"[1..]).expect("the recorded rid");
        bytes[at + 1] = rid;
        bytes
    }

    fn call(&mut self, pid: u32, socket: u64, seq: u64) -> Call {
        self.now += 1_000_000;
        Call { at: MonoNs(self.now), socket: SocketId { pid, address: socket }, tid: pid, seq, wakeup: None }
    }

    fn send(&mut self, socket: u64, seq: u64) {
        let bytes = Self::frame(b'0' + socket as u8, seq);
        let call = self.call(SCHEDULER, socket, seq);
        let analysis = &mut self.analysis;
        self.lanes.record_send(&of(call, &bytes), &mut Clients::default(), &mut |event| analysis.apply(event));
    }

    fn receive(&mut self, pid: u32, socket: u64, seq: u64, number: u64) {
        let bytes = Self::frame(b'0' + socket as u8, seq);
        let call = self.call(pid, 0x9000, number);
        let analysis = &mut self.analysis;
        self.lanes.match_receive_with_send_and_emit(&of(call, &bytes), &mut |event| analysis.apply(event));
    }

    /// Adds and watches the second tokenizer.
    fn join(&mut self, pid: u32) {
        self.now += 1_000_000;
        let at = MonoNs(self.now);
        let paths = &mut self.lanes.paths;
        let mut parts = vec![(SCHEDULER, role::SCHEDULER), (pid, role::TOKENIZER)];
        parts.extend(paths.observability.is_watched(FIRST).then_some((FIRST, role::TOKENIZER)));
        paths.roles = Roles::from_roles_and_connections(&parts, &[(SCHEDULER, FIRST), (SCHEDULER, pid)]);
        paths.observability.mark_watched(pid, at);
        paths.observability.mark_served(pid, at);
        let analysis = &mut self.analysis;
        paths.update_and_announce_receivers(at, &mut |event| analysis.apply(event));
    }

    fn exit(&mut self, pid: u32) {
        let at = MonoNs(self.now);
        let analysis = &mut self.analysis;
        self.lanes.paths.remove_exited_process_and_announce(pid, at, &mut |event| analysis.apply(event));
    }

    fn report(&mut self) -> Report {
        self.analysis.ledger().check_balance().expect("balanced sums");
        Report::of(&self.analysis, &ReportInput::for_source("attach"))
    }
}

impl Engine {
    /// Findings above severity info.
    fn warnings(&mut self) -> Vec<String> {
        let findings = self.report().findings.into_iter();
        let warnings = findings.filter(|finding| finding.severity > Severity::Info);
        warnings.map(|finding| finding.summary).collect()
    }
}

fn of(call: Call, bytes: &[u8]) -> Message<'_> {
    Message { call, bytes: bytes.len() as u64, more: false, payload: bytes }
}

#[test]
fn messages_to_an_unknown_process_are_not_backlog() {
    let mut engine = Engine::new();
    engine.send(1, 0);
    engine.receive(FIRST, 1, 0, 0);
    (0..50).for_each(|seq| engine.send(2, seq));
    engine.now += 10_000_000_000;
    let report = engine.report();
    assert!(report.hops.iter().all(|hop| hop.backlog_max_frames <= Some(1)), "{:?}", report.hops);
    assert_eq!(engine.warnings(), [""; 0], "whether they wait is unknown");
    assert_eq!(engine.lanes.paths.sent_to_unwatched, 50);
}

#[test]
fn chunks_are_judged_once_their_receiver_is_watched() {
    let mut engine = Engine::new();
    engine.send(1, 0);
    engine.receive(FIRST, 1, 0, 0);
    (0..3).for_each(|seq| engine.send(2, seq));
    engine.join(SECOND);
    let before = engine.report();
    let sent_before = before.chunks.unjudged.expect("deliveries are seen");
    assert!(sent_before >= 3, "{:?}", before.chunks);
    engine.send(2, 3);
    engine.receive(SECOND, 2, 3, 0);
    let report = engine.report();
    assert_eq!(report.chunks.unjudged, Some(sent_before), "{:?}", report.chunks);
    assert_eq!(engine.lanes.paths.sent_to_unwatched, 3);
}

#[test]
fn frames_of_an_exited_receiver_are_neither_backlog_nor_lost() {
    let mut engine = Engine::new();
    (0..3).for_each(|seq| engine.send(1, seq));
    engine.receive(FIRST, 1, 0, 0);
    engine.exit(FIRST);
    (3..6).for_each(|seq| engine.send(1, seq));
    engine.now += 10_000_000_000;
    assert_eq!(engine.warnings(), [""; 0]);
    // Another receiver takes over, and frames sent to it count again.
    engine.join(SECOND);
    assert_eq!(
        engine.analysis.ledger().undelivered_chunks(),
        0,
        "the exited receiver may have delivered frames in flight"
    );
    (6..8).for_each(|seq| engine.send(1, seq));
    engine.receive(SECOND, 1, 6, 0);
    let waiting = engine.analysis.ledger().hops().iter().map(|hop| hop.counts.backlog);
    assert_eq!(waiting.sum::<u64>(), 1);
    assert_eq!(engine.warnings(), [""; 0]);
}

/// The parts between schedulers are written after the description of recorded messages; the request is a recorded one.
#[test]
fn messages_to_another_scheduler_are_read_if_they_name_a_room_of_this_engine() {
    const REQUEST: &[u8] = include_bytes!("../../../../zmq-tap/fixtures/messages/0.5.23/req_room_3000tok.pkl");
    const ROOM: u64 = 1_311_768_467_463_790_320;
    let parts = [(SCHEDULER, role::SCHEDULER), (FIRST, role::TOKENIZER)];
    let mut lanes =
        Lanes::new(Roles::from_roles_and_connections(&parts, &[(SCHEDULER, FIRST)]), Observability::new(true, true));
    let mut found = Vec::new();
    let mut note = |event: &Event<'_>| match event.what {
        What::PairMessage(message) => found.push((message.room, message.kind)),
        What::Hop(hop) => assert!(hop.carries_requests, "{hop:?}"),
        What::Dispatched(_) => {}
        other => panic!("{other:?}"),
    };
    let mut seq = 0;
    let room = ROOM.to_string();
    let other_room = (ROOM + 1).to_string();
    let memory = [b"10.0.0.1", &b"40000"[..], &[7; 300], b"", b"3", b"1", b"0"];
    let mut send = |lanes: &mut Lanes, parts: &[&[u8]]| {
        for (index, bytes) in parts.iter().enumerate() {
            let call = Call { socket: SocketId { pid: SCHEDULER, address: 0x2000 }, ..message(1, seq, bytes).call };
            let part = Message { call, more: index + 1 < parts.len(), ..message(1, seq, bytes) };
            lanes.record_send(&part, &mut Clients::default(), &mut note);
            seq += 1;
        }
    };
    send(&mut lanes, &[room.as_bytes(), b"4", b"0"]);
    lanes.record_send(&message(FIRST, 0, REQUEST), &mut Clients::default(), &mut |_| {});
    send(&mut lanes, &[&[room.as_bytes()], &memory[..]].concat());
    send(&mut lanes, &[other_room.as_bytes(), b"4", b"0"]);
    send(&mut lanes, &[b"None", b"10.0.0.1", b"40000"]);
    send(&mut lanes, &[room.as_bytes(), b"4", b"0"]);
    send(&mut lanes, &[room.as_bytes(), b"0", b"0"]);
    assert_eq!(
        found,
        [PairMessageKind::Allocated, PairMessageKind::Transferred, PairMessageKind::Failed].map(|kind| (ROOM, kind))
    );
}
