//! Playback position of a recording: speed, time, a bar with the findings, and gaps of the recording.

use session::ScreenCommand;
use session::playback::{Play, PlaybackState, Position};
use session::units::{clock, count};

use super::pad::Pad;
use crate::state::Model;
use crate::state::action::Action;
use crate::state::flags::Health;
use crate::theme::Ink;

/// Minimum and maximum number of cells of the bar.
const BAR: (u16, u16) = (20, 80);
/// Cells reserved right of the bar.
const RIGHT: u16 = 22;

pub(super) fn draw(pad: &mut Pad<'_>, model: &Model, position: &Position) {
    let sign = match position.doing {
        PlaybackState::Playing => pad.theme.pick("▶", ">"),
        PlaybackState::Paused => "PAUSED",
        PlaybackState::Seeking => pad.theme.pick("▶▶", ">>"),
        PlaybackState::Ended => "END",
    };
    let x = pad.text(1, 0, sign, Ink::Head);
    let x = pad.text(x + 1, 0, &position.speed.to_string(), Ink::Plain);
    let mut x = pad.text(x + 2, 0, &clock(position.at_ns), Ink::Strong) + 1;
    let wall = position.wall_ns.and_then(wall).filter(|_| pad.width() >= 100);
    if let Some(wall) = wall {
        x = pad.text(x, 0, &format!("({wall}) "), Ink::Dim);
    }
    let end = format!(" {}", clock(position.whole_ns));
    let spare = pad.width().saturating_sub(x + end.len() as u16 + RIGHT);
    let length = spare.clamp(BAR.0, BAR.1);
    bar(pad, x, length, model, position);
    let x = pad.text(x + length, 0, &end, Ink::Plain) + 2;
    if let Some(since) = position.since_ns {
        let text = format!("! begun at {}", clock(since));
        pad.text(x, 0, &text, Ink::Health(Health::Warning));
    } else if let Some(first) = model.run.degraded.first() {
        pad.text(x, 0, &format!("! {first}"), Ink::Health(Health::Warning));
    } else {
        let missed = format!("missed {}  undecoded {}", count(model.run.missed), count(model.run.undecoded));
        pad.text(x, 0, &missed, Ink::Dim);
    }
}

/// Draws the bar, with a mark at the start of each known finding. A click seeks to that time.
fn bar(pad: &mut Pad<'_>, x: u16, length: u16, model: &Model, position: &Position) {
    let whole = u128::from(position.whole_ns.max(1));
    let cell = |ns: u64| (u128::from(ns) * u128::from(length.saturating_sub(1)) / whole) as u16;
    let here = cell(position.at_ns);
    for at in 0..length {
        let (text, ink) = match () {
            () if at == here => (pad.theme.pick("●", "O"), Ink::Head),
            () if at < here => (pad.theme.pick("━", "="), Ink::Series),
            () => (pad.theme.pick("─", "-"), Ink::Dim),
        };
        pad.text(x + at, 0, text, ink);
        let to = u128::from(at) * whole / u128::from(length.saturating_sub(1).max(1));
        pad.click((x + at, 0), (1, 1), Action::Command(ScreenCommand::Play(Play::To(to as u64))));
    }
    for finding in model.findings.iter().rev() {
        let at = cell(model.at_ns(finding)).min(length.saturating_sub(1));
        let health = Health::from(finding.verdict.severity);
        if at != here {
            pad.text(x + at, 0, pad.theme.sign(health), Ink::Health(health));
        }
    }
}

/// Time of day, in UTC.
pub(super) fn wall(ns: u64) -> Option<String> {
    let at = jiff::Timestamp::from_nanosecond(ns.into()).ok()?;
    Some(at.strftime("%H:%M:%SZ").to_string())
}
