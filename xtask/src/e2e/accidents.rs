//! Failures that must not disturb the engine: a relay killed and replaced during a run, and a peer that sends garbage to the tap's
//! listener.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use socket2::{Socket, Type};

use super::check::{Checks, exact_beside_strangers};
use super::plain_relay::address;
use super::plan::{Engine, Plan};
use super::session::{Outcome, Session, Setting};
use super::setup::Home;
use super::tap::{Relay, Transport};

/// Rounds of 8 requests with a frame about every 1.3 ms; a round takes an eighth of a second.
fn steady(engine: &Engine, transport: Transport, rounds: u32) -> Setting {
    let plan = Plan {
        requests: 8,
        rounds,
        ..Plan::PLAIN
    };
    Setting {
        plan,
        transport,
        gap_ms: 1,
        ..Setting::new(engine)
    }
}

/// Time between the death of one relay and the start of the next.
const CLOSED: Duration = Duration::from_millis(300);
/// Nanoseconds after the second relay's start by which the path must be open again. libzmq reconnects about every 100 ms.
const REOPENED: u64 = 1_500_000_000;
/// Nanoseconds before the kill by which a message must have left the relay.
const IN_FLIGHT: u64 = 500_000_000;

/// Losses caused by killing a relay.
#[derive(Debug)]
pub(crate) struct Toll {
    pub(crate) sent: usize,
    pub(crate) lost: usize,
}

/// Kills the relay with SIGKILL during a run, starts another, and lets the run finish.
pub(crate) fn killed(
    home: &Home,
    engine: &Engine,
    transport: Transport,
    relay: &Relay,
    dir: &Path,
    checks: &mut Checks,
) -> Result<Toll> {
    let setting = steady(engine, transport, 40);
    let mut session = Session::start(home, &setting, relay, dir)?;
    session.go()?;
    thread::sleep(Duration::from_secs(1));
    let (killed_ns, replaced_ns) = session.replace_tap(CLOSED)?;
    let outcome = session.finish()?;

    let taken: HashSet<_> = outcome.receiver.taken.iter().map(|message| &message.hash).collect();
    let sent: Vec<_> = outcome
        .senders
        .iter()
        .flat_map(|sender| &sender.sent)
        .filter(|sent| sent.on == "output")
        .collect();
    let lost: Vec<_> = sent.iter().filter(|message| !taken.contains(&message.hash)).collect();
    let known: HashSet<_> = outcome
        .senders
        .iter()
        .flat_map(|sender| &sender.sent)
        .map(|message| &message.hash)
        .collect();
    checks.equal(
        "messages at the tokenizer that nobody sent",
        &0,
        &taken.difference(&known).count(),
    );
    let before = sent.iter().filter(|message| message.at_ns < killed_ns).count();
    let after = sent
        .iter()
        .filter(|message| message.at_ns > replaced_ns + REOPENED)
        .count();
    checks.equal(
        "the run had begun before the kill and went on after it",
        &true,
        &(before > 50 && after > 50),
    );
    let early = lost
        .iter()
        .filter(|message| message.at_ns + IN_FLIGHT < killed_ns)
        .count();
    checks.equal("messages lost that were sent well before the kill", &0, &early);
    let late = lost
        .iter()
        .filter(|message| message.at_ns > replaced_ns + REOPENED)
        .count();
    checks.equal("messages lost after the path was open again", &0, &late);
    second_report_is_exact(&outcome, killed_ns, checks);
    Ok(Toll {
        sent: sent.len(),
        lost: lost.len(),
    })
}

/// Checks that the second tap reports exactly the frames received after the first one was killed.
fn second_report_is_exact(outcome: &Outcome, killed_ns: u64, checks: &mut Checks) {
    let Some(report) = &outcome.report else { return };
    // Frames that the first tap had already written stay in the receiver's buffers briefly; after that the path is closed.
    let closed = killed_ns + CLOSED.as_nanos() as u64 / 2;
    let through_second = outcome
        .receiver
        .taken
        .iter()
        .filter(|message| message.at_ns > closed)
        .count();
    let frames: u64 = report["hops"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|hop| hop["frames_sent"].as_u64())
        .sum();
    checks.equal("frames in the second tap's report", &(through_second as u64), &frames);
    checks.equal(
        "frames it could not read",
        &Some(0),
        &report["self"]["frames_undecoded"].as_u64(),
    );
}

/// Connects to the tap during a run and sends non-ZMTP bytes and malformed ZMTP.
pub(crate) fn stranger(
    home: &Home,
    engine: &Engine,
    transport: Transport,
    relay: &Relay,
    dir: &Path,
    checks: &mut Checks,
) -> Result<Outcome> {
    let setting = steady(engine, transport, 20);
    let mut session = Session::start(home, &setting, relay, dir)?;
    session.go()?;
    thread::sleep(Duration::from_millis(500));
    for nonsense in nonsense() {
        let front = address(session.front())?;
        let socket = Socket::new(front.domain(), Type::STREAM, None)?;
        socket.connect(&front)?;
        // Ignore errors: the tap may close the connection at any point.
        let _ = (&socket).write_all(&nonsense);
        socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        let _ = (&socket).read(&mut [0; 64]);
    }
    let outcome = session.finish()?;
    exact_beside_strangers(&outcome, nonsense().len() as u64, checks);
    Ok(outcome)
}

/// Malformed input. Nothing here may look like ZMTP 1.0 (any first byte but 0xff): that protocol has no handshake, and libzmq would deliver
/// such bytes to the application as messages, with or without a relay.
fn nonsense() -> [Vec<u8>; 5] {
    // SplitMix64, so that every run sends the same bytes.
    let mut state = 7_u64;
    let mut noise = |length: usize| -> Vec<u8> {
        let mut byte = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (mixed >> 56) as u8
        };
        (0..length).map(|_| byte()).collect()
    };
    let signature_and_version = [0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1];
    let mut greeting = [&signature_and_version[..], b"NULL"].concat();
    greeting.resize(64, 0);
    let handshake = [&greeting[..], b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH"].concat();
    [
        // An unknown security mechanism.
        [&signature_and_version[..], &noise(65_536)].concat(),
        // No READY after the greeting.
        [&greeting[..], &noise(65_536)].concat(),
        // A frame that claims 2^62 bytes.
        [&handshake[..], &[2], &(1_u64 << 62).to_be_bytes(), &noise(100_000)].concat(),
        // A truncated frame.
        [&handshake[..], &[0, 200], &noise(100)].concat(),
        // No bytes.
        Vec::new(),
    ]
}
