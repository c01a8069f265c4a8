//! Invalid peers, unlike any libzmq socket. Only their own connections may suffer.

use std::io::Write as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::super::raw;
use super::{Around, Bench, Checks, Held, Line, Load, Seen, Transport};

/// Runs normal traffic beside invalid peers and compares memory and files before and after them.
fn beside(
    bench: &Bench,
    transport: Transport,
    dir: &Path,
    checks: &mut Checks,
    strange: impl FnOnce(&Line<'_>) -> Result<String>,
) -> Result<Seen> {
    let line = Line::start(bench, transport, &[Load::STEADY], &Around::default(), dir)?;
    thread::sleep(Duration::from_secs(1));
    let before = Held::by(line.tap.pid())?;
    let said = strange(&line)?;
    // A connection broken on one side may linger on the other for two seconds, and a refused one may not have been accepted yet. Wait until
    // the counts stay stable.
    let until = Instant::now() + Duration::from_secs(10);
    let mut calm = 0;
    while calm < 10 && Instant::now() < until {
        thread::sleep(Duration::from_millis(50));
        let more = Held::by(line.tap.pid())?.files > before.files;
        calm = if more { 0 } else { calm + 1 };
    }
    let after = Held::by(line.tap.pid())?;
    let ran = line.end()?;
    ran.arrived.exactly(checks);
    checks.equal(
        "files that the strangers left open in the tap",
        &before.files,
        &after.files,
    );
    let grown = after.memory.saturating_sub(before.memory);
    checks.equal(
        &format!("memory does not stay ({grown} KiB)"),
        &true,
        &(grown < 96 << 10),
    );
    checks.equal("threads", &before.threads, &after.threads);
    Ok(ran.told(said))
}

/// Sends half a message, then closes or resets the connection.
pub(super) fn dead_in_mid_frame(bench: &Bench, dir: &Path, checks: &mut Checks) -> Result<Seen> {
    beside(bench, Transport::Tcp, dir, checks, |line| {
        for number in 0..100_usize {
            let half = [&raw::handshake()[..], &raw::claim(1 << 20), &vec![7; number * 5_000]].concat();
            let socket = raw::say(&line.ends.front, &half)?;
            thread::sleep(Duration::from_millis(5));
            if number % 2 == 0 {
                raw::reset(socket)?;
            }
        }
        Ok("100 of them".into())
    })
}

/// Sends random bytes: alone, after a greeting, and after a handshake; also every truncation of a handshake, and nothing.
pub(super) fn garbage(bench: &Bench, dir: &Path, checks: &mut Checks) -> Result<Seen> {
    let mut state = 7_u64;
    let mut noise = move |length: usize| -> Vec<u8> {
        // SplitMix64, so that every run sends the same bytes. Never begins with 0xff 0 or with a valid ZMTP 1.0 message.
        let mut byte = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (mixed >> 56) as u8
        };
        (0..length).map(|_| byte()).collect()
    };
    let greeting = raw::handshake()[..64].to_vec();
    // The first byte must be 0xff. Anything else is ZMTP 1.0 without a handshake, and libzmq would accept the rest as messages with or
    // without a relay.
    let mut sayings: Vec<Vec<u8>> = vec![
        [&greeting[..12], &noise(65_536)].concat(),
        [&greeting[..], &noise(65_536)].concat(),
        [&raw::handshake()[..], &raw::claim(1 << 62), &noise(100_000)].concat(),
        Vec::new(),
    ];
    sayings.extend((1..raw::handshake().len()).map(|cut| raw::handshake()[..cut].to_vec()));
    beside(bench, Transport::Ipc, dir, checks, |line| {
        for saying in &sayings {
            raw::say(&line.ends.front, saying)?;
        }
        Ok(format!("{} of them", sayings.len()))
    })
}

/// Announces 1 GiB, sends part of it, then pauses.
pub(super) fn claimed(bench: &Bench, dir: &Path, checks: &mut Checks) -> Result<Seen> {
    let mut most = 0;
    let seen = beside(bench, Transport::Ipc, dir, checks, |line| {
        let before = Held::by(line.tap.pid())?.memory;
        let say = [&raw::handshake()[..], &raw::claim(1 << 30), &vec![1; 60_000]].concat();
        let mut liars = Vec::new();
        for _ in 0..20 {
            liars.push(raw::say(&line.ends.front, &say)?);
        }
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(50));
            for liar in &mut liars {
                let _ = liar.write_all(&[2; 10_000]);
            }
            most = most.max(Held::by(line.tap.pid())?.memory.saturating_sub(before));
        }
        Ok(format!("20 of them took {most} KiB of the tap"))
    })?;
    checks.equal(
        &format!("a length is only counted down ({most} KiB)"),
        &true,
        &(most < 96 << 10),
    );
    Ok(seen)
}

/// Messages larger than the tap's whole memory budget.
pub(super) fn huge(bench: &Bench, dir: &Path, checks: &mut Checks) -> Result<Seen> {
    let huge = Load {
        first: 10,
        connections: 1,
        count: if bench.long { 16 } else { 2 },
        rate: 0,
        sizes: "huge",
        room: 0,
    };
    let others = Load {
        count: if bench.long { 100_000 } else { 5_000 },
        rate: 2_000,
        ..Load::STEADY
    };
    let line = Line::start(bench, Transport::Ipc, &[others, huge], &Around::default(), dir)?;
    let (mut most, until) = (0, Instant::now() + Duration::from_secs(3));
    while Instant::now() < until {
        most = most.max(Held::by(line.tap.pid())?.memory);
        thread::sleep(Duration::from_millis(20));
    }
    let ran = line.sent()?;
    ran.exact(checks);
    checks.equal(
        &format!("the tap keeps less than one of them ({most} KiB)"),
        &true,
        &(most < 200 << 10),
    );
    Ok(ran.told(format!("the tap held {} MiB at most", most >> 10)))
}

/// Opens many connections as fast as they are accepted, then drops all: silent, within the greeting, within a message, or with a reset.
pub(super) fn thousand(bench: &Bench, dir: &Path, checks: &mut Checks) -> Result<Seen> {
    let sayings = [
        Vec::new(),
        raw::handshake()[..30].to_vec(),
        raw::handshake(),
        [&raw::handshake()[..], &raw::claim(5_000), &[3; 100]].concat(),
    ];
    beside(bench, Transport::Tcp, dir, checks, |line| {
        for _ in 0..(if bench.long { 20 } else { 1 }) {
            let mut open = Vec::new();
            for number in 0..1_000_usize {
                open.push(raw::say(&line.ends.front, &sayings[number % sayings.len()])?);
            }
            for (number, socket) in open.into_iter().enumerate() {
                if number % 3 == 0 {
                    raw::reset(socket)?;
                }
            }
        }
        Ok(String::new())
    })
}
