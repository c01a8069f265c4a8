//! The least that a relay can do that decodes: a loop of `read` and `write`, and the decoder on a thread of its own. Nothing goes from
//! one to the other but how many messages have passed: the decoder has one of its own, which stays in its core's cache.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use zmq_tap::relay::{Options, step_aside};
use zmq_tap::wire::{Decoder, Limits};

/// As the relay reads.
const BUFFER: usize = 128 << 10;
/// A flag and eight bytes of length, of each of these messages.
const HEADER: u64 = 9;

#[derive(Default)]
struct Passed {
    bytes: AtomicU64,
    over: AtomicBool,
}

/// One connection, both ways; at its end it says how many messages it decoded.
pub(super) fn serve(listen: &str, upstream: &str, message: &str) -> Result<()> {
    let path = |endpoint: &str| endpoint.trim_start_matches("ipc://").to_owned();
    let message = std::fs::read(message).with_context(|| message.to_owned())?;
    let listener = UnixListener::bind(path(listen))?;
    println!("READY");
    let (accepted, _) = listener.accept()?;
    let upstream = UnixStream::connect(path(upstream))?;
    let passed = Arc::new(Passed::default());
    let counted = passed.clone();
    thread::spawn(move || decode(&message, &counted));
    let (back, forth) = (upstream.try_clone()?, accepted.try_clone()?);
    thread::spawn(move || copy(back, forth, &Passed::default()));
    copy(accepted, upstream, &passed)?;
    stay()
}

/// A thread's CPU time can be read while it lives.
fn stay() -> ! {
    loop {
        thread::park();
    }
}

fn copy(mut from: UnixStream, mut to: UnixStream, passed: &Passed) -> Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        to.write_all(&buffer[..count])?;
        passed.bytes.fetch_add(count as u64, Ordering::Release);
    }
    to.shutdown(Shutdown::Write)?;
    passed.over.store(true, Ordering::Release);
    Ok(())
}

/// Decodes `message` as often as one has passed, and as little behind as the relay would be.
fn decode(message: &[u8], passed: &Passed) {
    let _ = step_aside();
    let mut decoder = Decoder::new(Limits::default());
    let length = message.len() as u64 + HEADER;
    let behind = Options::default().budget_bytes as u64 / length;
    let (mut decoded, mut missed) = (0, 0);
    loop {
        let over = passed.over.load(Ordering::Acquire);
        let due = passed.bytes.load(Ordering::Acquire) / length - decoded - missed;
        missed += due.saturating_sub(behind);
        if due > 0 {
            let read = decoder.decode(message).is_ok();
            decoded += u64::from(read);
            missed += u64::from(!read);
        } else if over {
            println!("{decoded}");
            stay();
        } else {
            thread::sleep(Duration::from_millis(2));
        }
    }
}
