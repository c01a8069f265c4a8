//! Arrivals of requests at a process that serves clients.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use probe_user::egress::{CAPTURE, Kind, ListeningPorts, RequestTimes, Serves, listening_ports};
use probe_user::{Capture, Feature, Observation, Probe, ProbeOptions, Target};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use trace::MonoNs;

/// A single-threaded server that answers requests of fixed length in one write each.
const SERVER: &str = "
import asyncio

async def answer(reader, writer):
    try:
        while True:
            await reader.readexactly(100)
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
    fn start() -> Self {
        let mut child =
            Command::new("python3").args(["-c", SERVER]).stdout(Stdio::piped()).spawn().expect("python starts");
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
    assert!(probe.observe_serving(pid, Serves { written: CAPTURE, read: 0 }).expect("maps exist"));
    let listening = listening_ports(pid).expect("its sockets are readable");
    assert!(probe.observe_arrivals(pid, listening).expect("maps exist"), "{:?}", probe.degraded());
    probe.add_targets(&[Target { pid, capture: Capture::default() }]).expect("it exists");
    probe
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
