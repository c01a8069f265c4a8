//! Writes a recording of a busy engine, 132,000 chunks a second: `busy FILE SECONDS LIVE_REQUESTS TOKENS_PER_REQUEST`.

#[path = "../benches/traffic/mod.rs"]
mod traffic;

use std::error::Error;

use recording::{RecordOptions, Recorder, RecordingHeader};
use trace::{Config, ReportInput};
use traffic::{STREAM, Traffic, chunks};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, seconds, live, tokens] = arguments.as_slice() else {
        return Err("usage: busy FILE SECONDS LIVE_REQUESTS TOKENS_PER_REQUEST".into());
    };
    let options = RecordOptions {
        wait: true,
        // The traffic's timestamps run ahead of the real clock.
        anchor_every_ns: None,
        ..RecordOptions::default()
    };
    let mut recorder =
        Recorder::create(file.as_ref(), &RecordingHeader::for_source("bench", Config::default()), options)?;
    let mut stream = STREAM;
    stream.announce(&mut recorder);
    let mut traffic = Traffic::new(live.parse()?, tokens.parse()?);
    for _ in 0..seconds.parse::<u32>()? {
        stream.frames(&chunks(&traffic.second()), &mut recorder);
    }
    let summary = recorder.finish(&ReportInput::default())?;
    println!("{} records", summary.records);
    Ok(())
}
