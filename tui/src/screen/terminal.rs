//! The terminal taken over, and given back on every way out: end, error, panic, signal.

use std::io::{self, IsTerminal, Write};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ratatui::Frame;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{DisableMouseCapture, EnableMouseCapture};
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::crossterm::{execute, queue};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::outlet::{Busy, Outlet};

/// The terminal is ours.
static TAKEN: AtomicBool = AtomicBool::new(false);
static HOOK: Once = Once::new();

/// A terminal in raw mode with a screen of its own; itself again when dropped.
pub(super) struct Terminal {
    inner: ratatui::Terminal<CrosstermBackend<Outlet>>,
    busy: Busy,
    /// The thread that carries frames has given up, or never will deliver.
    broken: bool,
}

impl Terminal {
    /// Takes it over.
    pub(super) fn open() -> io::Result<Self> {
        let outlet = Outlet::start(io::stdout())?;
        let busy = outlet.busy();
        HOOK.call_once(give_back_on_panic);
        enable_raw_mode()?;
        TAKEN.store(true, Ordering::Release);
        let opened = execute!(io::stdout(), EnterAlternateScreen, EnableMouseCapture, Hide)
            .and_then(|()| ratatui::Terminal::new(CrosstermBackend::new(outlet)))
            .and_then(|mut inner| inner.clear().map(|()| inner));
        match opened {
            Ok(inner) => Ok(Self {
                inner,
                busy,
                broken: false,
            }),
            Err(error) => {
                give_back();
                Err(error)
            }
        }
    }

    /// Whether the last frame has reached the terminal.
    pub(super) fn is_ready(&self) -> bool {
        !self.busy.is_set()
    }

    /// Draws a frame. To be called when the terminal is ready.
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        let drawn = self.inner.draw(draw).map(|_| ());
        self.broken |= drawn.is_err();
        drawn
    }

    /// Sends a sequence of its own with the next frame.
    pub(super) fn say(&mut self, sequence: &str) {
        // Collected, not written: an error shows at the next frame.
        let _ = self.inner.backend_mut().write_all(sequence.as_bytes());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if !self.broken {
            self.busy.wait();
        }
        give_back();
    }
}

/// Waits for input, so long at most; whether there is some, or an end to it.
pub(super) fn wait(time: Duration) -> bool {
    let stdin = io::stdin();
    // Keys come from elsewhere where it is a file, which has always something to read.
    let most = Timespec::try_from(time).ok().filter(|_| stdin.is_terminal());
    let Some(most) = most else {
        thread::sleep(time);
        return false;
    };
    poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&most)).is_ok_and(|ready| ready > 0)
}

/// Whether whoever held the terminal has closed it. Asked before every look for input: crossterm would read the end of it
/// again and again and never come back.
pub(super) fn is_gone() -> bool {
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    let now = Timespec::default();
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
        && fds[0]
            .revents()
            .intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
}

/// Makes the terminal what it was; once, however often it is called.
fn give_back() {
    if !TAKEN.swap(false, Ordering::AcqRel) {
        return;
    }
    // Nobody is left to be told when the terminal is gone.
    let mut out = io::stdout().lock();
    let _ = queue!(out, DisableMouseCapture, LeaveAlternateScreen, Show);
    let _ = out.flush();
    let _ = disable_raw_mode();
}

/// A panic's message belongs on a terminal that shows it.
fn give_back_on_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        give_back();
        before(info);
    }));
}
