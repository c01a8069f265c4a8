//! Request tab: stages to scale, every chunk as a tick, the list of chunks, and evidence for the flags.

use outputs::report::explain_tool_calls;
use session::units::{format_count, format_duration, known_or_dash};
use trace::MonoNs;
use trace::event::{AnswerEnd, ToolCallOutcome};
use trace::ledger::{ChunkLife, ChunkOutcome, ChunkState, ResponseEnd};
use trace::words::plural;

use super::pad::{CellRow, NextRow, Pad, text_width};
use super::path::{self, LegendRoom};
use super::{ItlQuantiles, draw_inter_token_latency};
use crate::state::Model;
use crate::state::action::Tab;
use crate::state::chunk_status::chunk_state_label;
use crate::state::flags::{Flag, Health};
use crate::state::request_detail::{PathStage, RequestDetail, Tick, TickTrack, TimeSpan};
use crate::state::request_facts::FlagEvidence;
use crate::state::request_row::RequestRow;
use crate::state::run_time::RunClock;
use crate::state::ui::Ui;
use crate::theme::Ink;

/// Cells for the rid on a narrow screen. From [`WIDE_COLUMNS`] on, half of the width is for it.
const NARROW_RID_WIDTH: u16 = 24;
const WIDE_COLUMNS: u16 = 80;
/// Maximum number of rows for the totals of the request, if they do not fit beside its rid.
const MAX_TOTALS_ROWS: u16 = 2;
/// First cell of the times of a stage, behind its time of day.
const STAGE_TIMES_X: u16 = 15;
/// Cells for a duration, and for one behind a `+`.
const DURATION_WIDTH: u16 = 8;
const STEP_WIDTH: u16 = DURATION_WIDTH + 1;
/// First cell of the bars beside the stages.
const BAR_X: u16 = 97;
/// Minimum and maximum cells of such a bar; with fewer free ones, there is none.
const MIN_BAR_WIDTH: u16 = 10;
const MAX_BAR_WIDTH: u16 = 60;
/// Cells for the labels of the tracks; the longest of SGLang is `detokenizer-router received (0)`.
const MIN_LABEL_WIDTH: u16 = 19;
const MAX_LABEL_WIDTH: u16 = 31;
/// Rows reserved for the list of chunks, including its heading.
const MIN_LIST_ROWS: u16 = 5;
/// Maximum number of rows for the explanation of a tool call.
const MAX_TOOL_CALL_ROWS: u16 = 6;
/// Maximum number of rows for the evidence of a flag: if the stages are not shown, beside them, and beside them on a low screen.
const MAX_EVIDENCE_ROWS: u16 = 8;
const USUAL_EVIDENCE_ROWS: u16 = 4;
const LOW_EVIDENCE_ROWS: u16 = 2;
/// Maximum number of rows for the legend of the breakdown.
const MAX_LEGEND_ROWS: u16 = 4;
/// Below this height, the evidence is cut to leave room for stages and chunks.
const LOW_ROWS: u16 = 24;

/// Draws everything known of the selected request from top to bottom: totals, breakdowns, evidence for its flags, stages, and its chunks.
pub(super) fn draw_request_tab(pad: &mut Pad<'_>, model: &Model, ui: &Ui) {
    let Some(detail) = &model.detail else {
        pad.draw_text(2, 1, "no request is selected: choose one in Requests (2)", Ink::Dim);
        return;
    };
    let mut y = draw_request_summary(pad, detail, model);
    let legend_room = room_for_legend(pad.height(), ui);
    y = draw_pair_of_request(pad, y, model, legend_room);
    y = path::draw_breakdown(pad, y, "first token", &detail.first_token_path, legend_room);
    let itl = &detail.facts.itl;
    if itl.delivered.is_some() || itl.sent.is_some() {
        // Quantiles of one request are accurate to 6 %.
        let title = "itl ~p50/90/99";
        y = draw_inter_token_latency(pad, y, model, &ItlQuantiles { title, client: itl.delivered, engine: itl.sent });
    }
    y = draw_frontend_waits(pad, y, detail);
    for evidence in &detail.evidence {
        y = draw_flag_evidence(pad, y, evidence, ui);
    }
    y = draw_tool_calls(pad, y, detail);
    y = if ui.shows_cut_list {
        pad.draw_heading(y, "stages: m");
        y + 1
    } else {
        draw_stages(pad, y, detail, model.table.clock)
    };
    y = draw_tracks(pad, y, detail, ui);
    draw_chunks(pad, y, detail, ui);
}

/// Room for the legend of a breakdown on a screen of this height. Its `more` is what shows the parts that are left out: the key `m`, which
/// shows whole lists instead of the stages or, if it was pressed, a larger screen.
fn room_for_legend(height: u16, ui: &Ui) -> LegendRoom {
    if ui.shows_cut_list {
        LegendRoom { max_rows: MAX_LEGEND_ROWS, more: "enlarge" }
    } else {
        LegendRoom { max_rows: if height < LOW_ROWS { 1 } else { 2 }, more: "m" }
    }
}

/// Draws the prefill and the decode server that both process the request, and the parts of its time to first token on both. Draws nothing
/// if the request is on one server only. Returns the next free row.
fn draw_pair_of_request(pad: &mut Pad<'_>, y: u16, model: &Model, legend_room: LegendRoom) -> NextRow {
    let Some(request) = &model.pair_request else { return y };
    let x = pad.draw_text(1, y, "pair ", Ink::Head);
    pad.draw_text(x, y, &request.describe(pad.theme.rich_or_ascii("→", "->")), Ink::Plain);
    let title = format!("TTFT {} on both", format_duration(request.line.ttft_ns));
    path::draw_breakdown(pad, y + 1, &title, &request.segments(), legend_room)
}

/// Draws why the request has a flag. Returns the next free row.
fn draw_flag_evidence(pad: &mut Pad<'_>, y: u16, evidence: &FlagEvidence, ui: &Ui) -> NextRow {
    let max_rows = if evidence.flag == Flag::ToolCall {
        MAX_TOOL_CALL_ROWS
    } else if ui.shows_cut_list {
        MAX_EVIDENCE_ROWS
    } else if pad.height() < LOW_ROWS {
        LOW_EVIDENCE_ROWS
    } else {
        USUAL_EVIDENCE_ROWS
    };
    let x = pad.draw_text(1, y, evidence.flag.label(), Ink::Flag(evidence.flag));
    pad.draw_paragraph(x + 1, y, max_rows, &evidence.text, Ink::Plain)
}

/// Draws the rid, and the state, beginning and totals of a known request. Returns the next free row.
fn draw_request_summary(pad: &mut Pad<'_>, detail: &RequestDetail, model: &Model) -> NextRow {
    let x = pad.draw_text(1, 0, "rid ", Ink::Head);
    // State and beginning follow in the same row.
    let rid_width = if pad.width() < WIDE_COLUMNS { NARROW_RID_WIDTH } else { pad.width() / 2 };
    let rid = pad.shorten_id(&detail.rid, rid_width);
    let x = pad.draw_text(x, 0, &rid, Ink::Strong) + 2;
    let Some(row) = &detail.row else {
        pad.draw_text(x, 0, "the ledger has evicted this request", Ink::Dim);
        return 1;
    };
    let x = pad.draw_text(x, 0, row.state.label(), Ink::Strong);
    let began = format!("began {}", model.table.clock.format_moment(row.began_at()));
    let x = pad.draw_text(x + 2, 0, &began, Ink::Plain);
    let totals = describe_request_totals(row);
    if x + 2 + text_width(&totals) <= pad.width() {
        pad.draw_text(x + 2, 0, &totals, Ink::Plain);
        return 1;
    }
    pad.draw_paragraph(1, 1, MAX_TOTALS_ROWS, &totals, Ink::Plain)
}

/// Draws what became of the response's tool calls, unless the evidence for a flag has it. Returns the next free row.
fn draw_tool_calls(pad: &mut Pad<'_>, y: u16, detail: &RequestDetail) -> NextRow {
    let Some(calls) = &detail.facts.tool_calls else { return y };
    if detail.evidence.iter().any(|evidence| evidence.flag == Flag::ToolCall) {
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

/// Draws how long the response waited in a frontend, if known. Returns the next free row.
fn draw_frontend_waits(pad: &mut Pad<'_>, y: u16, detail: &RequestDetail) -> NextRow {
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

/// Words for how the response to the client ended. `None` if it is complete, because that is usual, and a narrow screen has no room to say
/// so.
fn describe_incomplete_response(response: ResponseEnd) -> Option<String> {
    let text = match response.end {
        AnswerEnd::Whole if response.lacks_end == Some(true) => "response without a finish reason",
        AnswerEnd::Whole if response.is_done_without_finish() => "response with [DONE], without a finish reason",
        AnswerEnd::Whole => return None,
        AnswerEnd::ClientLeft => "response ended by the client",
        AnswerEnd::ServerLeft => "response ended early by the server",
        AnswerEnd::Failed => "response ended by an error",
        AnswerEnd::Unknown => "connection closed",
    };
    Some(text.to_owned())
}

/// Words for a complete response with fewer tokens than its last event claims; `None` for any other. More tokens are no problem, because an
/// engine's own endpoint may list the end of the prompt, too.
fn describe_missing_claimed_tokens(response: ResponseEnd) -> Option<String> {
    let claimed = response.claimed_tokens?;
    let carried = response.carried_tokens?;
    if response.end != AnswerEnd::Whole || carried >= claimed {
        return None;
    }
    Some(format!(
        "response claims {} tokens and carries {}",
        format_count(claimed.into()),
        format_count(carried.into())
    ))
}

/// Numbers of the request in one line, with what is unknown.
fn describe_request_totals(row: &RequestRow) -> String {
    let worker = row.worker.map(|worker| format!("worker {worker}"));
    let prompt = row.prompt_tokens.map(|tokens| format!("prompt {} tokens", format_count(tokens.into())));
    let gap = match row.gap_ns {
        Some(ns) => format!("gap {}", format_duration(ns)),
        None => "gap unknown".to_owned(),
    };
    let delivered = match row.tokens_delivered {
        Some(tokens) => format!("{} delivered", format_count(tokens.into())),
        None => "delivered tokens unknown".to_owned(),
    };
    let sent = format!("{} tokens sent", format_count(row.tokens_sent.into()));
    let chunks = plural(row.chunks_sent.into(), "chunk");
    let response_end = row.response_end.and_then(describe_incomplete_response);
    let claim = row.response_end.and_then(describe_missing_claimed_tokens);
    let parts = [Some(gap), worker, prompt, Some(sent), Some(delivered), Some(chunks), response_end, claim];
    let known: Vec<String> = parts.into_iter().flatten().collect();
    known.join(", ")
}

/// Draws the stages, one a row, with the times since the stage before. Returns the next free row.
fn draw_stages(pad: &mut Pad<'_>, y: u16, detail: &RequestDetail, clock: RunClock) -> NextRow {
    let stage_count = detail.stages.len();
    let rows_below_heading = usize::from(pad.height().saturating_sub(y + 1));
    // The chunks below have a heading and at least one row. Without room for both, the key `m` shows them in place of the stages.
    let has_room_for_chunks = rows_below_heading > stage_count + 1;
    pad.draw_heading(y, if has_room_for_chunks { "stages" } else { "stages; the chunks: m" });
    let (Some(first), Some(last)) = (detail.stages.first(), detail.stages.last()) else {
        // The journal keeps a limited number of moments.
        pad.draw_text(3, y + 1, "the journal no longer contains them", Ink::Dim);
        return y + 2;
    };
    let scale = StageScale { first: first.at, whole_ns: last.at.since(first.at), clock };
    let fit_all = stage_count <= rows_below_heading;
    // Otherwise the last row has the number of stages that are not shown.
    let shown = if fit_all { stage_count } else { rows_below_heading.saturating_sub(1) };
    let mut previous_at = first.at;
    for (stage_y, stage) in (y + 1..).zip(&detail.stages[..shown]) {
        draw_stage(pad, stage_y, stage, stage.at.since(previous_at), &scale);
        previous_at = stage.at;
    }
    if !fit_all {
        let text = format!("{} more: enlarge the screen", stage_count - shown);
        pad.draw_text(1, y + 1 + shown as u16, &text, Ink::Dim);
    }
    // If some stages are not shown, this is below the screen, so nothing else is drawn.
    y + 1 + stage_count as u16
}

/// Time that the stages of a request cover.
struct StageScale {
    first: MonoNs,
    whole_ns: u64,
    clock: RunClock,
}

/// Draws a stage with its time of day and its step, the time since the stage before. On a wide screen, also draws the time since the first
/// stage, and a bar that shows the step.
fn draw_stage(pad: &mut Pad<'_>, y: u16, stage: &PathStage, step_ns: u64, scale: &StageScale) {
    let free_width = pad.width().saturating_sub(BAR_X + 2);
    let has_bar = free_width >= MIN_BAR_WIDTH;
    let since_first_ns = stage.at.since(scale.first);
    pad.draw_text(1, y, &scale.clock.format_moment(stage.at), Ink::Strong);
    let mut x = STAGE_TIMES_X;
    if has_bar {
        pad.draw_right_aligned(x, y, DURATION_WIDTH, &format_duration(since_first_ns), Ink::Plain);
        x += DURATION_WIDTH + 1;
    }
    pad.draw_right_aligned(x, y, STEP_WIDTH, &format!("+{}", format_duration(step_ns)), Ink::Dim);
    let text_x = x + STEP_WIDTH + 2;
    // On a narrow screen, the stage's name in the engine's log is left out.
    let fits = text_x + text_width(&stage.text) <= pad.width();
    let text = if fits { &*stage.text } else { stage.text.split(" (").next().unwrap_or_default() };
    pad.draw_text(text_x, y, text, Ink::Plain);
    if has_bar {
        let bar_width = free_width.min(MAX_BAR_WIDTH);
        let step_start_ns = since_first_ns - step_ns;
        let start = scaled_cell(step_start_ns, scale.whole_ns, bar_width);
        let end = scaled_cell(since_first_ns, scale.whole_ns, bar_width);
        // A short step must be visible too.
        let filled = end.saturating_sub(start).max(usize::from(step_ns > 0));
        let bar = format!("{}{}", " ".repeat(start), pad.theme.rich_or_ascii("━", "=").repeat(filled));
        pad.draw_clipped(BAR_X, y, bar_width, &bar, Ink::Series);
    }
}

/// Cell of this duration on a scale of `width` cells for the whole one.
fn scaled_cell(ns: u64, whole_ns: u64, width: u16) -> usize {
    (u128::from(ns) * u128::from(width) / u128::from(whole_ns.max(1))) as usize
}

/// Draws the tracks of ticks over the request's time, as many as fit. Returns the next free row.
fn draw_tracks(pad: &mut Pad<'_>, y: u16, detail: &RequestDetail, ui: &Ui) -> NextRow {
    let Some(span) = detail.time_span() else { return y };
    // The list of chunks follows, unless the user asked for all of the tracks.
    let list_rows = if ui.shows_cut_list { 0 } else { MIN_LIST_ROWS };
    let free_rows = pad.height().saturating_sub(y + 1 + list_rows);
    let rows = (detail.tracks.len() as u16).min(free_rows);
    let hidden = detail.tracks.len() - usize::from(rows);
    let more = if hidden == 0 {
        String::new()
    } else if ui.shows_cut_list {
        format!(", {hidden} more: enlarge the screen")
    } else {
        format!(", {hidden} more: m")
    };
    pad.draw_heading(y, &format!("chunks over {}{more}", format_duration(span.length_ns())));
    let longest_label = detail.tracks.iter().map(|track| text_width(&track.label)).max().unwrap_or(0);
    let label_width = longest_label.clamp(MIN_LABEL_WIDTH, MAX_LABEL_WIDTH);
    for (row, track) in detail.tracks.iter().take(rows.into()).enumerate() {
        draw_track(pad, y + 1 + row as u16, track, span, label_width);
    }
    y + 1 + rows
}

/// Draws the label of the track, and behind it a row of cells over the time span with the ticks.
fn draw_track(pad: &mut Pad<'_>, y: u16, track: &TickTrack, span: TimeSpan, label_width: u16) {
    pad.draw_clipped(1, y, label_width, &track.label, Ink::Head);
    let first_cell_x = label_width + 2;
    let cell_count = pad.width().saturating_sub(first_cell_x + 1);
    let cells = worst_tick_of_each_cell(&track.ticks, span, cell_count);
    for (x, worst_tick) in (first_cell_x..).zip(cells) {
        // A cell without a tick stays blank: a dot stands for a chunk that waits.
        let Some(worst_tick) = worst_tick else { continue };
        // This symbol marks a chunk that was sent, or an observation without a state.
        let is_plain = worst_tick == '|';
        let symbol = if is_plain { pad.theme.rich_or_ascii('│', '|') } else { worst_tick };
        let ink = if is_plain { Ink::Series } else { Ink::Health(tick_health(worst_tick)) };
        pad.draw_text(x, y, symbol.encode_utf8(&mut [0; MAX_UTF8_BYTES]), ink);
    }
}

/// Bytes of the longest character in UTF-8.
const MAX_UTF8_BYTES: usize = 4;

/// Symbol of the worst tick in each of the cells into which the span is divided; `None` in a cell without ticks.
fn worst_tick_of_each_cell(ticks: &[Tick], span: TimeSpan, cell_count: u16) -> Vec<Option<char>> {
    let mut worst_ticks: Vec<Option<char>> = vec![None; cell_count.into()];
    // A tick at the end of the span belongs to the last cell, not behind it.
    let last_cell = cell_count.saturating_sub(1);
    for tick in ticks {
        let cell = scaled_cell(tick.at.since(span.first), span.length_ns(), last_cell);
        if let Some(worst_tick) = worst_ticks.get_mut(cell) {
            let worst_so_far = worst_tick.unwrap_or(tick.symbol);
            *worst_tick = Some(more_severe_tick(worst_so_far, tick.symbol));
        }
    }
    worst_ticks
}

/// Returns the worse of two ticks that share a cell.
fn more_severe_tick(a: char, b: char) -> char {
    // Sent, waiting, merged, unknown or predicted to be dropped, and dropped.
    const BEST_FIRST: [char; 5] = ['|', '.', 'o', '?', 'x'];
    let severity_of_a = BEST_FIRST.iter().position(|symbol| *symbol == a);
    let severity_of_b = BEST_FIRST.iter().position(|symbol| *symbol == b);
    if severity_of_b > severity_of_a { b } else { a }
}

/// Health that a tick's symbol stands for: `x` a dropped chunk, `?` one of unknown outcome, and `o` a merged one.
fn tick_health(symbol: char) -> Health {
    match symbol {
        'x' => Health::Critical,
        '?' | 'o' => Health::Warning,
        _ => Health::Info,
    }
}

/// A column of the list of chunks, before the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkColumn {
    Number,
    SentAt,
    /// Queue wait on the hop with this index.
    Wait(usize),
    Tokens,
    UpTo,
    Wakeup,
}

/// Columns of the list of chunks, with the queue wait on each hop, that fit beside the outcome.
struct ChunkLayout {
    columns: Vec<ChunkColumn>,
    pitch: u16,
}

/// Distance between the starts of two columns if there is one hop, whose column is called `waited`.
const PITCH: u16 = 10;
/// The same for several hops: wide enough for `wait router`.
const WIDE_PITCH: u16 = 12;
/// The same on a screen that is too narrow for the other distances.
const NARROW_PITCH: u16 = 9;

impl ChunkLayout {
    /// Columns that fit into this width beside the outcome.
    fn for_width(width: u16, hop_count: usize) -> Self {
        use ChunkColumn::{Number, SentAt, Tokens, UpTo, Wait, Wakeup};
        const OUTCOME_WIDTH: u16 = 10;
        let waits = (0..hop_count).map(Wait);
        let columns = [Number, SentAt].into_iter().chain(waits).chain([Tokens, UpTo, Wakeup]).collect();
        // The headings of several hops name a role, which needs wider columns.
        let mut layout = Self { columns, pitch: if hop_count == 1 { PITCH } else { WIDE_PITCH } };
        // The least important first, until the outcome fits.
        for hidden in [Wakeup, UpTo, SentAt] {
            if layout.outcome_x() + OUTCOME_WIDTH > width {
                layout.columns.retain(|column| *column != hidden);
            }
        }
        if layout.outcome_x() + OUTCOME_WIDTH > width {
            layout.pitch = NARROW_PITCH;
        }
        layout
    }

    /// Headings of the columns. `roles` receive from the hops; with a single hop, the wait needs no role.
    fn headings(&self, roles: &[String]) -> impl Iterator<Item = String> {
        self.columns.iter().map(move |column| match column {
            ChunkColumn::Number => "chunk".to_owned(),
            ChunkColumn::SentAt => "sent at".to_owned(),
            ChunkColumn::Wait(hop) if roles.len() > 1 => self.wait_heading(&roles[*hop]),
            ChunkColumn::Wait(_) => "waited".to_owned(),
            ChunkColumn::Tokens => "tokens".to_owned(),
            ChunkColumn::UpTo => "up to".to_owned(),
            ChunkColumn::Wakeup => "wakeup".to_owned(),
        })
    }

    /// Heading of the column with the wait on the hop into this role: `wait router`, in narrow columns `->router`.
    fn wait_heading(&self, role: &str) -> String {
        const MAX_LETTERS: usize = 6;
        let last_word = role.rsplit(['-', ' ']).next().unwrap_or(role);
        let word = if last_word.len() > MAX_LETTERS {
            // A full stop stands for the letters that are cut.
            format!("{}.", last_word.chars().take(MAX_LETTERS - 1).collect::<String>())
        } else {
            last_word.to_owned()
        };
        if self.pitch == WIDE_PITCH { format!("wait {word}") } else { format!("->{word}") }
    }

    /// Cells of the columns in row `y`, with at least one space between them.
    fn cells(&self, y: u16) -> CellRow {
        CellRow { x: 1, y, pitch: self.pitch, width: if self.pitch == WIDE_PITCH { 11 } else { 8 } }
    }

    /// First cell of the outcome, which follows the other columns.
    fn outcome_x(&self) -> u16 {
        1 + self.columns.len() as u16 * self.pitch
    }
}

/// Number of chunks, the signs of their ticks, and whether older ones were evicted. The longest text that fits into `width`.
fn title_of_chunks(detail: &RequestDetail, ui: &Ui, width: u16) -> String {
    let evicted = match detail.known_since {
        Some(_) => format!("; older ones were evicted (--journal {} is reached)", ui.options.chunk_history),
        None => String::new(),
    };
    let count = detail.chunks.len();
    let longer_titles = [
        format!("{count} chunks (| sent  . waiting  o merged  x dropped  ? predicted or unknown){evicted}"),
        format!("{count} chunks (| sent . waiting o merged x dropped ? unknown){evicted}"),
    ];
    // A space comes before the title, and another behind it.
    let fitting = longer_titles.into_iter().find(|title| text_width(title) + 2 <= width);
    fitting.unwrap_or_else(|| format!("{count} chunks{evicted}; the help has the signs: ?"))
}

/// Draws the list of chunks from the selected one on.
fn draw_chunks(pad: &mut Pad<'_>, y: u16, detail: &RequestDetail, ui: &Ui) {
    let rows = pad.height().saturating_sub(y + 2);
    pad.click_areas.page_rows = rows.into();
    pad.draw_heading(y, &title_of_chunks(detail, ui, pad.width()));
    let roles = &detail.receiving_roles;
    let layout = ChunkLayout::for_width(pad.width(), roles.len().max(1));
    pad.draw_cells(layout.cells(y + 1), layout.headings(roles), Ink::Dim);
    pad.draw_text(layout.outcome_x(), y + 1, "outcome", Ink::Dim);
    let first_of_last_page = detail.chunks.len().saturating_sub(rows.into());
    // The last page is full.
    let first = ui.selected_index(Tab::Request).min(first_of_last_page);
    let start = detail.time_span().map(|span| span.first);
    let shown = detail.chunks.iter().enumerate().skip(first).take(rows.into());
    for (chunk_y, (index, chunk)) in (y + 2..).zip(shown) {
        draw_chunk(pad, chunk_y, &layout, index, chunk, start);
    }
}

/// Draws a chunk in one row: its columns, its outcome, and what happened to it. `request_start` is the first moment of the request.
fn draw_chunk(
    pad: &mut Pad<'_>,
    y: u16,
    layout: &ChunkLayout,
    index: usize,
    chunk: &ChunkLife,
    request_start: Option<MonoNs>,
) {
    let sent_ns = chunk.sent.zip(request_start).map(|(at, start)| at.since(start));
    let cells = layout.columns.iter().map(|column| match *column {
        ChunkColumn::Number => format_count(index as u64 + 1),
        ChunkColumn::SentAt => known_or_dash(sent_ns, format_duration),
        ChunkColumn::Wait(hop) => known_or_dash(chunk.waits_ns.get(hop).copied().flatten(), format_duration),
        ChunkColumn::Tokens => format_count(chunk.tokens.into()),
        ChunkColumn::UpTo => known_or_dash(chunk.end.map(u64::from), format_count),
        ChunkColumn::Wakeup => known_or_dash(chunk.wakeup, |number| number.to_string()),
    });
    pad.draw_cells(layout.cells(y), cells, Ink::Plain);
    let x = pad.draw_text(layout.outcome_x(), y, chunk_state_label(chunk.state), ink_of_outcome(chunk.state));
    draw_chunk_note(pad, x + 2, y, chunk);
}

/// Ink of the word for what became of a chunk. A harmed one was merged, or may have been lost.
fn ink_of_outcome(state: ChunkState) -> Ink {
    match state {
        ChunkState::Judged(ChunkOutcome::Dropped) => Ink::Health(Health::Critical),
        ChunkState::Judged(ChunkOutcome::Delivered) => Ink::Health(Health::Good),
        state if state.is_harmed() => Ink::Health(Health::Warning),
        _ => Ink::Plain,
    }
}

/// Draws what happened to the chunk, from column `x` on. This is the next chunk that the same wakeup of the receiver read, or the chunk
/// with which it was sent on. The outcome of a tool call in the chunk is drawn over both, because it matters more. Draws nothing if none of
/// these is known.
fn draw_chunk_note(pad: &mut Pad<'_>, x: u16, y: u16, chunk: &ChunkLife) {
    if let Some(next) = chunk.next_in_wakeup {
        let delay = format_duration(next.delay_ns);
        let text = format!("chunk {} received {delay} later", format_count(next.number as u64));
        // The text may be left out, but not cut.
        if x + text.len() as u16 <= pad.width() {
            pad.draw_text(x, y, &text, Ink::Dim);
        }
    } else if let Some(first) = chunk.combined_with {
        pad.draw_text(x, y, &format!("sent on in one chunk with chunk {}", format_count(first as u64)), Ink::Dim);
    }
    if let Some(outcome) = chunk.tool_call {
        let text = format!("tool call: {}", outcome.as_str());
        let ink = Ink::Health(if outcome.is_damaged() { Health::Critical } else { Health::Warning });
        pad.draw_text(x, y, &text, ink);
    }
}
