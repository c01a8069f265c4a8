//! Exports from the screen into new files in the working folder.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use outputs::export::{self, Format, Options};
use outputs::report::Clock;
use recording::Recording;
use recording::storage;
use session::Run;
use trace::engine::Engines;

use crate::state::action::ExportAs;

/// Maximum number of chunks and deliveries drawn per request, as in `tokengap export`.
const MAX_CHUNKS: u32 = 64;
/// Maximum number of exports in one second with the same subject and extension.
const MAX_FILES_PER_SECOND: u32 = 100;

/// Writes exports. A trace is written on a separate thread, at most one at a time.
#[derive(Default)]
pub(super) struct ScreenExporter {
    /// Receives the message about the trace being written.
    trace_result: Option<Receiver<String>>,
}

impl ScreenExporter {
    /// Exports the current state: a report at once, a trace on a thread of its own. Returns a message with the file name or the error.
    pub(super) fn export_and_describe_result(&mut self, format: ExportAs, run: &Run<'_>) -> String {
        let result = match format {
            ExportAs::Html => {
                let report = (run.report)();
                // Without a zone, the times of the report are in UTC, as on the screen.
                write_report_and_describe("html", &report.to_html(&Clock::of(&report, None)))
            }
            ExportAs::Json => write_report_and_describe("json", &(run.report)().to_json()),
            ExportAs::Perfetto => self.start_trace_and_describe(run),
        };
        // All errors in the last row of the screen begin with this mark.
        result.unwrap_or_else(|error| format!("! {error:#}"))
    }

    /// Returns a message about the trace once, when it is finished or has failed; `None` before and after that.
    pub(super) fn take_trace_result(&mut self) -> Option<String> {
        let result = self.trace_result.as_ref()?.try_recv().ok()?;
        self.trace_result = None;
        Some(result)
    }

    /// Starts a thread that writes a trace of the recording. Returns a message: the path of the trace, or that there is no recording or a
    /// trace is being written already. Fails if no file can be created or no thread started.
    fn start_trace_and_describe(&mut self, run: &Run<'_>) -> anyhow::Result<String> {
        let Some(recording) = recording_path_of_run(run) else {
            return Ok("a trace needs a recording: press r to start one".to_owned());
        };
        if self.trace_result.is_some() {
            return Ok("a trace is being written".to_owned());
        }
        let new_file = create_export_file("trace", "json")?;
        let path = describe_path(&new_file.name);
        let message = format!("writing the trace for Perfetto to {path}");
        let engines = run.analysis.ledger().engine().known();
        // Written on another thread, because a long recording takes seconds.
        let (sender, receiver) = channel();
        thread::Builder::new().name("export".into()).spawn(move || {
            let result = match write_trace_or_remove_file(&recording, engines, &new_file) {
                Ok(()) => format!("wrote the trace for Perfetto (ui.perfetto.dev) to {path}"),
                Err(error) => format!("! cannot write {path}: {error:#}"),
            };
            // Fails if the screen was closed meanwhile.
            let _ = sender.send(result);
        })?;
        self.trace_result = Some(receiver);
        Ok(message)
    }
}

/// File with the recording of the run: the one that is replayed, or the one that a live run is being recorded to. `None` without either.
fn recording_path_of_run(run: &Run<'_>) -> Option<PathBuf> {
    if let Some(replayed) = run.about.file() {
        return Some(replayed.to_owned());
    }
    let written = (run.writing)().recording?;
    Some(PathBuf::from(written.name))
}

/// Converts the recording into a trace for Perfetto, written to `new_file`. Removes the file and returns the error if that fails.
fn write_trace_or_remove_file(recording: &Path, engines: Engines, new_file: &NewFile) -> anyhow::Result<()> {
    let result = write_trace(recording, engines, &new_file.file);
    if result.is_err() {
        // A part of a trace would look like a whole one. If it cannot be removed, the error still says that it failed.
        let _ = storage::remove(Path::new(&new_file.name));
    }
    result
}

/// Converts the recording into a trace for Perfetto, written to `file`. Fails if the recording cannot be read or the file not written.
fn write_trace(recording: &Path, engines: Engines, file: &File) -> anyhow::Result<()> {
    let recording = Recording::open(recording)?;
    let options = Options { chunks: MAX_CHUNKS, ..Options::default() };
    let mut out = BufWriter::new(file);
    // The closure gets the progress, which is not shown.
    export::export_recording(&recording, engines, Format::Perfetto, options, &mut out, &mut |_, _| {})?;
    Ok(out.flush()?)
}

/// Writes the text of a report into a new file with this extension. Returns a message with its path. Fails if that is not possible.
fn write_report_and_describe(format: &str, text: &str) -> anyhow::Result<String> {
    let NewFile { name, mut file } = create_export_file("report", format)?;
    let path = describe_path(&name);
    file.write_all(text.as_bytes()).with_context(|| format!("cannot write {path}"))?;
    Ok(format!("wrote the {} report so far to {path}", format.to_uppercase()))
}

/// The file's path, by which a user of another shell finds it.
fn describe_path(name: &str) -> String {
    std::path::absolute(name).map_or_else(|_| name.to_owned(), |path| path.display().to_string())
}

struct NewFile {
    name: String,
    file: File,
}

/// Creates a file in the working folder, named after its subject and the time: `tokengap-report-1764499200.html`. Fails if the folder is
/// not writable, or if all names of this second are taken.
fn create_export_file(subject: &str, extension: &str) -> anyhow::Result<NewFile> {
    let second = Duration::from_nanos(trace::clock::wall_now_ns()).as_secs();
    for copy in 0..MAX_FILES_PER_SECOND {
        let suffix = if copy == 0 { String::new() } else { format!("-{copy}") };
        // Another export of the same second must not be overwritten.
        let name = format!("tokengap-{subject}-{second}{suffix}.{extension}");
        match storage::create(Path::new(&name)) {
            Ok(file) => return Ok(NewFile { name, file }),
            // The next suffix may be free.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("cannot create {name} in this folder; start tokengap in a writable one"));
            }
        }
    }
    anyhow::bail!("this folder already has {MAX_FILES_PER_SECOND} files from this second; try again in a moment")
}
