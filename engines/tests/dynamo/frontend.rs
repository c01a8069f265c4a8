//! Waits in a frontend: a recorded stream of a worker and the recorded response of the frontend, written at chosen times.

use adapter::requests::ParseRequests as _;
use engines::PROTOCOLS;
use engines::dynamo::RequestPlaneParser;
use proptest::prelude::*;
use responses::{ResponseReader, Server};
use trace::MonoNs;
use trace::event::{AnswerEnd, What};

use super::{damaged, recording, worker};

const STREAM: &str = "v1.6.1-frontend-04";
const RESPONSE: &str = "v1.6.1-frontend-http";
const CONTEXT: &str = "631dd30e-a74d-4e1b-bb13-9dc94f995cfd";

/// Readers of the worker's connection and of the frontend's.
struct Pair {
    server: Server,
    worker: ResponseReader,
    frontend: ResponseReader,
    /// Id and waits of each reported response.
    waits: Vec<(String, Option<u64>, Option<u64>)>,
}

impl Pair {
    fn new() -> Self {
        let mut server = Server::new(None);
        server.frontends.observed = true;
        Self {
            server,
            worker: worker(),
            frontend: ResponseReader::of_frontend().with_protocols(PROTOCOLS),
            waits: Vec::new(),
        }
    }

    /// The same, with the streams of the recorded requests announced.
    fn announced() -> Self {
        let mut pair = Self::new();
        let bytes = recording("dynamo/requests", "v1.6.1-frontend");
        RequestPlaneParser::default().parse(&bytes, true, &mut |request| {
            if let Some(subject) = request.subject {
                pair.server.record_announced_stream(subject, request.context, request.rid);
            }
        });
        pair
    }

    fn worker(&mut self, at: u64, bytes: &[u8]) {
        let Self { server, worker, waits, .. } = self;
        worker.read_bytes(MonoNs(at), bytes, true, server, &mut |event| keep(waits, event.what));
    }

    fn frontend(&mut self, at: u64, bytes: &[u8]) {
        let Self { server, frontend, waits, .. } = self;
        frontend.read_bytes(MonoNs(at), bytes, true, server, &mut |event| match event.what {
            What::FrontendWait(_) => keep(waits, event.what),
            other => panic!("a frontend's response is no delivery: {other:?}"),
        });
    }

    fn closed(&mut self, at: u64) {
        let Self { server, frontend, waits, .. } = self;
        frontend.end_connection(MonoNs(at), AnswerEnd::ClientLeft, None, server, &mut |event| keep(waits, event.what));
    }

    /// Reason in the only line about waits.
    fn reason(&self) -> String {
        let degraded = self.server.frontends.degraded_lines();
        let [line] = &degraded[..] else { panic!("{degraded:?}") };
        line.rsplit_once(": ").expect("a reason").1.to_owned()
    }
}

fn keep(waits: &mut Vec<(String, Option<u64>, Option<u64>)>, what: What<'_>) {
    if let What::FrontendWait(wait) = what {
        waits.push((wait.rid.to_owned(), wait.first_token_ns, wait.last_token_ns));
    }
}

/// The frames of the worker's stream.
fn frames() -> Vec<Vec<u8>> {
    let bytes = recording("dynamo/responses", STREAM);
    let (mut rest, mut frames) = (&bytes[..], Vec::new());
    while let Some(prefix) = rest.first_chunk::<24>() {
        let number = |at: usize| u64::from_be_bytes(prefix[at..at + 8].try_into().unwrap()) as usize;
        let (frame, more) = rest.split_at((24 + number(0) + number(8)).min(rest.len()));
        frames.push(frame.to_vec());
        rest = more;
    }
    frames
}

/// The frontend's writes: the head with the first event, the other events, and the end.
fn writes() -> Vec<Vec<u8>> {
    let text = String::from_utf8(recording("dynamo/responses", RESPONSE)).unwrap();
    let end = text.find("E\r\ndata: [DONE]").unwrap();
    let events = text[..end].split_inclusive("\n\n\r\n");
    events.chain([&text[end..]]).map(|piece| piece.as_bytes().to_vec()).collect()
}

/// The worker writes frame N at N ms, the frontend its events at these times in ms.
fn pair(mut pair: Pair, times: &[u64]) -> Pair {
    const MS: u64 = 1_000_000;
    for (n, frame) in (0..).zip(frames()) {
        pair.worker(n * MS, &frame);
    }
    for (at, write) in times.iter().zip(writes()) {
        pair.frontend(at * MS, &write);
    }
    pair
}

#[test]
fn the_id_of_a_request_is_of_use_until_the_first_event_of_its_stream() {
    let mut pair = Pair::announced();
    let mut lacks_id = Vec::new();
    for (at, frame) in (0..).zip(frames()).take(4) {
        lacks_id.push(pair.worker.lacks_request_id(&pair.server));
        pair.worker(at, &frame);
    }
    // The handshake, the prologue, and two chunks.
    assert_eq!(lacks_id, [false, true, true, false]);
    let mut pair = Pair::announced();
    pair.worker(0, &frames()[0]);
    pair.server.record_logged_rid(CONTEXT, "rid");
    assert!(!pair.worker.lacks_request_id(&pair.server));
    let mut delivered = Vec::new();
    for frame in &frames()[1..3] {
        pair.worker.read_bytes(MonoNs(1), frame, true, &mut pair.server, &mut |event| {
            if let What::Delivered(delivery) = event.what {
                delivered.push(delivery.rid.to_owned());
            }
        });
    }
    assert_eq!(delivered, ["rid"]);
}

/// Five events and the end. The worker's chunks are frames 2 to 6.
const TIMES: [u64; 6] = [2_002, 2_003, 2_004, 2_005, 2_106, 2_107];

#[test]
fn the_waits_of_first_and_last_token_are_measured() {
    let pair = pair(Pair::announced(), &TIMES);
    assert_eq!(pair.waits, [(CONTEXT.to_owned(), Some(2_000_000_000), Some(2_100_000_000))]);
    assert_eq!(pair.server.frontends.degraded_lines(), [""; 0]);
}

#[test]
fn the_order_of_the_ends_is_irrelevant() {
    let mut pair = Pair::announced();
    let (mut frames, writes) = (frames(), writes());
    let end = frames.split_off(6);
    for frame in &frames {
        pair.worker(1_000, frame);
    }
    for write in &writes {
        pair.frontend(1_500, write);
    }
    assert_eq!(pair.waits, []);
    // Observed late, but stamped before the frontend's write.
    for frame in &end {
        pair.worker(1_400, frame);
    }
    assert_eq!(pair.waits, [(CONTEXT.to_owned(), Some(500), Some(100))]);
}

#[test]
fn a_slow_client_leaves_the_waits_unknown() {
    let mut slow = Pair::announced();
    slow.frontend.record_short_write();
    let slow = pair(slow, &TIMES);
    assert_eq!(slow.waits, []);
    assert_eq!(slow.reason(), "the client read more slowly than the frontend wrote");
    let mut later = pair(Pair::announced(), &TIMES[..1]);
    later.frontend.record_short_write();
    for write in &writes()[1..] {
        later.frontend(9_000_000_000, write);
    }
    assert_eq!(later.waits, [(CONTEXT.to_owned(), Some(2_000_000_000), None)]);
}

#[test]
fn text_that_is_held_back_is_no_wait_of_the_first_token() {
    let mut pair = pair(Pair::announced(), &[]);
    let writes = writes();
    // A tool-call parser writes everything in the event with the finish reason.
    let text = String::from_utf8(writes[0].clone()).unwrap();
    let (head, _) = text.split_once("\r\n\r\n").unwrap();
    pair.frontend(3_000_000_000, format!("{head}\r\n\r\n").as_bytes());
    pair.frontend(3_000_000_000, &writes[4]);
    pair.frontend(3_000_000_000, &writes[5]);
    let frames = u64::try_from(frames().len()).unwrap();
    assert!(frames >= 8, "{frames}");
    assert_eq!(pair.waits, [(CONTEXT.to_owned(), None, Some(2_994_000_000))]);
    assert_eq!(pair.reason(), "the frontend may have held back text before the first event");
}

#[test]
fn a_response_with_more_events_than_chunks_has_another_worker() {
    let mut pair = pair(Pair::announced(), &TIMES[..4]);
    let writes = writes();
    for write in [&writes[3], &writes[3], &writes[4], &writes[5]] {
        pair.frontend(9_000_000_000, write);
    }
    assert_eq!(pair.waits, []);
    assert_eq!(pair.reason(), "another worker wrote a part of the response");
}

#[test]
fn partly_observed_and_unnamed_responses_are_not_judged() {
    let mut missed = Pair::announced();
    let writes = writes();
    missed.frontend(1, &writes[0]);
    missed.frontend.record_gap(MonoNs(1), &mut |event| panic!("{event:?}"));
    let missed = {
        for write in &writes[1..] {
            missed.frontend(2, write);
        }
        pair(missed, &[])
    };
    assert_eq!((missed.waits.len(), missed.reason()), (0, "a part of the response was not observed".to_owned()));
    let unnamed = pair(Pair::new(), &TIMES);
    assert_eq!(unnamed.waits, []);
    assert_eq!(unnamed.reason(), "the worker's stream does not show the frontend's request id");
}

#[test]
fn a_client_that_leaves_ends_the_response_early() {
    let mut left = pair(Pair::announced(), &TIMES[..3]);
    left.closed(5_000_000_000);
    assert_eq!((left.waits.len(), left.reason()), (0, "the response ended before its last token".to_owned()));
}

#[test]
fn without_an_observed_frontend_only_streams_are_counted() {
    let mut alone = Pair::announced();
    alone.server.frontends.observed = false;
    let alone = pair(alone, &[]);
    assert_eq!((alone.server.frontends.streams, alone.server.frontends.degraded_lines().len()), (1, 0));
}

#[test]
fn a_missing_end_is_reported_after_ten_seconds() {
    let mut open = pair(Pair::announced(), &TIMES[..2]);
    assert_eq!(open.server.frontends.degraded_lines(), [""; 0]);
    // Another stream, without a request, ends later.
    open.worker = worker();
    for frame in frames() {
        open.worker(20_000_000_000, &frame);
    }
    let degraded = open.server.frontends.degraded_lines();
    assert!(
        degraded.iter().any(|line| line.ends_with("no observed frontend wrote a response with this id")),
        "{degraded:?}"
    );
}

proptest! {
    #[test]
    fn damaged_responses_never_panic(bytes in damaged(Just(recording("dynamo/responses", RESPONSE)), 12), length in 1_usize..400, hole in 0_usize..40) {
        let mut pair = pair(Pair::announced(), &[]);
        for (n, piece) in bytes.chunks(length).enumerate() {
            if n == hole {
                pair.frontend.record_gap(MonoNs(1), &mut |event| panic!("{event:?}"));
            }
            pair.frontend(1, piece);
        }
        pair.closed(2);
        prop_assert!(pair.waits.len() <= 1);
    }
}
