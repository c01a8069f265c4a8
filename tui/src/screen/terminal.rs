//! Takes over the terminal and restores it on every exit: end, error, panic, signal.

#![expect(clippy::disallowed_methods, reason = "the screen draws cells, whose text `Pad` escapes")]

use std::io::{self, IsTerminal, Write};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use ratatui::Frame;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{
    self, DisableMouseCapture, EnableMouseCapture, Event as Input, KeyEvent, KeyEventKind, MouseButton, MouseEventKind,
};
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::crossterm::{execute, queue};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::outlet::{Busy, Outlet};
use crate::state::action::Action;
use crate::view::Hits;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Set while the terminal is taken over.
static ACTIVE: AtomicBool = AtomicBool::new(false);
static HOOK: Once = Once::new();

/// A terminal in raw mode on the alternate screen, restored on drop.
pub(super) struct Terminal {
    inner: ratatui::Terminal<CrosstermBackend<Outlet>>,
    busy: Busy,
    /// Set once drawing has failed; the exit then skips the wait for the last frame.
    broken: bool,
}

impl Terminal {
    pub(super) fn open() -> io::Result<Self> {
        let outlet = Outlet::start(io::stdout())?;
        let busy = outlet.busy();
        HOOK.call_once(restore_on_panic);
        enable_raw_mode()?;
        ACTIVE.store(true, Ordering::Release);
        let opened = execute!(io::stdout(), EnterAlternateScreen, EnableMouseCapture, Hide)
            .and_then(|()| ratatui::Terminal::new(CrosstermBackend::new(outlet)))
            .and_then(|mut inner| inner.clear().map(|()| inner));
        match opened {
            Ok(inner) => Ok(Self { inner, busy, broken: false }),
            Err(error) => {
                restore();
                Err(error)
            }
        }
    }

    /// Returns whether the last frame has been written.
    pub(super) fn is_ready(&self) -> bool {
        !self.busy.is_set()
    }

    /// Draws a frame. Call it only when the terminal is ready.
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        let drawn = self.inner.draw(draw).map(|_| ());
        self.broken |= drawn.is_err();
        drawn
    }

    /// Sends an escape sequence with the next frame.
    pub(super) fn write_sequence(&mut self, sequence: &str) {
        // Only buffers; an error appears at the next frame.
        let _ = self.inner.backend_mut().write_all(sequence.as_bytes());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if !self.broken {
            self.busy.wait();
        }
        restore();
    }
}

/// Waits at most `time` for input or end of file, and returns whether there is either.
pub(super) fn wait(time: Duration) -> bool {
    let stdin = io::stdin();
    // A file as stdin is always readable; crossterm then reads keys from /dev/tty.
    let timeout = Timespec::try_from(time).ok().filter(|_| stdin.is_terminal());
    let Some(timeout) = timeout else {
        thread::sleep(time);
        return false;
    };
    poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&timeout)).is_ok_and(|ready| ready > 0)
}

/// Waits at most `time` for an input and returns it. Fails if the terminal has been closed, because crossterm would loop forever at the
/// end of input.
pub(super) fn read(time: Duration) -> anyhow::Result<Option<Input>> {
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    let now = Timespec::default();
    let is_closed = poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
        && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
    ensure!(!is_closed, "the terminal was closed");
    let input = event::poll(time).and_then(|ready| ready.then(event::read).transpose());
    input.context("cannot read the terminal")
}

/// Action of an input: `key` interprets keys, and a turn of the wheel moves by `step`.
pub(super) fn action(
    input: &Input,
    hits: &Hits,
    step: isize,
    key: impl FnOnce(&KeyEvent) -> Option<Action>,
) -> Option<Action> {
    match input {
        Input::Key(pressed) if pressed.kind != KeyEventKind::Release => key(pressed),
        Input::Mouse(mouse) => match mouse.kind {
            MouseEventKind::ScrollUp => Some(Action::Move(-step)),
            MouseEventKind::ScrollDown => Some(Action::Move(step)),
            MouseEventKind::Down(MouseButton::Left) => hits.at(mouse.column, mouse.row),
            _ => None,
        },
        _ => None,
    }
}

/// Restores the terminal. Further calls do nothing.
fn restore() {
    if !ACTIVE.swap(false, Ordering::AcqRel) {
        return;
    }
    // Errors cannot be reported if the terminal is closed.
    let mut out = io::stdout().lock();
    let _ = queue!(out, DisableMouseCapture, LeaveAlternateScreen, Show);
    let _ = out.flush();
    let _ = disable_raw_mode();
}

/// Restores the terminal before a panic message is printed.
fn restore_on_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        restore();
        before(info);
    }));
}

/// Escape sequence (OSC 52) that copies `text` to the clipboard of the user's terminal. It works over ssh and, if allowed, through tmux.
pub(super) fn copy(text: &str) -> String {
    format!("\x1b]52;c;{}\x07", base64(text.as_bytes()))
}

fn base64(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let word = three.iter().fold(0u32, |word, &b| word << 8 | u32::from(b)) << (8 * (3 - three.len()));
        for place in 0..4 {
            let six = (word >> (18 - 6 * place)) & 63;
            out.push(if place <= three.len() { ALPHABET[six as usize] as char } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_pads_as_rfc_4648_requires() {
        let known =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("\u{ff}~", "w79+")];
        for (plain, coded) in known {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
        assert_eq!(copy("f"), "\x1b]52;c;Zg==\x07");
    }
}
