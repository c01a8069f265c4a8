//! Overview tab: health of the engine, and where and when problems occur.

use session::units::{clock, count, duration, known, rate};
use trace::stats::Spread;
use trace::time_series::SlotValues;

use super::chart::{self, Line, Window};
use super::itl;
use super::pad::Pad;
use super::path;
use crate::state::Model;
use crate::state::action::{Action, Tab};
use crate::state::curves::Metric;
use crate::state::flags::Health;
use crate::state::ui::Ui;
use crate::theme::Ink;

/// Maximum number of rows of one time series.
const CHART_ROWS: u16 = 4;
/// Findings listed below the time series if there is room.
const FINDINGS: u16 = 8;

pub(super) fn draw(pad: &mut Pad<'_>, model: &Model, ui: &Ui) {
    let roomy = pad.height() >= 30;
    let mut y = u16::from(roomy);
    y = gap(pad, y, model);
    y += u16::from(roomy);
    y = flow(pad, y, model);
    // A small screen shows it only if the client's is known.
    if roomy || model.itl.delivered_by_token.is_some() {
        y = itl(pad, y, 7, [model.itl.delivered_by_token, model.itl.sent_by_token]);
    }
    y = consumer(pad, y, model);
    y += 1;
    y = path::draw(pad, y, model);
    y = path::shares(pad, y, "time (run)", &model.path);
    y += u16::from(roomy || pad.height() - y > 6);
    let listed = if roomy { (model.findings.len() as u16).min(FINDINGS) + 2 } else { 0 };
    y = lines(pad, y, listed, (model, ui));
    if roomy && !model.findings.is_empty() {
        findings(pad, y + 1, model);
    }
}

fn gap(pad: &mut Pad<'_>, y: u16, model: &Model) -> u16 {
    let gap = &model.gap;
    pad.text(1, y, "first-token gap", Ink::Head);
    let Some(waiting) = gap.open else {
        pad.text(18, y, "not observed: needs the sends and receives of frames", Ink::Dim);
        return y + 1;
    };
    pad.numbers((18, y), (9, 8), ["p50", "p90", "p99", "max", "requests"], Ink::Dim);
    for (row, (name, spread)) in [("last 10 s", gap.window), ("whole run", gap.whole)].into_iter().enumerate() {
        let y = y + 1 + row as u16;
        pad.text(3, y, name, Ink::Plain);
        let Some(Spread { count: n, p50, p90, p99, max }) = spread else {
            pad.text(22, y, "none", Ink::Dim);
            continue;
        };
        pad.numbers((18, y), (9, 8), [p50, p90, p99, max].map(duration), Ink::Strong);
        pad.number(18 + 4 * 9, y, 8, &count(n), Ink::Plain);
        if row == 1 && !gap.worst_rid.is_empty() {
            pad.text(65, y, &format!("max: {}", gap.worst_rid), Ink::Dim);
        }
    }
    let waiting = match waiting {
        (0, _) => "no first token is waiting now".to_owned(),
        (1, longest) => format!("1 first token is waiting, for {}", duration(longest)),
        (n, longest) => format!("{} first tokens are waiting, the longest for {}", count(n), duration(longest)),
    };
    pad.text(3, y + 3, &waiting, Ink::Plain);
    y + 4
}

fn flow(pad: &mut Pad<'_>, y: u16, model: &Model) -> u16 {
    let (flow, requests, tokens, chunks) = (&model.flow, &model.requests, &model.tokens, &model.chunks);
    let x = pad.text(1, y, "flow", Ink::Head);
    let frames = if pad.width() >= 100 { format!("{} frames/s  ", rate(flow.frames)) } else { String::new() };
    let now = format!("{} tok/s  {frames}{} live", rate(flow.tokens), count(requests.live));
    let mut x = pad.text(x + 5, y, &now, Ink::Strong);
    if model.abandoned_requests > 0 {
        x = pad.text(x + 2, y, pad.theme.sign(Health::Warning), Ink::Health(Health::Warning));
        x = pad.text(x + 1, y, &format!("{} abandoned", count(model.abandoned_requests)), Ink::Health(Health::Warning));
    }
    let sums = format!(
        "of {}, {} finished upstream, {} aborted",
        count(requests.seen),
        count(requests.finished),
        count(requests.aborted)
    );
    pad.text(x + 1, y, &sums, Ink::Dim);

    let x = pad.text(1, y + 1, "tokens", Ink::Head);
    let reached = format!(
        "{} sent  {} received  {} delivered",
        count(tokens.sent),
        known(tokens.received, count),
        known(tokens.delivered, count)
    );
    let mut x = pad.text(x + 3, y + 1, &reached, Ink::Plain);
    if let Some(lost) = chunks.tokens_lost {
        x = alarm(pad, x + 2, y + 1, lost, &format!("{} lost", count(lost)));
    }
    if tokens.missing_on_wire > 0 {
        alarm(pad, x + 2, y + 1, 1, &format!("{} missing on the wire", count(tokens.missing_on_wire)));
    }

    let x = pad.text(1, y + 2, "chunks", Ink::Head);
    let x = pad.text(
        x + 3,
        y + 2,
        &format!("{} sent  {} merged", count(chunks.sent), known(chunks.merged, count)),
        Ink::Plain,
    );
    let dropped = chunks.dropped_confirmed.unwrap_or(0);
    let x = alarm(pad, x + 2, y + 2, dropped, &format!("{} dropped", known(chunks.dropped_confirmed, count)));
    let predicted = format!("({} predicted from wakeups)", known(chunks.dropped_predicted, count));
    pad.text(x + 1, y + 2, &predicted, Ink::Dim);
    y + 3
}

/// Draws how the thread that receives tokens spends its time, if threads are observed.
fn consumer(pad: &mut Pad<'_>, y: u16, model: &Model) -> u16 {
    let last = model.hops.last().map(|hop| &*hop.ends.to);
    let mut receiving = model.threads.iter().flatten().filter(|t| t.receives && Some(&*t.role) == last);
    let Some((thread, shares)) = receiving.find_map(|t| Some((t, t.recent?))) else {
        return y;
    };
    let share = |s: Option<f64>| known(s, |s| format!("{:.0}%", s * 100.0));
    let x = pad.text(1, y, &thread.role, Ink::Head);
    let text = format!(
        "{} running  {} starved of CPU  {} throttled  {} asleep",
        share(Some(shares.running)),
        share(shares.waiting),
        share(shares.throttled),
        share(shares.blocked)
    );
    pad.text(x + 1, y, &text, Ink::Plain);
    y + 1
}

/// Draws `text`, highlighted as critical if `n` is not 0.
fn alarm(pad: &mut Pad<'_>, x: u16, y: u16, n: u64, text: &str) -> u16 {
    if n > 0 {
        let x = pad.text(x, y, pad.theme.sign(Health::Critical), Ink::Health(Health::Critical));
        pad.text(x + 1, y, text, Ink::Health(Health::Critical))
    } else {
        pad.text(x, y, text, Ink::Plain)
    }
}

fn lines(pad: &mut Pad<'_>, y: u16, reserved: u16, (model, ui): (&Model, &Ui)) -> u16 {
    let window = Window::of(model, ui);
    let columns = chart::columns(pad.width());
    pad.rule(y, &window.words(columns, model));
    let worst = model.hops.iter().map(|h| h.health).max().unwrap_or_default();
    let tokens = |slot: &SlotValues| Some(slot.passed.tokens_sent as f64);
    let backlog = |slot: &SlotValues| backlog(model, slot);
    let lost = |slot: &SlotValues| harm(model, slot).map(|harm| harm.lost as f64);
    let merged = |slot: &SlotValues| harm(model, slot).map(|harm| harm.merged as f64);
    let live = |slot: &SlotValues| Some(slot.live as f64);
    let number: fn(f64) -> String = |n| count(n as u64);
    let line = |label, metric, show, health| Line { label, metric, show, health };
    let all = [
        line("tokens/s", Metric::Maximum(&tokens), rate, Health::Good),
        line("backlog", Metric::Maximum(&backlog), number, worst),
        line("gap p99", Metric::GapP99, |ns| duration(ns as u64), Health::Good),
        line("chunks lost", Metric::Maximum(&lost), number, Health::Critical),
        line("chunks merged", Metric::Maximum(&merged), number, Health::Good),
        line("live requests", Metric::Maximum(&live), number, Health::Good),
    ];
    let mut at = y + 1;
    let axis = u16::from(pad.height() >= 30);
    let left = pad.height().saturating_sub(at + reserved + axis);
    let rows = (left / all.len() as u16).clamp(1, CHART_ROWS);
    for line in &all {
        if at + rows > pad.height() {
            break;
        }
        chart::draw(&mut pad.below(at, rows), line, &model.curves, window);
        at += rows;
    }
    window.clicks(pad, (chart::LEFT, y + 1), (columns, at - y - 1), &model.curves);
    if at + reserved < pad.height() {
        window.axis(pad, (chart::LEFT, at), columns, model);
        at += 1;
    }
    at
}

/// Sum over hops of the largest backlog in frames; `None` if receives are not observed.
fn backlog(model: &Model, slot: &SlotValues) -> Option<f64> {
    let is_observed = model.hops.iter().any(|hop| hop.backlog.is_some());
    is_observed.then(|| slot.hops.iter().map(|hop| hop.backlog_max).sum::<u64>() as f64)
}

/// Lost and merged chunks in a slot.
struct SlotHarm {
    lost: u64,
    merged: u64,
}

/// Confirmed if deliveries are observable, else predicted; `None` if neither is known.
fn harm(model: &Model, slot: &SlotValues) -> Option<SlotHarm> {
    let passed = &slot.passed;
    if model.chunks.merged.is_some() && model.chunks.dropped_confirmed.is_some() {
        return Some(SlotHarm { lost: passed.chunks_dropped, merged: passed.chunks_merged });
    }
    let is_predicted = model.merged_predicted.is_some() && model.chunks.dropped_predicted.is_some();
    is_predicted.then_some(SlotHarm { lost: passed.dropped_predicted, merged: passed.merged_predicted })
}

fn findings(pad: &mut Pad<'_>, y: u16, model: &Model) {
    pad.rule(y, "findings");
    for (row, finding) in model.findings.iter().take(FINDINGS.into()).enumerate() {
        let y = y + 1 + row as u16;
        pad.click((0, y), (pad.width(), 1), Action::OpenAt(Tab::Findings, row));
        let health = Health::from(finding.verdict.severity);
        let ink = if finding.active { Ink::Health(health) } else { Ink::Dim };
        pad.text(1, y, &format!("{} {:<9}", pad.theme.sign(health), health.word()), ink);
        let since = clock(model.at_ns(finding));
        pad.text(13, y, &format!("since {since:<7} {}", finding.verdict.summary), Ink::Plain);
    }
}
