//! What must not disturb the engine: a tap that is killed and replaced in the middle of a run, and a stranger that talks
//! nonsense to the tap's listener.

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

/// Rounds of 8 requests, a frame about every 1.3 ms: a round takes an eighth of a second.
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

/// How long the path is closed between the death of one relay and the start of the next.
const CLOSED: Duration = Duration::from_millis(300);
/// libzmq reconnects about every 100 ms; this many ns after the second relay's start, the path must be open again.
const REOPENED: u64 = 1_500_000_000;
/// A message sent this many ns before the kill cannot have been in the relay any more.
const IN_FLIGHT: u64 = 500_000_000;

/// What a killed relay cost.
#[derive(Debug)]
pub(crate) struct Toll {
    pub(crate) sent: usize,
    pub(crate) lost: usize,
}

/// Kills the relay with SIGKILL in mid-run, starts another, and lets the run end.
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

/// What the second tap reports is what the tokenizer took after the first one was gone.
fn second_report_is_exact(outcome: &Outcome, killed_ns: u64, checks: &mut Checks) {
    let Some(report) = &outcome.report else { return };
    // What the first tap had written stays in the receiver's own buffers for a moment; then the path is closed.
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

/// Connects to the tap in mid-run and sends what is no ZMTP, and what begins like it and goes on to lie.
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
        // The receiver may hang up at any point of it; what then fails is this peer's business only.
        let _ = (&socket).write_all(&nonsense);
        socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        let _ = (&socket).read(&mut [0; 64]);
    }
    let outcome = session.finish()?;
    exact_beside_strangers(&outcome, nonsense().len() as u64, checks);
    Ok(outcome)
}

/// What strangers say. Nothing here may begin like ZMTP 1.0 (any first byte but 0xff): that protocol has no handshake, and
/// libzmq would hand such bytes to the application as messages, with or without a relay before it.
fn nonsense() -> [Vec<u8>; 5] {
    // SplitMix64: the same nonsense in every run.
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
        // A mechanism that nobody speaks.
        [&signature_and_version[..], &noise(65_536)].concat(),
        // No READY after the greeting.
        [&greeting[..], &noise(65_536)].concat(),
        // A frame that claims 2^62 bytes.
        [&handshake[..], &[2], &(1_u64 << 62).to_be_bytes(), &noise(100_000)].concat(),
        // A frame that ends in the middle.
        [&handshake[..], &[0, 200], &noise(100)].concat(),
        // Nothing at all.
        Vec::new(),
    ]
}
