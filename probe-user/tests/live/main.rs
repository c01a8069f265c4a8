//! Tests of the probe on real processes that are started before it. They need root and Python:
//! `cargo test --workspace --features tokengap/full --test live -- --test-threads=1`.
//!
//! Without the privileges each test prints SKIPPED with the reason. `TOKENGAP_ROOT_TESTS=1` makes that a failure.
#![expect(clippy::cast_possible_truncation, reason = "indices of a few thousand messages")]

mod arrivals;
mod peers;
mod prober;
mod zmtp_reads;

use std::collections::HashMap;
use std::io::{IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use peers::Peer;
use probe_user::egress::{CAPTURE, Kind, Serves};
use probe_user::matcher::{FrameRef, MatchMethod, MatcherMisses};
use probe_user::{
    Call, Capture, Feature, Loss, Matcher, Message, Observation, Permissions, Probe, ProbeOptions, Target,
};
use serde_json::Value;
use trace::MonoNs;

const PYZMQ: &str = "27.1.0";
const OLDER_PYZMQ: &str = "25.1.2";
/// Release whose libzmq is compiled with optimization.
const NEWER_PYZMQ: &str = "27.3.0";
/// Release whose wheel contains libzmq 4.3.2.
const OLDEST_PYZMQ: &str = "19.0.2";

/// Whether a test of messages can run. Prints a message if not.
fn permitted() -> bool {
    is_permitted(Feature::Messages)
}

/// Whether a test of `feature` can run. Prints a message if not.
fn is_permitted(feature: Feature) -> bool {
    let permissions = Permissions::current();
    let lacking = permissions.capabilities_missing_for(feature);
    let needed = feature.oldest_kernel();
    let running = permissions.kernel();
    let permitted = lacking.is_empty() && running >= needed;
    if !permitted {
        if running < needed {
            eprintln!("SKIPPED: {} needs Linux {needed}, this is {running}", feature.name());
        } else {
            eprintln!("SKIPPED: {} lacks {lacking:?}", feature.name());
        }
        assert!(std::env::var_os("TOKENGAP_ROOT_TESTS").is_none(), "TOKENGAP_ROOT_TESTS is set");
    }
    permitted
}

/// One observed frame.
#[derive(Clone, Debug)]
struct Seen {
    call: Call,
    bytes: u64,
    head: String,
    frame: Option<FrameRef>,
    sent_at: Option<u64>,
    how: Option<MatchMethod>,
}

/// All observations, and the matcher that processes them.
#[derive(Default)]
struct Log {
    sent: Vec<Seen>,
    received: Vec<Seen>,
    processed: Vec<(Call, Option<FrameRef>)>,
    unsent: usize,
    lost: HashMap<Loss, u64>,
    matcher: Matcher,
}

impl Log {
    fn see(&mut self, observation: Observation<'_>) {
        let head = |payload: &[u8]| {
            let head = String::from_utf8_lossy(&payload[..payload.len().min(40)]).into_owned();
            head.trim_end_matches('.').to_owned()
        };
        // pyzmq frees zero-copy messages by sending itself pointers over inproc. That is also a hop, but not the tested one.
        if let Observation::Sent(m) | Observation::Received(m) = observation
            && m.bytes == 8
        {
            return;
        }
        match observation {
            Observation::Sent(m) => {
                let frame = Some(self.matcher.record_send(&m).frame);
                let Message { call, bytes, payload, .. } = m;
                self.sent.push(Seen { call, bytes, head: head(payload), frame, sent_at: None, how: None });
            }
            Observation::Unsent(call) => {
                self.matcher.record_refused_send(&call);
                self.unsent += 1;
            }
            Observation::Received(message) => {
                let found = self.matcher.match_receipt(&message).ok();
                let (frame, how) = (found.map(|m| m.frame), found.map(|m| m.method));
                let sent_at = found.and_then(|m| m.sent_at).map(|at| at.0);
                let Message { call, bytes, payload, .. } = message;
                self.received.push(Seen { call, bytes, head: head(payload), frame, sent_at, how });
            }
            Observation::Processed(call) => {
                let frame = self.matcher.processed_frame(&call);
                self.processed.push((call, frame));
            }
            Observation::Lost { cause, count } => *self.lost.entry(cause).or_default() += count,
            Observation::Exited { .. } | Observation::Egress { .. } | Observation::Returned(_) => {}
        }
    }
}

/// Reads until `done` returns true, or for 30 s.
fn watch(probe: &mut Probe, log: &mut Log, done: impl Fn(&Log) -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !done(log) && Instant::now() < until {
        probe.poll(Duration::from_millis(2), |seen| log.see(seen)).expect("the probe reads");
    }
    // One more round of housekeeping, so that losses are reported.
    std::thread::sleep(Duration::from_millis(110));
    probe.poll(Duration::from_millis(2), |seen| log.see(seen)).expect("the probe reads");
}

/// Options for tests of what is observed. The ring holds all records of such a test, so that nothing is lost even if the reader does not
/// run for a while on a busy machine.
fn lossless() -> ProbeOptions {
    ProbeOptions { ring_bytes: 64 << 20, ..ProbeOptions::default() }
}

fn attach(peers: &[&Peer], capture: Capture) -> Probe {
    attach_with(lossless(), peers, capture)
}

fn attach_with(options: ProbeOptions, peers: &[&Peer], capture: Capture) -> Probe {
    let targets: Vec<Target> = peers.iter().map(|peer| Target { pid: peer.pid, capture }).collect();
    let probe = Probe::attach(&targets, options).expect("root may attach");
    assert_eq!(probe.degraded(), []);
    probe
}

fn url(transport: &str, name: &str) -> String {
    if transport == "ipc" {
        return format!("ipc://{}/{name}-{}.sock", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    }
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    format!("tcp://{}", free.local_addr().expect("a bound socket"))
}

/// One sender, one receiver, `count` messages of `size` bytes: each send, receipt and processing is observed and matched.
fn one_hop(name: &str, transport: &str, pyzmq: &str, receiver: &[&str], sender: &[&str], count: usize, size: usize) {
    one_hop_with(lossless(), name, transport, pyzmq, receiver, sender, count, size);
}

#[expect(clippy::too_many_arguments, reason = "the parameters of a test")]
fn one_hop_with(
    options: ProbeOptions,
    name: &str,
    transport: &str,
    pyzmq: &str,
    receiver: &[&str],
    sender: &[&str],
    count: usize,
    size: usize,
) {
    if !permitted() {
        return;
    }
    let python = peers::python(pyzmq);
    let url = url(transport, name);
    let mut puller = Peer::start(&python, &[&["receive", &url, "--bind"], receiver].concat());
    let mut pusher = Peer::start(&python, &[&["send", &url], sender].concat());
    // The hop is in use before the probe is attached.
    pusher.order(&format!("send 5 {size} 0 0"));
    pusher.answer();
    puller.order("receive 5");
    puller.answer();

    let mut probe = attach_with(options, &[&puller, &pusher], Capture { sent: 64 << 10, received: 4096 });
    let mut log = Log::default();
    puller.order(&format!("receive {count}"));
    pusher.order(&format!("send {count} {size} 200 5"));
    watch(&mut probe, &mut log, |log| log.received.len() >= count);
    let (sent, received) = (pusher.answer(), puller.answer());
    drop(probe);
    // The peers still work after attach and detach.
    puller.order("receive 3");
    pusher.order(&format!("send 3 {size} 0 0"));
    assert_eq!(puller.answer()["seen"].as_array().map(Vec::len), Some(3));
    pusher.answer();
    puller.quit();
    pusher.quit();

    assert_eq!(log.lost, HashMap::new());
    assert_eq!(log.matcher.misses(), MatcherMisses::default());
    agrees_with_truth(&log, &sent, &received, count, size);
}

fn agrees_with_truth(log: &Log, sent: &Value, received: &Value, count: usize, size: usize) {
    assert_eq!((log.sent.len(), log.received.len(), log.unsent), (count, count, 0));
    let truth = received["seen"].as_array().expect("messages of the receiver");
    for i in 0..count {
        let (s, t) = (&log.sent[i], &log.received[i]);
        let head = truth[i][0].as_str().expect("the head of a message");
        assert_eq!((s.head.as_str(), t.head.as_str()), (head, head));
        assert_eq!((s.bytes, t.bytes), (size as u64, size as u64));
        assert_eq!((t.frame, t.how), (s.frame, Some(MatchMethod::Content)), "message {i}");
        assert_eq!(t.sent_at, Some(s.call.at.0));
        // The peers' own clock readings must enclose the probe's.
        let (before, after) = (sent["at"][i].as_u64().unwrap(), truth[i][2].as_u64().unwrap());
        assert!(before <= s.call.at.0 && s.call.at <= t.call.at && t.call.at.0 <= after, "message {i}");
    }
}

#[test]
fn a_synchronous_receiver_of_inline_messages() {
    one_hop("sync33", "ipc", PYZMQ, &[], &[], 500, 33);
}

#[test]
fn an_asyncio_receiver_over_tcp() {
    one_hop("asyncio", "tcp", PYZMQ, &["--loop", "asyncio"], &[], 500, 25_500);
}

#[test]
fn a_uvloop_receiver() {
    one_hop("uvloop", "ipc", PYZMQ, &["--loop", "uvloop"], &[], 500, 2_800);
}

/// As before Linux 6.6, where the kernel has no link for many uprobes.
#[test]
fn one_perf_event_per_probe_point() {
    let options = ProbeOptions { perf_events: true, ..lossless() };
    one_hop_with(options, "perf", "ipc", PYZMQ, &["--loop", "asyncio"], &[], 300, 2_800);
}

#[test]
fn a_megabyte_without_a_copy() {
    one_hop("zero", "ipc", PYZMQ, &["--loop", "uvloop", "--zero-copy"], &["--zero-copy"], 60, 1 << 20);
}

#[test]
fn a_megabyte_over_tcp() {
    one_hop("mega", "tcp", PYZMQ, &["--zero-copy"], &[], 60, 1 << 20);
}

#[test]
fn libzmq_4_3_4() {
    one_hop("older", "ipc", OLDER_PYZMQ, &["--loop", "asyncio"], &["--zero-copy"], 300, 9_000);
}

#[test]
fn libzmq_4_3_5_with_optimization() {
    one_hop("newer", "ipc", NEWER_PYZMQ, &["--loop", "asyncio"], &[], 300, 9_000);
}

/// Code that is probed at entries and returns.
fn libzmq_4_3_2(name: &str, perf_events: bool, transport: &str, buffers: &[&str], size: usize) {
    if permitted() {
        let library = peers::library(OLDEST_PYZMQ);
        let peer = [buffers, &["--library", library.to_str().expect("a path of text")]].concat();
        let options = ProbeOptions { perf_events, ..lossless() };
        one_hop_with(options, name, transport, PYZMQ, &peer, &peer, 300, size);
    }
}

#[test]
fn libzmq_4_3_2_with_message_calls() {
    libzmq_4_3_2("oldest", false, "ipc", &[], 700);
}

#[test]
fn libzmq_4_3_2_with_plain_buffers() {
    libzmq_4_3_2("buffers", false, "tcp", &["--buffers"], 5_000);
}

#[test]
fn libzmq_4_3_2_with_perf_events() {
    libzmq_4_3_2("returns", true, "ipc", &[], 700);
}

#[test]
fn three_senders_into_one_receiver() {
    if !permitted() {
        return;
    }
    let python = peers::python(PYZMQ);
    let url = url("ipc", "three");
    let mut puller = Peer::start(&python, &["receive", &url, "--bind", "--loop", "uvloop"]);
    let mut senders: Vec<Peer> =
        ["a", "b", "c"].iter().map(|name| Peer::start(&python, &["send", &url, "--name", name])).collect();
    let mut all = vec![&puller];
    all.extend(&senders);
    let mut probe = attach(&all, Capture { sent: 4096, received: 4096 });
    let mut log = Log::default();
    puller.order("receive 900");
    for (sender, interval) in senders.iter_mut().zip([100, 230, 310]) {
        sender.order(&format!("send 300 3000 {interval} 0"));
    }
    watch(&mut probe, &mut log, |log| log.received.len() >= 900);
    drop(probe);

    assert_eq!((log.sent.len(), log.received.len(), &log.lost), (900, 900, &HashMap::new()));
    assert_eq!(log.matcher.misses(), MatcherMisses::default());
    let sent: HashMap<&str, &Seen> = log.sent.iter().map(|s| (s.head.as_str(), s)).collect();
    for received in &log.received {
        assert_eq!(received.frame, sent[received.head.as_str()].frame, "{}", received.head);
        assert_eq!(received.sent_at, Some(sent[received.head.as_str()].call.at.0));
    }
    for lane in log.matcher.lanes() {
        assert_eq!((lane.sent, lane.received, lane.receivers.len()), (300, 300, 1));
    }
}

#[test]
fn each_frame_is_processed_before_the_next_receive() {
    if !permitted() {
        return;
    }
    let python = peers::python(PYZMQ);
    let url = url("ipc", "processed");
    let mut puller = Peer::start(&python, &["receive", &url, "--bind", "--loop", "uvloop"]);
    let mut pusher = Peer::start(&python, &["send", &url]);
    let mut probe = attach(&[&puller, &pusher], Capture { sent: 4096, received: 4096 });
    let mut log = Log::default();
    puller.order("receive 400");
    pusher.order("send 200 2000 100 0");
    watch(&mut probe, &mut log, |log| log.received.len() >= 200);
    let thread = |probe: &Probe| {
        let threads = probe.thread_accounting().expect("the map exists");
        let (on, wait, blocked) =
            threads.iter().find(|(_, t)| t.tid == puller.pid).expect("it polls").1.at(MonoNs::now().0);
        (MonoNs::now(), on + wait + blocked)
    };
    let (begin, spent_before) = thread(&probe);
    // At this point the receiver has no message and sleeps.
    pusher.order("send 200 2000 100 200");
    watch(&mut probe, &mut log, |log| log.received.len() >= 400 && log.processed.len() >= 399);
    let (end, spent_after) = thread(&probe);
    drop(probe);
    // A frame counts as processed at the next receive, and after the last frame there is none.
    assert_eq!((log.received.len(), log.processed.len()), (400, 399));
    for (i, (call, frame)) in log.processed.iter().enumerate() {
        assert_eq!(*frame, log.received[i].frame);
        assert!(call.at >= log.received[i].call.at && call.at <= log.received[i + 1].call.at);
    }
    let (first, last) = (log.received[0].call, log.received[399].call);
    let (spent, between) = (spent_after - spent_before, end.since(begin));
    assert!(spent.abs_diff(between) < between / 100 + 100_000, "{spent} ns accounted for in {between} ns");
    assert!(last.wakeup > first.wakeup, "the event loop polled in between");
}

#[test]
fn a_send_beyond_the_high_water_mark_is_retracted() {
    if !permitted() {
        return;
    }
    let python = peers::python(PYZMQ);
    let mut pusher = Peer::start(&python, &["send", &url("ipc", "nobody"), "--hwm", "5"]);
    let mut probe = attach(&[&pusher], Capture { sent: 4096, received: 0 });
    let mut log = Log::default();
    pusher.order("send 50 500 0 0");
    let truth = pusher.answer();
    watch(&mut probe, &mut log, |log| log.sent.len() >= 50);
    drop(probe);
    let refused = truth["refused"].as_u64().expect("a count") as usize;
    assert!(refused > 0, "the high-water mark holds");
    assert_eq!((log.sent.len(), log.unsent), (50, refused));
    assert_eq!(log.matcher.lanes().map(|lane| lane.sent as usize).collect::<Vec<_>>(), [50 - refused]);
}

#[test]
fn an_exited_process_is_noticed() {
    if !permitted() {
        return;
    }
    let pusher = Peer::start(&peers::python(PYZMQ), &["send", &url("ipc", "ends")]);
    let pid = pusher.pid;
    let mut probe = attach(&[&pusher], Capture::default());
    pusher.quit();
    let (mut ended, until) = (None, Instant::now() + Duration::from_secs(10));
    while ended.is_none() && Instant::now() < until {
        let see = |seen: Observation<'_>| {
            if let Observation::Exited { pid } = seen {
                ended = Some(pid);
            }
        };
        probe.poll(Duration::from_millis(20), see).expect("the probe reads");
    }
    assert_eq!(ended, Some(pid));
}

/// At a high rate a busy machine may lose records, but none without counting it.
#[test]
fn each_of_5000_frames_a_second_of_32_kib_is_observed_or_counted_as_lost() {
    if !permitted() {
        return;
    }
    let python = peers::python(PYZMQ);
    let url = url("ipc", "rate");
    let mut puller = Peer::start(&python, &["receive", &url, "--bind"]);
    let mut pusher = Peer::start(&python, &["send", &url]);
    let targets = [
        Target { pid: puller.pid, capture: Capture { sent: 0, received: 4096 } },
        Target { pid: pusher.pid, capture: Capture { sent: 32 << 10, received: 0 } },
    ];
    // Without further kinds of records, all lost records are of frames.
    let options = ProbeOptions { processed: false, polls: false, ..ProbeOptions::default() };
    let mut probe = Probe::attach(&targets, options).expect("root may attach");
    puller.order("receive 15000");
    pusher.order("send 15000 32768 200 0");
    let mut sent = 0_u64;
    let mut received = 0_u64;
    let mut lost = 0_u64;
    let mut last_sequence = None;
    let until = Instant::now() + Duration::from_mins(1);
    while sent + received + lost < 30_000 && Instant::now() < until {
        let see = |seen: Observation<'_>| match seen {
            Observation::Sent(m) => {
                assert_eq!(m.payload.len(), 32_768);
                assert!(last_sequence < Some(m.call.seq), "{} after {last_sequence:?}", m.call.seq);
                last_sequence = Some(m.call.seq);
                sent += 1;
            }
            Observation::Received(_) => received += 1,
            Observation::Lost { count, .. } => lost += count,
            _ => {}
        };
        probe.poll(Duration::from_millis(2), see).expect("the probe reads");
    }
    assert_eq!(sent + received + lost, 30_000, "{sent} sent, {received} received, {lost} lost");
    println!("{lost} of 30000 records lost");
}

/// Bytes of a write to a client must be observed both at socket writes and, as before Linux 6.5, at the return of any call.
#[test]
fn both_capture_methods_see_every_byte_written_to_a_client() {
    if !permitted() {
        return;
    }
    for every_call in [false, true] {
        let options = ProbeOptions { every_call, ..ProbeOptions::default() };
        let mut probe = Probe::attach(&[], options).expect("root may attach");
        let pid = std::process::id();
        let serves = Serves { written: CAPTURE, ..Serves::default() };
        assert!(probe.observe_serving(pid, serves).expect("serving starts"), "{:?}", probe.degraded());
        let capture = Capture::default();
        probe.add_targets(&[Target { pid, capture }]).expect("it exists");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut client = TcpStream::connect(listener.local_addr().expect("an address")).expect("the listener accepts");
        let (mut server, _) = listener.accept().expect("a client");
        let events: Vec<Vec<u8>> = (0..200).map(|n| format!("data: {n:0300}\n\n").into_bytes()).collect();
        for (n, event) in events.iter().enumerate() {
            // Alternate between write and writev with two parts.
            if n % 2 == 0 {
                server.write_all(event).expect("space in the send buffer");
            } else {
                let parts = [IoSlice::new(&event[..7]), IoSlice::new(&event[7..])];
                assert_eq!(server.write_vectored(&parts).expect("space in the send buffer"), event.len());
            }
        }
        drop(server);
        let mut received = Vec::new();
        client.read_to_end(&mut received).expect("all of it");
        assert_eq!(received, events.concat());
        let (mut seen, until) = (Vec::new(), Instant::now() + Duration::from_secs(10));
        while seen.len() < received.len() && Instant::now() < until {
            let see = |observation: Observation<'_>| {
                if let Observation::Egress { record, .. } = observation
                    && record.kind == Kind::Wrote
                {
                    seen.extend_from_slice(record.payload);
                }
            };
            probe.poll(Duration::from_millis(20), see).expect("the probe reads");
        }
        assert!(seen == received, "every call: {every_call}; {} of {} bytes", seen.len(), received.len());
    }
}

/// A reader that is slower than the records arrive gets its turn back, and learns of an exit after the records from before it.
#[test]
fn a_poll_leaves_what_takes_too_long_to_the_next_one() {
    const WRITES: usize = 400;
    if !permitted() {
        return;
    }
    let mut probe = Probe::attach(&[], lossless()).expect("root may attach");
    let pid = std::process::id();
    let serves = Serves { written: CAPTURE, ..Serves::default() };
    assert!(probe.observe_serving(pid, serves).expect("serving starts"), "{:?}", probe.degraded());
    let mut other = std::process::Command::new("sleep").arg("600").spawn().expect("sleep");
    let targets = [pid, other.id()].map(|pid| Target { pid, capture: Capture::default() });
    probe.add_targets(&targets).expect("they exist");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let _client = TcpStream::connect(listener.local_addr().expect("an address")).expect("the listener accepts");
    let (mut server, _) = listener.accept().expect("a client");
    for n in 0..WRITES {
        server.write_all(format!("{n:04}").as_bytes()).expect("space in the send buffer");
    }
    other.kill().expect("it runs");
    other.wait().expect("it ends");
    let mut seen = Vec::new();
    let mut unfinished_polls = 0;
    let until = Instant::now() + Duration::from_secs(30);
    while !seen.iter().any(|text| text == "exit") && Instant::now() < until {
        let see = |observation: Observation<'_>| match observation {
            Observation::Egress { record, .. } if record.kind == Kind::Wrote => {
                std::thread::sleep(Duration::from_millis(1));
                seen.push(String::from_utf8_lossy(record.payload).into_owned());
            }
            Observation::Exited { .. } => seen.push("exit".to_owned()),
            _ => {}
        };
        probe.poll_without_waiting(Duration::from_millis(10), see).expect("the probe reads");
        unfinished_polls += u32::from(probe.has_unread());
        std::thread::sleep(Duration::from_millis(30));
    }
    let expected: Vec<String> = (0..WRITES).map(|n| format!("{n:04}")).chain(["exit".to_owned()]).collect();
    assert_eq!(seen, expected);
    assert!(unfinished_polls >= 4, "{unfinished_polls}");
}
