//! Files that a live run writes: recording and hindsight ring. A failure here is reported but does not affect the run.

mod onset;
mod preamble;
mod ring;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use recording::{Header, Payload, RecordError, RecordOptions, Recorder, Status};
use trace::clock::Anchor;
use trace::{Analysis, Config, Event, MonoNs, ReportInput};

pub use onset::Rules;
use ring::Ring;
pub use ring::RingOptions;

use crate::telemetry::Served;
use crate::units::{format_bytes, format_count};

/// Files that a run writes.
#[derive(Clone, Debug)]
pub struct Files {
    /// Recording of the whole run.
    pub record: Option<PathBuf>,
    /// Size, rotation and replacement of recordings, including those started during the run.
    pub options: RecordOptions,
    /// Content of recordings.
    pub payload: Payload,
    /// The hindsight ring.
    pub ring: Option<RingOptions>,
}

/// Outputs being written, for the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writing {
    /// The recording, if any.
    pub recording: Option<Written>,
    /// The hindsight ring, if kept.
    pub ring: Option<Written>,
    /// The endpoint, if the run is served.
    pub endpoint: Option<Served>,
}

/// A file being written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Path as given.
    pub name: String,
    /// Bytes written.
    pub bytes: u64,
    /// Records dropped because the disk queue was full.
    pub dropped: u64,
}

/// All outputs of a run.
pub struct Sink {
    header: Header,
    /// Whether the run is observed on another machine.
    elsewhere: bool,
    options: RecordOptions,
    recording: Option<Recorder>,
    ring: Option<Ring>,
    trouble: Vec<String>,
    message: Option<String>,
}

impl Sink {
    /// Opens `files`. Called before the run, so that errors appear at once.
    pub fn open(files: &Files, source: &str, config: &Config) -> anyhow::Result<Self> {
        let mut sink = Self::none(source, config);
        sink.header.payload = files.payload;
        sink.options = files.options;
        if let Some(path) = &files.record {
            sink.record(path)?;
        }
        if let Some(ring) = &files.ring {
            sink.ring = Some(Ring::open(ring, files.options.force, &sink.header)?);
        }
        Ok(sink)
    }

    /// Creates a sink without outputs.
    pub fn none(source: &str, config: &Config) -> Self {
        Self {
            header: Header::of(source, *config),
            elsewhere: false,
            options: RecordOptions::default(),
            recording: None,
            ring: None,
            trouble: Vec::new(),
            message: None,
        }
    }

    /// Updates the limits for dumping the ring.
    pub fn retune(&mut self, rules: Rules) {
        if let Some(ring) = &mut self.ring {
            ring.onset.rules = rules;
        }
    }

    /// Sets the header for a run observed on another machine, whose clocks differ from this one's.
    pub fn describe(&mut self, header: Header, options: RecordOptions) {
        self.header = header;
        self.options = options;
        self.elsewhere = true;
    }

    fn is_idle(&self) -> bool {
        self.recording.is_none() && self.ring.is_none()
    }

    /// Starts a recording.
    pub fn record(&mut self, path: &Path) -> Result<(), RecordError> {
        self.recording = Some(Recorder::create(path, &self.header, self.options)?);
        Ok(())
    }

    /// Writes an event that the analysis has processed.
    pub fn event(&mut self, event: &Event<'_>) {
        if self.is_idle() {
            return;
        }
        self.guarded(|sink| {
            if let Some(recorder) = &mut sink.recording {
                recorder.event(event);
            }
            if let Some(ring) = &mut sink.ring {
                ring.recorder.event(event);
            }
        });
    }

    /// Writes a tick that the analysis has processed. `input` returns the current input of a report.
    pub fn tick(&mut self, now: MonoNs, analysis: &Analysis, input: &dyn Fn() -> ReportInput) {
        if self.is_idle() {
            return;
        }
        self.guarded(|sink| {
            if let Some(recorder) = &mut sink.recording {
                recorder.tick(now);
            }
            if let Some(ring) = &mut sink.ring {
                let onset = ring.tick(now, analysis, input);
                sink.message = onset.or_else(|| ring.take_message()).or(sink.message.take());
            }
        });
        self.watch();
    }

    /// Takes the message for the user, if any.
    pub fn take_message(&mut self) -> Option<String> {
        self.message.take()
    }

    /// Starts a recording in the working folder, or ends the current one. Returns a message.
    pub fn toggle(&mut self, analysis: &Analysis, input: &ReportInput) -> String {
        if self.recording.is_some() {
            return self.close(input).unwrap_or_default();
        }
        let path = PathBuf::from(format!("tokengap-{}.tgap", trace::clock::wall_ns() / 1_000_000_000));
        if !self.elsewhere {
            self.header.anchor = Anchor::now();
        }
        match self.record(&path) {
            Ok(()) => {
                self.guarded(|sink| {
                    if let Some(recorder) = &mut sink.recording {
                        preamble::write(analysis.ledger(), &mut |event| recorder.event(event));
                    }
                });
                format!("recording to {}; press r to stop", path.display())
            }
            Err(error) => format!("! cannot record: {error}"),
        }
    }

    /// Dumps the ring and returns a message with the file name.
    pub fn dump(&mut self, why: &str, input: &ReportInput) -> String {
        let Some(ring) = &mut self.ring else {
            return "no hindsight ring: start with --hindsight SIZE".into();
        };
        match catch_unwind(AssertUnwindSafe(|| ring.dump(why, input))) {
            Ok(message) => message,
            Err(_) => self.failed(),
        }
    }

    /// Outputs being written now.
    pub fn writing(&self) -> Writing {
        Writing {
            recording: self.recording.as_ref().map(|recorder| written(recorder.path(), &recorder.status())),
            ring: self.ring.as_ref().map(Ring::written),
            endpoint: None,
        }
    }

    /// Problems with the outputs, for the report.
    pub fn trouble(&self) -> Vec<String> {
        self.trouble.clone()
    }

    /// Closes all outputs and returns messages about them.
    pub fn finish(&mut self, input: &ReportInput) -> Vec<String> {
        let mut messages: Vec<String> = self.close(input).into_iter().collect();
        if let Some(ring) = self.ring.take() {
            match catch_unwind(AssertUnwindSafe(|| ring.finish(input))) {
                Ok(more) => messages.extend(more),
                Err(_) => messages.push(self.failed()),
            }
        }
        messages
    }

    /// Closes the recording.
    fn close(&mut self, input: &ReportInput) -> Option<String> {
        let recorder = self.recording.take()?;
        let reported = recorder.status().stopped.is_some_and(|why| self.trouble.contains(&why));
        let path = recorder.path().to_owned();
        Some(match catch_unwind(AssertUnwindSafe(|| recorder.finish(input))) {
            Ok(Ok(summary)) => {
                let dropped = match summary.dropped {
                    0 => String::new(),
                    n => format!(", {} records did not fit", format_count(n)),
                };
                let size = format_bytes(summary.bytes);
                format!("recorded to {} ({size}{dropped})", path.display())
            }
            Ok(Err(error)) if reported => format!("! recording: {error}"),
            Ok(Err(error)) => self.note(format!("recording: {error}")),
            Err(_) => self.failed(),
        })
    }

    /// Detects a recording that stopped by itself: size limit, full disk, vanished mount.
    fn watch(&mut self) {
        let stopped = self.recording.as_ref().and_then(|recorder| recorder.status().stopped);
        if let Some(why) = stopped.filter(|why| !self.trouble.contains(why)) {
            let message = self.note(why);
            self.message = Some(message);
        }
    }

    /// Runs `write`. A panic ends the outputs, but not the run.
    fn guarded(&mut self, write: impl FnOnce(&mut Self)) {
        if catch_unwind(AssertUnwindSafe(|| write(self))).is_err() {
            let message = self.failed();
            self.message = Some(message);
        }
    }

    fn failed(&mut self) -> String {
        self.recording = None;
        self.ring = None;
        self.note("recording crashed and was disabled; the run continues. Please report this bug.".into())
    }

    fn note(&mut self, trouble: String) -> String {
        let message = format!("! {trouble}");
        self.trouble.push(trouble);
        message
    }
}

fn written(path: &Path, status: &Status) -> Written {
    Written { name: path.display().to_string(), bytes: status.bytes, dropped: status.dropped }
}
