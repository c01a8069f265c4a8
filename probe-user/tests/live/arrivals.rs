//! Arrivals of requests at a process that serves clients.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use probe_user::egress::{CAPTURE, CallerSpan, Kind, ListeningPorts, ListeningSockets, MAX_HEAD, RequestTimes, Serves};
use probe_user::{Capture, Feature, Observation, Probe, ProbeOptions, Target};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use trace::MonoNs;

/// A single-threaded server that answers requests, which end as its argument says, in one write each.
const SERVER: &str = "
import asyncio, sys

async def answer(reader, writer):
    try:
        while True:
            await (reader.readuntil(sys.argv[1].encode()) if sys.argv[1] else reader.readexactly(100))
            writer.write(b'answer')
            await writer.drain()
    except asyncio.IncompleteReadError:
        writer.close()

async def main():
    server = await asyncio.start_server(answer, '127.0.0.1', 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
";

const REQUEST: [u8; 100] = [b'r'; 100];
const STOP: Duration = Duration::from_millis(300);

struct Server {
    child: Child,
    port: u16,
}

impl Server {
    /// Requests have a fixed length.
    fn start() -> Self {
        Self::start_with_end("")
    }

    /// Requests end with `end`.
    fn start_with_end(end: &str) -> Self {
        let mut child =
            Command::new("python3").args(["-c", SERVER, end]).stdout(Stdio::piped()).spawn().expect("python starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("stdout is piped");
        BufReader::new(stdout).read_line(&mut line).expect("the server writes its port");
        Self { child, port: line.trim().parse().expect("a port") }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the server listens");
        stream.set_nodelay(true).expect("an option of TCP");
        stream
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).expect("a process");
        kill_process(pid, signal).expect("our child");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Observes the writes of a process, and arrivals at its ports.
fn observe(pid: u32) -> Probe {
    let mut probe = Probe::attach(&[], ProbeOptions::default()).expect("root may attach");
    find_callers(&mut probe, pid, true);
    let listening = ListeningSockets::default().listening_ports_of_process(pid).expect("its sockets are readable");
    assert!(probe.observe_arrivals(pid, listening).expect("maps exist"), "{:?}", probe.degraded());
    probe.add_targets(&[Target { pid, capture: Capture::default() }]).expect("it exists");
    probe
}

/// Observes the writes of a process, and the spans of its requests' callers if this is set.
fn find_callers(probe: &mut Probe, pid: u32, callers: bool) {
    let serves = Serves { written: CAPTURE, read: 0, callers: callers.into() };
    assert!(probe.observe_serving(pid, serves).expect("maps exist"));
}

/// Requests that the server has begun to answer, with the client's port.
fn observed(probe: &mut Probe, at_least: usize) -> Vec<(u16, RequestTimes)> {
    let (mut seen, until) = (Vec::new(), Instant::now() + Duration::from_secs(10));
    // One more round shows whether there are too many.
    for _ in 0..2 {
        while seen.len() < at_least && Instant::now() < until {
            let see = |observation: Observation<'_>| {
                if let Observation::Egress { record, .. } = observation
                    && record.kind == Kind::Request
                {
                    let times = RequestTimes::parse(record.payload).expect("times of a request");
                    seen.push((record.head.ports[1], times));
                }
            };
            probe.poll(Duration::from_millis(20), see).expect("the probe reads");
        }
        thread::sleep(Duration::from_millis(50));
    }
    seen
}

fn read_answer(stream: &mut TcpStream) {
    let mut answer = [0; 6];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"answer");
}

fn port(stream: &TcpStream) -> u16 {
    stream.local_addr().expect("it is bound").port()
}

#[test]
fn requests_on_a_kept_connection_arrive_between_send_and_answer() {
    const REQUESTS: usize = 200;
    if !crate::is_permitted(Feature::Arrivals) {
        return;
    }
    let server = Server::start();
    // Opened before the attach: its first request is unknown.
    let mut older = server.connect();
    older.write_all(&REQUEST).expect("space in the socket");
    read_answer(&mut older);
    let mut probe = observe(server.child.id());
    let mut client = server.connect();
    let mut clocks = Vec::new();
    for n in 0..REQUESTS {
        let before = MonoNs::now().0;
        // Every other request comes in two packets.
        let (first, rest) = REQUEST.split_at(if n % 2 == 0 { 100 } else { 30 });
        client.write_all(first).expect("space in the socket");
        if !rest.is_empty() {
            thread::sleep(Duration::from_millis(2));
            client.write_all(rest).expect("space in the socket");
        }
        read_answer(&mut client);
        clocks.push((before, MonoNs::now().0));
    }
    let seen = observed(&mut probe, REQUESTS);
    assert_eq!(seen.len(), REQUESTS);
    for (n, ((peer, times), (before, after))) in seen.iter().zip(&clocks).enumerate() {
        let RequestTimes { opened_ns, accepted_ns, arrived_ns, read_ns } = *times;
        assert_eq!(*peer, port(&client));
        assert!(before < &arrived_ns && arrived_ns <= read_ns && read_ns < *after, "{n}: {before} {times:?} {after}");
        if n == 0 {
            assert!(0 < opened_ns && opened_ns <= accepted_ns && accepted_ns <= read_ns, "{times:?}");
        } else {
            assert_eq!((opened_ns, accepted_ns), (0, 0), "{n}");
        }
        // The second packet comes 2 ms later, and is not taken for the arrival.
        assert!(n % 2 == 0 || after - arrived_ns >= 2_000_000, "{n}: {times:?}");
    }
    // An older connection is known once the server has written on it.
    for expected in [0, 1] {
        older.write_all(&REQUEST).expect("space in the socket");
        read_answer(&mut older);
        assert_eq!(observed(&mut probe, expected).len(), expected);
    }
}

#[test]
fn requests_arrive_while_the_server_is_stopped_and_are_read_and_accepted_afterwards() {
    const NEW: usize = 8;
    if !crate::is_permitted(Feature::Arrivals) {
        return;
    }
    let server = Server::start();
    let mut probe = observe(server.child.id());
    let mut kept = server.connect();
    kept.write_all(&REQUEST).expect("space in the socket");
    read_answer(&mut kept);
    assert_eq!(observed(&mut probe, 1).len(), 1);
    server.signal(Signal::STOP);
    thread::sleep(Duration::from_millis(20));
    let stopped = MonoNs::now().0;
    kept.write_all(&REQUEST).expect("space in the socket");
    let mut new: Vec<TcpStream> = (0..NEW).map(|_| server.connect()).collect();
    for client in &mut new {
        client.write_all(&REQUEST).expect("space in the socket");
    }
    thread::sleep(STOP);
    let continued = MonoNs::now().0;
    server.signal(Signal::CONT);
    read_answer(&mut kept);
    new.iter_mut().for_each(read_answer);
    let seen = observed(&mut probe, NEW + 1);
    assert_eq!(seen.len(), NEW + 1);
    for (peer, times) in seen {
        let RequestTimes { opened_ns, accepted_ns, arrived_ns, read_ns } = times;
        let while_stopped = stopped..continued - STOP.as_nanos() as u64 / 2;
        assert!(while_stopped.contains(&arrived_ns) && continued < read_ns, "{stopped} {times:?} {continued}");
        if peer == port(&kept) {
            assert_eq!((opened_ns, accepted_ns), (0, 0));
        } else {
            assert!(new.iter().any(|client| port(client) == peer));
            assert!(while_stopped.contains(&opened_ns) && opened_ns <= arrived_ns, "{times:?}");
            assert!(continued < accepted_ns && accepted_ns <= read_ns, "{times:?}");
        }
    }
}

#[test]
fn other_ports_and_processes_are_not_observed() {
    if !crate::is_permitted(Feature::Arrivals) {
        return;
    }
    let (watched, other) = (Server::start(), Server::start());
    let mut probe = observe(watched.child.id());
    for server in [&other, &watched] {
        let mut client = server.connect();
        client.write_all(&REQUEST).expect("space in the socket");
        read_answer(&mut client);
        let expected = usize::from(std::ptr::eq(server, &raw const watched));
        assert_eq!(observed(&mut probe, expected).len(), expected);
    }
}

const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// The span that [`TRACEPARENT`] names, with this number as the trace's last half.
fn caller(trace_id_low: u64) -> CallerSpan {
    CallerSpan { trace_id: [0x4bf9_2f35_77b3_4da6, trace_id_low], span_id: 0x00f0_67aa_0ba9_02b7, flags: 1, unknown: 0 }
}

fn traceparent(trace_id_low: u64) -> String {
    format!("traceparent: {}\r\n", TRACEPARENT.replace("a3ce929d0e0e4736", &format!("{trace_id_low:016x}")))
}

/// A request with these headers, and with words that must not leave the kernel.
fn request(headers: &str) -> String {
    let others = "Host: canary-host\r\nAuthorization: Bearer canary-key\r\ntracestate: vendor=canary-state\r\n";
    let last = "Cookie: canary-cookie\r\n\r\n{\"prompt\":\"canary-prompt\\r\\ntraceparent: 00-canary\"}END";
    format!("POST /canary-path HTTP/1.1\r\n{others}{headers}{last}")
}

#[test]
fn each_request_has_the_span_of_its_own_head_and_nothing_else_of_it_leaves_the_kernel() {
    if !crate::is_permitted(Feature::Arrivals) {
        return;
    }
    let server = Server::start_with_end("END");
    let mut probe = observe(server.child.id());
    let mut expected = Vec::new();
    let mut client = server.connect();
    let mut ask = |packets: &[&str], span: CallerSpan| {
        for (n, packet) in packets.iter().enumerate() {
            if n > 0 {
                thread::sleep(Duration::from_millis(20));
            }
            client.write_all(packet.as_bytes()).expect("space in the socket");
        }
        read_answer(&mut client);
        expected.push(span);
    };
    ask(&[&request(&traceparent(1))], caller(1));
    ask(&[&request("")], CallerSpan::ABSENT);
    ask(&[&request(&traceparent(3).to_uppercase().replace("TRACEPARENT", "TraceParent"))], CallerSpan::MALFORMED);
    let whole = request(&traceparent(4));
    let (first, rest) = whole.split_at(whole.find("Cookie").expect("a header") + 2);
    ask(&[first, rest], caller(4));
    let (first, rest) = whole.split_at(whole.find("traceparent").expect("a header") + 20);
    ask(&[first, rest], CallerSpan::INCOMPLETE);
    // No byte of the head before completes this one.
    ask(&["POST / HTTP/1.1\r\n", &request("")], CallerSpan::INCOMPLETE);
    let long = format!("X: {}\r\n", "canary".repeat(MAX_HEAD / 6));
    ask(&[&request(&(long.clone() + &traceparent(5)))], CallerSpan::INCOMPLETE);
    ask(&[&request(&(traceparent(6) + &long))], caller(6));
    ask(&[&request(&(traceparent(7))).replace("POST", "\x16\x03\x01")], CallerSpan::ABSENT);
    let serving = server.child.id();
    find_callers(&mut probe, serving, false);
    ask(&[&request(&traceparent(8))], CallerSpan::ABSENT);
    // Two requests in one packet: the second one's arrival and span are unknown.
    find_callers(&mut probe, serving, true);
    ask(&[&(request(&traceparent(9)) + &request(&traceparent(10)))], caller(9));
    read_answer(&mut client);
    let mut spans = Vec::new();
    for _ in 0..20 {
        let see = |observation: Observation<'_>| {
            let Observation::Egress { record, .. } = observation else { return };
            assert!(!record.payload.windows(6).any(|bytes| bytes == b"canary"), "{:?}", record.kind);
            if record.kind == Kind::Request {
                spans.push(CallerSpan::parse(&record.payload[size_of::<RequestTimes>()..]).expect("a span"));
                assert_eq!(record.payload.len(), size_of::<RequestTimes>() + size_of::<CallerSpan>());
            }
        };
        probe.poll(Duration::from_millis(20), see).expect("the probe reads");
    }
    assert_eq!(spans, expected);
}

/// Prints what the search of a head costs the server's read, in alternated rounds.
#[test]
fn a_search_of_a_head_costs_a_read_little() {
    const ROUNDS: usize = 60;
    const REQUESTS: usize = 200;
    if !crate::is_permitted(Feature::Arrivals) {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let pid = std::process::id();
    let mut probe = observe(pid);
    let mut client = TcpStream::connect(listener.local_addr().expect("a bound socket")).expect("it listens");
    let (mut server, _) = listener.accept().expect("a connection");
    let mut buffer = vec![0; 1 << 16];
    let headers = |bytes: usize| format!("X: {}\r\n", "x".repeat(bytes));
    let body = "p".repeat(8000);
    for (what, request) in [
        ("head of 300 bytes that ends with the header", request(&(headers(100) + &traceparent(1)))),
        ("head of 1,000 bytes without the header", request(&headers(860))),
        ("head of 1,000 bytes without the header, with a body of 8,000", request(&headers(860)) + &body),
        ("head that exceeds the limit", request(&headers(MAX_HEAD))),
    ] {
        let mut round = |probe: &mut Probe, callers: bool| {
            find_callers(probe, pid, callers);
            let mut spent = 0;
            for _ in 0..REQUESTS {
                client.write_all(request.as_bytes()).expect("space in the socket");
                let begin = cpu_ns();
                let read = server.read(&mut buffer).expect("a request");
                spent += cpu_ns() - begin;
                assert_eq!(read, request.len());
                server.write_all(b"answer").expect("space in the socket");
                read_answer(&mut client);
            }
            probe.poll(Duration::ZERO, |_| {}).expect("the probe reads");
            spent as f64 / REQUESTS as f64
        };
        let mut added: Vec<f64> = Vec::new();
        for n in 0..ROUNDS {
            let first = round(&mut probe, n % 2 == 0);
            let second = round(&mut probe, n % 2 != 0);
            added.push(if n % 2 == 0 { first - second } else { second - first });
        }
        added.sort_by(f64::total_cmp);
        let (low, median, high) = (added[ROUNDS / 4], added[ROUNDS / 2], added[ROUNDS * 3 / 4]);
        println!("a {what}: +{median:.0} ns (quartiles {low:.0}..{high:.0})");
        assert!(median < 20_000.0, "{median} ns");
    }
}

/// CPU time of this thread.
fn cpu_ns() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// CPU time of a round per message, in nanoseconds.
#[derive(Clone, Copy)]
struct RoundCost {
    /// Of a write, which wakes the reader's socket.
    wakeup: f64,
    read: f64,
}

/// Prints what the observation costs processes that have nothing to do with it, in alternated rounds.
#[test]
fn a_wakeup_of_another_socket_costs_little_more() {
    const ROUNDS: usize = 60;
    const BATCHES: usize = 100;
    const MESSAGES: usize = 50;
    if !crate::is_permitted(Feature::Arrivals) {
        return;
    }
    let (mut from, mut to) = UnixStream::pair().expect("two sockets");
    let mut round = || {
        let (mut written, mut read, mut buffer) = (0, 0, [0; 64]);
        for _ in 0..BATCHES {
            let begin = cpu_ns();
            for _ in 0..MESSAGES {
                from.write_all(&[7; 64]).expect("space in the socket");
            }
            let middle = cpu_ns();
            for _ in 0..MESSAGES {
                to.read_exact(&mut buffer).expect("as many bytes");
            }
            written += middle - begin;
            read += cpu_ns() - middle;
        }
        let per_message = |ns: i64| ns as f64 / (BATCHES * MESSAGES) as f64;
        RoundCost { wakeup: per_message(written), read: per_message(read) }
    };
    let server = Server::start();
    let with_arrivals = |round: &mut dyn FnMut() -> RoundCost| {
        let mut probe = Probe::attach(&[], ProbeOptions { scheduler: false, polls: false, ..ProbeOptions::default() })
            .expect("root may attach");
        let listening = ListeningPorts { ports: vec![server.port], ..ListeningPorts::default() };
        assert!(probe.observe_arrivals(server.child.id(), listening).expect("maps exist"));
        round()
    };
    let mut added: Vec<RoundCost> = Vec::new();
    for n in 0..ROUNDS {
        let (with, without) = if n % 2 == 0 {
            let with = with_arrivals(&mut round);
            (with, round())
        } else {
            let without = round();
            (with_arrivals(&mut round), without)
        };
        added.push(RoundCost { wakeup: with.wakeup - without.wakeup, read: with.read - without.read });
    }
    for (what, part) in [("wakeup", (|cost| cost.wakeup) as fn(&RoundCost) -> f64), ("read", |cost| cost.read)] {
        let mut ns: Vec<f64> = added.iter().map(part).collect();
        ns.sort_by(f64::total_cmp);
        let (low, median, high) = (ns[ROUNDS / 4], ns[ROUNDS / 2], ns[ROUNDS * 3 / 4]);
        println!("a {what} of another socket: +{median:.0} ns (quartiles {low:.0}..{high:.0})");
        assert!(median < 2_000.0, "{median} ns");
    }
}
