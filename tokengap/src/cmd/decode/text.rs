//! Text output: one line per message, one per request.

use std::fmt::Write as _;
use std::io::{self, Write};

use engines::sglang::wire::Value;
use outputs::report::hostile::{escape_and_cut_line as printable, lines};
use trace::MonoNs;
use trace::event::{EngineTimes, Finish, IdColumn};

use super::OutputBudget;
use super::message::AnyMessage;

/// Maximum number of token ids shown per request.
const MAX_SHOWN_IDS: usize = 12;
/// Maximum number of details shown of a finish reason.
const MAX_SHOWN_DETAILS: usize = 8;
/// Maximum width of the column of request ids. Longer ids are shown whole.
const MAX_RID_WIDTH: usize = 48;

/// Writes a message for people: its class, then a line for each request or chunk.
pub(super) fn write_message(
    out: &mut impl Write,
    file: &str,
    message: &AnyMessage<'_>,
    budget: &OutputBudget,
) -> io::Result<()> {
    let shape = message.shape();
    let chunks = message.chunks();
    let file = lines(file);
    let class = printable(shape.class);
    let codec = message.codec();
    let engine = engines::FACTS.facts(Some(shape.engine)).title();
    write!(out, "{file}: {class}, {codec}, {engine} {}", shape.schema)?;
    match chunks.len() {
        0 => writeln!(out)?,
        1 => writeln!(out, ", 1 request, ids {}", ids_label(shape.ids))?,
        many => writeln!(out, ", {many} requests, ids {}", ids_label(shape.ids))?,
    }
    for request in message.requests() {
        let mut line = format!("  {}", request.rid.escape_debug());
        let prompt = request.prompt_tokens.map(u64::from);
        for (name, number) in [("prompt", prompt), ("room", request.room), ("arrived", request.arrived_unix_ns)] {
            // Writing to a string cannot fail.
            if let Some(number) = number {
                let _ = write!(line, "  {name} {number}");
            }
        }
        if !budget.charge(line.len() + 1) {
            break;
        }
        writeln!(out, "{line}")?;
    }
    let widest = chunks.iter().map(|chunk| chunk.rid.len()).max().unwrap_or(0).min(MAX_RID_WIDTH);
    for (row, chunk) in chunks.iter().enumerate() {
        let mut line = format!("  {:widest$}", chunk.rid.escape_debug().to_string());
        if let Some(listed) = chunk.listed {
            let _ = write!(line, "  {listed:>4} ids {}", format_first_ids(chunk.ids));
        }
        for (name, count) in [
            ("of", chunk.completion_tokens),
            ("prompt", chunk.prompt_tokens),
            ("cached", chunk.cached_tokens),
            ("retracted", chunk.retractions.filter(|count| *count > 0)),
        ] {
            if let Some(count) = count {
                let _ = write!(line, "  {name} {count}");
            }
        }
        let EngineTimes { queued, batch_entered, prefill_finished } = message.engine_times(row);
        for (name, time) in [("queued", queued), ("batch", batch_entered), ("prefilled", prefill_finished)] {
            if let Some(MonoNs(ns)) = time {
                let _ = write!(line, "  {name} at {}.{:09} s", ns / 1_000_000_000, ns % 1_000_000_000);
            }
        }
        if let Some(finish) = chunk.finish {
            let _ = write!(line, "  {}", format_finish(finish, message.finish_reason(row)));
        }
        if let Some(worker) = chunk.worker {
            let _ = write!(line, "  -> {}", worker.escape_debug());
        }
        if !budget.charge(line.len() + 1) {
            break;
        }
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// Label for the meaning of the id column.
pub(super) fn ids_label(column: IdColumn) -> &'static str {
    match column {
        IdColumn::Delta => "delta",
        IdColumn::Cumulative => "cumulative",
        IdColumn::DeltaAfterPromptTail => "delta-after-prompt-tail",
        IdColumn::Absent => "absent",
        IdColumn::Undecided => "undecided",
        IdColumn::Uncounted => "uncounted",
    }
}

/// The first token ids: `[1, 2, 3, ...]`.
fn format_first_ids(ids: &[i64]) -> String {
    let shown: Vec<String> = ids.iter().take(MAX_SHOWN_IDS).map(i64::to_string).collect();
    let more = if ids.len() > MAX_SHOWN_IDS { ", ..." } else { "" };
    format!("[{}{more}]", shown.join(", "))
}

/// Formats the kind of the finish reason, and its top-level details: `finished: stop (matched 128009)`. The details are from
/// `finish_as_sent`, the reason in the engine's own form.
fn format_finish(finish: Finish, finish_as_sent: Option<Value<'_>>) -> String {
    let mut kind = finish.as_str().to_owned();
    let mut details = Vec::new();
    if let Some(Value::Map(entries)) = finish_as_sent {
        // The message decides how many entries the map has, so the limit keeps the line short.
        for (key, value) in entries.take(MAX_SHOWN_DETAILS) {
            let Value::Str(key) = key else { continue };
            let value = match value {
                Value::Int(value) => value.to_string(),
                Value::Str(value) => format!("{:?}", printable(value)),
                // A value of several parts would not fit into the line.
                _ => continue,
            };
            if key != "type" {
                details.push(format!("{} {value}", printable(key)));
            } else if finish == Finish::Other {
                // tokengap does not know this kind, so it shows the engine's word.
                kind = value;
            }
        }
    }
    if details.is_empty() { format!("finished: {kind}") } else { format!("finished: {kind} ({})", details.join(", ")) }
}
