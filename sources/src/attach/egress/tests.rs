//! Records of client connections, and what the responses in them report.

use probe_user::egress::{CallerSpan, Head, UnknownSpan};
use trace::event::{Arrival, ArrivalTimes, ConnectionTimes, Event, Traced, What};

use super::*;

/// A response with one event.
fn response() -> Vec<u8> {
    let event = "data: {\"id\":\"cmpl-1\",\"choices\":[{\"index\":0,\"text\":\"a\",\"finish_reason\":\"stop\"}]}\n\n";
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    format!("{head}{:x}\r\n{event}\r\n0\r\n\r\n", event.len()).into_bytes()
}

fn record(kind: Kind, written: u32, payload: &[u8]) -> Record<'_> {
    let mut head = Head { socket: 5, written, ..Head::default() };
    (head.accepted, head.captured) = (payload.len() as i64, payload.len() as u32);
    Record { kind, head, payload }
}

/// Number of responses in the writes of process `pid`, whose connection has the kernel address of an earlier one of process 1.
fn responses(pid: u32) -> usize {
    let (worker, frontend, mut answers) = (1, 2, 0);
    let mut egress = Egress::new(Clients::default());
    egress.frontends.observed.insert(frontend);
    let mut count = |event: &Event<'_>| answers += usize::from(matches!(event.what, What::Answered(_)));
    // A write that is reported after the end of its connection registers the address again.
    egress.read_record(worker, &record(Kind::Wrote, 1, b"}"), &mut count);
    let mut opened = record(Kind::State, 0, b"");
    (opened.head.before, opened.head.state) = (3, 1);
    egress.read_record(worker, &opened, &mut count);
    let response = response();
    egress.read_record(pid, &record(Kind::Wrote, response.len() as u32, &response), &mut count);
    answers
}

/// What a connection shows, record by record.
#[derive(Default)]
struct Connection {
    egress: Egress,
    written: u32,
    tls: bool,
    arrivals: Vec<Result<ArrivalTimes, UnknownArrival>>,
    traces: Vec<String>,
}

impl Connection {
    fn observed() -> Self {
        let mut connection = Self { egress: Egress::new(Clients::default()), ..Self::default() };
        connection.egress.observes_arrivals = true;
        connection
    }

    /// The server writes.
    fn write(mut self, bytes: &[u8]) -> Self {
        self.written += bytes.len() as u32;
        let kind = if self.tls { Kind::Tls } else { Kind::Wrote };
        let Self { egress, arrivals, traces, written, .. } = &mut self;
        egress.read_record(1, &record(kind, *written, bytes), &mut |event| {
            if let What::Arrived(Arrival { rid: "cmpl-1", times }) = event.what {
                arrivals.push(times);
            }
            if let What::Traced(Traced { rid: "cmpl-1", parent }) = event.what {
                traces.push(parent.trace_id());
            }
        });
        self
    }

    /// The server begins to answer a request that arrived at `arrived_ns`, 10 ns after its connection was opened.
    fn answer(self, arrived_ns: u64) -> Self {
        self.answer_caller(arrived_ns, CallerSpan::ABSENT)
    }

    fn answer_caller(mut self, arrived_ns: u64, caller: CallerSpan) -> Self {
        let CallerSpan { trace_id: [high, low], span_id, flags, unknown } = caller;
        let last = u64::from(flags) | (u64::from(unknown) << 32);
        let words = [arrived_ns - 10, 0, arrived_ns, arrived_ns + 5, high, low, span_id, last];
        let payload: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.egress.read_record(1, &record(Kind::Request, self.written, &payload), &mut |_| {});
        self
    }

    /// The connection is closed, and another one gets its kernel address.
    fn reopen(mut self) -> Self {
        for (before, state) in [(1, 7), (3, 1)] {
            let mut change = record(Kind::State, 0, b"");
            (change.head.before, change.head.state) = (before, state);
            self.egress.read_record(1, &change, &mut |_| {});
        }
        self.written = 0;
        self
    }

    /// When each request arrived.
    fn arrived_ns(self) -> Vec<Result<u64, UnknownArrival>> {
        self.arrivals.into_iter().map(|times| times.map(|times| times.arrived.0)).collect()
    }
}

#[test]
fn each_response_has_the_arrival_of_its_own_request() {
    let response = response();
    let (head, body) = response.split_at(40);
    let connection = Connection::observed().write(&response).answer(100).write(head).write(body);
    let connection = connection.answer(200).write(&response).write(&response).answer(300).write(&response);
    let connection = connection.reopen().answer(400).write(&response);
    let times = connection.arrivals[1].unwrap();
    assert_eq!((times.arrived.0, times.read.0), (100, 105));
    assert_eq!(times.connection, Some(ConnectionTimes { opened: MonoNs(90), accepted: None }));
    let missed = Err(UnknownArrival::Missed);
    assert_eq!(connection.arrived_ns(), [missed, Ok(100), Ok(200), missed, Ok(300), Ok(400)]);
    assert_eq!(Connection::default().answer(100).write(&response).arrived_ns(), []);
}

#[test]
fn responses_without_a_body_take_their_requests_arrival_and_interim_ones_do_not() {
    let connection = Connection::observed().answer(100).write(b"HTTP/1.1 204 No Content\r\n\r\n");
    let connection = connection.answer(200).write(b"HTTP/1.1 100 Continue\r\n\r\n").answer(300);
    assert_eq!(connection.write(&response()).arrived_ns(), [Ok(200)]);
}

#[test]
fn arrivals_are_unknown_once_a_client_sends_before_the_response_has_ended() {
    let response = response();
    let (begin, rest) = response.split_at(response.len() - 5);
    let connection = Connection::observed().answer(100).write(begin).answer(200).write(rest).write(&response);
    let pipelined = Err(UnknownArrival::Pipelined);
    let connection = connection.answer(300).write(&response);
    assert_eq!(connection.arrived_ns(), [Ok(100), pipelined, pipelined]);
}

#[test]
fn arrivals_on_encrypted_connections_are_unknown() {
    let connection = Connection { tls: true, ..Connection::observed() };
    assert_eq!(connection.write(&response()).arrived_ns(), [Err(UnknownArrival::Tls)]);
}

/// Span of a caller in trace `trace_id`.
fn caller(trace_id: u64) -> CallerSpan {
    CallerSpan { trace_id: [0, trace_id], span_id: 7, flags: 1, unknown: 0 }
}

#[test]
fn each_response_has_the_trace_of_its_own_request() {
    let response = response();
    let connection = Connection::observed().answer_caller(100, caller(1)).write(&response);
    // The second names no span, and the record of the third is missed.
    let connection = connection.answer(200).write(&response).write(&response);
    let malformed = CallerSpan { unknown: UnknownSpan::Malformed as u32, ..CallerSpan::ABSENT };
    let connection = connection.answer_caller(400, malformed).write(&response);
    let connection = connection.answer_caller(500, CallerSpan::INCOMPLETE).write(&response);
    let connection = connection.answer_caller(600, caller(0xab)).write(&response);
    assert_eq!(connection.traces, [format!("{:032x}", 1), format!("{:032x}", 0xab)]);
    assert_eq!(connection.arrivals.len(), 6);
    let reasons = connection.egress.degraded();
    assert!(reasons.iter().any(|line| line.contains("1 malformed")), "{reasons:?}");
    assert!(reasons.iter().any(|line| line.contains("1 request heads were not in one read")), "{reasons:?}");
}

#[test]
fn traces_are_unknown_where_arrivals_are() {
    let response = response();
    let (begin, rest) = response.split_at(response.len() - 5);
    let connection = Connection::observed().answer_caller(100, caller(1)).write(begin);
    let connection = connection.answer_caller(200, caller(2)).write(rest).write(&response);
    assert_eq!(connection.traces, [format!("{:032x}", 1)]);
    // The body that follows `100 Continue` may begin as a request does.
    let connection = Connection::observed().answer_caller(100, caller(1)).write(b"HTTP/1.1 100 Continue\r\n\r\n");
    let connection = connection.answer_caller(200, caller(2)).write(&response);
    assert_eq!(connection.traces, [format!("{:032x}", 1)]);
    let connection = Connection::observed().answer_caller(100, caller(1)).reopen().write(&response);
    assert_eq!(connection.traces, [""; 0]);
}

#[test]
fn responses_of_a_frontend_are_no_answers_at_a_reused_address() {
    assert_eq!((responses(1), responses(2)), (1, 0));
}
