//! Overview tab: health of the engine, and where and when problems occur.

use outputs::report::{NO_THROTTLING, NO_WAITS, TtftGroupLine};
use ratatui::layout::Rect;
use session::units::{format_count, format_duration, format_elapsed_clock, format_rate_per_second, known_or_dash};
use trace::detect::Finding;
use trace::stats::Spread;
use trace::time_series::SlotValues;
use trace::words::{decimal_percent, plural};

use super::chart::{self, ChartSeries, TimeWindow};
use super::pad::{CellRow, NextColumn, NextRow, Pad, text_width};
use super::path::{self, LegendRoom};
use super::{ItlQuantiles, draw_advice, draw_inter_token_latency, hops};
use crate::state::Model;
use crate::state::action::{Action, Tab};
use crate::state::flags::Health;
use crate::state::threads::TimeShares;
use crate::state::ui::Ui;
use crate::state::waiting::WaitingRequests;
use crate::theme::Ink;

/// Maximum number of rows of one time series.
const MAX_CHART_ROWS: u16 = 4;
/// Maximum number of rows for the legend of a breakdown, then the same for a small screen.
const MAX_LEGEND_ROWS: u16 = 3;
const SMALL_LEGEND_ROWS: u16 = 2;
/// Findings listed below the time series if there is room.
const MAX_FINDINGS: u16 = 8;
/// Rows that the findings keep where not even one row is left for each chart: an empty one, the heading, and three findings.
const MIN_FINDING_ROWS: u16 = 5;
/// From this height on, lines are set apart and findings are listed.
const TALL_ROWS: u16 = 30;
/// Below this height, there is no spare row.
const SMALL_ROWS: u16 = 24;
/// Below this height, lines that say little are left out.
const LOW_ROWS: u16 = 20;
/// From this width on, titles are complete.
const WIDE_COLUMNS: u16 = 100;
/// With more free rows than this, an empty one comes before the time series.
const ROWS_WITHOUT_SPACE: u16 = 6;
/// Cells of a quantile of the first-token gap.
const GAP_WIDTH: u16 = 8;
/// First cell of these quantiles, and distance between the starts of two; then the same for a narrow screen.
const GAP_X: u16 = 18;
const GAP_PITCH: u16 = 9;
const NARROW_GAP_X: u16 = 17;
const NARROW_GAP_PITCH: u16 = 8;
/// First cell of the rid with the longest gap.
const RID_X: u16 = 66;
/// Minimum cells of that rid with its title.
const MIN_RID_WIDTH: u16 = 12;
/// First cell of the text behind the title `TTFT`.
const TTFT_TEXT_X: u16 = 7;
/// First cell of the numbers behind the titles `flow`, `tokens` and `chunks`.
const TOTALS_X: u16 = 10;
/// From this width on, the words beside numbers of tokens are whole.
const WHOLE_WORDS_COLUMNS: u16 = 80;
/// Cells of the severity and of the usual time of a listed finding, and first cell of that time.
const SEVERITY_WIDTH: usize = 9;
const SPAN_WIDTH: usize = 15;
const SPAN_X: u16 = 13;
/// Indices in [`chart_series`].
const BACKLOG_CHART: usize = 1;
const GAP_CHART: usize = 2;
const LOST_CHUNKS_CHART: usize = 3;
const MERGED_CHUNKS_CHART: usize = 4;

/// What a screen has rows for.
#[derive(Clone, Copy)]
struct ScreenRoom {
    /// Empty rows between the parts, and a list of findings.
    is_tall: bool,
    /// Rows that say little.
    has_spare_rows: bool,
    /// Only what is most important, because the other rows are for the charts.
    is_low: bool,
}

impl ScreenRoom {
    fn for_height(height: u16) -> Self {
        Self { is_tall: height >= TALL_ROWS, has_spare_rows: height >= SMALL_ROWS, is_low: height < LOW_ROWS }
    }
}

/// Draws the state of the engine from top to bottom: gaps, totals, path, breakdowns, curves, findings.
pub(super) fn draw_overview_tab(pad: &mut Pad<'_>, model: &Model, ui: &Ui) {
    let room = ScreenRoom::for_height(pad.height());
    // Only a tall screen has an empty row between two parts.
    let empty_rows = u16::from(room.is_tall);
    let mut y = if room.is_low { 0 } else { draw_advice(pad, 0, model) };
    y = draw_first_tokens(pad, y + empty_rows, model, room);
    y = draw_traffic(pad, y + empty_rows, model, room);
    y = path::draw_path(pad, y + empty_rows, model, room.is_low);
    y = draw_breakdowns(pad, y, model, room);
    if !room.is_tall {
        y = draw_worst_finding(pad, y, model);
    }
    let has_empty_row_above_charts = room.is_tall || pad.height().saturating_sub(y) > ROWS_WITHOUT_SPACE;
    y += u16::from(has_empty_row_above_charts);
    // An empty row and the heading precede the findings.
    let rows_for_findings = if room.is_tall { (model.findings.len() as u16).min(MAX_FINDINGS) + 2 } else { 0 };
    y = draw_charts(pad, y, rows_for_findings, model, ui);
    if room.is_tall && !model.findings.is_empty() {
        draw_findings(pad, y + 1, model);
    }
}

/// Draws the gap between send and receive of first tokens, and the time to first token. Returns the next free row.
fn draw_first_tokens(pad: &mut Pad<'_>, y: u16, model: &Model, room: ScreenRoom) -> NextRow {
    let y = draw_gap(pad, y, model);
    let y = draw_ttft(pad, y, model);
    // On a smaller screen, only a filter on `ttft` and the report show what is not observed.
    if room.has_spare_rows { draw_ttft_absences(pad, y, model) } else { y }
}

/// Draws the totals, the inter-token latency, and the thread that receives the tokens last. Returns the next free row.
fn draw_traffic(pad: &mut Pad<'_>, y: u16, model: &Model, room: ScreenRoom) -> NextRow {
    let mut y = draw_totals(pad, y, model);
    let [client, engine] = [model.itl.delivered_by_token, model.itl.sent_by_token];
    // A small screen shows inter-token latencies only if that at the client is known.
    if room.has_spare_rows || (!room.is_low && client.is_some()) {
        y = draw_inter_token_latency(pad, y, model, &ItlQuantiles { title: "itl p50/p90/p99", client, engine });
    }
    draw_receiving_thread(pad, y, model)
}

/// Draws what the time to first token consists of, as far as that is known. Returns the next free row.
fn draw_breakdowns(pad: &mut Pad<'_>, mut y: u16, model: &Model, room: ScreenRoom) -> NextRow {
    let ttft = model.ttft.as_ref().map(TtftGroupLine::segments);
    // On a small screen, a third row would take the place of a curve.
    let max_rows = if room.has_spare_rows { MAX_LEGEND_ROWS } else { SMALL_LEGEND_ROWS };
    let legend_room = LegendRoom { max_rows, more: "enlarge" };
    // The output's part of the time to first token has its own bar if there is room.
    if room.is_tall || ttft.is_none() {
        let title = first_tokens_title(model, pad.width());
        y = path::draw_breakdown(pad, y, &title, &model.first_token_path, legend_room);
    }
    path::draw_breakdown(pad, y, "TTFT (run)", &ttft.unwrap_or_default(), legend_room)
}

/// Title of the bar of first tokens, which does not cover the time inside the last process.
fn first_tokens_title(model: &Model, width: u16) -> String {
    match &model.first_token_end {
        Some(role) if width >= WIDE_COLUMNS => format!("first tokens to {role} (run)"),
        Some(role) => format!("to {role} (run)"),
        None => "first tokens (run)".to_owned(),
    }
}

/// Draws quantiles of the first-token gap, of the last seconds and of the whole run, and the first tokens that wait. Returns the next free
/// row.
fn draw_gap(pad: &mut Pad<'_>, y: u16, model: &Model) -> NextRow {
    let gap = &model.gap;
    let pad_width = pad.width();
    pad.draw_text(1, y, "first-token gap", Ink::Head);
    // Without both ends of a gap, nothing is known of it.
    let Some(waiting) = gap.waiting else {
        pad.draw_text(GAP_X, y, model.explain_unobserved_gaps(), Ink::Dim);
        return y + 1;
    };
    let heads = if pad_width < RID_X {
        CellRow { x: NARROW_GAP_X, y, pitch: NARROW_GAP_PITCH, width: GAP_WIDTH }
    } else {
        CellRow { x: GAP_X, y, pitch: GAP_PITCH, width: GAP_WIDTH }
    };
    // Behind the four quantiles.
    let requests_x = heads.x + 4 * heads.pitch + 1;
    pad.draw_cells(heads, ["p50", "p90", "p99", "max"], Ink::Dim);
    pad.draw_right_aligned(requests_x, y, GAP_WIDTH, "requests", Ink::Dim);
    let recent = model.format_recent_seconds();
    for (row, (name, spread)) in [(&*recent, gap.window), ("whole run", gap.whole)].into_iter().enumerate() {
        let cells = CellRow { y: y + 1 + row as u16, ..heads };
        pad.draw_text(3, cells.y, name, Ink::Plain);
        let Some(Spread { count: gaps, p50, p90, p99, max }) = spread else {
            pad.draw_right_aligned(cells.x, cells.y, cells.width, "none", Ink::Dim);
            continue;
        };
        pad.draw_cells(cells, [p50, p90, p99, max].map(format_duration), Ink::Strong);
        pad.draw_right_aligned(requests_x, cells.y, GAP_WIDTH, &format_count(gaps), Ink::Plain);
        let is_whole_run = row == 1;
        if is_whole_run && !gap.worst_rid.is_empty() && pad_width > RID_X + MIN_RID_WIDTH {
            let x = pad.draw_text(RID_X, cells.y, "max: ", Ink::Dim);
            let rid = pad.shorten_id(&gap.worst_rid, pad_width - x);
            pad.draw_text(x, cells.y, &rid, Ink::Dim);
        }
    }
    // A line that says nothing is left out on a low screen.
    let has_waiting = waiting.requests > 0 || gap.without_token.is_some();
    if !has_waiting && model.receives_end.is_none() && pad.height() < SMALL_ROWS {
        return y + 3;
    }
    let text = match model.receives_end {
        Some(end) => format!("receives are {}", model.describe_observation_end(end)),
        None => describe_waiting_requests(waiting, model),
    };
    pad.draw_text(3, y + 3, &text, Ink::Plain);
    y + 4
}

/// Requests whose first token was sent and waits, and those that have no token yet. Then those that may wait without being observed.
fn describe_waiting_requests(waiting: WaitingRequests, model: &Model) -> String {
    let mut parts = Vec::new();
    if waiting.requests > 0 {
        parts.push(describe_waiting_tokens(waiting));
    }
    if let Some(without_token) = model.gap.without_token {
        parts.push(describe_requests_without_token(without_token));
    }
    if parts.is_empty() {
        let moment = if model.is_at_end() { "at the end" } else { "now" };
        parts.push(format!("no first token is waiting {moment}"));
    }
    parts.push(model.describe_uncounted_requests().to_owned());
    parts.join("; ")
}

/// Number of first tokens that were sent and not received, and the longest wait. A token that was sent at this instant has not waited yet.
fn describe_waiting_tokens(waiting: WaitingRequests) -> String {
    let tokens = match waiting.requests {
        1 => "1 first token is waiting".to_owned(),
        more => format!("{} first tokens are waiting", format_count(more)),
    };
    if waiting.longest_wait_ns == 0 {
        return tokens;
    }
    let which = if waiting.requests == 1 { "for" } else { "the longest for" };
    format!("{tokens}, {which} {}", format_duration(waiting.longest_wait_ns))
}

/// Number of requests that were dispatched and have no token yet, and the time since the first dispatch among them.
fn describe_requests_without_token(waiting: WaitingRequests) -> String {
    let wait = format_duration(waiting.longest_wait_ns);
    match waiting.requests {
        // Dispatched at this instant, so it has not waited yet.
        1 if waiting.longest_wait_ns == 0 => "1 dispatched request has no token yet".to_owned(),
        1 => format!("1 dispatched request has no token yet, for {wait}"),
        more => format!("{} dispatched requests have no token yet, the longest for {wait}", format_count(more)),
    }
}

/// Draws the time to first token in one row, if it is known. Returns the next free row.
fn draw_ttft(pad: &mut Pad<'_>, y: u16, model: &Model) -> NextRow {
    let Some(ttft) = &model.ttft else { return y };
    let x = pad.draw_text(1, y, "TTFT", Ink::Head);
    let [p50, p99, max] = [ttft.ns.p50, ttft.ns.p99, ttft.ns.max].map(format_duration);
    let x = pad.draw_text(x + 2, y, &format!("p50 {p50}  p99 {p99}  max {max}"), Ink::Strong);
    let recent = ttft.recent_mean_ns.map_or_else(String::new, |ns| {
        format!(", mean {} in the {}", format_duration(ns), model.format_recent_seconds())
    });
    pad.draw_text(x + 2, y, &format!("{} requests{recent}", format_count(ttft.ns.count)), Ink::Dim);
    y + 1
}

/// Draws in one row which parts of the time to first token are not observed. Draws nothing before the first output. Returns the next free
/// row.
fn draw_ttft_absences(pad: &mut Pad<'_>, y: u16, model: &Model) -> NextRow {
    if model.ttft_absences.is_empty() || model.chunks.sent == 0 {
        return y;
    }
    // A known time to first token has the title in the row above.
    if model.ttft.is_none() {
        pad.draw_text(1, y, "TTFT", Ink::Head);
    }
    let width = pad.width().saturating_sub(TTFT_TEXT_X);
    pad.draw_clipped(TTFT_TEXT_X, y, width, &format!("not observed: {}", model.ttft_absences.join("; ")), Ink::Dim);
    y + 1
}

/// Draws three rows: the rates with the requests, the tokens, and the chunks. Returns the next free row.
fn draw_totals(pad: &mut Pad<'_>, y: u16, model: &Model) -> NextRow {
    draw_rates_and_requests(pad, y, model);
    draw_token_counts(pad, y + 1, model);
    draw_chunk_counts(pad, y + 2, model);
    y + 3
}

/// Draws the rates, the live requests, and what became of the others.
fn draw_rates_and_requests(pad: &mut Pad<'_>, y: u16, model: &Model) {
    let requests = &model.requests;
    pad.draw_text(1, y, "flow", Ink::Head);
    let has_room_for_frames = pad.width() >= WIDE_COLUMNS;
    let mut x = pad.draw_text(TOTALS_X, y, &describe_rates_and_live_requests(model, has_room_for_frames), Ink::Strong);
    for (count, state) in [(model.abandoned_requests, "abandoned"), (model.unanswered_requests, "unanswered")] {
        // Most runs have none.
        if count > 0 {
            let ink = Ink::Health(Health::Warning);
            x = pad.draw_text(x + 2, y, pad.theme.health_symbol(Health::Warning), ink);
            x = pad.draw_text(x + 1, y, &format!("{} {state}", format_count(count)), ink);
        }
    }
    let sums = format!(
        "of {}: {} finished, {} aborted",
        format_count(requests.seen),
        known_or_dash(requests.completed, format_count),
        format_count(requests.aborted)
    );
    let x = pad.draw_text(x + 1, y, &sums, Ink::Dim);
    if model.error_responses > 0 {
        let errors = plural(model.error_responses, "error response");
        pad.draw_text(x, y, &format!("; {errors}"), Ink::Dim);
    }
}

/// Rates and live requests. Once the scheduler's sends are not observed any more, no rate is known, and the live requests are those of that
/// moment.
fn describe_rates_and_live_requests(model: &Model, has_room_for_frames: bool) -> String {
    let live = format_count(model.requests.live);
    match model.sends_end {
        Some(end) => format!("{}, then {live} live", model.describe_observation_end(end)),
        None => format!("{}  {live} live", describe_rates(model, has_room_for_frames)),
    }
}

/// Rates with the time over which they are means, which is shorter in the first ten seconds. The rate of frames is left out unless
/// `has_room_for_frames`.
fn describe_rates(model: &Model, has_room_for_frames: bool) -> String {
    let Some(rates) = model.send_rates else { return "rate unknown".to_owned() };
    // Each hop below has its own rate of frames.
    let frames = match rates.frames {
        Some(frames) if has_room_for_frames => format!("  {} frames/s", format_rate_per_second(frames)),
        _ => String::new(),
    };
    format!("{} tok/s{frames} ({})", format_rate_per_second(rates.tokens), model.format_rate_window())
}

/// The count with `noun` for what it counts, or the reason why it is not observed.
fn count_or_reason(count: Option<u64>, noun: &str, reason_unobserved: &str) -> String {
    count.map_or_else(|| reason_unobserved.to_owned(), |count| format!("{} {noun}", format_count(count)))
}

/// Draws the numbers of tokens that were sent, received, delivered and lost.
fn draw_token_counts(pad: &mut Pad<'_>, y: u16, model: &Model) {
    let tokens = &model.tokens;
    pad.draw_text(1, y, "tokens", Ink::Head);
    let deliveries_unobserved = match model.chunks.delivered {
        None => model.explain_unobserved_deliveries(),
        Some(_) => "delivered tokens unknown: responses carry text only",
    };
    // The short words are the headings of the table of requests.
    let has_room_for_words = pad.width() >= WHOLE_WORDS_COLUMNS;
    let [received_word, delivered_word] =
        if has_room_for_words { ["received", "delivered"] } else { ["recv", "deliv"] };
    let reached = format!(
        "{} sent  {}  {}",
        format_count(tokens.sent),
        count_or_reason(tokens.received, received_word, model.explain_unobserved_receives()),
        count_or_reason(tokens.delivered, delivered_word, deliveries_unobserved)
    );
    let mut x = pad.draw_text(TOTALS_X, y, &reached, Ink::Plain);
    if let Some(lost) = model.chunks.tokens_lost {
        x = draw_problem_count(pad, x + 2, y, lost, &format!("{} lost", format_count(lost)));
    }
    if tokens.missing_on_wire > 0 {
        let text = format!("{} missing on the wire", format_count(tokens.missing_on_wire));
        draw_problem_count(pad, x + 2, y, tokens.missing_on_wire, &text);
    }
}

/// Draws the numbers of chunks that were sent, merged and dropped, or predicted to be.
fn draw_chunk_counts(pad: &mut Pad<'_>, y: u16, model: &Model) {
    let chunks = &model.chunks;
    pad.draw_text(1, y, "chunks", Ink::Head);
    let mut x = pad.draw_text(TOTALS_X, y, &format!("{} sent", format_count(chunks.sent)), Ink::Plain);
    let mut predicted_what = "predicted";
    if let (Some(merged), Some(dropped)) = (chunks.merged, chunks.dropped_confirmed) {
        x = pad.draw_text(x + 2, y, &format!("{} merged", format_count(merged)), Ink::Plain);
        x = draw_problem_count(pad, x + 2, y, dropped, &format!("{} dropped", format_count(dropped)));
    } else {
        let reason = if model.knows_receiver() { "not observed" } else { model.explain_unobserved_deliveries() };
        x = pad.draw_text(x + 2, y, &format!("merged and dropped: {reason}"), Ink::Plain);
        // Without observed deliveries, no word for it stands before the prediction.
        predicted_what = "dropped, predicted";
    }
    if let Some(predicted) = chunks.shown_prediction() {
        let whole_text = format!("({} {predicted_what} from wakeups)", format_count(predicted));
        let short_text = format!("({} {predicted_what})", format_count(predicted));
        let text = if x + 1 + text_width(&whole_text) <= pad.width() { whole_text } else { short_text };
        pad.draw_text(x + 1, y, &text, Ink::Dim);
    }
}

/// Role of the thread that receives the tokens last, at the end of the last hop, and how it spent the last seconds. Of several threads, it
/// is the first one that was sampled in that time; `None` without one.
fn role_and_shares_of_last_receiver(model: &Model) -> Option<(&str, TimeShares)> {
    let last_role = &*model.hops.last()?.ends.to;
    let mut receivers =
        model.threads.iter().flatten().filter(|thread| thread.is_receiver && *thread.role == *last_role);
    let sampled = receivers.find(|thread| thread.recent.is_some())?;
    Some((sampled.role.as_str(), sampled.recent?))
}

/// Share of a thread's time in one state; `None` if it is unknown, for this reason.
struct StateShare {
    share: Option<f64>,
    state: &'static str,
    reason_unknown: &'static str,
}

/// Draws how the thread that receives the tokens last spends its time. Draws nothing if no such thread was sampled. Returns the next free
/// row.
fn draw_receiving_thread(pad: &mut Pad<'_>, y: u16, model: &Model) -> NextRow {
    let Some((role, shares)) = role_and_shares_of_last_receiver(model) else { return y };
    let x = pad.draw_text(1, y, role, Ink::Head);
    let states = [
        // Every sample has the time on a CPU, so no reason is needed.
        StateShare { share: Some(shares.running), state: "running", reason_unknown: "" },
        StateShare { share: shares.waiting, state: "waiting for a CPU", reason_unknown: NO_WAITS },
        StateShare { share: shares.throttled, state: "throttled", reason_unknown: NO_THROTTLING },
        StateShare { share: shares.blocked, state: "asleep", reason_unknown: NO_WAITS },
    ];
    let mut known = Vec::new();
    for StateShare { share, state, .. } in &states {
        if let Some(share) = share {
            known.push(format!("{} {state}", decimal_percent(*share)));
        }
    }
    let mut x = pad.draw_text(x + 1, y, &known.join("  "), Ink::Plain);
    let time = format!("({})", model.format_recent_seconds());
    if x + 2 + text_width(&time) <= pad.width() {
        x = pad.draw_text(x + 2, y, &time, Ink::Dim);
    }
    // Behind the known shares, why the others are not.
    for StateShare { state, reason_unknown, .. } in states.iter().filter(|state| state.share.is_none()) {
        let text = format!("{state}: {reason_unknown}");
        // The CPU tab has the reasons, too.
        let text = if x + 2 + text_width(&text) <= pad.width() { text } else { format!("{state} unknown: tab 6") };
        x = pad.draw_text(x + 2, y, &text, Ink::Dim);
    }
    y + 1
}

/// Draws `text`, highlighted as critical if `count` is not 0. Returns the next free column.
fn draw_problem_count(pad: &mut Pad<'_>, x: u16, y: u16, count: u64, text: &str) -> NextColumn {
    if count > 0 {
        let x = pad.draw_text(x, y, pad.theme.health_symbol(Health::Critical), Ink::Health(Health::Critical));
        pad.draw_text(x + 1, y, text, Ink::Health(Health::Critical))
    } else {
        pad.draw_text(x, y, text, Ink::Plain)
    }
}

/// Draws the charts one below the other, and a time axis below them. Leaves `reserved_rows` free below the axis. On a low screen, charts
/// that would not fit take all but [`MIN_FINDING_ROWS`] of these rows. Returns the next free row.
fn draw_charts(pad: &mut Pad<'_>, y: u16, reserved_rows: u16, model: &Model, ui: &Ui) -> NextRow {
    let window = TimeWindow::selected(model, ui);
    let columns = chart::column_count(pad.width());
    window.draw_heading(pad, y, "", model);
    let first_chart_y = y + 1;
    // One row for the axis.
    let rows_for_charts = pad.height().saturating_sub(first_chart_y + reserved_rows + 1);
    let charts = charts_in_order(model, usize::from(rows_for_charts));
    let rows_per_chart = (rows_for_charts / charts.len() as u16).clamp(1, MAX_CHART_ROWS);
    // Charts of one row that do not fit beside the reserved rows may take the rest of these.
    let always_reserved_rows = reserved_rows.min(MIN_FINDING_ROWS);
    let mut next_y = first_chart_y;
    let mut drawn = 0;
    for series in &charts {
        let end_y = next_y + rows_per_chart;
        // The axis needs the row at `end_y`.
        if end_y + always_reserved_rows >= pad.height() {
            break;
        }
        chart::draw_chart(&mut pad.pad_of_rows(next_y, rows_per_chart), series, &model.curves, window);
        next_y = end_y;
        drawn += 1;
    }
    let axis_y = next_y;
    let chart_area = Rect::new(chart::FIRST_COLUMN_X, first_chart_y, columns, axis_y - first_chart_y);
    window.add_click_areas(pad, chart_area, &model.curves);
    window.draw_axis(pad, chart::FIRST_COLUMN_X, axis_y, columns, model);
    let hidden = charts.len() - drawn;
    if hidden > 0 {
        pad.draw_at_right_edge(axis_y, &format!("{hidden} more: enlarge "), Ink::Dim);
    }
    axis_y + 1
}

/// Time series in the order in which they are drawn. If not each of them gets a row, the curve of the worst finding comes second, so that
/// it is not one of those left out.
fn charts_in_order(model: &Model, free_rows: usize) -> [ChartSeries<'_>; 6] {
    let mut charts = chart_series(model);
    let chart_of_worst = model.findings.first().and_then(|worst| chart_index_of_finding(worst.kind));
    if free_rows < charts.len()
        && let Some(index) = chart_of_worst
    {
        // Moves it behind the first one. Those in between move back by one.
        charts[1..=index].rotate_right(1);
    }
    charts
}

/// Time series of the run, the most important first: a low screen shows only those that fit. Each reads its value from the slot, which has
/// the counts of one second. It has no value after the observation of what it counts has ended.
pub(super) fn chart_series(model: &Model) -> [ChartSeries<'_>; 6] {
    let chunks = &model.chunks;
    let worst_hop_health = model.hops.iter().map(|hop| hop.health).max().unwrap_or_default();
    // A hop shows a backlog only if its receives are observed.
    let observes_receives = model.output_hops().any(|hop| hop.backlog_max_frames.is_some());
    [
        ChartSeries::new("tokens/s", chart::format_whole, |slot| {
            (!slot.sends_ended).then_some(slot.passed.tokens_sent as f64)
        })
        .observed_until(model.sends_end, model),
        ChartSeries::new("backlog", chart::format_whole, |slot| max_backlog_frames(model, slot))
            .with_health(worst_hop_health)
            .observed_if(observes_receives, model.explain_unobserved_receives())
            .observed_until(model.receives_end, model),
        ChartSeries::new("gap p99", chart::format_ns, |slot| chart::p99_ns(&slot.gap))
            .observed_if(model.gap.waiting.is_some(), model.explain_unobserved_gaps())
            .observed_until(model.receives_end, model),
        lost_chunks_series(model).with_health(Health::Critical),
        ChartSeries::new("chunks merged", chart::format_whole, |slot| {
            (!slot.deliveries_ended).then_some(slot.passed.chunks_merged as f64)
        })
        .observed_if(chunks.merged.is_some(), model.explain_unobserved_deliveries())
        .observed_until(model.deliveries_end, model),
        ChartSeries::new("live requests", chart::format_whole, |slot| (!slot.sends_ended).then_some(slot.live as f64))
            .observed_until(model.sends_end, model),
    ]
}

/// Time series of the chunks that were lost or, if no deliveries are observed, are predicted to be. A slot has the counts of one second,
/// and no value after the observation has ended.
fn lost_chunks_series(model: &Model) -> ChartSeries<'_> {
    let chunks = &model.chunks;
    let is_predicted = chunks.dropped_confirmed.is_none() && chunks.shown_prediction().is_some();
    if is_predicted {
        ChartSeries::new("chunks lost?", chart::format_whole, |slot| {
            (!slot.receives_ended).then_some(slot.passed.dropped_predicted as f64)
        })
        .observed_until(model.receives_end, model)
    } else {
        ChartSeries::new("chunks lost", chart::format_whole, |slot| {
            (!slot.deliveries_ended).then_some(slot.passed.chunks_dropped as f64)
        })
        .observed_if(chunks.dropped_confirmed.is_some(), model.explain_unobserved_deliveries())
        .observed_until(model.deliveries_end, model)
    }
}

/// Index in [`chart_series`] of the curve that shows a finding of this kind; `None` for kinds without one.
fn chart_index_of_finding(kind: &str) -> Option<usize> {
    match kind {
        "backlog" => Some(BACKLOG_CHART),
        "first-token-gap" => Some(GAP_CHART),
        "dropped-chunks" | "dropped-chunks-predicted" => Some(LOST_CHUNKS_CHART),
        "merged-chunks" | "would-drop" => Some(MERGED_CHUNKS_CHART),
        _ => None,
    }
}

/// Largest backlog of any hop in frames, that of requests included; `None` if receives are not observed.
fn max_backlog_frames(model: &Model, slot: &SlotValues) -> Option<f64> {
    let observed = model.hops.iter().filter(|hop| hop.backlog_max_frames.is_some());
    observed.filter_map(|hop| hops::max_backlog_of_group(slot, hop.group)).reduce(f64::max)
}

/// Draws the first findings, one a row, below a heading in row `y`.
fn draw_findings(pad: &mut Pad<'_>, y: u16, model: &Model) {
    let free_rows = pad.height().saturating_sub(y + 1);
    let shown = usize::from(free_rows.min(MAX_FINDINGS)).min(model.findings.len());
    let hidden = model.findings.len() - shown;
    // The key `5` shows all of them.
    let more = if hidden > 0 { format!(", {hidden} more: 5") } else { String::new() };
    pad.draw_heading(y, &format!("findings{more}"));
    for (row, finding) in model.findings.iter().take(shown).enumerate() {
        let line_y = y + 1 + row as u16;
        pad.add_click_area(Rect::new(0, line_y, pad.width(), 1), Action::OpenItem(Tab::Findings, row));
        let health = Health::from(finding.verdict.severity);
        let severity = format!("{} {:<SEVERITY_WIDTH$}", pad.theme.health_symbol(health), health.label());
        pad.draw_text(1, line_y, &severity, Ink::Health(health));
        // Padded to the usual width, so that the summaries are below each other.
        let span = describe_span(model, finding);
        pad.draw_text(SPAN_X, line_y, &format!("{span:<SPAN_WIDTH$} {}", finding.verdict.summary), Ink::Plain);
    }
}

/// Start and end of the finding on the run's clock: `0:05 to now`.
fn describe_span(model: &Model, finding: &Finding) -> String {
    format!("{} {}", format_elapsed_clock(model.finding_start_ns(finding)), model.format_finding_end(finding))
}

/// Draws the kind and time of the worst finding, whose summary is in the first line if it is at least a warning. Returns the next free row.
fn draw_worst_finding(pad: &mut Pad<'_>, y: u16, model: &Model) -> NextRow {
    let Some(worst) = model.findings.first() else { return y };
    pad.add_click_area(Rect::new(0, y, pad.width(), 1), Action::OpenItem(Tab::Findings, 0));
    let x = pad.draw_text(1, y, "finding", Ink::Head);
    let health = Health::from(worst.verdict.severity);
    let kind = format!("{} {}", pad.theme.health_symbol(health), worst.kind);
    let x = pad.draw_text(x + 2, y, &kind, Ink::Health(health));
    let others = model.findings.len() - 1;
    let more = if others > 0 { format!("   {others} more: 5") } else { String::from("   details: 5") };
    pad.draw_text(x + 2, y, &format!("{}{more}", describe_span(model, worst)), Ink::Plain);
    y + 1
}
