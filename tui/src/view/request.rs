//! Request tab: stages to scale, every chunk as a tick, the list of chunks, and evidence for the flags.

use outputs::report::explain_tool_calls;
use session::units::{format_count, format_duration, known_or_dash};
use trace::MonoNs;
use trace::event::ToolCallOutcome;

use super::draw_itl;
use super::pad::{CellRow, Pad};
use super::path;
use crate::state::Model;
use crate::state::action::Tab;
use crate::state::chunk_status::ChunkStatus;
use crate::state::flags::{Flag, Health};
use crate::state::request_detail::{ChunkLine, RequestDetail, TimeSpan, Track};
use crate::state::request_row::RequestRow;
use crate::state::ui::Ui;
use crate::theme::Ink;

/// Cells reserved for the labels of the tracks.
const LABEL_WIDTH: u16 = 19;
/// Rows reserved for the list of chunks, including its heading.
const MIN_LIST_ROWS: u16 = 6;
/// Maximum number of rows for the explanation of a tool call.
const MAX_TOOL_CALL_ROWS: u16 = 6;

pub(super) fn draw_tab(pad: &mut Pad<'_>, model: &Model, ui: &Ui) {
    let Some(detail) = &model.detail else {
        pad.draw_text(2, 1, "no request is selected: choose one in Requests (2)", Ink::Dim);
        return;
    };
    draw_summary(pad, detail, model);
    let mut y = path::draw_breakdown(pad, 1, "first token", &detail.first_token_path);
    let itl = &detail.facts.itl;
    if itl.delivered.is_some() || itl.sent.is_some() {
        y = draw_itl(pad, y, 2, itl.delivered, itl.sent);
    }
    y = draw_frontend_waits(pad, y, detail);
    for (flag, evidence) in &detail.evidence {
        let x = pad.draw_text(1, y, flag.label(), Ink::Flag(*flag));
        let max_rows = if *flag == Flag::ToolCall { MAX_TOOL_CALL_ROWS } else { 2 };
        y = pad.draw_paragraph(x + 1, y, max_rows, evidence, Ink::Plain);
    }
    y = draw_tool_calls(pad, y, detail);
    y = draw_stages(pad, y, detail);
    y = draw_tracks(pad, y, detail);
    draw_chunks(pad, y, detail, ui);
}

/// Draws the rid, and the state and totals if the request is known.
fn draw_summary(pad: &mut Pad<'_>, detail: &RequestDetail, model: &Model) {
    let x = pad.draw_text(1, 0, "rid ", Ink::Head);
    let x = pad.draw_text(x, 0, &detail.rid, Ink::Strong) + 2;
    match &detail.row {
        None => {
            pad.draw_text(x, 0, "the ledger has evicted this request", Ink::Dim);
        }
        Some(row) => {
            let mut x = pad.draw_text(x, 0, row.state.label(), Ink::Strong);
            // The totals need a narrow line for themselves.
            if let Some(began) = model.table.clock.time_of_day(row.first_at).filter(|_| pad.width() >= 100) {
                x = pad.draw_text(x + 2, 0, &format!("began {began}"), Ink::Plain);
            }
            pad.draw_text(x + 2, 0, &describe_totals(row), Ink::Plain);
        }
    }
}

/// Draws what became of the response's tool calls, unless the evidence for a flag has it.
fn draw_tool_calls(pad: &mut Pad<'_>, y: u16, detail: &RequestDetail) -> u16 {
    let Some(calls) = &detail.facts.tool_calls else { return y };
    if detail.evidence.iter().any(|(flag, _)| *flag == Flag::ToolCall) {
        return y;
    }
    let ink = match calls.outcome {
        outcome if outcome.is_damaged() => Ink::Health(Health::Critical),
        ToolCallOutcome::Unfinished | ToolCallOutcome::Unjudged => Ink::Health(Health::Warning),
        _ => Ink::Plain,
    };
    let x = pad.draw_text(1, y, "tool calls ", Ink::Head);
    pad.draw_paragraph(x, y, MAX_TOOL_CALL_ROWS, &explain_tool_calls(calls), ink)
}

/// Draws how long the response waited in a frontend, if known.
fn draw_frontend_waits(pad: &mut Pad<'_>, y: u16, detail: &RequestDetail) -> u16 {
    let Some(waits) = &detail.facts.frontend else { return y };
    let x = pad.draw_text(1, y, "frontend ", Ink::Head);
    let text = format!(
        "first token waited {}, last token {}, after the worker wrote them",
        known_or_dash(waits.first_token_ns, format_duration),
        known_or_dash(waits.last_token_ns, format_duration)
    );
    pad.draw_text(x, y, &text, Ink::Plain);
    y + 1
}

fn describe_totals(row: &RequestRow) -> String {
    let worker = row.worker.map(|worker| format!("  worker {worker}")).unwrap_or_default();
    format!(
        "gap {}{worker}  prompt {}  tokens {} sent {} delivered  chunks {}",
        known_or_dash(row.gap_ns, format_duration),
        known_or_dash(row.prompt_tokens.map(u64::from), format_count),
        format_count(row.tokens_sent.into()),
        known_or_dash(row.tokens_delivered.map(u64::from), format_count),
        format_count(row.chunks_sent.into())
    )
}

fn draw_stages(pad: &mut Pad<'_>, y: u16, detail: &RequestDetail) -> u16 {
    pad.draw_heading(y, "stages");
    if detail.stages.is_empty() {
        pad.draw_text(3, y + 1, "the journal no longer contains them", Ink::Dim);
        return y + 2;
    }
    let first = detail.stages[0].at;
    let last = detail.stages[detail.stages.len() - 1].at;
    let bar_width = pad.width().saturating_sub(85).min(60);
    let mut before = first;
    for (row, stage) in detail.stages.iter().enumerate() {
        let y = y + 1 + row as u16;
        let step_ns = stage.at.since(before);
        before = stage.at;
        let at_ns = stage.at.since(first);
        pad.draw_right_aligned(1, y, 8, &format_duration(at_ns), Ink::Strong);
        pad.draw_right_aligned(10, y, 9, &format!("+{}", format_duration(step_ns)), Ink::Dim);
        pad.draw_text(21, y, &stage.text, Ink::Plain);
        if bar_width > 0 {
            let whole_ns = last.since(first);
            let start = scaled_cell(at_ns - step_ns, whole_ns, bar_width);
            let end = scaled_cell(at_ns, whole_ns, bar_width);
            // A short step must be visible too.
            let filled = end.saturating_sub(start).max(usize::from(step_ns > 0));
            let text = format!("{}{}", " ".repeat(start), pad.theme.rich_or_ascii("━", "=").repeat(filled));
            pad.draw_clipped(83, y, bar_width, &text, Ink::Series);
        }
    }
    y + 1 + detail.stages.len() as u16
}

/// Cell of this duration on a scale of `width` cells for the whole one.
fn scaled_cell(ns: u64, whole_ns: u64, width: u16) -> usize {
    (u128::from(ns) * u128::from(width) / u128::from(whole_ns.max(1))) as usize
}

fn draw_tracks(pad: &mut Pad<'_>, y: u16, detail: &RequestDetail) -> u16 {
    let Some(span) = detail.time_span() else { return y };
    pad.draw_heading(y, &format!("chunks over {}", format_duration(span.length_ns())));
    let rows = (detail.tracks.len() as u16).min(pad.height().saturating_sub(y + 1 + MIN_LIST_ROWS));
    for (row, track) in detail.tracks.iter().take(rows.into()).enumerate() {
        draw_track(pad, y + 1 + row as u16, track, span);
    }
    y + 1 + rows
}

fn draw_track(pad: &mut Pad<'_>, y: u16, track: &Track, span: TimeSpan) {
    pad.draw_clipped(1, y, LABEL_WIDTH, &track.label, Ink::Head);
    let width = pad.width().saturating_sub(LABEL_WIDTH + 3);
    let mut cells: Vec<Option<char>> = vec![None; width.into()];
    for tick in &track.ticks {
        let cell = scaled_cell(tick.at.since(span.first), span.length_ns(), width.saturating_sub(1));
        let shown = cells[cell].unwrap_or(tick.symbol);
        cells[cell] = Some(more_severe_tick(shown, tick.symbol));
    }
    for (x, cell) in cells.into_iter().enumerate() {
        let (symbol, ink) = match cell {
            None => (pad.theme.rich_or_ascii('·', ' '), Ink::Dim),
            Some('|') => (pad.theme.rich_or_ascii('│', '|'), Ink::Series),
            Some(symbol) => (symbol, Ink::Health(tick_health(symbol))),
        };
        pad.draw_text(LABEL_WIDTH + 2 + x as u16, y, symbol.encode_utf8(&mut [0; 4]), ink);
    }
}

/// Returns the worse of two ticks that share a cell.
fn more_severe_tick(a: char, b: char) -> char {
    const BEST_FIRST: [char; 5] = ['|', '.', 'o', '?', 'x'];
    let severity_of_a = BEST_FIRST.iter().position(|symbol| *symbol == a);
    let severity_of_b = BEST_FIRST.iter().position(|symbol| *symbol == b);
    if severity_of_b > severity_of_a { b } else { a }
}

fn tick_health(symbol: char) -> Health {
    match symbol {
        'x' => Health::Critical,
        '?' | 'o' => Health::Warning,
        _ => Health::Info,
    }
}

/// Columns of the list of chunks: fixed ones, and one with the queue wait for each hop.
fn chunk_cells(y: u16, hop_count: usize) -> CellRow {
    CellRow { x: 1, y, pitch: if hop_count == 1 { 10 } else { 9 }, width: 8 }
}

/// First cell of the outcome, which follows the other columns.
fn outcome_x(hop_count: usize) -> u16 {
    const FIXED_COLUMNS: u16 = 5;
    let cells = chunk_cells(0, hop_count);
    cells.x + (FIXED_COLUMNS + hop_count as u16) * cells.pitch
}

fn draw_chunks(pad: &mut Pad<'_>, y: u16, detail: &RequestDetail, ui: &Ui) {
    let rows = pad.height().saturating_sub(y + 2);
    pad.click_areas.page_rows = rows.into();
    let evicted = match detail.known_since {
        Some(_) => format!("; older ones were evicted (--journal {} is reached)", ui.options.chunk_history),
        None => String::new(),
    };
    pad.draw_heading(
        y,
        &format!(
            "{} chunks (| sent  . waiting  o merged  x dropped  ? predicted or unknown){evicted}",
            detail.chunks.len()
        ),
    );
    let wait_headings: Vec<String> = match detail.receiving_roles.as_slice() {
        [_] | [] => vec!["waited".to_owned()],
        roles => roles.iter().map(|role| wait_heading(role)).collect(),
    };
    let hop_count = wait_headings.len();
    let mut headings = vec!["chunk", "sent at"];
    headings.extend(wait_headings.iter().map(String::as_str));
    headings.extend(["tokens", "up to", "wakeup"]);
    pad.draw_cells(chunk_cells(y + 1, hop_count), headings, Ink::Dim);
    pad.draw_text(outcome_x(hop_count), y + 1, "outcome", Ink::Dim);
    let first = ui.selected_index(Tab::Request).min(detail.chunks.len().saturating_sub(rows.into()));
    let start = detail.time_span().map(|span| span.first);
    for (row, (index, chunk)) in (0..rows).zip(detail.chunks.iter().enumerate().skip(first)) {
        draw_chunk(pad, y + 2 + row, index, chunk, start);
    }
}

/// Heading of the column with the wait on the hop into this role: the beginning of its last word.
fn wait_heading(role: &str) -> String {
    let word = role.rsplit(['-', ' ']).next().unwrap_or(role);
    format!("wait {}", word.chars().take(3).collect::<String>())
}

fn draw_chunk(pad: &mut Pad<'_>, y: u16, index: usize, chunk: &ChunkLine, start: Option<MonoNs>) {
    let sent_ns = chunk.sent.zip(start).map(|(at, start)| at.since(start));
    let mut cells = vec![format_count(index as u64 + 1), known_or_dash(sent_ns, format_duration)];
    cells.extend(chunk.waits_ns.iter().map(|wait_ns| known_or_dash(*wait_ns, format_duration)));
    cells.push(format_count(chunk.tokens.into()));
    cells.push(known_or_dash(chunk.end.map(u64::from), format_count));
    cells.push(known_or_dash(chunk.wakeup, |number| number.to_string()));
    let hop_count = chunk.waits_ns.len();
    pad.draw_cells(chunk_cells(y, hop_count), cells, Ink::Plain);
    let ink = match chunk.status {
        ChunkStatus::Dropped => Ink::Health(Health::Critical),
        ChunkStatus::DropPredicted | ChunkStatus::Merged | ChunkStatus::Unknown => Ink::Health(Health::Warning),
        ChunkStatus::Delivered => Ink::Health(Health::Good),
        ChunkStatus::Sent | ChunkStatus::Waiting | ChunkStatus::Received => Ink::Plain,
    };
    let x = pad.draw_text(outcome_x(hop_count), y, chunk.status.label(), ink);
    if let Some(next) = chunk.next_in_wakeup {
        let delay = format_duration(next.delay_ns);
        let text = format!("chunk {} received {delay} later", format_count(next.number as u64));
        // The text may be left out, but not cut.
        if x + 2 + text.len() as u16 <= pad.width() {
            pad.draw_text(x + 2, y, &text, Ink::Dim);
        }
    }
    if let Some(outcome) = chunk.tool_call {
        let text = format!("tool call: {}", outcome.as_str());
        let ink = Ink::Health(if outcome.is_damaged() { Health::Critical } else { Health::Warning });
        pad.draw_text(x + 2, y, &text, ink);
    }
}
