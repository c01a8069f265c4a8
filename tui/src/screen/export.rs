//! Exports from the screen into new files in the working folder.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use anyhow::Context;
use outputs::export::{self, Format, Options};
use outputs::report::Clock;
use recording::Recording;
use recording::storage;
use session::Run;
use trace::engine::Engines;

use crate::state::action::ExportAs;

/// Maximum number of chunks and deliveries drawn per request, as in `tokengap export`.
const CHUNKS: u32 = 64;

/// A trace being written on a separate thread.
#[derive(Default)]
pub(super) struct Exports(Option<Receiver<String>>);

impl Exports {
    /// Exports the current state. Returns a message with the file name or the error.
    pub(super) fn begin(&mut self, format: ExportAs, run: &Run<'_>) -> String {
        let result = match format {
            ExportAs::Html => {
                let report = (run.report)();
                write("report", "html", &report.to_html(&Clock::of(&report, None)))
            }
            ExportAs::Json => write("report", "json", &(run.report)().to_json()),
            ExportAs::Perfetto => self.trace(run),
        };
        result.unwrap_or_else(|error| format!("! {error:#}"))
    }

    /// Result of the trace, once finished.
    pub(super) fn take_result(&mut self) -> Option<String> {
        let result = self.0.as_ref()?.try_recv().ok()?;
        self.0 = None;
        Some(result)
    }

    fn trace(&mut self, run: &Run<'_>) -> anyhow::Result<String> {
        let recorded = || (run.writing)().recording.map(|written| PathBuf::from(written.name));
        let Some(recording) = run.about.file().map(Path::to_owned).or_else(recorded) else {
            return Ok("a trace needs a recording: press r to start one".to_owned());
        };
        if self.0.is_some() {
            return Ok("a trace is being written".to_owned());
        }
        let (name, file) = new("trace", "json")?;
        let message = format!("writing {name}");
        let engines = run.analysis.ledger().engine().known();
        let (sender, receiver) = channel();
        thread::Builder::new().name("export".into()).spawn(move || {
            let result = match perfetto(&recording, engines, &file) {
                Ok(()) => format!("wrote {name}: open it at ui.perfetto.dev"),
                Err(error) => {
                    let _ = storage::remove(Path::new(&name));
                    format!("! {name}: {error:#}")
                }
            };
            let _ = sender.send(result);
        })?;
        self.0 = Some(receiver);
        Ok(message)
    }
}

fn perfetto(recording: &Path, engines: Engines, file: &File) -> anyhow::Result<()> {
    let recording = Recording::open(recording)?;
    let options = Options { chunks: CHUNKS, ..Options::default() };
    let mut out = BufWriter::new(file);
    export::recorded(&recording, engines, Format::Perfetto, options, &mut out, &mut |_, _| {})?;
    Ok(out.flush()?)
}

fn write(what: &str, kind: &str, text: &str) -> anyhow::Result<String> {
    let (name, mut file) = new(what, kind)?;
    file.write_all(text.as_bytes()).with_context(|| format!("cannot write {name}"))?;
    Ok(format!("wrote the {what} so far to {name}"))
}

fn new(what: &str, kind: &str) -> anyhow::Result<(String, File)> {
    let second = trace::clock::wall_ns() / 1_000_000_000;
    for copy in 0..100 {
        let suffix = if copy == 0 { String::new() } else { format!("-{copy}") };
        let name = format!("tokengap-{what}-{second}{suffix}.{kind}");
        match storage::create(Path::new(&name)) {
            Ok(file) => return Ok((name, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("cannot create {name} in this folder; start tokengap in a writable one"));
            }
        }
    }
    anyhow::bail!("this folder already has 100 files from this second; try again in a moment")
}
