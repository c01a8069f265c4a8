//! Prefix of a message: `kubectl logs --timestamps`, a container runtime's prefix, the logger's own timestamp.

use super::clock::{Clock, Stamp};

/// Maximum delay of a container runtime in passing on a line, in nanoseconds.
const PASSED_ON_NS: u64 = 5_000_000_000;
/// A timestamp must start within this many bytes.
const HEAD: usize = 96;
/// A timestamp must start after at most this many words.
const PREFIX_WORDS: usize = 4;

/// Texts that begin a message, so that times after them are not the line's.
const MESSAGE: [&[u8]; 2] = [b"rid=", b"obj="];

/// Parts of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opened<'l> {
    pub(super) stamp: Option<Stamp>,
    /// `DP0 TP0`: tag that the engine's logger writes after its timestamp; empty if none.
    pub(super) rank: &'l str,
    pub(super) message: &'l str,
}

/// Removes the timestamps from `line`.
pub(super) fn open<'l>(line: &'l str, clock: &mut Clock) -> Opened<'l> {
    let mut rest = line.trim_start();
    if rest.starts_with("[pod/")
        && let Some((_, after)) = rest.split_once("] ")
    {
        rest = after.trim_start();
    }
    let Some(outer) = head(rest, clock) else {
        return Opened { stamp: None, rank: "", message: rest };
    };
    let after = runtime(outer.message);
    match head(after, clock) {
        Some(inner) => Opened { stamp: better(outer.stamp, inner.stamp), ..inner },
        None => Opened { message: after, ..outer },
    }
}

/// Selects the more precise timestamp: the line's own, unless it is imprecise and the outer one is not.
pub(super) fn better(outer: Option<Stamp>, own: Option<Stamp>) -> Option<Stamp> {
    let (Some(outer), Some(own)) = (outer, own) else {
        return own.or(outer);
    };
    let imprecise = own.coarse || own.zone_assumed;
    let times = own.wall_ns.saturating_sub(1_000_000_000)..=own.wall_ns.saturating_add(PASSED_ON_NS);
    let same_time = times.contains(&outer.wall_ns);
    let use_outer = imprecise && (own.zone_assumed || same_time) && !outer.zone_assumed;
    Some(if use_outer { outer } else { own })
}

/// Finds a timestamp near the beginning, after `[`, a level or a key.
fn head<'l>(text: &'l str, clock: &mut Clock) -> Option<Opened<'l>> {
    let bytes = text.as_bytes();
    let (mut begins, mut words) = (true, 0);
    for (at, &byte) in bytes.iter().enumerate().take(HEAD) {
        // These characters start the message, so the prefix has ended.
        words += usize::from(byte == b' ');
        if words > PREFIX_WORDS || byte == b'{' || MESSAGE.iter().any(|begin| bytes[at..].starts_with(begin)) {
            return None;
        }
        let may_begin = byte.is_ascii_digit() || byte.is_ascii_uppercase();
        if let Some((stamp, rest)) = (begins && may_begin).then(|| clock.read(&bytes[at..])).flatten() {
            let rest = &text[text.len() - rest.len()..];
            let bracketed = at > 0 && bytes[at - 1] == b'[';
            let (rank, message) = if bracketed { rank(rest) } else { ("", rest) };
            return Some(Opened {
                stamp: Some(stamp),
                rank,
                message: message.trim_start_matches([' ', ']', '"', '\t']),
            });
        }
        begins = matches!(byte, b' ' | b'[' | b'=' | b'"' | b'(' | b'\t' | b':');
    }
    None
}

/// Removes `stdout F `, which container runtimes write.
fn runtime(text: &str) -> &str {
    let stream = text.strip_prefix("stdout ").or_else(|| text.strip_prefix("stderr "));
    let tag = stream.and_then(|s| s.strip_prefix("F ").or_else(|| s.strip_prefix("P ")));
    tag.unwrap_or(text)
}

/// Splits ` DP0 TP0] message`.
fn rank(text: &str) -> (&str, &str) {
    const LONGEST: usize = 40;
    match text.split_once(']') {
        Some((rank, message)) if rank.len() <= LONGEST && !rank.contains('[') => (rank.trim(), message),
        _ => ("", text),
    }
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;
    use proptest::prelude::*;

    use super::*;

    fn opened(line: &str) -> (Option<String>, String, String) {
        let zone = TimeZone::fixed(jiff::tz::offset(-8));
        let found = open(line, &mut Clock::new(zone, 2026, 1));
        let at = |s: Stamp| jiff::Timestamp::from_nanosecond(i128::from(s.wall_ns)).unwrap().to_string();
        (found.stamp.map(at), found.rank.into(), found.message.into())
    }

    #[test]
    fn prefixes_are_removed() {
        for row in [
            "2026-01-18T07:55:00.3Z [TOK recv] x | 2026-01-18T07:55:00.3Z | | [TOK recv] x",
            "[2026-01-18 07:55:00 DP0 TP3] hello | 2026-01-18T15:55:00Z | DP0 TP3 | hello",
            "[2026-01-18 07:55:00] hello [x] y | 2026-01-18T15:55:00Z | | hello [x] y",
            "[2026-01-18 07:55:00.250] hello | 2026-01-18T15:55:00.25Z | | hello",
            "INFO 2026-01-18 07:55:00,330 mod.py:12] hello | 2026-01-18T15:55:00.33Z | | mod.py:12] hello",
            "time=\"2026-01-18T07:55:00Z\" hello | 2026-01-18T07:55:00Z | | hello",
            // The runtime's timestamp is more precise and has a zone.
            "2026-01-18T07:55:00.4Z [2026-01-18 07:55:00 TP0] hi | 2026-01-18T07:55:00.4Z | TP0 | hi",
            "2026-01-18T07:55:00.4Z stderr F [2026-01-18 07:55:00] hi | 2026-01-18T07:55:00.4Z | | hi",
            // The line's own timestamp is more precise.
            "2026-01-18T07:55:00.4Z 2026-01-18T07:55:00.3999Z hi | 2026-01-18T07:55:00.3999Z | | hi",
            "[pod/decode-0/main] 2026-01-18T07:55:00.3Z hi | 2026-01-18T07:55:00.3Z | | hi",
            "Jan 18 07:55:00 node engine[12]: hi | 2026-01-18T15:55:00Z | | node engine[12]: hi",
        ] {
            let [line, at, rank, message] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
                panic!("{row}");
            };
            assert_eq!(opened(line), (Some(at.into()), rank.into(), message.into()), "{line}");
        }
        assert_eq!(opened("no stamp at all"), (None, String::new(), "no stamp at all".into()));
        let message = "Finish: obj=GenerateReqInput(received_time=1766581510.1, rid='a')";
        let found = opened(&format!("[2026-01-18 07:55:00] {message}"));
        assert_eq!(found, (Some("2026-01-18T15:55:00Z".into()), String::new(), message.into()));
        assert_eq!(
            opened("Receive: rid=a 2026-01-18T07:55:00Z").0,
            None,
            "a timestamp inside the message is not the line's"
        );
    }

    proptest! {
        #[test]
        fn parsing_any_line_never_panics(line: String, stamped in "\\[?2026-01-18[ T]07:5[0-9]:[0-5][0-9][^0-9]{0,40}") {
            let mut clock = Clock::new(TimeZone::UTC, 2026, 1);
            let _ = open(&line, &mut clock);
            let found = open(&stamped, &mut clock);
            prop_assert!(found.stamp.is_some() || stamped.len() < 21);
        }
    }
}
