//! Recordings of a prefill and a decode server.

#[path = "../../../trace/tests/common/pair.rs"]
pub(crate) mod events;

use std::path::{Path, PathBuf};

use events::{MS, Request, server_events};
use recording::{RecordOptions, Recorder, RecordingHeader};
use serde_json::json;
use trace::clock::Anchor;
use trace::event::{Engine, Event, What};
use trace::{Config, MonoNs, ReportInput};

pub(crate) const RIDS: [&str; 12] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
const WALL_NS: u64 = 1_700_000_000_000_000_000;

/// Records a server, whose clock is ahead by some milliseconds. Returns the file.
pub(crate) fn record(folder: &Path, name: &str, requests: &[Request<'_>], ahead: u64, side: Option<&str>) -> PathBuf {
    let file = folder.join(name);
    let header = RecordingHeader {
        anchor: Anchor { mono: MonoNs(ahead * MS), wall_ns: WALL_NS },
        ..RecordingHeader::for_source("attach", Config::default())
    };
    let mut recorder = Recorder::create(&file, &header, RecordOptions::offline()).expect("a new file");
    let engine = Engine { name: Some("sglang"), version: Some("0.5.23"), mode: None, waiter: None, turnaround: None };
    recorder.record_event(&Event::new(MonoNs(ahead * MS), What::Engine(engine)));
    for (at, what) in server_events(requests, ahead) {
        recorder.record_event(&Event::new(MonoNs(at.max(ahead * MS)), what));
    }
    let wire = side.map(|side| json!({"disaggregation": {"mode": side}}));
    recorder.finish(&ReportInput { wire, ..ReportInput::default() }).expect("a complete file");
    file
}

/// Requests every 100 ms, with transfers that take 600 ms.
pub(crate) fn requests(of: fn(&'static str, u64, u64) -> Request<'static>, is_decode: bool) -> Vec<Request<'static>> {
    let numbered = (1..).zip(RIDS);
    let slow = numbered.map(|(room, rid)| {
        let request = of(rid, room, 100 * room);
        let later = |at: Option<u64>| at.map(|at| at + if is_decode { 500 } else { 0 });
        Request {
            message: request.message.map(|(at, kind)| (at + if is_decode { 0 } else { 500 }, kind)),
            queued: later(request.queued),
            batch: later(request.batch),
            frame: request.frame + 500,
            token_received: request.token_received + 500,
            delivered: request.delivered + 500,
            ..request
        }
    });
    slow.collect()
}
