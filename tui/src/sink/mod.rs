//! What is written of a run while it goes on: a recording, the hindsight ring, and the feed. Never the run's concern: trouble here
//! is said, and the run goes on.

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

/// What is being written, for the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Writing {
    pub(crate) recording: Option<Written>,
    /// The hindsight ring is kept.
    pub(crate) ring: Option<Written>,
    /// The run is published.
    pub(crate) feed: Option<Publishing>,
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
    /// The run is observed on another machine.
    elsewhere: bool,
    options: RecordOptions,
    recording: Option<Recording>,
    ring: Option<Ring>,
    feed: Option<Feed>,
    trouble: Vec<String>,
    /// What there is to say of the writing.
    news: Option<String>,
}

/// A recording under way.
struct Recording {
    recorder: Recorder,
    /// It has been said that it ended by itself.
    told: bool,
}

impl Sink {
    /// Opens what `args` ask for, before the run, so that a mistake is told at once.
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

    /// Nothing is written.
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

    /// Takes new limits for writing the ring out.
    pub(crate) fn retune(&mut self, args: &RecordArgs) {
        if let Some(ring) = &mut self.ring {
            ring.retune(args);
        }
    }

    /// Publishes the run, if that is asked for.
    pub(crate) fn publish(&mut self, args: &FeedArgs) -> anyhow::Result<()> {
        if let Some(address) = args.publish {
            let feed = Feed::open(args, address, &self.header)?;
            self.news = Some(format!("published on tcp://{}", feed.publishing().address));
            self.feed = Some(feed);
        }
        Ok(())
    }

    /// The run goes on from a state that was made elsewhere, `missed` records behind what was written last.
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

    /// Says what the run is, where it is observed elsewhere: its clocks are not ours.
    pub(crate) fn describe(&mut self, header: Header, options: RecordOptions) {
        (self.header, self.options, self.elsewhere) = (header, options, true);
    }

    fn is_idle(&self) -> bool {
        self.recording.is_none() && self.ring.is_none() && self.feed.is_none()
    }

    /// Begins a recording.
    pub(crate) fn record(&mut self, path: &Path) -> Result<(), RecordError> {
        let recorder = Recorder::create(path, &self.header, self.options)?;
        self.recording = Some(Recording { recorder, told: false });
        Ok(())
    }

    /// Writes an event.
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

    /// Writes a tick that the analysis has made. `input` is what a report would say now.
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

    /// What there is to say since the last call.
    pub(crate) fn news(&mut self) -> Option<String> {
        self.news.take()
    }

    /// Begins a recording in the working folder, or ends the one that is written; says so in words.
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

    /// Writes the ring out; says where to.
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

    /// What is being written now.
    pub(crate) fn writing(&self) -> Writing {
        let recording = self.recording.as_ref().map(|r| &r.recorder);
        Writing {
            recording: recording.map(|recorder| written(recorder.path(), &recorder.status())),
            ring: self.ring.as_ref().map(Ring::written),
            feed: self.feed.as_ref().map(Feed::publishing),
        }
    }

    /// What went wrong with the writing, for the report.
    pub(crate) fn trouble(&self) -> Vec<String> {
        let refused = self.feed.as_ref().and_then(Feed::refused);
        self.trouble.iter().cloned().chain(refused).collect()
    }

    /// Closes everything; what there is to say of it.
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

    /// Ends the recording.
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

    /// Notices a recording that has ended by itself: its largest size, a full disk, a vanished mount.
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

    /// Does `write`; a panic in it costs the writing, not the run.
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
