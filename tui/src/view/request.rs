//! Request tab: stages to scale, every chunk as a tick, the list of chunks, and evidence for the flags.

use outputs::report::explain_tool_calls;
use session::units::{count, duration, known};
use trace::event::ToolCallOutcome;

use super::itl;
use super::pad::Pad;
use super::path;
use crate::state::Model;
use crate::state::action::Tab;
use crate::state::fate::Fate;
use crate::state::flags::{Flag, Health};
use crate::state::request::{ChunkLine, Detail};
use crate::state::row::Row;
use crate::state::ui::Ui;
use crate::theme::Ink;

/// Cells reserved for the labels of the tracks.
const LABEL: u16 = 19;
/// Rows reserved for the list of chunks, including its heading.
const LIST: u16 = 6;
/// Maximum number of rows for the explanation of a tool call.
const TOOL_CALL: u16 = 6;

pub(super) fn draw(pad: &mut Pad<'_>, model: &Model, ui: &Ui) {
    let Some(detail) = &model.detail else {
        pad.text(2, 1, "no request is selected: choose one in Requests (2)", Ink::Dim);
        return;
    };
    let mut y = head(pad, detail);
    y = path::shares(pad, y, "first token", &detail.time);
    if detail.kept.itl.delivered.is_some() || detail.kept.itl.sent.is_some() {
        y = itl(pad, y, 2, [detail.kept.itl.delivered, detail.kept.itl.sent]);
    }
    y = frontend(pad, y, detail);
    for (flag, why) in &detail.evidence {
        let x = pad.text(1, y, flag.word(), Ink::Flag(*flag));
        let lines = if *flag == Flag::ToolCall { TOOL_CALL } else { 2 };
        y = pad.paragraph(x + 1, y, lines, why, Ink::Plain);
    }
    y = tool_calls(pad, y, detail);
    y = stages(pad, y, detail);
    y = tracks(pad, y, detail);
    chunks(pad, y, detail, ui);
}

fn head(pad: &mut Pad<'_>, detail: &Detail) -> u16 {
    let x = pad.text(1, 0, "rid ", Ink::Head);
    let x = pad.text(x, 0, &detail.rid, Ink::Strong) + 2;
    match &detail.row {
        None => {
            pad.text(x, 0, "the ledger has evicted this request", Ink::Dim);
        }
        Some(row) => {
            let x = pad.text(x, 0, row.life.word(), Ink::Strong);
            pad.text(x + 2, 0, &sums(row), Ink::Plain);
        }
    }
    1
}

/// Draws what became of the response's tool calls, unless the evidence for a flag has it.
fn tool_calls(pad: &mut Pad<'_>, y: u16, detail: &Detail) -> u16 {
    let Some(calls) = &detail.kept.tool_calls else { return y };
    if detail.evidence.iter().any(|(flag, _)| *flag == Flag::ToolCall) {
        return y;
    }
    let ink = match calls.outcome {
        outcome if outcome.is_damaged() => Ink::Health(Health::Critical),
        ToolCallOutcome::Unfinished | ToolCallOutcome::Unjudged => Ink::Health(Health::Warning),
        _ => Ink::Plain,
    };
    let x = pad.text(1, y, "tool calls ", Ink::Head);
    pad.paragraph(x, y, TOOL_CALL, &explain_tool_calls(calls), ink)
}

/// Draws how long the response waited in a frontend, if known.
fn frontend(pad: &mut Pad<'_>, y: u16, detail: &Detail) -> u16 {
    let Some(waits) = &detail.kept.frontend else { return y };
    let x = pad.text(1, y, "frontend ", Ink::Head);
    let text = format!(
        "first token waited {}, last token {}, after the worker wrote them",
        known(waits.first_token_ns, duration),
        known(waits.last_token_ns, duration)
    );
    pad.text(x, y, &text, Ink::Plain);
    y + 1
}

fn sums(row: &Row) -> String {
    let worker = row.worker.map(|n| format!("  worker {n}")).unwrap_or_default();
    format!(
        "gap {}{worker}  prompt {}  tokens {} sent {} delivered  chunks {}",
        known(row.gap_ns, duration),
        known(row.prompt_tokens.map(u64::from), count),
        count(row.tokens_sent.into()),
        known(row.tokens_delivered.map(u64::from), count),
        count(row.chunks_sent.into())
    )
}

fn stages(pad: &mut Pad<'_>, y: u16, detail: &Detail) -> u16 {
    pad.rule(y, "stages");
    if detail.stages.is_empty() {
        pad.text(3, y + 1, "the journal no longer contains them", Ink::Dim);
        return y + 2;
    }
    let (first, last) = (detail.stages[0].0, detail.stages[detail.stages.len() - 1].0);
    let whole = last.since(first).max(1);
    let bar = pad.width().saturating_sub(85).min(60);
    let mut before = first;
    for (row, (at, what)) in detail.stages.iter().enumerate() {
        let y = y + 1 + row as u16;
        let step = at.since(before);
        before = *at;
        let at = at.since(first);
        pad.number(1, y, 8, &duration(at), Ink::Strong);
        pad.number(10, y, 9, &format!("+{}", duration(step)), Ink::Dim);
        pad.text(21, y, what, Ink::Plain);
        if bar > 0 {
            let cells = |ns: u64| (u128::from(ns) * u128::from(bar) / u128::from(whole)) as usize;
            let lead = cells(at - step);
            let filled = cells(at).saturating_sub(lead).max(usize::from(step > 0));
            let text = format!("{}{}", " ".repeat(lead), pad.theme.pick("━", "=").repeat(filled));
            pad.fit(83, y, bar, &text, Ink::Series);
        }
    }
    y + 1 + detail.stages.len() as u16
}

fn tracks(pad: &mut Pad<'_>, y: u16, detail: &Detail) -> u16 {
    let Some((first, last)) = detail.span() else { return y };
    let width = pad.width().saturating_sub(LABEL + 3);
    pad.rule(y, &format!("chunks over {}", duration(last.since(first))));
    let rows = (detail.tracks.len() as u16).min(pad.height().saturating_sub(y + 1 + LIST));
    for (row, (label, ticks)) in detail.tracks.iter().take(rows.into()).enumerate() {
        let y = y + 1 + row as u16;
        pad.fit(1, y, LABEL, label, Ink::Head);
        let mut cells = vec![None; width.into()];
        for &(at, sign) in ticks {
            let place = u128::from(at.since(first)) * u128::from(width.saturating_sub(1))
                / u128::from(last.since(first).max(1));
            let cell: &mut Option<char> = &mut cells[place as usize];
            *cell = Some(cell.map_or(sign, |there| more_severe(there, sign)));
        }
        for (x, cell) in cells.into_iter().enumerate() {
            let (text, ink) = match cell {
                None => (pad.theme.pick('·', ' '), Ink::Dim),
                Some('|') => (pad.theme.pick('│', '|'), Ink::Series),
                Some(sign) => (sign, Ink::Health(alarm(sign))),
            };
            pad.text(LABEL + 2 + x as u16, y, text.encode_utf8(&mut [0; 4]), ink);
        }
    }
    y + 1 + rows
}

/// Returns the worse of two ticks that share a cell.
fn more_severe(a: char, b: char) -> char {
    let rank = |c| ['|', '.', 'o', '?', 'x'].iter().position(|&known| known == c);
    if rank(b) > rank(a) { b } else { a }
}

fn alarm(sign: char) -> Health {
    match sign {
        'x' => Health::Critical,
        '?' | 'o' => Health::Warning,
        _ => Health::Info,
    }
}

fn chunks(pad: &mut Pad<'_>, y: u16, detail: &Detail, ui: &Ui) {
    let rows = pad.height().saturating_sub(y + 2);
    pad.hits.page = rows.into();
    let reach = match detail.since {
        Some(_) => format!("; older ones were evicted (--journal {} is reached)", ui.options.journal),
        None => String::new(),
    };
    pad.rule(
        y,
        &format!(
            "{} chunks (| sent  . waiting  o merged  x dropped  ? predicted or unknown){reach}",
            detail.chunks.len()
        ),
    );
    let hops = (detail.path.len() as u16).max(1);
    let pitch = if hops == 1 { 10 } else { 9 };
    let waits: Vec<String> = match detail.path.as_slice() {
        [_] | [] => vec!["waited".to_owned()],
        path => path.iter().map(|role| short(role)).collect(),
    };
    let columns =
        ["chunk", "sent at"].into_iter().chain(waits.iter().map(String::as_str)).chain(["tokens", "up to", "wakeup"]);
    pad.numbers((1, y + 1), (pitch, 8), columns, Ink::Dim);
    pad.text(1 + (5 + hops) * pitch, y + 1, "outcome", Ink::Dim);
    let top = ui.place(Tab::Request).min(detail.chunks.len().saturating_sub(rows.into()));
    let start = detail.span().map(|s| s.0);
    for row in 0..rows {
        let place = top + usize::from(row);
        let Some(chunk) = detail.chunks.get(place) else { break };
        chunk_line(pad, y + 2 + row, pitch, place, (chunk, start));
    }
}

/// Heading of the column with the wait on the hop into this role: the beginning of its last word.
fn short(role: &str) -> String {
    let word = role.rsplit(['-', ' ']).next().unwrap_or(role);
    format!("wait {}", word.chars().take(3).collect::<String>())
}

fn chunk_line(
    pad: &mut Pad<'_>,
    y: u16,
    pitch: u16,
    place: usize,
    (chunk, start): (&ChunkLine, Option<trace::MonoNs>),
) {
    let waits = chunk.waits.iter().map(|wait| known(*wait, duration));
    let cells = [count(place as u64 + 1), known(chunk.sent.zip(start), |(at, start)| duration(at.since(start)))]
        .into_iter()
        .chain(waits)
        .chain([
            count(chunk.tokens.into()),
            known(chunk.end.map(u64::from), count),
            known(chunk.wakeup.map(u64::from), |n| n.to_string()),
        ]);
    pad.numbers((1, y), (pitch, 8), cells, Ink::Plain);
    let ink = match chunk.fate {
        Fate::Dropped => Ink::Health(Health::Critical),
        Fate::DropPredicted | Fate::Merged | Fate::Unknown => Ink::Health(Health::Warning),
        Fate::Delivered => Ink::Health(Health::Good),
        Fate::Sent | Fate::Waiting | Fate::Received => Ink::Plain,
    };
    let x = pad.text(1 + (5 + chunk.waits.len() as u16) * pitch, y, chunk.fate.word(), ink);
    if let Some((next, later)) = chunk.followed {
        let text = format!("chunk {} received {} later", count(next as u64), duration(later));
        if x + 2 + text.len() as u16 <= pad.width() {
            pad.text(x + 2, y, &text, Ink::Dim);
        }
    }
    if let Some(outcome) = chunk.tool_call {
        let text = format!("tool call: {}", outcome.as_str());
        let ink = Ink::Health(if outcome.is_damaged() { Health::Critical } else { Health::Warning });
        pad.text(x + 2, y, &text, ink);
    }
}
