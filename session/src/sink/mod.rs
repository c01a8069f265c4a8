//! Files that a live run writes: recording and hindsight ring. A failure here is reported but does not affect the run.

mod dump_trigger;
mod hindsight_ring;
mod preamble;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use recording::{
    RecordError, RecordOptions, RecordedPayload, Recorder, RecordingHeader, RecordingStatus, RecordingSummary,
};
use trace::clock::Anchor;
use trace::{Analysis, Config, Event, MonoNs, ReportInput};

pub use dump_trigger::DumpRules;
use hindsight_ring::HindsightRing;
pub use hindsight_ring::RingOptions;

use crate::problem::problem_message;
use crate::telemetry::EndpointStatus;
use crate::units::{format_bytes, format_count};

const SECOND_NS: u64 = 1_000_000_000;

/// Files that a run writes.
#[derive(Clone, Debug)]
pub struct OutputFiles {
    /// Recording of the whole run.
    pub record: Option<PathBuf>,
    /// Size, rotation and replacement of recordings, including those started during the run.
    pub options: RecordOptions,
    /// Content of recordings.
    pub payload: RecordedPayload,
    /// The hindsight ring.
    pub ring: Option<RingOptions>,
}

impl OutputFiles {
    /// These files for one of several runs: each path contains the name of the run.
    #[must_use]
    pub fn of_run(&self, run_name: &str) -> Self {
        let record = self.record.as_ref().map(|path| recording::path_of_run(path, run_name));
        let ring = self.ring.as_ref().map(|ring| ring.of_run(run_name));
        Self { record, ring, ..self.clone() }
    }
}

/// Outputs being written, for the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputStatus {
    /// The recording, if any.
    pub recording: Option<WrittenFile>,
    /// The hindsight ring, if kept.
    pub ring: Option<WrittenFile>,
    /// The endpoint, if the run is served.
    pub endpoint: Option<EndpointStatus>,
}

/// A file being written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WrittenFile {
    /// Path as given.
    pub name: String,
    /// Bytes written.
    pub bytes: u64,
    /// Records dropped because the disk queue was full.
    pub dropped: u64,
}

/// All outputs of a run.
pub struct Sink {
    header: RecordingHeader,
    /// The run is observed on another machine.
    is_remote: bool,
    options: RecordOptions,
    recording: Option<Recorder>,
    ring: Option<HindsightRing>,
    problems: Vec<String>,
    message: Option<String>,
}

impl Sink {
    /// Opens `files`. Called before the run, so that errors appear at once. `source_kind` is the kind of source that recordings name.
    pub fn open(files: &OutputFiles, source_kind: &str, config: &Config) -> anyhow::Result<Self> {
        let mut sink = Self::none(source_kind, config);
        sink.header.payload = files.payload;
        sink.options = files.options;
        if let Some(path) = &files.record {
            sink.start_recording(path)?;
        }
        if let Some(ring) = &files.ring {
            sink.ring = Some(HindsightRing::open(ring, files.options.force, &sink.header)?);
        }
        Ok(sink)
    }

    /// Creates a sink without outputs. `source_kind` is the kind of source that later recordings name.
    pub fn none(source_kind: &str, config: &Config) -> Self {
        Self {
            header: RecordingHeader::for_source(source_kind, *config),
            is_remote: false,
            options: RecordOptions::default(),
            recording: None,
            ring: None,
            problems: Vec::new(),
            message: None,
        }
    }

    /// Sets the conditions for dumping the hindsight ring, if there is one.
    pub(crate) fn update_dump_rules(&mut self, rules: DumpRules) {
        if let Some(ring) = &mut self.ring {
            ring.trigger.rules = rules;
        }
    }

    /// Sets the header and options of recordings, for a run observed on another machine. The clocks of that machine differ from this one's.
    pub fn set_remote_header_and_options(&mut self, header: RecordingHeader, options: RecordOptions) {
        self.header = header;
        self.options = options;
        self.is_remote = true;
    }

    /// Returns whether no file is being written.
    fn has_no_output(&self) -> bool {
        self.recording.is_none() && self.ring.is_none()
    }

    /// Starts a recording into this file.
    pub fn start_recording(&mut self, path: &Path) -> Result<(), RecordError> {
        self.recording = Some(Recorder::create(path, &self.header, self.options)?);
        Ok(())
    }

    /// Writes an event that the analysis has processed.
    pub fn write_event(&mut self, event: &Event<'_>) {
        if self.has_no_output() {
            return;
        }
        self.disable_outputs_on_panic(|sink| {
            if let Some(recorder) = &mut sink.recording {
                recorder.record_event(event);
            }
            if let Some(ring) = &mut sink.ring {
                ring.recorder.record_event(event);
            }
        });
    }

    /// Writes a tick, at which the analysis has looked for findings, to the recording and the hindsight ring. The ring starts a dump if one
    /// is due. `input` returns the current input of a report.
    pub fn write_tick(&mut self, now: MonoNs, analysis: &Analysis, input: &dyn Fn() -> ReportInput) {
        if self.has_no_output() {
            return;
        }
        self.disable_outputs_on_panic(|sink| {
            if let Some(recorder) = &mut sink.recording {
                recorder.record_tick(now);
            }
            if let Some(ring) = &mut sink.ring {
                let start_message = ring.process_tick_and_start_due_dump(now, analysis, input);
                // One message is shown for each tick. If a dump starts, the message about a finished dump stays in the ring until the
                // next tick.
                if let Some(message) = start_message.or_else(|| ring.take_message()) {
                    // Replaces an older message that was not shown yet.
                    sink.message = Some(message);
                }
            }
        });
        self.report_stopped_recording_once();
    }

    /// Takes the message for the user, if any.
    pub(crate) fn take_message(&mut self) -> Option<String> {
        self.message.take()
    }

    /// Starts a recording in the working folder, or ends the current one. Returns a message.
    pub(crate) fn toggle_recording_with_message(&mut self, analysis: &Analysis, input: &ReportInput) -> String {
        if self.recording.is_some() {
            // There is a message, because there is a recording.
            return self.close_recording_with_message(input).unwrap_or_default();
        }
        let second = trace::clock::wall_now_ns() / SECOND_NS;
        let path = PathBuf::from(format!("tokengap-{second}.tgap"));
        // The anchor relates the two clocks of this machine. The header of a remote run has the anchor of the remote machine, which
        // stays.
        if !self.is_remote {
            self.header.anchor = Anchor::now();
        }
        match self.start_recording(&path) {
            Ok(()) => {
                self.record_engine_and_hops(analysis);
                format!("recording to {}; press r to stop", path.display())
            }
            Err(error) => problem_message(format_args!("cannot record: {error}")),
        }
    }

    /// Records the events of the engine and its hops. They came before the recording, and a reader needs them.
    fn record_engine_and_hops(&mut self, analysis: &Analysis) {
        self.disable_outputs_on_panic(|sink| {
            if let Some(recorder) = &mut sink.recording {
                preamble::emit_engine_and_hops(analysis.ledger(), &mut |event| recorder.record_event(event));
            }
        });
    }

    /// Starts a dump of the hindsight ring. Returns a message: the name of the file, or why there is no dump.
    pub(crate) fn dump_hindsight_ring(&mut self, reason: &str, input: &ReportInput) -> String {
        let Some(ring) = &mut self.ring else {
            return "no hindsight ring: start with --hindsight SIZE".into();
        };
        match catch_unwind(AssertUnwindSafe(|| ring.start_dump_with_message(reason, input))) {
            Ok(message) => message,
            Err(_) => self.disable_outputs_with_message(),
        }
    }

    /// Outputs being written now.
    pub fn output_status(&self) -> OutputStatus {
        OutputStatus {
            recording: self.recording.as_ref().map(|recorder| written_file(recorder.path(), &recorder.status())),
            ring: self.ring.as_ref().map(HindsightRing::written_file),
            // The caller adds it, because telemetry has the endpoint.
            endpoint: None,
        }
    }

    /// Problems with the outputs, for the report.
    pub fn problems(&self) -> Vec<String> {
        self.problems.clone()
    }

    /// Closes all outputs and returns messages about them.
    pub fn close_files(&mut self, input: &ReportInput) -> Vec<String> {
        let mut messages: Vec<String> = self.close_recording_with_message(input).into_iter().collect();
        if let Some(ring) = self.ring.take() {
            match catch_unwind(AssertUnwindSafe(|| ring.finish_with_messages(input))) {
                Ok(ring_messages) => messages.extend(ring_messages),
                // It panicked.
                Err(_) => messages.push(self.disable_outputs_with_message()),
            }
        }
        messages
    }

    /// Finishes the recording, if there is one, and returns the message about it.
    fn close_recording_with_message(&mut self, input: &ReportInput) -> Option<String> {
        let recorder = self.recording.take()?;
        // If the recording stopped by itself, its problem may be in the report already.
        let is_already_reported = recorder.status().stopped.is_some_and(|reason| self.problems.contains(&reason));
        let path = recorder.path().to_owned();
        let Ok(finished) = catch_unwind(AssertUnwindSafe(|| recorder.finish(input))) else {
            // The recorder panicked.
            return Some(self.disable_outputs_with_message());
        };
        Some(match finished {
            Ok(summary) => recorded_message(&path, &summary),
            Err(error) if is_already_reported => problem_message(format_args!("recording: {error}")),
            Err(error) => self.record_problem_and_format_message(format!("recording: {error}")),
        })
    }

    /// Reports a recording that has stopped by itself, for example because of its size limit or a full disk. Reports it only once.
    fn report_stopped_recording_once(&mut self) {
        let Some(reason) = self.recording.as_ref().and_then(|recorder| recorder.status().stopped) else { return };
        if !self.problems.contains(&reason) {
            let message = self.record_problem_and_format_message(reason);
            self.message = Some(message);
        }
    }

    /// Runs `write`. A panic in it ends the outputs with a message for the user, but not the run.
    fn disable_outputs_on_panic(&mut self, write: impl FnOnce(&mut Self)) {
        if catch_unwind(AssertUnwindSafe(|| write(self))).is_err() {
            let message = self.disable_outputs_with_message();
            self.message = Some(message);
        }
    }

    /// Ends the recording and the ring after a panic in one of them. Returns the message about it.
    fn disable_outputs_with_message(&mut self) -> String {
        self.recording = None;
        self.ring = None;
        self.record_problem_and_format_message(
            "recording crashed and was disabled; the run continues. Please report this bug.".into(),
        )
    }

    /// Records a problem for the report, and returns a message about it.
    fn record_problem_and_format_message(&mut self, problem: String) -> String {
        let message = problem_message(format_args!("{problem}"));
        self.problems.push(problem);
        message
    }
}

/// Message about a finished recording.
fn recorded_message(path: &Path, summary: &RecordingSummary) -> String {
    let dropped_note = match summary.dropped {
        0 => String::new(),
        records => format!(", {} records did not fit", format_count(records)),
    };
    let size = format_bytes(summary.bytes);
    format!("recorded to {} ({size}{dropped_note})", path.display())
}

/// State of a file being written, for the screen.
fn written_file(path: &Path, status: &RecordingStatus) -> WrittenFile {
    WrittenFile { name: path.display().to_string(), bytes: status.bytes, dropped: status.dropped }
}
