//! Outputs of a live run: recording, hindsight ring and feed. A failure here is reported but does not affect the run.

mod args;
mod feed;
mod onset;
mod preamble;
mod ring;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use trace::event::{Lost, LostCause, What};
use trace::record::{Anchor, Closing, Header, RecordError, RecordOptions, Recorder, Status};
use trace::report::ReportInput;
use trace::{Analysis, Config, Event, MonoNs};

use self::feed::Feed;
pub(crate) use self::feed::{FeedArgs, Publishing};
pub(crate) use args::{RecordArgs, Tokens, size};
use ring::Ring;

use crate::state::units::{bytes, count};

/// Outputs being written, for the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Writing {
    pub(crate) recording: Option<Written>,
    /// The hindsight ring, if kept.
    pub(crate) ring: Option<Written>,
    /// The feed, if published.
    pub(crate) feed: Option<Publishing>,
}

/// A file being written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// Records dropped because the disk queue was full.
    pub(crate) dropped: u64,
}

/// All outputs of a run.
pub(crate) struct Sink {
    header: Header,
    /// Set if the run is observed on another machine.
    elsewhere: bool,
    options: RecordOptions,
    recording: Option<Recording>,
    ring: Option<Ring>,
    feed: Option<Feed>,
    trouble: Vec<String>,
    /// Message for the user.
    news: Option<String>,
}

/// A recording in progress.
struct Recording {
    recorder: Recorder,
    /// Set once its unexpected end has been reported.
    told: bool,
}

impl Sink {
    /// Opens the outputs that `args` request. Called before the run, so that errors appear at once.
    pub(crate) fn open(args: &RecordArgs, source: &str, config: &Config) -> anyhow::Result<Self> {
        let mut sink = Self::none(source, config);
        sink.header.payload = args.payload.into();
        sink.options = RecordOptions {
            max_bytes: args.record_max_size,
            rotate: args.record_files,
            force: args.force,
            ..RecordOptions::default()
        };
        if let Some(path) = &args.record {
            sink.record(path)?;
        }
        if let Some(size) = args.hindsight {
            sink.ring = Some(Ring::open(args, size, &sink.header)?);
        }
        Ok(sink)
    }

    /// Creates a sink without outputs.
    pub(crate) fn none(source: &str, config: &Config) -> Self {
        Self {
            header: Header::of(source, *config),
            elsewhere: false,
            options: RecordOptions::default(),
            recording: None,
            ring: None,
            feed: None,
            trouble: Vec::new(),
            news: None,
        }
    }

    /// Updates the limits for dumping the ring.
    pub(crate) fn retune(&mut self, args: &RecordArgs) {
        if let Some(ring) = &mut self.ring {
            ring.retune(args);
        }
    }

    /// Publishes the run, if requested.
    pub(crate) fn publish(&mut self, args: &FeedArgs) -> anyhow::Result<()> {
        if let Some(address) = args.publish {
            let feed = Feed::open(args, address, &self.header)?;
            self.news = Some(format!("published on tcp://{}", feed.publishing().address));
            self.feed = Some(feed);
        }
        Ok(())
    }

    /// Continues the recording from a state received from elsewhere, `missed` records after the last written one.
    pub(crate) fn go_on(&mut self, analysis: &Analysis, missed: u64) {
        self.guarded(|sink| {
            let Some(recording) = &mut sink.recording else {
                return;
            };
            let lost = Lost {
                hop: None,
                count: missed,
                cause: LostCause::QueueFull,
            };
            if missed > 0 {
                recording.recorder.event(&Event {
                    at: analysis.ledger().now(),
                    what: What::Lost(lost),
                });
            }
            preamble::write(analysis.ledger(), &mut |event| recording.recorder.event(event));
        });
    }

    /// Sets the header for a run observed elsewhere, whose clocks differ from ours.
    pub(crate) fn describe(&mut self, header: Header, options: RecordOptions) {
        (self.header, self.options, self.elsewhere) = (header, options, true);
    }

    fn is_idle(&self) -> bool {
        self.recording.is_none() && self.ring.is_none() && self.feed.is_none()
    }

    /// Starts a recording.
    pub(crate) fn record(&mut self, path: &Path) -> Result<(), RecordError> {
        let recorder = Recorder::create(path, &self.header, self.options)?;
        self.recording = Some(Recording { recorder, told: false });
        Ok(())
    }

    pub(crate) fn event(&mut self, event: &Event<'_>) {
        if self.is_idle() {
            return;
        }
        self.guarded(|sink| {
            if let Some(recording) = &mut sink.recording {
                recording.recorder.event(event);
            }
            if let Some(ring) = &mut sink.ring {
                ring.event(event);
            }
            if let Some(feed) = &mut sink.feed {
                feed.event(event);
            }
        });
    }

    /// Writes a tick that the analysis has processed. `input` returns the current input of a report.
    pub(crate) fn tick(&mut self, now: MonoNs, analysis: &Analysis, input: &dyn Fn() -> ReportInput) {
        if self.is_idle() {
            return;
        }
        self.guarded(|sink| {
            if let Some(recording) = &mut sink.recording {
                recording.recorder.tick(now);
            }
            if let Some(ring) = &mut sink.ring {
                ring.tick(now);
                let onset = ring.onset(now, analysis, &|| Closing::of(&input()));
                sink.news = onset.or_else(|| ring.news()).or(sink.news.take());
            }
            if let Some(feed) = &mut sink.feed {
                feed.tick(now, analysis, input);
                if let Some(trouble) = feed.trouble() {
                    let said = sink.note(trouble);
                    sink.news = Some(said);
                }
            }
        });
        self.watch();
    }

    /// Takes the message for the user, if any.
    pub(crate) fn news(&mut self) -> Option<String> {
        self.news.take()
    }

    /// Starts a recording in the working folder, or ends the current one. Returns a message.
    pub(crate) fn toggle(&mut self, analysis: &Analysis, input: &ReportInput) -> String {
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
                    if let Some(recording) = &mut sink.recording {
                        preamble::write(analysis.ledger(), &mut |event| recording.recorder.event(event));
                    }
                });
                format!("recording to {}; r ends it", path.display())
            }
            Err(error) => format!("! nothing is recorded: {error}"),
        }
    }

    /// Dumps the ring and returns a message with the file name.
    pub(crate) fn dump(&mut self, why: &str, input: &ReportInput) -> String {
        let closing = Closing::of(input);
        let Some(ring) = &mut self.ring else {
            return "there is no hindsight ring: start with --hindsight SIZE".into();
        };
        match catch_unwind(AssertUnwindSafe(|| ring.dump(why, &closing))) {
            Ok(said) => said,
            Err(_) => self.failed(),
        }
    }

    /// Outputs being written now.
    pub(crate) fn writing(&self) -> Writing {
        let recording = self.recording.as_ref().map(|r| &r.recorder);
        Writing {
            recording: recording.map(|recorder| written(recorder.path(), &recorder.status())),
            ring: self.ring.as_ref().map(Ring::written),
            feed: self.feed.as_ref().map(Feed::publishing),
        }
    }

    /// Problems with the outputs, for the report.
    pub(crate) fn trouble(&self) -> Vec<String> {
        let refused = self.feed.as_ref().and_then(Feed::refused);
        self.trouble.iter().cloned().chain(refused).collect()
    }

    /// Closes all outputs and returns messages about them.
    pub(crate) fn finish(&mut self, analysis: &Analysis, input: &ReportInput) -> Vec<String> {
        let mut said: Vec<String> = self.close(input).into_iter().collect();
        if let Some(ring) = self.ring.take() {
            let closing = Closing::of(input);
            match catch_unwind(AssertUnwindSafe(|| ring.finish(&closing))) {
                Ok(more) => said.extend(more),
                Err(_) => said.push(self.failed()),
            }
        }
        if let Some(feed) = self.feed.take() {
            self.trouble.extend(feed.refused());
            said.extend(feed.finish(analysis, &|| input.clone()));
        }
        said
    }

    /// Closes the recording.
    fn close(&mut self, input: &ReportInput) -> Option<String> {
        let Recording { recorder, told } = self.recording.take()?;
        let path = recorder.path().to_owned();
        let closing = Closing::of(input);
        Some(match catch_unwind(AssertUnwindSafe(|| recorder.finish(&closing))) {
            Ok(Ok(summary)) => {
                let dropped = match summary.dropped {
                    0 => String::new(),
                    n => format!(", {} records did not fit", count(n)),
                };
                let size = bytes(summary.bytes);
                format!("recorded to {} ({size}{dropped})", path.display())
            }
            Ok(Err(error)) if told => format!("! recording: {error}"),
            Ok(Err(error)) => self.note(format!("recording: {error}")),
            Err(_) => self.failed(),
        })
    }

    /// Detects a recording that stopped by itself: size limit, full disk, vanished mount.
    fn watch(&mut self) {
        let Some(recording) = self.recording.as_mut().filter(|r| !r.told) else {
            return;
        };
        if let Some(why) = recording.recorder.status().stopped {
            recording.told = true;
            let said = self.note(why);
            self.news = Some(said);
        }
    }

    /// Runs `write`. A panic ends the outputs, but not the run.
    fn guarded(&mut self, write: impl FnOnce(&mut Self)) {
        if catch_unwind(AssertUnwindSafe(|| write(self))).is_err() {
            let said = self.failed();
            self.news = Some(said);
        }
    }

    fn failed(&mut self) -> String {
        (self.recording, self.ring, self.feed) = (None, None, None);
        self.note("writing: it failed and was left off; the run went on (this is a bug)".into())
    }

    fn note(&mut self, trouble: String) -> String {
        let said = format!("! {trouble}");
        self.trouble.push(trouble);
        said
    }
}

fn written(path: &Path, status: &Status) -> Written {
    Written {
        name: path.display().to_string(),
        bytes: status.bytes,
        dropped: status.dropped,
    }
}
