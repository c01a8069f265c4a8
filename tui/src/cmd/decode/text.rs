//! Text output: one line per message, one per request.

use std::fmt::Write as _;
use std::io::{self, Write};

use trace::event::{Finish, IdColumn};
use trace::report::hostile::{lines, plain};
use zmq_tap::wire::{Batch, Codec, Value};

use super::Room;

/// Maximum number of token ids shown per request.
const IDS: usize = 12;

pub(super) fn batch(out: &mut impl Write, file: &str, batch: &Batch<'_>, room: &Room) -> io::Result<()> {
    let codec = match batch.codec() {
        Codec::Pickle { protocol } => format!("pickle protocol {protocol}"),
        Codec::Msgpack => "msgpack".to_owned(),
    };
    let (file, class) = (lines(file), plain(batch.class()));
    write!(out, "{file}: {class}, {codec}, SGLang {}", batch.schema())?;
    match batch.len() {
        0 => writeln!(out)?,
        1 => writeln!(out, ", 1 request, ids {}", ids(batch.ids()))?,
        many => writeln!(out, ", {many} requests, ids {}", ids(batch.ids()))?,
    }
    let widest = batch
        .chunks()
        .iter()
        .map(|chunk| chunk.rid.len())
        .max()
        .unwrap_or(0)
        .min(48);
    for (row, chunk) in batch.chunks().iter().enumerate() {
        let mut line = format!("  {:widest$}", chunk.rid.escape_debug().to_string());
        if let Some(listed) = chunk.listed {
            let _ = write!(line, "  {listed:>4} ids {}", first(batch.tokens(row), listed as usize));
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
        if let Some(finish) = chunk.finish {
            let _ = write!(line, "  {}", reason(finish, batch.finish(row)));
        }
        if let Some(worker) = chunk.worker {
            let _ = write!(line, "  -> {}", worker.escape_debug());
        }
        if !room.takes(line.len() + 1) {
            break;
        }
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// Label for the meaning of the id column.
pub(super) fn ids(column: IdColumn) -> &'static str {
    match column {
        IdColumn::Delta => "delta",
        IdColumn::Cumulative => "cumulative",
        IdColumn::DeltaAfterPromptTail => "delta-after-prompt-tail",
        IdColumn::Absent => "absent",
        IdColumn::Undecided => "undecided",
    }
}

fn first(tokens: impl Iterator<Item = i64>, all: usize) -> String {
    let shown: Vec<String> = tokens.take(IDS).map(|id| id.to_string()).collect();
    let more = if all > IDS { ", ..." } else { "" };
    format!("[{}{more}]", shown.join(", "))
}

/// Formats the type of the finish reason and its top-level details: `finished: stop (matched 128009)`.
fn reason(finish: Finish, wire: Option<Value<'_>>) -> String {
    let mut kind = match finish {
        Finish::Length => "length",
        Finish::Stop => "stop",
        Finish::Abort => "abort",
        Finish::Other => "other",
    }
    .to_owned();
    let mut details = Vec::new();
    if let Some(Value::Map(entries)) = wire {
        for (key, value) in entries.take(8) {
            let Value::Str(key) = key else { continue };
            let value = match value {
                Value::Int(value) => value.to_string(),
                Value::Str(value) => format!("{:?}", plain(value)),
                _ => continue,
            };
            if key == "type" && finish == Finish::Other {
                kind = value;
            } else if key != "type" {
                details.push(format!("{} {value}", plain(key)));
            }
        }
    }
    if details.is_empty() {
        format!("finished: {kind}")
    } else {
        format!("finished: {kind} ({})", details.join(", "))
    }
}
