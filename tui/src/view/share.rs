//! Time breakdown in one line: a bar, and its parts, largest first.

use trace::report::bar::{self, Segment};
use trace::words::percent;

use super::pad::Pad;
use crate::theme::PLAIN;

/// Cells of the bar.
const BAR: usize = 20;

/// Draws the breakdown and returns the next free row. Draws nothing without parts.
pub(super) fn draw(pad: &mut Pad<'_>, y: u16, title: &str, parts: &[Segment]) -> u16 {
    let theme = pad.theme();
    if parts.is_empty() {
        return y;
    }
    let signs = theme.pick(["█", "▒", "░"], ["#", "=", "-"]);
    let sign_and_style = |place: usize| (signs[place % 3], [theme.line(), theme.head(), theme.dim()][place % 3]);
    let mut x = pad.text(1, y, title, theme.head()) + 1;
    for (place, cells) in bar::cells(parts, BAR).into_iter().enumerate() {
        let (sign, style) = sign_and_style(place);
        x = pad.text(x, y, &sign.repeat(cells), style);
    }
    let mut parts: Vec<(usize, &Segment)> = parts.iter().enumerate().collect();
    parts.sort_by(|a, b| b.1.share.total_cmp(&a.1.share));
    for (place, part) in parts {
        let (sign, style) = sign_and_style(place);
        x = pad.text(x + 1, y, sign, style);
        x = pad.text(x + 1, y, &format!("{} {}", percent(part.share), part.name), PLAIN);
    }
    y + 1
}
