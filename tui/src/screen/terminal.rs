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

use super::terminal_writer::{FrameSlot, TerminalWriter};
use crate::state::action::Action;
use crate::view::ClickAreas;

const BASE64_ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Set while the terminal is taken over.
static IS_TAKEN_OVER: AtomicBool = AtomicBool::new(false);
static PANIC_HOOK: Once = Once::new();

/// A terminal in raw mode on the alternate screen, restored on drop.
pub(super) struct Terminal {
    inner: ratatui::Terminal<CrosstermBackend<TerminalWriter>>,
    frame_slot: FrameSlot,
    /// Set once drawing has failed; the exit then skips the wait for the last frame.
    has_failed: bool,
}

impl Terminal {
    /// Takes over the terminal. Restores it if that fails halfway.
    pub(super) fn open() -> io::Result<Self> {
        let writer = TerminalWriter::start(io::stdout())?;
        // Shows when the writer's thread is ready for the next frame.
        let frame_slot = writer.frame_slot();
        PANIC_HOOK.call_once(install_panic_hook);
        enable_raw_mode()?;
        // Before the alternate screen, so that any later error or panic restores the terminal.
        IS_TAKEN_OVER.store(true, Ordering::Release);
        match open_alternate_screen(writer) {
            Ok(inner) => Ok(Self { inner, frame_slot, has_failed: false }),
            Err(error) => {
                restore_terminal();
                Err(error)
            }
        }
    }

    /// Returns whether the last frame has been written.
    pub(super) fn is_ready(&self) -> bool {
        self.frame_slot.is_free()
    }

    /// Draws a frame. Call it only when the terminal is ready.
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        // ratatui flushes inside of `draw`, too: until it returns, the writer passes nothing on, so that a frame is written as a whole.
        self.frame_slot.set_drawing(true);
        let result = self.inner.draw(draw).map(|_| ());
        self.frame_slot.set_drawing(false);
        let result = result.and_then(|()| Write::flush(self.inner.backend_mut()));
        self.has_failed |= result.is_err();
        result
    }

    /// Sends an escape sequence with the next frame.
    pub(super) fn write_sequence(&mut self, sequence: &str) {
        // Only buffers; an error appears at the next frame.
        let _ = self.inner.backend_mut().write_all(sequence.as_bytes());
    }
}

impl Drop for Terminal {
    /// Waits for the last frame, and restores the terminal.
    fn drop(&mut self) {
        if !self.has_failed {
            // If the last frame is not written in time, it is given up, and the terminal is restored nevertheless.
            self.frame_slot.wait_until_free();
        }
        restore_terminal();
    }
}

/// Waits at most `time` for input or end of file on stdin, and returns whether there is either. If stdin is no terminal, sleeps for `time`
/// and returns false.
pub(super) fn wait_for_input(time: Duration) -> bool {
    let stdin = io::stdin();
    // A file as stdin is always readable; crossterm then reads keys from /dev/tty.
    let timeout = if stdin.is_terminal() { Timespec::try_from(time).ok() } else { None };
    let Some(timeout) = timeout else {
        thread::sleep(time);
        return false;
    };
    poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&timeout)).is_ok_and(|ready| ready > 0)
}

/// Switches to the alternate screen, whose frames go through `writer`, and clears it.
fn open_alternate_screen(writer: TerminalWriter) -> io::Result<ratatui::Terminal<CrosstermBackend<TerminalWriter>>> {
    execute!(io::stdout(), EnterAlternateScreen, EnableMouseCapture, Hide)?;
    let mut terminal = ratatui::Terminal::new(CrosstermBackend::new(writer))?;
    // The alternate screen may have old content.
    terminal.clear()?;
    Ok(terminal)
}

/// Whether the terminal behind stdin has been closed. False if that cannot be found out.
fn is_terminal_closed() -> bool {
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    let no_wait = Timespec::default();
    let has_events = poll(&mut fds, Some(&no_wait)).is_ok_and(|ready| ready > 0);
    has_events && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
}

/// The next input; `None` if none has arrived. Fails if the terminal has been closed.
pub(super) fn read_pending_input() -> anyhow::Result<Option<Input>> {
    // Checked first, because crossterm would loop forever at the end of input. It must not wait either: `wait_for_input` does.
    ensure!(!is_terminal_closed(), "the terminal was closed");
    if !event::poll(Duration::ZERO).context("cannot read the terminal")? {
        return Ok(None);
    }
    let input = event::read().context("cannot read the terminal")?;
    Ok(Some(input))
}

/// Action of an input: a key, a click, or a turn of the wheel, which moves the selection by `wheel_step`. `None` for any other input, and
/// for a key or a click that does nothing.
pub(super) fn action_of_input(
    input: &Input,
    click_areas: &ClickAreas,
    wheel_step: isize,
    action_of_key: impl FnOnce(&KeyEvent) -> Option<Action>,
) -> Option<Action> {
    match input {
        Input::Key(key) if key.kind != KeyEventKind::Release => action_of_key(key),
        Input::Mouse(mouse) => match mouse.kind {
            MouseEventKind::ScrollUp => Some(Action::MoveSelection(-wheel_step)),
            MouseEventKind::ScrollDown => Some(Action::MoveSelection(wheel_step)),
            MouseEventKind::Down(MouseButton::Left) => click_areas.action_at(mouse.column, mouse.row),
            _ => None,
        },
        _ => None,
    }
}

/// Restores the terminal. Further calls do nothing.
fn restore_terminal() {
    if !IS_TAKEN_OVER.swap(false, Ordering::AcqRel) {
        return;
    }
    // Errors cannot be reported if the terminal is closed.
    let mut out = io::stdout().lock();
    let _ = queue!(out, DisableMouseCapture, LeaveAlternateScreen, Show);
    let _ = out.flush();
    let _ = disable_raw_mode();
}

/// Installs a panic hook that restores the terminal before the message is printed.
fn install_panic_hook() {
    let previous_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        restore_terminal();
        previous_hook(info);
    }));
}

/// Escape sequence (OSC 52) that copies `text` to the clipboard of the user's terminal. It works over ssh and, if allowed, through tmux.
pub(super) fn clipboard_sequence(text: &str) -> String {
    format!("\x1b]52;c;{}\x07", encode_base64(text.as_bytes()))
}

/// Encodes bytes in base64 with padding.
fn encode_base64(bytes: &[u8]) -> String {
    let mut encoded = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        // The last group may be shorter, and is filled with zeros.
        let mut filled = [0; 3];
        filled[..group.len()].copy_from_slice(group);
        let [first, second, third] = filled;
        // The 24 bits of three bytes are four digits of six bits each.
        let digits = [
            first >> 2,
            ((first & 0b11) << 4) | (second >> 4),
            ((second & 0b1111) << 2) | (third >> 6),
            third & 0b11_1111,
        ];
        // One byte needs two digits, two bytes need three. `=` stands for each digit without data.
        let needed_digits = group.len() + 1;
        for digit in &digits[..needed_digits] {
            encoded.push(BASE64_ALPHABET[usize::from(*digit)] as char);
        }
        for _ in needed_digits..digits.len() {
            encoded.push('=');
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_pads_as_rfc_4648_requires() {
        let known =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("\u{ff}~", "w79+")];
        for (plain, coded) in known {
            assert_eq!(encode_base64(plain.as_bytes()), coded);
        }
        assert_eq!(clipboard_sequence("f"), "\x1b]52;c;Zg==\x07");
    }
}
