//! Hindsight ring: the recent past on disk, dumped into a recording when something happens.

use std::path::PathBuf;

use recording::{Header, Pending, RecordError, RecordOptions, Recorder, Summary};
use trace::{Analysis, MonoNs, ReportInput};

use super::onset::{Onset, Rules};
use super::{Written, written};
use crate::units::format_bytes;

/// Name prefix of dumps.
const COPY: &str = "tokengap-hindsight-";

/// Location of a ring, and the conditions for dumping it.
#[derive(Clone, Debug)]
pub struct RingOptions {
    /// Size in bytes.
    pub size: u64,
    /// Path; by default a file in the working folder that a clean end removes.
    pub file: Option<PathBuf>,
    /// Conditions of automatic dumps.
    pub rules: Rules,
}

/// A ring, and the conditions for dumping it.
pub(super) struct Ring {
    pub(super) recorder: Recorder,
    /// Set if the user named the file, which then remains after a clean end.
    named: bool,
    pub(super) onset: Onset,
    /// Dumps in progress, with their path and reason.
    dumps: Vec<(Pending, PathBuf, String)>,
}

impl Ring {
    pub(super) fn open(ring: &RingOptions, force: bool, header: &Header) -> Result<Self, RecordError> {
        let path = match &ring.file {
            Some(path) => path.clone(),
            None => PathBuf::from(format!("tokengap-ring-{}.tgap", std::process::id())),
        };
        let options = RecordOptions { force, ..RecordOptions::default() };
        Ok(Self {
            recorder: Recorder::ring(&path, ring.size, header, options)?,
            named: ring.file.is_some(),
            onset: Onset::new(ring.rules),
            dumps: Vec::new(),
        })
    }

    /// Writes a tick, and starts a dump if one is due, and returns a message.
    pub(super) fn tick(
        &mut self,
        now: MonoNs,
        analysis: &Analysis,
        closing: &dyn Fn() -> ReportInput,
    ) -> Option<String> {
        self.recorder.tick(now);
        let (path, dumps) = (self.recorder.path(), &self.dumps);
        let copies = || copies(path) + dumps.iter().filter(|(_, to, _)| !to.exists()).count();
        let why = self.onset.check(now, analysis.findings(), &copies)?;
        Some(self.dump(&why, &closing()))
    }

    /// Starts a dump into a new file beside the ring, and returns a message with its name.
    pub(super) fn dump(&mut self, why: &str, closing: &ReportInput) -> String {
        let second = trace::clock::wall_ns() / 1_000_000_000;
        let to = self.recorder.path().with_file_name(format!("{COPY}{second}.tgap"));
        match self.recorder.dump(&to, closing) {
            Ok(dumping) => {
                let message = format!("hindsight: writing {} ({why})", to.display());
                self.dumps.push((dumping, to, why.to_owned()));
                message
            }
            Err(error) => format!("! hindsight: {error}"),
        }
    }

    /// Message about dumps finished since the last call.
    pub(super) fn take_message(&mut self) -> Option<String> {
        let mut message = None;
        self.dumps.retain_mut(|(dumping, to, why)| match dumping.poll() {
            Some(done) => {
                message = Some(dump_message(&done, to, why));
                false
            }
            None => true,
        });
        message
    }

    pub(super) fn written(&self) -> Written {
        written(self.recorder.path(), &self.recorder.status())
    }

    /// Runs the pending dump and closes the ring. A ring without a user-given name is removed.
    pub(super) fn finish(mut self, closing: &ReportInput) -> Vec<String> {
        if let Some(why) = self.onset.pending().map(str::to_owned) {
            self.dump(&why, closing);
        }
        let dumps = self.dumps.drain(..);
        let mut messages: Vec<String> =
            dumps.map(|(dumping, to, why)| dump_message(&dumping.wait(), &to, &why)).collect();
        let path = self.recorder.path().to_owned();
        match self.recorder.finish(closing) {
            Err(error) => messages.push(format!("! hindsight: {error}")),
            Ok(_) if self.named => messages.push(format!("saved the hindsight ring to {}", path.display())),
            // The content was dumped, or nothing happened.
            Ok(_) => drop(recording::storage::remove(&path)),
        }
        messages
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

fn dump_message(done: &Result<Summary, RecordError>, to: &std::path::Path, why: &str) -> String {
    match done {
        Ok(summary) => format!("hindsight: {} in {} ({why})", format_bytes(summary.bytes), to.display()),
        Err(error) => format!("! hindsight: {error}"),
    }
}
