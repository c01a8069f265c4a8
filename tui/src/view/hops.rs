//! Hops tab: one line per hop, and details of the selected one (queue wait, wakeups, backlog over time, workers).

use session::units::{bytes, count, duration, known, rate};
use trace::stats::Spread;
use trace::time_series::SlotValues;

use super::chart::{self, Line, Window};
use super::pad::Pad;
use crate::state::Model;
use crate::state::action::Tab;
use crate::state::curves::Metric;
use crate::state::flags::Health;
use crate::state::model::{CLASSES, HopLine};
use crate::state::ui::Ui;
use crate::theme::Ink;

/// Cells of the longest histogram bar.
const BAR: u16 = 24;
/// Rows of one time series, including its heading.
const TREND_ROWS: u16 = 9;

pub(super) fn draw(pad: &mut Pad<'_>, model: &Model, ui: &Ui) {
    if model.hops.is_empty() {
        pad.text(2, 1, "no hop observed yet", Ink::Dim);
        return;
    }
    let columns = Columns::of(model, pad.width());
    pad.text(3, 0, "hop", Ink::Dim);
    for (x, column) in columns.places() {
        pad.number(x, 0, CELL, COLUMNS[column].0, Ink::Dim);
    }
    let max = (pad.height() / 3).max(4);
    let selected = ui.place(Tab::Hops);
    let y = pad.list(1, &model.hops, (selected, max), |pad, y, place, hop| {
        line(pad, y, hop, &columns);
        if place == selected && hop.members.len() > 1 { members(pad, y + 1, hop) } else { y + 1 }
    });
    if let Some(hop) = model.hops.get(selected) {
        let height = pad.height();
        detail(&mut pad.below(y + 1, height), hop, model, ui);
    }
}

/// Heading of a column, and its formatter.
type Column = (&'static str, fn(&HopLine) -> String);

const COLUMNS: [Column; 7] = [
    ("frame/s", |hop| rate(hop.rates.frames)),
    ("chunk/s", |hop| rate(hop.rates.chunks)),
    ("byte/s", |hop| bytes(hop.rates.bytes as u64)),
    ("backlog", |hop| known(hop.backlog, count)),
    ("max", |hop| known(hop.backlog_max, count)),
    ("p50", |hop| known(hop.queue_wait, |s| duration(s.p50))),
    ("p99", |hop| known(hop.queue_wait, |s| duration(s.p99))),
];
/// Columns hidden to make room for long names, in this order. The detail below still shows them for the selected hop.
const OMIT_ORDER: [usize; 2] = [2, 4];
const CELL: u16 = 8;
/// Cells for the name if all names are short.
const NAME: u16 = 21;

/// Division of the width between names and numbers.
struct Columns {
    name: u16,
    shown: Vec<usize>,
}

impl Columns {
    fn of(model: &Model, width: u16) -> Self {
        let length = |hop: &HopLine| (hop.ends.from.chars().count() + 1 + hop.ends.to.chars().count()) as u16;
        let longest = model.hops.iter().map(length).max().unwrap_or(0).max(NAME);
        let name_width = |omitted: usize| width.saturating_sub(3 + CELL * (COLUMNS.len() - omitted) as u16);
        let omitted = (0..OMIT_ORDER.len()).find(|&omitted| name_width(omitted) >= longest).unwrap_or(OMIT_ORDER.len());
        Self {
            name: longest.min(name_width(omitted).max(NAME)),
            shown: (0..COLUMNS.len()).filter(|at| !OMIT_ORDER[..omitted].contains(at)).collect(),
        }
    }

    /// First cell of each shown column, with its index.
    fn places(&self) -> impl Iterator<Item = (u16, usize)> {
        let x = 3 + self.name;
        self.shown.iter().enumerate().map(move |(place, &column)| (x + place as u16 * CELL, column))
    }
}

fn line(pad: &mut Pad<'_>, y: u16, hop: &HopLine, columns: &Columns) {
    pad.text(1, y, pad.theme.sign(hop.health), Ink::Health(hop.health));
    let name = format!("{}{}{}", hop.ends.from, pad.theme.pick("→", ">"), hop.ends.to);
    pad.fit(3, y, columns.name, &name, Ink::Strong);
    for (x, column) in columns.places() {
        pad.number(x, y, CELL, &COLUMNS[column].1(hop), Ink::Plain);
    }
}

/// Hop with the worst health; ties go to the one with the oldest waiting frame.
pub(super) fn worst(model: &Model) -> Option<&HopLine> {
    model.hops.iter().max_by_key(|hop| (hop.health, hop.oldest_ns, hop.backlog))
}

fn detail(pad: &mut Pad<'_>, hop: &HopLine, model: &Model, ui: &Ui) {
    pad.rule(0, &format!("{} {} {}", hop.ends.from, pad.theme.pick("→", "->"), hop.ends.to));
    let spread = |s: Option<Spread>| {
        let quantile = |(name, ns): (&str, u64)| format!("{name} {}", duration(ns));
        known(s, |s| [("p50", s.p50), ("p90", s.p90), ("p99", s.p99), ("max", s.max)].map(quantile).join("  "))
    };
    let mut facts = vec![
        ("passed", format!("{} frames  {} chunks  {}", count(hop.frames), count(hop.chunks), bytes(hop.bytes))),
        ("queue wait", spread(hop.queue_wait)),
        ("in the relay", spread(hop.relay)),
        ("processing", processing(hop, &spread)),
        ("per wakeup", known(hop.wakeup_frames_max, |n| format!("up to {n} frames"))),
        ("kernel queue", kernel(hop)),
        ("oldest", known(hop.oldest_ns, duration)),
    ];
    if hop.send_wait.is_some() {
        facts.insert(1, ("before the send", spread(hop.send_wait)));
    }
    let mut y = 1;
    for (name, text) in &facts {
        let x = pad.fit(1, y, 14, name, Ink::Head).max(15);
        let (text, ink) = if text == "-" { ("not observed here", Ink::Dim) } else { (&**text, Ink::Plain) };
        pad.text(x, y, text, ink);
        y += 1;
    }
    if hop.undecoded > 0 {
        let why: Vec<String> = hop.reasons.iter().map(|(why, n)| format!("{why} {}", count(*n))).collect();
        let text = format!("cannot decode {} frames: {}", count(hop.undecoded), why.join(", "));
        pad.text(1, y, &text, Ink::Health(Health::Warning));
        y += 1;
    }
    let wide = pad.width() >= 120;
    if !hop.queue_wait_classes.is_empty() {
        let right = if wide { pad.width() / 2 } else { 45 };
        trends(pad, right, y, hop, model, ui);
        histogram(pad, y, hop);
    }
}

/// Processing time per frame, busy share of the receivers, and the median time that a chunk spends in them.
fn processing(hop: &HopLine, spread: &dyn Fn(Option<Spread>) -> String) -> String {
    let busy = hop.busy.map_or_else(String::new, |busy| format!("  busy {:.0} %", 100.0 * busy));
    let inside = hop.inside.map_or_else(String::new, |s| format!("  chunk inside {}", duration(s.p50)));
    spread(hop.processing) + &busy + &inside
}

/// Kernel queue and libzmq inbox. The kernel queue can be empty while the inbox behind it holds the backlog.
fn kernel(hop: &HopLine) -> String {
    let inbox = |frames| format!(", {} frames in the inbox at most", count(frames));
    known(hop.kernel_bytes, |(now, max)| format!("{} now, {} at most", bytes(now), bytes(max)))
        + &hop.inbox_max.map_or_else(String::new, inbox)
}

fn histogram(pad: &mut Pad<'_>, y: u16, hop: &HopLine) {
    pad.text(1, y, "frames by queue wait", Ink::Head);
    let max = hop.queue_wait_classes.iter().copied().max().unwrap_or(0).max(1);
    for (row, &frames) in hop.queue_wait_classes.iter().enumerate() {
        let y = y + 1 + row as u16;
        let label = match CLASSES.get(row) {
            Some(&bound) => format!("<{}", duration(bound)),
            None => "more".into(),
        };
        pad.number(1, y, 8, &label, Ink::Dim);
        let cells = (u128::from(frames) * u128::from(BAR) / u128::from(max)) as usize;
        let bar = pad.theme.pick("█", "#").repeat(cells.max(usize::from(frames > 0)));
        let health = if row >= 5 { Health::Warning } else { Health::Good };
        let x = pad.text(10, y, &bar, Ink::Health(health));
        pad.text(x + 1, y, &count(frames), Ink::Plain);
    }
}

/// Time series of the hop, right of the histogram: backlog, and if there is room queue wait and rate.
fn trends(pad: &mut Pad<'_>, x: u16, y: u16, hop: &HopLine, model: &Model, ui: &Ui) {
    let window = Window::of(model, ui);
    let columns = pad.width().saturating_sub(x + 1);
    if model.curves.is_empty() {
        return;
    }
    let backlog = |slot: &SlotValues| {
        hop.backlog?;
        Some(slot.hops.get(hop.group).map_or(0, |of| of.backlog_max) as f64)
    };
    let frames = |slot: &SlotValues| {
        let passed = slot.hops.get(hop.group).map(|of| of.passed).unwrap_or_default();
        Some(if hop.observes_sends { passed.frames_sent } else { passed.frames_received } as f64)
    };
    let line = |label, metric, show| Line { label, metric, show, health: Health::Good };
    let lines: [Line<'_>; 3] = [
        line("backlog", Metric::Maximum(&backlog), |n| count(n as u64)),
        line("queue wait p99", Metric::QueueWaitP99 { group: hop.group }, |ns| duration(ns as u64)),
        line("frames/s", Metric::Maximum(&frames), rate),
    ];
    let rows = (pad.height().saturating_sub(y) / TREND_ROWS).clamp(1, lines.len() as u16);
    for (place, line) in lines.iter().take(rows.into()).enumerate() {
        let y = y + place as u16 * TREND_ROWS;
        let values = window.values(&model.curves, line.metric, columns);
        let top = values.iter().flatten().copied().reduce(f64::max);
        let max = top.map_or_else(|| " not observed ".to_owned(), |top| format!(" max {} ", (line.show)(top)));
        let title_width = columns.saturating_sub(max.len() as u16);
        let title = format!("{}, {}", line.label, window.words(columns, model));
        pad.fit(x, y, title_width, &title, Ink::Head);
        pad.right(y, &max, Ink::Dim);
        let height = pad.height().saturating_sub(y + 1).min(TREND_ROWS - 1);
        chart::bars(&mut pad.below(y + 1, height), x, &values, Ink::Series);
    }
}

/// Draws one branch per receiving worker below the hop. Returns the next free row.
fn members(pad: &mut Pad<'_>, y: u16, hop: &HopLine) -> u16 {
    let total = hop.members.iter().map(|m| m.chunks).sum::<u64>().max(1);
    let max_lines = usize::from(pad.height().saturating_sub(y) / 3);
    let shown = hop.members.len().min(max_lines);
    for (row, member) in hop.members.iter().take(shown).enumerate() {
        let y = y + row as u16;
        let more = hop.members.len() - shown;
        let last = row + 1 == shown;
        let branch = if last { pad.theme.pick("└", "`") } else { pad.theme.pick("├", "|") };
        let share = 100.0 * member.chunks as f64 / total as f64;
        let name = format!("{branch} {}", known(member.worker, |w| format!("worker {w}")));
        let more = if last && more > 0 { format!("(and {more} more)  ") } else { String::new() };
        let numbers = format!(
            "{:>8} frames  {:>8} chunks {share:>5.1}%  backlog {:>6}  busy {:>4}  {more}",
            count(member.frames),
            count(member.chunks),
            known(member.backlog, count),
            known(member.busy, |busy| format!("{:.0}%", 100.0 * busy))
        );
        let x = pad.fit(3, y, 14, &name, Ink::Strong).max(16);
        let x = pad.text(x, y, &numbers, Ink::Plain);
        pad.text(x, y, &member.endpoint, Ink::Dim);
    }
    y + shown as u16
}
