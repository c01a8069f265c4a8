//! Hindsight ring: the recent past on disk, dumped into a recording when something happens.

use std::path::PathBuf;

use trace::record::{Closing, Dumping, Header, Hindsight, RecordError, RecordOptions, Summary};
use trace::{Analysis, Event, MonoNs};

use super::onset::{Onset, Rules};
use super::{RecordArgs, Written, written};
use crate::state::units::bytes;

/// Name prefix of dumps.
const COPY: &str = "tokengap-hindsight-";

/// A ring, and the conditions for dumping it.
pub(super) struct Ring {
    hindsight: Hindsight,
    /// Set if the user named the file, which then remains after a clean end.
    named: bool,
    onset: Onset,
    /// Dumps in progress, with their path and reason.
    dumps: Vec<(Dumping, PathBuf, String)>,
}

impl Ring {
    pub(super) fn open(args: &RecordArgs, size: u64, header: &Header) -> Result<Self, RecordError> {
        let path = match &args.hindsight_file {
            Some(path) => path.clone(),
            None => PathBuf::from(format!("tokengap-ring-{}.tgap", std::process::id())),
        };
        let options = RecordOptions {
            force: args.force,
            ..RecordOptions::default()
        };
        Ok(Self {
            hindsight: Hindsight::create(&path, size, header, options)?,
            named: args.hindsight_file.is_some(),
            onset: Onset::new(Rules::of(args)),
            dumps: Vec::new(),
        })
    }

    pub(super) fn retune(&mut self, args: &RecordArgs) {
        self.onset.retune(Rules::of(args));
    }

    pub(super) fn event(&mut self, event: &Event<'_>) {
        self.hindsight.event(event);
    }

    pub(super) fn tick(&mut self, now: MonoNs) {
        self.hindsight.tick(now);
    }

    /// Starts a dump if one is due, and returns a message.
    pub(super) fn onset(&mut self, now: MonoNs, analysis: &Analysis, closing: &dyn Fn() -> Closing) -> Option<String> {
        let (path, dumps) = (self.hindsight.path(), &self.dumps);
        let copies = || copies(path) + dumps.iter().filter(|(_, to, _)| !to.exists()).count();
        let why = self.onset.look(now, analysis.findings(), &copies)?;
        Some(self.dump(&why, &closing()))
    }

    /// Starts a dump into a new file beside the ring, and returns a message with its name.
    pub(super) fn dump(&mut self, why: &str, closing: &Closing) -> String {
        let second = trace::clock::wall_ns() / 1_000_000_000;
        let to = self.hindsight.path().with_file_name(format!("{COPY}{second}.tgap"));
        match self.hindsight.start_dump(&to, closing, false) {
            Ok(dumping) => {
                let said = format!("hindsight: writing {} ({why})", to.display());
                self.dumps.push((dumping, to, why.to_owned()));
                said
            }
            Err(error) => format!("! hindsight: {error}"),
        }
    }

    /// Message about dumps finished since the last call.
    pub(super) fn news(&mut self) -> Option<String> {
        let mut said = None;
        self.dumps.retain_mut(|(dumping, to, why)| match dumping.poll() {
            Some(done) => {
                said = Some(words(&done, to, why));
                false
            }
            None => true,
        });
        said
    }

    pub(super) fn written(&self) -> Written {
        written(self.hindsight.path(), &self.hindsight.status())
    }

    /// Runs the pending dump and closes the ring. A ring without a user-given name is removed.
    pub(super) fn finish(mut self, closing: &Closing) -> Vec<String> {
        if let Some(why) = self.onset.pending().map(str::to_owned) {
            self.dump(&why, closing);
        }
        let dumps = self.dumps.drain(..);
        let mut said: Vec<String> = dumps
            .map(|(dumping, to, why)| words(&dumping.wait(), &to, &why))
            .collect();
        let path = self.hindsight.path().to_owned();
        match self.hindsight.finish() {
            Err(error) => said.push(format!("! hindsight: {error}")),
            Ok(_) if self.named => said.push(format!("the hindsight ring is in {}", path.display())),
            // The content was dumped, or nothing happened.
            Ok(_) => drop(trace::storage::remove(&path)),
        }
        said
    }
}

/// Number of dumps beside the ring, including those of earlier runs.
fn copies(ring: &std::path::Path) -> usize {
    let folder = ring.parent().filter(|folder| !folder.as_os_str().is_empty());
    let Ok(entries) = std::fs::read_dir(folder.unwrap_or_else(|| std::path::Path::new("."))) else {
        return 0;
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    names.filter(|name| name.to_string_lossy().starts_with(COPY)).count()
}

fn words(done: &Result<Summary, RecordError>, to: &std::path::Path, why: &str) -> String {
    match done {
        Ok(summary) => format!("hindsight: {} in {} ({why})", bytes(summary.bytes), to.display()),
        Err(error) => format!("! hindsight: {error}"),
    }
}
