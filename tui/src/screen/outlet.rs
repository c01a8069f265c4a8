//! Writes to the terminal on a separate thread, so that a blocked terminal delays only its own output.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum time to write the last frame at exit.
const LAST_FRAME: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Collects one frame and passes it to the thread on flush.
pub(super) struct Outlet {
    frame: Vec<u8>,
    frames: SyncSender<Vec<u8>>,
    busy: Busy,
}

/// Set while a frame is being written.
#[derive(Clone, Default)]
pub(super) struct Busy(Arc<AtomicBool>);

impl Busy {
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Waits a limited time until the frame is written. Returns whether it was.
    pub(super) fn wait(&self) -> bool {
        let end = Instant::now() + LAST_FRAME;
        while self.is_set() && Instant::now() < end {
            thread::sleep(POLL_INTERVAL);
        }
        !self.is_set()
    }
}

impl Outlet {
    /// Starts the thread that writes to `terminal`.
    pub(super) fn start(terminal: impl Write + Send + 'static) -> io::Result<Self> {
        let (frames, inbox) = sync_channel(1);
        let busy = Busy::default();
        let done = busy.clone();
        thread::Builder::new().name("terminal".into()).spawn(move || write_frames(&inbox, terminal, &done))?;
        Ok(Self { frame: Vec::new(), frames, busy })
    }

    pub(super) fn busy(&self) -> Busy {
        self.busy.clone()
    }
}

fn write_frames(inbox: &Receiver<Vec<u8>>, mut terminal: impl Write, busy: &Busy) {
    for frame in inbox {
        if terminal.write_all(&frame).and_then(|()| terminal.flush()).is_err() {
            // Dropping the receiver makes the next flush fail, which reports the closed terminal.
            return;
        }
        busy.0.store(false, Ordering::Release);
    }
}

impl Write for Outlet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.frame.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.frame.is_empty() || self.busy.is_set() {
            return Ok(());
        }
        self.busy.0.store(true, Ordering::Release);
        let closed = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the terminal was closed");
        self.frames.try_send(std::mem::take(&mut self.frame)).map_err(closed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    use super::*;

    /// A terminal that accepts its first frame only when allowed to.
    struct Slow(Receiver<()>, Arc<Mutex<Vec<u8>>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
            self.1.lock().map_err(|_| io::ErrorKind::Other)?.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_stalled_terminal_does_not_block_the_caller() {
        let (let_go, gate) = channel();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut outlet = Outlet::start(Slow(gate, Arc::clone(&seen))).expect("a thread");
        outlet.write_all(b"one").and_then(|()| outlet.flush()).expect("handed over");
        outlet.write_all(b" two").and_then(|()| outlet.flush()).expect("kept, not waited for");
        assert!(outlet.busy().is_set());
        let_go.send(()).expect("the terminal");
        assert!(outlet.busy().wait());
        outlet.flush().expect("handed over");
        let_go.send(()).expect("the terminal");
        assert!(outlet.busy().wait());
        assert_eq!(*seen.lock().expect("seen"), b"one two");
    }

    #[test]
    fn a_closed_terminal_ends_in_an_error() {
        let (let_go, gate) = channel();
        drop(let_go);
        let mut outlet = Outlet::start(Slow(gate, Arc::default())).expect("a thread");
        outlet.write_all(b"one").and_then(|()| outlet.flush()).expect("handed over");
        assert!(!outlet.busy().wait(), "it never arrives");
    }
}
