//! Messages between tokengap and the process that reads stacks: one JSON value per line, of bounded length.
//!
//! The reading process parses memory that a target controls, so its messages are checked like any other input.

use std::io::{self, BufRead, Read as _, Write};

use probe_user::python::{Function, ThreadStacks, UnreadableProcess};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use trace::SamplingCost;

/// Maximum length of a line. The samples of a thread with as many functions as are kept have a third of it.
const MAX_LINE: usize = 1 << 20;
/// Maximum number of functions that are used of a message.
const MAX_FUNCTIONS: usize = 256;
/// Maximum number of refusals, and of notes, that are used of a message.
const MAX_LINES: usize = 64;
/// Maximum number of characters of a reason or a note.
const MAX_TEXT: usize = 500;

/// Request of tokengap: the complete list of processes to sample.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StackRequest {
    pub(super) hertz: u32,
    pub(super) pids: Vec<u32>,
}

/// Message of the reading process, or of the process that starts it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StackMessage {
    Samples(ThreadSamples),
    Status(ReaderStatus),
    /// The reading process ended, for this reason.
    Ended {
        reason: String,
        /// Another one is started.
        is_restarted: bool,
    },
}

/// Samples of one thread over one interval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ThreadSamples {
    pub(crate) pid: u32,
    pub(crate) at_ns: u64,
    pub(crate) interval_ns: u64,
    pub(crate) stacks: ThreadStacks,
}

impl ThreadSamples {
    /// Bounds the names and counts of functions. A function cannot have more hits than its thread has samples.
    fn bound_names_and_hits(&mut self) {
        let ThreadStacks { samples, functions, .. } = &mut self.stacks;
        functions.truncate(MAX_FUNCTIONS);
        for (function, hits) in functions {
            // `new` shortens the names and removes control characters.
            *function = Function::new(&function.function, &function.file);
            hits.total = hits.total.min(*samples);
            hits.own = hits.own.min(hits.total);
            hits.gil = hits.gil.min(hits.own);
        }
    }
}

/// State of the reading process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ReaderStatus {
    pub(super) cost: SamplingCost,
    pub(super) rss_bytes: Option<u64>,
    pub(super) refusals: Vec<UnreadableProcess>,
    pub(super) notes: Vec<String>,
}

/// The text without control characters, up to its maximum length.
fn bounded_text(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_TEXT).collect()
}

impl StackMessage {
    /// Reads the next message; `None` at the end of the stream.
    pub(super) fn read(from: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut message: Option<Self> = read_json_line(from)?;
        match &mut message {
            // The text comes from another process, so none of it may grow without bound.
            Some(Self::Samples(samples)) => samples.bound_names_and_hits(),
            Some(Self::Status(status)) => {
                status.refusals.truncate(MAX_LINES);
                for refused in &mut status.refusals {
                    refused.reason = bounded_text(&refused.reason);
                }
                status.notes.truncate(MAX_LINES);
                for note in &mut status.notes {
                    *note = bounded_text(note);
                }
            }
            Some(Self::Ended { reason, .. }) => *reason = bounded_text(reason),
            None => {}
        }
        Ok(message)
    }

    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        write_json_line(self, to)
    }
}

impl StackRequest {
    /// Reads the next request; `None` at the end of the stream.
    pub(super) fn read(from: &mut impl BufRead) -> io::Result<Option<Self>> {
        read_json_line(from)
    }

    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        write_json_line(self, to)
    }
}

/// Reads lines up to the first that is a JSON value of this type, and skips the others. A process that was killed may leave half a line.
/// Returns `None` at the end of the stream.
fn read_json_line<T: DeserializeOwned>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    loop {
        line.clear();
        // Limited, so that a line without an end cannot fill the memory.
        if from.take(MAX_LINE as u64).read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        if let Ok(value) = serde_json::from_slice(&line) {
            return Ok(Some(value));
        }
    }
}

/// Writes a value on a line of its own. Begins with a line break, because the process before this one may have left half a line.
fn write_json_line(value: &impl Serialize, to: &mut impl Write) -> io::Result<()> {
    let mut line = vec![b'\n'];
    serde_json::to_writer(&mut line, value)?;
    line.push(b'\n');
    to.write_all(&line)
}

#[cfg(test)]
mod tests {
    use probe_user::python::Hits;
    use proptest::prelude::*;

    use super::*;

    fn functions() -> impl Strategy<Value = Vec<(Function, Hits)>> {
        let function = ("[a-z_.<>]{0,40}", "[a-z/]{0,40}", 0..9_u32).prop_map(|(function, file, hits)| {
            (Function { function, file }, Hits { total: hits, own: hits / 2, gil: hits / 4 })
        });
        proptest::collection::vec(function, 0..20)
    }

    fn samples(pid: u32, at_ns: u64, samples: u32, functions: Vec<(Function, Hits)>) -> StackMessage {
        let stacks = ThreadStacks { tid: pid, samples, functions };
        StackMessage::Samples(ThreadSamples { pid, at_ns, interval_ns: 1, stacks })
    }

    proptest! {
        #[test]
        fn samples_round_trip_after_half_a_line(functions in functions(), torn in "[^\n]{0,40}", pid: u32, at_ns: u64) {
            let sent = samples(pid, at_ns, 9, functions);
            let mut stream = torn.into_bytes();
            sent.write(&mut stream).unwrap();
            let mut from = stream.as_slice();
            prop_assert_eq!(StackMessage::read(&mut from).unwrap(), Some(sent));
            prop_assert_eq!(StackMessage::read(&mut from).unwrap(), None);
        }

        #[test]
        fn arbitrary_bytes_yield_bounded_messages(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let mut from = bytes.as_slice();
            while StackMessage::read(&mut from).unwrap().is_some() {}
        }

    }

    proptest! {
        // Each case has megabytes.
        #![proptest_config(ProptestConfig::with_cases(8))]

        #[test]
        fn a_hostile_message_is_bounded(name in ".{0,200}", count in 200..300_usize, total: u32, own: u32, gil: u32) {
            let hits = (Function { function: name.clone(), file: name.clone() }, Hits { total, own, gil });
            let status = ReaderStatus {
                refusals: vec![UnreadableProcess { pid: 1, reason: name.repeat(9) }; count],
                notes: vec![name; count],
                ..ReaderStatus::default()
            };
            let mut stream = Vec::new();
            samples(1, 1, 50, vec![hits; count]).write(&mut stream).unwrap();
            StackMessage::Status(status).write(&mut stream).unwrap();
            let mut from = stream.as_slice();
            while let Some(message) = StackMessage::read(&mut from).unwrap() {
                match message {
                    StackMessage::Samples(samples) => {
                        prop_assert!(samples.stacks.functions.len() <= MAX_FUNCTIONS);
                        for (function, hits) in samples.stacks.functions {
                            prop_assert!(hits.gil <= hits.own && hits.own <= hits.total && hits.total <= 50);
                            prop_assert!(!function.function.chars().any(char::is_control));
                        }
                    }
                    StackMessage::Status(status) => {
                        prop_assert!(status.notes.len() <= MAX_LINES && status.refusals.len() <= MAX_LINES);
                        prop_assert!(status.notes.iter().all(|note| note.chars().count() <= MAX_TEXT));
                    }
                    StackMessage::Ended { .. } => prop_assert!(false, "not sent"),
                }
            }
        }
    }

    #[test]
    fn a_line_without_end_is_skipped_in_pieces() {
        let mut stream = vec![b'x'; 3 * MAX_LINE];
        let sent = StackRequest { hertz: 50, pids: vec![7] };
        sent.write(&mut stream).unwrap();
        assert_eq!(StackRequest::read(&mut stream.as_slice()).unwrap(), Some(sent));
    }
}
