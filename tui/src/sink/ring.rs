//! The hindsight ring: the newest past on disk, written out as a recording when something has happened.

use std::path::{Path, PathBuf};

use anyhow::Context;
use trace::record::{Header, Hindsight};
use trace::{Analysis, Event, MonoNs};

use super::onset::Onset;
use super::{RecordArgs, Written, written};
use crate::state::units::bytes;

/// A ring, and when it is written out.
pub(super) struct Ring {
    path: PathBuf,
    /// The file was named by the user: it stays after a clean end.
    named: bool,
    ring: Hindsight,
    onset: Onset,
}

impl Ring {
    pub(super) fn open(args: &RecordArgs, size: u64, header: &Header) -> anyhow::Result<Self> {
        let path = match &args.hindsight_file {
            Some(path) => path.clone(),
            None => PathBuf::from(format!("tokengap-ring-{}.tgap", std::process::id())),
        };
        let ring = Hindsight::create(&path, size, header, args.force)
            .context("no hindsight ring can be kept; --hindsight-file says where it is to be")?;
        Ok(Self {
            path,
            named: args.hindsight_file.is_some(),
            ring,
            onset: Onset::new(args.hindsight_on),
        })
    }

    pub(super) fn event(&mut self, event: &Event<'_>) {
        self.ring.event(event);
    }

    pub(super) fn tick(&mut self, now: MonoNs) {
        self.ring.tick(now);
    }

    /// Writes the ring out if a finding has begun some seconds ago; says so.
    pub(super) fn onset(&mut self, now: MonoNs, analysis: &Analysis) -> Option<String> {
        let why = self.onset.look(now, analysis.findings())?;
        Some(self.dump(&why))
    }

    /// Writes the ring out into a new file beside it; says where.
    pub(super) fn dump(&mut self, why: &str) -> String {
        let second = trace::clock::wall_ns() / 1_000_000_000;
        let to = self.path.with_file_name(format!("tokengap-hindsight-{second}.tgap"));
        match self.ring.dump(&to) {
            Ok(summary) => format!("hindsight: {} in {} ({why})", bytes(summary.bytes), to.display()),
            Err(error) => format!("! hindsight: {error}"),
        }
    }

    pub(super) fn written(&self) -> Written {
        written(Path::new(&self.path), &self.ring.status())
    }

    /// Ends it: what waited to be written out is, and a ring that nobody named is removed.
    pub(super) fn finish(mut self) -> Option<String> {
        let said = self.onset.pending().map(str::to_owned).map(|why| self.dump(&why));
        drop(self.ring);
        if !self.named {
            // It has been written out, or nothing happened.
            let _ = std::fs::remove_file(&self.path);
        }
        said
    }
}
