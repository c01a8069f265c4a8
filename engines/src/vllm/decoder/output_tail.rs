//! The fields of an output after its new ids.

use adapter::decode::EngineSeconds;
use trace::event::Finish;

use super::column_error;
use crate::msgpack::{Head, NextOffset, read_head, read_string, skip_value};
use crate::undecoded::Undecoded;
use crate::vllm::layout::{OutputColumns, OutputLayout};

/// What the previous output of a message has after its ids. Most outputs have the same.
#[derive(Default)]
pub(super) struct LastTail<'a> {
    bytes: &'a [u8],
    /// The values that were read from the bytes.
    pub(super) values: OutputTail,
}

impl<'a> LastTail<'a> {
    /// End of the next output's values, which begin at `ids_end`, if they have the same bytes as the last ones. `None` if they differ.
    #[inline]
    pub(super) fn end_if_same(&self, message: &[u8], ids_end: usize) -> Option<usize> {
        let is_same = !self.bytes.is_empty() && message[ids_end..].starts_with(self.bytes);
        is_same.then_some(ids_end + self.bytes.len())
    }

    /// Reads the values at `ids_end`, behind the ids of the next output. They become the last ones. Returns their end.
    pub(super) fn read_next_tail(
        &mut self,
        message: &'a [u8],
        ids_end: usize,
        row: usize,
        layout: &OutputLayout,
    ) -> Result<NextOffset, Undecoded> {
        let (end, values) = read_output_tail(message, ids_end, row, layout)?;
        *self = Self { bytes: &message[ids_end..end], values };
        Ok(end)
    }
}

/// Values of an output after its ids.
#[derive(Clone, Copy, Default)]
pub(super) struct OutputTail {
    pub(super) finish: Option<Finish>,
    pub(super) prompt: Option<u32>,
    pub(super) cached: Option<u32>,
    /// Whether it is a pooling result.
    pub(super) is_pooled: bool,
    pub(super) times: Option<EngineSeconds>,
}

/// Index of the first field of an output after the request id and the new ids.
const FIRST_TAIL_FIELD: u32 = 2;

/// Reads the fields of an output after its ids, of which the first is at `at`. Returns their end and their values. `row` is the position of
/// the output in the message, for errors.
fn read_output_tail(
    bytes: &[u8],
    mut at: usize,
    row: usize,
    layout: &OutputLayout,
) -> Result<(NextOffset, OutputTail), Undecoded> {
    // The index of each field that is read; `None` for one that these releases do not send.
    let OutputColumns { finish, finished, cached, prefill, pooling, events } = layout.columns;
    let mut tail = OutputTail::default();
    let mut is_marked_finished = false;
    for field in FIRST_TAIL_FIELD..layout.field_count {
        let next = skip_value(bytes, at)?;
        let (value, first) = read_head(bytes, at).ok_or(Undecoded::Truncated { at })?;
        // Compared as an option, which a field that is not sent never equals.
        let column = Some(field);
        if column == finish {
            tail.finish = parse_finish_reason(bytes, value, first)
                .map_err(|what| column_error(bytes, at, "finish_reason", row, what))?;
        } else if column == finished {
            let Head::Bool(value) = value else {
                return Err(column_error(bytes, at, "finished", row, "not a boolean"));
            };
            is_marked_finished = value;
        } else if column == cached {
            let Head::Int(count) = value else {
                return Err(column_error(bytes, at, "num_cached_tokens", row, "not an integer"));
            };
            tail.cached = u32::try_from(count).ok();
        } else if column == prefill {
            match value {
                Head::Nil => {}
                Head::Map { len } => {
                    let PrefillStats { prompt_tokens, cached_tokens } = read_prefill_stats(bytes, first, len)?;
                    tail.prompt = prompt_tokens;
                    tail.cached = cached_tokens;
                }
                _ => return Err(column_error(bytes, at, "prefill_stats", row, "not a map")),
            }
        } else if column == pooling {
            tail.is_pooled = value != Head::Nil;
        } else if column == events
            && let Head::Array { len } = value
        {
            tail.times = read_queue_and_batch_times(bytes, first, len);
        }
        at = next;
    }
    // An output with the flag `finished` may have no reason.
    if is_marked_finished && tail.finish.is_none() {
        tail.finish = Some(Finish::Other);
    }
    Ok((at, tail))
}

/// Finish reason of an output. `payload_start` is the start of the payload of `value`. `None` for a request that goes on. The error
/// describes what is wrong with the value.
fn parse_finish_reason(bytes: &[u8], value: Head, payload_start: usize) -> Result<Option<Finish>, &'static str> {
    match value {
        Head::Nil => Ok(None),
        // The codes of vLLM's `FinishReason`.
        Head::Int(0) => Ok(Some(Finish::Stop)),
        Head::Int(1) => Ok(Some(Finish::Length)),
        // ABORT and ERROR.
        Head::Int(2 | 3) => Ok(Some(Finish::Abort)),
        Head::Int(_) => Ok(Some(Finish::Other)),
        // Up to 0.7.1.
        Head::Str { end } => Ok(Some(match &bytes[payload_start..end] {
            b"stop" => Finish::Stop,
            b"length" => Finish::Length,
            b"abort" | b"error" => Finish::Abort,
            _ => Finish::Other,
        })),
        _ => Err("neither nil, an integer nor a string"),
    }
}

/// Lengths of the prompt and of its cached part.
#[derive(Default)]
struct PrefillStats {
    prompt_tokens: Option<u32>,
    cached_tokens: Option<u32>,
}

/// Reads the lengths of the prompt and of its cached part, in a map of `len` entries. The name of the first entry is at `name_at`.
fn read_prefill_stats(bytes: &[u8], mut name_at: usize, len: u32) -> Result<PrefillStats, Undecoded> {
    let mut stats = PrefillStats::default();
    for _ in 0..len {
        let value_at = skip_value(bytes, name_at)?;
        let next_name_at = skip_value(bytes, value_at)?;
        let count = match read_head(bytes, value_at) {
            Some((Head::Int(count), _)) => u32::try_from(count).ok(),
            _ => None,
        };
        match read_string(bytes, name_at) {
            Some((b"num_prompt_tokens", _)) => stats.prompt_tokens = count,
            Some((b"num_cached_tokens", _)) => stats.cached_tokens = count,
            _ => {}
        }
        name_at = next_name_at;
    }
    Ok(stats)
}

/// Times at which a request first entered the queue and a batch, in the `event_count` events from `events_at` on. `None` unless it entered
/// the queue.
fn read_queue_and_batch_times(bytes: &[u8], mut events_at: usize, event_count: u32) -> Option<EngineSeconds> {
    // 0 stands for an event that was not found.
    let mut seconds = EngineSeconds::default();
    for _ in 0..event_count {
        match read_event(bytes, events_at) {
            // Only the first of each: a preempted request enters a batch again.
            Some(RequestEvent { kind: QUEUED_EVENT, seconds: time }) if seconds.queued == 0.0 => {
                seconds.queued = time;
            }
            Some(RequestEvent { kind: SCHEDULED_EVENT, seconds: time }) if seconds.batch_entered == 0.0 => {
                seconds.batch_entered = time;
            }
            _ => {}
        }
        events_at = skip_value(bytes, events_at).ok()?;
    }
    // A later output may have only the events of a preempted request, which enters a batch again.
    (seconds.queued != 0.0).then_some(seconds)
}

/// `EngineCoreEventType` of vLLM. The third is PREEMPTED.
const QUEUED_EVENT: i64 = 1;
const SCHEDULED_EVENT: i64 = 2;

/// An event of a request in the engine.
struct RequestEvent {
    kind: i64,
    /// Time by the engine's clock.
    seconds: f64,
}

/// Reads the event of a request at `at`, a map with its type and its time. `None` if it lacks one of them.
fn read_event(bytes: &[u8], at: usize) -> Option<RequestEvent> {
    let (Head::Map { len }, mut at) = read_head(bytes, at)? else { return None };
    let mut kind = None;
    let mut timestamp = None;
    for _ in 0..len {
        let (name, value_at) = read_string(bytes, at)?;
        let (value, _) = read_head(bytes, value_at)?;
        match (name, value) {
            (b"type", Head::Int(number)) => kind = Some(number),
            (b"timestamp", Head::Float(seconds)) => timestamp = Some(seconds),
            _ => {}
        }
        at = skip_value(bytes, value_at).ok()?;
    }
    Some(RequestEvent { kind: kind?, seconds: timestamp? })
}
