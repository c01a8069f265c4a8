//! Recorded connections, read piece by piece. The tests of `engines` use it, too.

use std::path::PathBuf;

use proptest::prelude::*;
use proptest::sample::Index;
use responses::{ResponseReader, Server};
use trace::MonoNs;
use trace::engine::Mode;
use trace::event::{AnswerEnd, Event, What};

/// Fixtures with the extension `.bin` in a folder below `fixtures`.
pub(crate) fn recorded(folder: &str) -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(folder);
    let mut found: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "bin"))
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), std::fs::read(path).unwrap()))
        .collect();
    found.sort();
    assert!(!found.is_empty(), "{}", folder.display());
    found
}

/// One of these fixtures.
pub(crate) fn recording(folder: &str, name: &str) -> Vec<u8> {
    let found = recorded(folder).into_iter().find(|(known, _)| known == name);
    found.unwrap_or_else(|| panic!("no recording {name}")).1
}

/// Bytes in which up to `most` are replaced.
pub(crate) fn damaged(bytes: impl Strategy<Value = Vec<u8>>, most: usize) -> impl Strategy<Value = Vec<u8>> {
    let damage = prop::collection::vec((any::<Index>(), any::<u8>()), 0..most);
    (bytes, damage).prop_map(|(mut bytes, damage)| {
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes
    })
}

/// Answers of a connection: request, tokens, count that it states, and end.
pub(crate) type Answers = Vec<(String, Option<u32>, Option<u32>, AnswerEnd)>;

/// An event of a connection, in owned form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Observed {
    Delivered(String, u32, Option<u32>, bool, Mode),
    Answered(String, Option<u32>, Option<u32>, AnswerEnd),
    Rejected(u16),
    Missed,
}

/// A connection that is read piece by piece.
pub(crate) struct Connection {
    pub(crate) reader: ResponseReader,
    pub(crate) server: Server,
    pub(crate) events: Vec<Observed>,
}

impl Connection {
    pub(crate) fn new(mode: Option<Mode>) -> Self {
        let reader = ResponseReader::default().with_protocols(super::PROTOCOLS);
        Self { reader, server: Server::new(mode), events: Vec::new() }
    }

    pub(crate) fn feed(&mut self, bytes: &[u8], begins: bool) {
        let events = &mut self.events;
        self.reader.read_bytes(MonoNs(1), bytes, begins, &mut self.server, &mut |event| events.push(own(event)));
    }

    pub(crate) fn missed(&mut self) {
        let events = &mut self.events;
        self.reader.record_gap(MonoNs(1), &mut |event| events.push(own(event)));
    }

    pub(crate) fn closed(&mut self, by_client: bool) {
        let end = if by_client { AnswerEnd::ClientLeft } else { AnswerEnd::ServerLeft };
        let events = &mut self.events;
        self.reader.end_connection(MonoNs(1), end, None, &mut self.server, &mut |event| events.push(own(event)));
    }

    pub(crate) fn answers(&self) -> Answers {
        let found = self.events.iter().filter_map(|event| match event {
            Observed::Answered(rid, tokens, stated, end) => Some((rid.clone(), *tokens, *stated, *end)),
            _ => None,
        });
        found.collect()
    }

    /// The events before the first gap.
    pub(crate) fn before_gap(self) -> Vec<Observed> {
        self.events.into_iter().take_while(|event| *event != Observed::Missed).collect()
    }

    /// Feeds `bytes` in pieces of the given lengths, repeated as needed.
    pub(crate) fn pieces(&mut self, mut bytes: &[u8], lengths: &[usize]) {
        for length in lengths.iter().cycle() {
            if bytes.is_empty() {
                break;
            }
            let (now, rest) = bytes.split_at((*length).clamp(1, bytes.len()));
            self.feed(now, true);
            bytes = rest;
        }
    }
}

pub(crate) fn own(event: &Event<'_>) -> Observed {
    match event.what {
        What::Delivered(d) => Observed::Delivered(d.rid.to_owned(), d.tokens, d.completion_tokens, d.finished, d.mode),
        What::Answered(a) => Observed::Answered(a.rid.to_owned(), a.tokens, a.completion_tokens, a.end),
        What::Rejected(rejection) => Observed::Rejected(rejection.status),
        What::Missed(_) => Observed::Missed,
        ref other => panic!("{other:?}"),
    }
}
