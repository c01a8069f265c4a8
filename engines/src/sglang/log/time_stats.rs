//! Time stats of a request (`--enable-request-time-stats-logging`), of a single server or one half of a prefill/decode pair.

use logs::text::{epoch_seconds_to_ns, parse_decimal, split_once};
use logs::{LoggedRid, MalformedLine, RequestHalf, Statement, StatementKind};
use memchr::memchr2_iter;
use trace::event::Stage;

use super::stage_statement;

/// A longer duration is a time by mistake: releases subtract an unset time, which is 0, from one since the epoch or since boot.
const MAX_DURATION_MS: f64 = 86_400_000.0;
const NS_PER_MS: f64 = 1e6;
/// Maximum number of phases in a line: bootstrap, allocation, transfer, queue, and forward.
const MAX_PHASES: usize = 5;

/// `ServerRole` of the server that wrote the line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ServerRole {
    Unified,
    Prefill,
    Decode,
}

impl ServerRole {
    /// Role of the server in the field `type`.
    fn of_type(value: &str) -> Self {
        match value {
            "prefill" => Self::Prefill,
            "decode" => Self::Decode,
            _ => Self::Unified,
        }
    }

    /// Stage at which such a server has finished a request, or its half of it.
    fn completion_stage(self) -> &'static str {
        match self {
            Self::Unified => "completion",
            Self::Prefill => "prefill_completion",
            Self::Decode => "decode_completion",
        }
    }
}

/// A duration of the line, and the stage at its end.
struct LoggedPhase {
    ns: u64,
    end: &'static str,
}

/// The line has a duration that cannot be true.
struct Impossible;

/// Parses `4f1c, input_len=12, output_len=30, type=unified): queue_duration=1.00ms, forward_duration=4.50ms, entry_time=1768722900.123`.
///
/// Passes each stage of the request with its time to `sink`. The scheduler logs the line when it has finished its part of the request. From
/// 0.5.12 on, `entry_time` is the wall time at which the first phase began. Earlier releases do not state that time. Their last phase is
/// taken to end at `line_ns`, the line's own timestamp.
pub(super) fn read_time_stats(
    text_behind_mark: &str,
    line_ns: Option<u64>,
    sink: &mut dyn FnMut(&Statement<'_>),
) -> Result<(), MalformedLine> {
    let (head, tail) = split_once(text_behind_mark, "): ").ok_or(MalformedLine)?;
    let (rid, head) = split_once(head, ",").unwrap_or((head, ""));
    let rid = LoggedRid::parse(rid).ok_or(MalformedLine)?;
    let request = LineFields::parse(head, b',');
    let role = ServerRole::of_type(request.value_of_first_key(&["type"]).ok_or(MalformedLine)?);
    // Only the rest of the line.
    let (tail, _) = split_once(tail, "\n").unwrap_or((tail, ""));
    let times = LineFields::parse(tail, b' ');
    emit_request_half(&request, rid, role, sink);
    let tokens = request.value_of_first_key(&["output_len", "output len"]).and_then(|tokens| tokens.parse().ok());
    let end_stage = Stage { tokens, ..Stage::new(rid.text, role.completion_stage(), "scheduler") };
    emit_begin_and_phase_ends(&times, rid, role, end_stage, line_ns, sink);
    Ok(())
}

/// Passes the stage at which the first phase began, and the stage at the end of each phase, to `sink`. `times` are the fields with the
/// durations of the phases, `end_stage` ends the last phase, and `line_ns` is the timestamp of the line.
fn emit_begin_and_phase_ends(
    times: &LineFields<'_>,
    rid: LoggedRid<'_>,
    role: ServerRole,
    end_stage: Stage<'_>,
    line_ns: Option<u64>,
    sink: &mut dyn FnMut(&Statement<'_>),
) {
    // With impossible durations, only the time of the end is used.
    let Ok(phases) = read_phases(times, role) else {
        sink(&Statement { wall_ns: line_ns, ..stage_statement(rid, end_stage) });
        sink(&Statement {
            wall_ns: None,
            is_rid_truncated: rid.is_truncated,
            kind: StatementKind::ImpossibleDurations,
        });
        return;
    };
    // Without a stated begin, the last phase ended when the line was written.
    let begin_before_line = || line_ns?.checked_sub(total_ns(&phases));
    let Some(begin_ns) = read_begin_ns(times).or_else(begin_before_line) else {
        // Nothing shows when the phases ended, apart from the last one.
        sink(&Statement { wall_ns: line_ns, ..stage_statement(rid, end_stage) });
        return;
    };
    let begin_stage = Stage::new(rid.text, begin_stage_of_first_phase(times, role), "scheduler");
    sink(&Statement { wall_ns: Some(begin_ns), ..stage_statement(rid, begin_stage) });
    emit_phase_ends(rid, begin_ns, &phases, end_stage, sink);
}

/// Passes the stage at the end of each phase to `sink`, with its time. The first phase began at `begin_ns`, and each follows the one
/// before. `end_stage` is that of the last phase.
fn emit_phase_ends(
    rid: LoggedRid<'_>,
    begin_ns: u64,
    phases: &[LoggedPhase],
    end_stage: Stage<'_>,
    sink: &mut dyn FnMut(&Statement<'_>),
) {
    let mut phase_end_ns = begin_ns;
    for phase in phases {
        phase_end_ns = phase_end_ns.saturating_add(phase.ns);
        // Only the end of the request has its tokens.
        let is_end = phase.end == end_stage.name;
        let reached = if is_end { end_stage } else { Stage::new(rid.text, phase.end, "scheduler") };
        sink(&Statement { wall_ns: Some(phase_end_ns), ..stage_statement(rid, reached) });
    }
}

/// Duration of all phases together.
fn total_ns(phases: &[LoggedPhase]) -> u64 {
    phases.iter().fold(0, |sum: u64, phase| sum.saturating_add(phase.ns))
}

/// Maximum number of fields read from a line; releases write up to 12.
const MAX_FIELDS: usize = 16;

/// `key=value` and `key(value)` fields, without the punctuation around them.
struct LineFields<'l> {
    fields: [LineField<'l>; MAX_FIELDS],
    len: usize,
}

#[derive(Clone, Copy, Default)]
struct LineField<'l> {
    key: &'l str,
    value: &'l str,
}

impl<'l> LineFields<'l> {
    /// Parses the words between separators in one pass, because a search in a short word takes longer than the word.
    fn parse(text: &'l str, separator: u8) -> Self {
        let mut fields = Self { fields: [LineField::default(); MAX_FIELDS], len: 0 };
        let mut word_start = 0;
        // Offset of the word's first `=`.
        let mut equals_at = None;
        for position in memchr2_iter(separator, b'=', text.as_bytes()) {
            if text.as_bytes()[position] == separator {
                fields.add_word(&text[word_start..position], equals_at);
                word_start = position + 1;
                equals_at = None;
            } else {
                // A further `=` belongs to the value.
                equals_at.get_or_insert(position - word_start);
            }
        }
        fields.add_word(&text[word_start..], equals_at);
        fields
    }

    /// Adds the field in a word whose first `=` is at `equals_at`. Ignores a word without a field, and fields beyond the maximum.
    fn add_word(&mut self, word: &'l str, equals_at: Option<usize>) {
        if let Some(field) = parse_field(word, equals_at)
            && !field.key.is_empty()
            && self.len < MAX_FIELDS
        {
            self.fields[self.len] = field;
            self.len += 1;
        }
    }

    /// Value of the first of these keys that the line has. `None` if it has none of them.
    fn value_of_first_key(&self, keys: &[&str]) -> Option<&'l str> {
        let fields = &self.fields[..self.len];
        let field = keys.iter().find_map(|key| fields.iter().find(|field| field.key == *key))?;
        Some(field.value)
    }

    /// Number under the first of these keys that the line has. `None` if it has none of them, or if the value is not a valid number.
    fn number(&self, keys: &[&str]) -> Option<f64> {
        parse_number(self.value_of_first_key(keys)?)
    }

    /// Duration under the first of these keys that the line has; `None` if it has none of them. An error if the value cannot be one.
    fn duration_ns_of_first_key(&self, keys: &[&str]) -> Result<Option<u64>, Impossible> {
        let Some(value) = self.value_of_first_key(keys) else { return Ok(None) };
        match parse_number(value) {
            Some(ms) if ms < MAX_DURATION_MS => Ok(Some((ms * NS_PER_MS).round() as u64)),
            _ => Err(Impossible),
        }
    }
}

/// Whether the byte belongs to a field, and is no punctuation around it.
fn is_content(byte: u8) -> bool {
    !byte.is_ascii_whitespace() && !matches!(byte, b',' | b';' | b'"')
}

/// The field in a word whose first `=` is at `equals_at`: `key=value`, or without one `key(value)`. `None` for a word in another form.
fn parse_field(word: &str, equals_at: Option<usize>) -> Option<LineField<'_>> {
    // Without the punctuation around the field. `=` is no punctuation, so it lies between start and end.
    let start = word.bytes().position(is_content)?;
    let end = word.bytes().rposition(is_content)? + 1;
    if let Some(equals_at) = equals_at {
        return Some(LineField { key: &word[start..equals_at], value: &word[equals_at + 1..end] });
    }
    let (key, value) = word[start..end].strip_suffix(')')?.split_once('(')?;
    Some(LineField { key, value })
}

/// Number of a value, with or without its unit `ms`. `None` for a negative one.
fn parse_number(value: &str) -> Option<f64> {
    let number = parse_decimal(value.strip_suffix("ms").unwrap_or(value))?;
    (number.is_finite() && number >= 0.0).then_some(number)
}

/// Passes the id and the room of a request to `sink` if this server runs one half of it, the prefill or the decode. A room
/// (`bootstrap_room`) is the number under which both servers of a pair know the request. Does nothing for a single server, and without a
/// whole id.
fn emit_request_half(
    request: &LineFields<'_>,
    rid: LoggedRid<'_>,
    role: ServerRole,
    sink: &mut dyn FnMut(&Statement<'_>),
) {
    if role == ServerRole::Unified || rid.is_truncated {
        return;
    }
    let stated_room: Option<u64> = request.value_of_first_key(&["bootstrap_room"]).and_then(|room| room.parse().ok());
    let Some(room) = stated_room else { return };
    let is_health_check = room == 0;
    if is_health_check {
        return;
    }
    let half = RequestHalf { rid: rid.text, room, is_decode: role == ServerRole::Decode };
    sink(&Statement { wall_ns: None, is_rid_truncated: false, kind: StatementKind::RequestHalf(half) });
}

/// Wall time at which the first phase began; `None` if the line does not state it.
fn read_begin_ns(times: &LineFields<'_>) -> Option<u64> {
    times.number(&["bootstrap_done_time", "entry_time", "start_time", "start"]).and_then(epoch_seconds_to_ns)
}

/// Stage at which the first phase of the line began. 0.5.16 and later omit the bootstrap if its start is unset.
fn begin_stage_of_first_phase(times: &LineFields<'_>, role: ServerRole) -> &'static str {
    match role {
        ServerRole::Unified => "wait_queue_entry",
        // Such a line begins at the end of the bootstrap.
        ServerRole::Prefill if times.value_of_first_key(&["bootstrap_done_time"]).is_some() => {
            "prefill_wait_queue_entry"
        }
        ServerRole::Prefill => "prefill_bootstrap_queue_entry",
        ServerRole::Decode => "decode_prealloc_queue_entry",
    }
}

/// Phases of a request in order, each with its duration and the name of the stage that ends it. Knows the names of the durations in all
/// releases. Fails if a duration is missing or cannot be true.
fn read_phases(times: &LineFields<'_>, role: ServerRole) -> Result<Vec<LoggedPhase>, Impossible> {
    // The durations count from the start, so they mean nothing if it is unset.
    let is_start_unset = times.number(&["start_time", "start"]) == Some(0.0);
    if is_start_unset {
        return Err(Impossible);
    }
    let mut phases = Vec::with_capacity(MAX_PHASES);
    add_phases_before_queue(times, role, &mut phases)?;
    let queue_ns = times.duration_ns_of_first_key(&["queue_duration"])?.ok_or(Impossible)?;
    let forward_ns = times.duration_ns_of_first_key(&["forward_duration"])?.ok_or(Impossible)?;
    // Later releases write 0 if the request never ran.
    if forward_ns == 0 {
        return Err(Impossible);
    }
    let forward_entry = match role {
        ServerRole::Unified => "forward_entry",
        ServerRole::Prefill => "prefill_forward_entry",
        ServerRole::Decode => "decode_forward_entry",
    };
    phases.push(LoggedPhase { ns: queue_ns, end: forward_entry });
    phases.push(LoggedPhase { ns: forward_ns, end: role.completion_stage() });
    Ok(phases)
}

/// Adds the phases of a half before its queue: the bootstrap, the allocation, and for a decode server the transfer. A single server has
/// none of them.
fn add_phases_before_queue(
    times: &LineFields<'_>,
    role: ServerRole,
    phases: &mut Vec<LoggedPhase>,
) -> Result<(), Impossible> {
    match role {
        ServerRole::Unified => {}
        ServerRole::Prefill => {
            let whole_ns = times.duration_ns_of_first_key(&["bootstrap_queue_duration"])?;
            let ends = BootstrapEnds { bootstrap: "prefill_bootstrap_done", allocation: "prefill_wait_queue_entry" };
            add_bootstrap_and_allocation(times, whole_ns, &ends, phases)?;
        }
        ServerRole::Decode => {
            let whole_ns = times.duration_ns_of_first_key(&["prealloc_queue_duration", "prealloc_duration"])?;
            let ends = BootstrapEnds { bootstrap: "decode_bootstrap_done", allocation: "decode_transfer_queue_entry" };
            add_bootstrap_and_allocation(times, whole_ns, &ends, phases)?;
            let transfer_ns = times.duration_ns_of_first_key(&["transfer_duration"])?;
            phases.extend(transfer_ns.map(|ns| LoggedPhase { ns, end: "decode_wait_queue_entry" }));
        }
    }
    Ok(())
}

/// Stages at the ends of the first two phases of a half.
struct BootstrapEnds {
    bootstrap: &'static str,
    allocation: &'static str,
}

/// Adds bootstrap and allocation, the first two phases of a request in a pair of servers. Adds both as one phase of `whole_ns` if the line
/// does not have them separately, and nothing if it has neither.
fn add_bootstrap_and_allocation(
    times: &LineFields<'_>,
    whole_ns: Option<u64>,
    ends: &BootstrapEnds,
    phases: &mut Vec<LoggedPhase>,
) -> Result<(), Impossible> {
    let stated_bootstrap_ns = times.duration_ns_of_first_key(&["bootstrap_duration", "bootstrap"])?;
    // 0.5.5 to 0.5.9 write a bootstrap that they do not measure. Only their lines have the field `other`.
    let is_measured = times.value_of_first_key(&["other"]).is_none();
    let bootstrap_ns = if is_measured { stated_bootstrap_ns } else { None };
    let allocation_ns = times.duration_ns_of_first_key(&["alloc_wait_duration", "alloc_wait"])?;
    if let (Some(bootstrap_ns), Some(allocation_ns)) = (bootstrap_ns, allocation_ns) {
        phases.push(LoggedPhase { ns: bootstrap_ns, end: ends.bootstrap });
        phases.push(LoggedPhase { ns: allocation_ns, end: ends.allocation });
    } else if let Some(ns) = bootstrap_ns.or(whole_ns) {
        // One phase up to the end of the allocation.
        phases.push(LoggedPhase { ns, end: ends.allocation });
    }
    Ok(())
}
