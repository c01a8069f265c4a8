//! What is written of a run while it goes on: a recording, and the hindsight ring. Never the run's concern: trouble here
//! is said, and the run goes on.

mod args;
mod onset;
mod preamble;
mod ring;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use anyhow::Context;
use trace::record::{Anchor, Closing, Header, RecordOptions, Recorder, Status};
use trace::report::ReportInput;
use trace::{Analysis, Config, Event, MonoNs};

pub(crate) use args::RecordArgs;
use ring::Ring;

use crate::state::units::{bytes, count};

/// What is being written, for the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Writing {
    pub(crate) recording: Option<Written>,
    /// The hindsight ring is kept.
    pub(crate) ring: Option<Written>,
}

/// One file being written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// Records that did not fit the queue to the disk.
    pub(crate) dropped: u64,
}

/// All that is written of one run.
pub(crate) struct Sink {
    header: Header,
    options: RecordOptions,
    recording: Option<(PathBuf, Recorder)>,
    ring: Option<Ring>,
    trouble: Vec<String>,
    /// What a recording that ended by itself left to say.
    news: Option<String>,
}

impl Sink {
    /// Opens what `args` ask for, before the run, so that a mistake is told at once.
    pub(crate) fn open(args: &RecordArgs, source: &str, config: Config) -> anyhow::Result<Self> {
        let header = header(source, config);
        let options = RecordOptions {
            max_bytes: args.record_max_size,
            rotate: args.record_files,
            force: args.force,
            ..RecordOptions::default()
        };
        let mut sink = Self {
            header,
            options,
            recording: None,
            ring: None,
            trouble: Vec::new(),
            news: None,
        };
        if let Some(path) = &args.record {
            sink.record(path).context("nothing can be recorded")?;
        }
        if let Some(size) = args.hindsight {
            sink.ring = Some(Ring::open(args, size, &sink.header)?);
        }
        Ok(sink)
    }

    /// Nothing is written.
    pub(crate) fn none(source: &str, config: Config) -> Self {
        Self {
            header: header(source, config),
            options: RecordOptions::default(),
            recording: None,
            ring: None,
            trouble: Vec::new(),
            news: None,
        }
    }

    fn record(&mut self, path: &Path) -> anyhow::Result<()> {
        let recorder = Recorder::create(path, &self.header, self.options.clone())?;
        self.recording = Some((path.to_owned(), recorder));
        Ok(())
    }

    /// Writes an event.
    pub(crate) fn event(&mut self, event: &Event<'_>) {
        if self.recording.is_none() && self.ring.is_none() {
            return;
        }
        self.guarded(|sink| {
            if let Some((_, recorder)) = &mut sink.recording {
                recorder.event(event);
            }
            if let Some(ring) = &mut sink.ring {
                ring.event(event);
            }
        });
    }

    /// Writes a tick that the analysis has made; what is to be said of the writing.
    pub(crate) fn tick(&mut self, now: MonoNs, analysis: &Analysis) -> Option<String> {
        self.guarded(|sink| {
            if let Some((_, recorder)) = &mut sink.recording {
                recorder.tick(now);
            }
            if let Some(ring) = &mut sink.ring {
                ring.tick(now);
                sink.news = ring.onset(now, analysis).or(sink.news.take());
            }
        });
        self.watch();
        self.news.take()
    }

    /// Begins a recording in the working folder, or ends the one that is written; says so in words.
    pub(crate) fn toggle(&mut self, analysis: &Analysis, input: &ReportInput) -> String {
        if self.recording.is_some() {
            return self.close(input).unwrap_or_default();
        }
        let path = PathBuf::from(format!("tokengap-{}.tgap", trace::clock::wall_ns() / 1_000_000_000));
        self.header.anchor = Anchor::now();
        match self.record(&path) {
            Ok(()) => {
                self.guarded(|sink| {
                    if let Some((_, recorder)) = &mut sink.recording {
                        preamble::write(analysis.ledger(), &mut |event| recorder.event(event));
                    }
                });
                format!("recording to {}; r ends it", path.display())
            }
            Err(error) => format!("! nothing is recorded: {error:#}"),
        }
    }

    /// Writes the ring out; says where to.
    pub(crate) fn dump(&mut self, why: &str) -> String {
        match &mut self.ring {
            Some(ring) => match catch_unwind(AssertUnwindSafe(|| ring.dump(why))) {
                Ok(said) => said,
                Err(_) => self.failed(),
            },
            None => "there is no hindsight ring: start with --hindsight SIZE".into(),
        }
    }

    /// What is being written now.
    pub(crate) fn writing(&self) -> Writing {
        Writing {
            recording: self
                .recording
                .as_ref()
                .map(|(path, recorder)| written(path, &recorder.status())),
            ring: self.ring.as_ref().map(Ring::written),
        }
    }

    /// What went wrong with the writing, for the report.
    pub(crate) fn trouble(&self) -> &[String] {
        &self.trouble
    }

    /// Closes everything; what there is to say of it.
    pub(crate) fn finish(&mut self, input: &ReportInput) -> Vec<String> {
        let mut said: Vec<String> = self.close(input).into_iter().collect();
        if let Some(ring) = self.ring.take() {
            said.extend(ring.finish());
        }
        said
    }

    /// Ends the recording.
    fn close(&mut self, input: &ReportInput) -> Option<String> {
        let (path, recorder) = self.recording.take()?;
        let closing = Closing::of(input);
        let closed = catch_unwind(AssertUnwindSafe(|| recorder.finish(&closing)));
        Some(match closed {
            Ok(Ok(summary)) => {
                let dropped = if summary.dropped > 0 {
                    format!(", {} records did not fit", count(summary.dropped))
                } else {
                    String::new()
                };
                format!("recorded to {} ({}{dropped})", path.display(), bytes(summary.bytes))
            }
            Ok(Err(error)) => self.note(format!("recording: {error}")),
            Err(_) => self.failed(),
        })
    }

    /// Notices a recording that has stopped by itself: a full disk, a vanished mount.
    fn watch(&mut self) {
        let stopped = self
            .recording
            .as_ref()
            .and_then(|(_, recorder)| recorder.status().stopped);
        if let Some(why) = stopped {
            self.recording = None;
            let said = self.note(format!("recording: {why}"));
            self.news = Some(said);
        }
    }

    /// Does `write`; a panic in it costs the writing, not the run.
    fn guarded(&mut self, write: impl FnOnce(&mut Self)) {
        if catch_unwind(AssertUnwindSafe(|| write(self))).is_err() {
            let said = self.failed();
            self.news = Some(said);
        }
    }

    fn failed(&mut self) -> String {
        (self.recording, self.ring) = (None, None);
        self.note("recording: it failed and was left off; the run went on (this is a bug)".into())
    }

    fn note(&mut self, trouble: String) -> String {
        self.trouble.push(trouble.clone());
        format!("! {trouble}")
    }
}

fn header(source: &str, config: Config) -> Header {
    Header::new(source, config)
}

fn written(path: &Path, status: &Status) -> Written {
    Written {
        name: path.display().to_string(),
        bytes: status.bytes,
        dropped: status.dropped,
    }
}
