//! The help, made from the table of keys and from the language of the filter.

use super::pad::Pad;
use crate::keys::BINDINGS;
use crate::state::query;
use crate::theme::PLAIN;

/// Draws over the tab, scrolled by `scrolled` lines; gives back how many lines a page has.
pub(super) fn draw(pad: &mut Pad<'_>, scrolled: usize) -> usize {
    let theme = pad.theme();
    pad.clear();
    let mut lines: Vec<(&str, &str, &str)> = BINDINGS.iter().map(|b| (b.shown, b.what, b.place())).collect();
    lines.push(("", "", ""));
    lines.push(("filter", "what it lets through", ""));
    lines.extend(query::HELP.iter().map(|&(term, what)| (term, what, "")));
    lines.push(("", "", ""));
    lines.push((
        "signs",
        "+ ok   i info   ! warning   X critical   ? nothing can be said   - not seen",
        "",
    ));
    lines.push((
        "gap",
        "the part of TTFT between scheduler and tokenizer; so far, while the first token waits",
        "",
    ));
    lines.push((
        "TTFT",
        "is no column: when a request arrived is not observed, and it would be a guess",
        "",
    ));
    let rows = usize::from(pad.height().saturating_sub(1));
    let top = scrolled.min(lines.len().saturating_sub(rows));
    let last = (top + rows).min(lines.len());
    pad.rule(
        0,
        &format!(
            "help: lines {}-{last} of {} (Up and Down scroll, Esc closes)",
            top + 1,
            lines.len()
        ),
    );
    for (row, (key, what, place)) in lines[top..last].iter().enumerate() {
        let y = 1 + row as u16;
        pad.fit(2, y, 13, key, theme.head());
        pad.text(16, y, what, PLAIN);
        pad.right(y, &format!("{place} "), theme.dim());
    }
    rows
}
