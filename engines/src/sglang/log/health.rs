//! Failed health checks: the tokenizer received nothing from the detokenizer after a request that asks for one token.

use logs::text::value_of_key;
use logs::{MalformedLine, Statement, StatementKind};
use trace::MonoNs;
use trace::event::LoggedState;

const DAY_S: u64 = 86_400;
/// All time zones are multiples of this, so that times of day within it compare across zones.
const QUARTER_S: u64 = 900;
const SECOND_NS: u64 = 1_000_000_000;

/// Parses the times of a failed check in `20 seconds. tic start time: 05:49:14. last_heartbeat time: 05:42:53`: how long the check waited,
/// when it sent its request, and when the last message had come before. The last two are local times of day. Without the time of the line,
/// `line_ns`, the failed check is passed to `sink` without times.
pub(super) fn read_failed_check(
    text_behind_mark: &str,
    line_ns: Option<u64>,
    sink: &mut dyn FnMut(&Statement<'_>),
) -> Result<(), MalformedLine> {
    let waited_s: u64 =
        text_behind_mark.split(' ').next().and_then(|seconds| seconds.parse().ok()).ok_or(MalformedLine)?;
    let asked_at_s = seconds_since_midnight(text_behind_mark, "tic start time: ").ok_or(MalformedLine)?;
    let last_message_at_s = seconds_since_midnight(text_behind_mark, "last_heartbeat time: ").ok_or(MalformedLine)?;
    let mut state = LoggedState { by: "tokenizer", ..LoggedState::default() };
    if let Some(line_ns) = line_ns {
        // The time zone is unknown, so only the time within a quarter of an hour is compared.
        let asked_ago_s = seconds_within_quarter(asked_at_s, line_ns / SECOND_NS);
        // The clocks may be wrong, but the request was sent at least as long ago as the check waited.
        let asked_ago_s = asked_ago_s.max(waited_s);
        let silent_before_request_s = seconds_within_day(last_message_at_s, asked_at_s);
        state.unanswered_since = Some(MonoNs(line_ns.saturating_sub(asked_ago_s * SECOND_NS)));
        state.recv_wait_ns = Some((asked_ago_s + silent_before_request_s) * SECOND_NS);
    }
    sink(&Statement { wall_ns: None, is_rid_truncated: false, kind: StatementKind::ProcessState(state) });
    Ok(())
}

/// Seconds from one time of day to another that is less than a day later, and may be behind midnight.
fn seconds_within_day(from_s: u64, to_s: u64) -> u64 {
    (to_s + DAY_S - from_s) % DAY_S
}

/// Seconds from one time to another that is less than a quarter of an hour later. The times may be of different time zones, because zones
/// differ by whole quarters.
fn seconds_within_quarter(from_s: u64, to_s: u64) -> u64 {
    let from_in_quarter = from_s % QUARTER_S;
    let to_in_quarter = to_s % QUARTER_S;
    (to_in_quarter + QUARTER_S - from_in_quarter) % QUARTER_S
}

/// Seconds since midnight of the time `05:49:14` behind `key`; `None` without a valid time.
fn seconds_since_midnight(text: &str, key: &str) -> Option<u64> {
    let mut parts = value_of_key(text, key)?.trim_end_matches('.').split(':');
    let mut seconds = 0;
    // Hours, minutes, and seconds with a leap second.
    for limit in [24, 60, 61] {
        let part: u64 = parts.next()?.parse().ok()?;
        if part >= limit {
            return None;
        }
        seconds = seconds * 60 + part;
    }
    let has_more_parts = parts.next().is_some();
    // The leap second 23:59:60 counts as midnight.
    if has_more_parts { None } else { Some(seconds % DAY_S) }
}
