//! Writes to the terminal on a separate thread, so that a blocked terminal delays only its own output.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum time to write the last frame at exit.
const LAST_FRAME_TIMEOUT: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Collects one frame and passes it to the thread on flush.
pub(super) struct TerminalWriter {
    frame: Vec<u8>,
    frames: SyncSender<Vec<u8>>,
    slot: FrameSlot,
}

/// Place of the one frame that the thread may be writing. The screen fills it, the thread frees it.
#[derive(Clone, Default)]
pub(super) struct FrameSlot {
    is_filled: Arc<AtomicBool>,
    is_drawing: Arc<AtomicBool>,
}

impl FrameSlot {
    pub(super) fn is_free(&self) -> bool {
        !self.is_filled.load(Ordering::Acquire)
    }

    /// Defers flushes while a frame is drawn: after a resize, ratatui flushes the clearing of the screen before the content.
    pub(super) fn set_drawing(&self, is_drawing: bool) {
        self.is_drawing.store(is_drawing, Ordering::Release);
    }

    fn mark_filled(&self) {
        self.is_filled.store(true, Ordering::Release);
    }

    fn mark_free(&self) {
        self.is_filled.store(false, Ordering::Release);
    }

    /// Waits a limited time until the frame is written. Returns whether it was.
    pub(super) fn wait_until_free(&self) -> bool {
        let deadline = Instant::now() + LAST_FRAME_TIMEOUT;
        while !self.is_free() && Instant::now() < deadline {
            thread::sleep(POLL_INTERVAL);
        }
        self.is_free()
    }
}

impl TerminalWriter {
    /// Starts the thread that writes to `terminal`.
    pub(super) fn start(terminal: impl Write + Send + 'static) -> io::Result<Self> {
        // The slot admits one frame at a time, so sending never blocks.
        let (frames, received_frames) = sync_channel(1);
        let slot = FrameSlot::default();
        let thread_slot = slot.clone();
        thread::Builder::new()
            .name("terminal".into())
            .spawn(move || write_frames(&received_frames, terminal, &thread_slot))?;
        Ok(Self { frame: Vec::new(), frames, slot })
    }

    pub(super) fn frame_slot(&self) -> FrameSlot {
        self.slot.clone()
    }
}

/// Writes frames until the screen closes or the terminal fails.
fn write_frames(frames: &Receiver<Vec<u8>>, mut terminal: impl Write, slot: &FrameSlot) {
    for frame in frames {
        if terminal.write_all(&frame).and_then(|()| terminal.flush()).is_err() {
            // The thread ends and drops the receiver, so the screen's next flush fails and reports the closed terminal.
            return;
        }
        slot.mark_free();
    }
}

impl Write for TerminalWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.frame.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    /// Passes the collected bytes to the thread as one frame. Does nothing without bytes.
    fn flush(&mut self) -> io::Result<()> {
        // While a frame is being written or drawn, the bytes stay here, and a later flush sends them.
        if self.frame.is_empty() || !self.slot.is_free() || self.slot.is_drawing.load(Ordering::Acquire) {
            return Ok(());
        }
        self.slot.mark_filled();
        let frame = std::mem::take(&mut self.frame);
        // The slot was free, so this fails only if the thread has ended.
        self.frames.try_send(frame).map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the terminal was closed"))
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
        let mut writer = TerminalWriter::start(Slow(gate, Arc::clone(&seen))).expect("a thread");
        writer.write_all(b"one").and_then(|()| writer.flush()).expect("handed over");
        writer.write_all(b" two").and_then(|()| writer.flush()).expect("kept, not waited for");
        assert!(!writer.frame_slot().is_free());
        let_go.send(()).expect("the terminal");
        assert!(writer.frame_slot().wait_until_free());
        writer.flush().expect("handed over");
        let_go.send(()).expect("the terminal");
        assert!(writer.frame_slot().wait_until_free());
        assert_eq!(*seen.lock().expect("seen"), b"one two");
    }

    /// Otherwise a resized screen would stay blank until the next refresh.
    #[test]
    fn what_is_flushed_while_a_frame_is_drawn_is_written_with_it() {
        let (let_go, gate) = channel();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut writer = TerminalWriter::start(Slow(gate, Arc::clone(&seen))).expect("a thread");
        writer.frame_slot().set_drawing(true);
        writer.write_all(b"clear").and_then(|()| writer.flush()).expect("kept");
        writer.write_all(b" content").and_then(|()| writer.flush()).expect("kept");
        assert!(writer.frame_slot().is_free());
        writer.frame_slot().set_drawing(false);
        writer.flush().expect("handed over");
        let_go.send(()).expect("the terminal");
        assert!(writer.frame_slot().wait_until_free());
        assert_eq!(*seen.lock().expect("seen"), b"clear content");
    }

    #[test]
    fn a_closed_terminal_ends_in_an_error() {
        let (let_go, gate) = channel();
        drop(let_go);
        let mut writer = TerminalWriter::start(Slow(gate, Arc::default())).expect("a thread");
        writer.write_all(b"one").and_then(|()| writer.flush()).expect("handed over");
        assert!(!writer.frame_slot().wait_until_free(), "it never arrives");
    }
}
