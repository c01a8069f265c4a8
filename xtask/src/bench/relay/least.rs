//! Lower bound of a decoding relay: a loop of `read` and `write`, and a decoder on its own thread. The threads share only the number of
//! relayed messages. The decoder has its own copy of the message, which stays in its core's cache.

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

/// Read size, equal to the relay's.
const BUFFER: usize = 128 << 10;
/// Header bytes of each message: a flag and eight bytes of length.
const HEADER: u64 = 9;

#[derive(Default)]
struct Passed {
    bytes: AtomicU64,
    over: AtomicBool,
}

/// Serves one connection in both directions and prints the number of decoded messages when it closes.
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

/// Keeps the thread alive, because its CPU time can be read only while it lives.
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

/// Decodes `message` once for each relayed message, with as short a backlog as the relay's.
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
