//! Hindsight ring: the recent past on disk, dumped into a recording when something happens.

use std::path::{Path, PathBuf};

use recording::{PendingSummary, RecordError, RecordOptions, Recorder, RecordingHeader, RecordingSummary};
use trace::{Analysis, MonoNs, ReportInput};

use super::dump_trigger::{DumpRules, DumpTrigger};
use super::{SECOND_NS, WrittenFile, written_file};
use crate::problem::problem_message;
use crate::units::format_bytes;

/// Name prefix of dumps.
const DUMP_PREFIX: &str = "tokengap-hindsight-";

/// Location of a ring, and the conditions for dumping it.
#[derive(Clone, Debug)]
pub struct RingOptions {
    /// Size in bytes.
    pub size: u64,
    /// Path; by default a file in the working folder that a clean end removes.
    pub file: Option<PathBuf>,
    /// Conditions of automatic dumps.
    pub rules: DumpRules,
    /// Name of the run, if there are several.
    pub run: Option<String>,
}

impl RingOptions {
    /// The ring of a run, if there are several runs. Its path contains the name of the run.
    pub(super) fn of_run(&self, name: &str) -> Self {
        let file = self.file.as_ref().map(|path| recording::path_of_run(path, name));
        Self { file, run: Some(name.to_owned()), ..self.clone() }
    }
}

/// File name `base_name`, with the name of the run added if there are several runs.
fn file_name_for_run(base_name: &str, run_name: Option<&str>) -> PathBuf {
    match run_name {
        Some(run_name) => recording::path_of_run(Path::new(base_name), run_name),
        None => PathBuf::from(base_name),
    }
}

/// A ring, and the conditions for dumping it.
pub(super) struct HindsightRing {
    pub(super) recorder: Recorder,
    /// Set if the user named the file, which then remains after a clean end.
    is_named: bool,
    pub(super) trigger: DumpTrigger,
    /// Name of the run, if there are several.
    run: Option<String>,
    /// Dumps in progress.
    dumps: Vec<RunningDump>,
}

struct RunningDump {
    pending: PendingSummary,
    path: PathBuf,
    reason: String,
}

impl HindsightRing {
    /// Creates the file of the ring, which keeps the recent past of the run. If the options have no path, the name of the file contains the
    /// id of this process. `force` replaces an existing file.
    pub(super) fn open(ring: &RingOptions, force: bool, header: &RecordingHeader) -> Result<Self, RecordError> {
        let path = match &ring.file {
            Some(path) => path.clone(),
            None => file_name_for_run(&format!("tokengap-ring-{}.tgap", std::process::id()), ring.run.as_deref()),
        };
        let options = RecordOptions { force, ..RecordOptions::default() };
        Ok(Self {
            recorder: Recorder::create_ring(&path, ring.size, header, options)?,
            is_named: ring.file.is_some(),
            trigger: DumpTrigger::new(ring.rules),
            run: ring.run.clone(),
            dumps: Vec::new(),
        })
    }

    /// Writes a tick, at which the analysis has looked for findings. Starts a dump of the ring if one is due, and returns a message about
    /// it. `closing` makes the contents of the report that end the dump.
    pub(super) fn process_tick_and_start_due_dump(
        &mut self,
        now: MonoNs,
        analysis: &Analysis,
        closing: &dyn Fn() -> ReportInput,
    ) -> Option<String> {
        self.recorder.record_tick(now);
        let path = self.recorder.path();
        let dumps = &self.dumps;
        // Counts the files, and the dumps that have just started and whose file does not exist yet.
        let dump_count = || count_dumps_beside(path) + dumps.iter().filter(|dump| !dump.path.exists()).count();
        let reason = self.trigger.schedule_dump_and_take_due_reason(now, analysis.findings(), &dump_count)?;
        Some(self.start_dump_with_message(&reason, &closing()))
    }

    /// Starts a dump of the ring into a new file beside it, which ends with the contents of the report `closing`. Returns a message for the
    /// user: the name of the file, or why the dump failed.
    pub(super) fn start_dump_with_message(&mut self, reason: &str, closing: &ReportInput) -> String {
        let second = trace::clock::wall_now_ns() / SECOND_NS;
        let name = file_name_for_run(&format!("{DUMP_PREFIX}{second}.tgap"), self.run.as_deref());
        let path = self.recorder.path().with_file_name(name);
        match self.recorder.copy_ring_to(&path, closing) {
            Ok(pending) => {
                let message = format!("hindsight: writing {} ({reason})", path.display());
                self.dumps.push(RunningDump { pending, path, reason: reason.to_owned() });
                message
            }
            Err(error) => problem_message(format_args!("hindsight: {error}")),
        }
    }

    /// Message about a dump that has finished since the last call; `None` if none has.
    pub(super) fn take_message(&mut self) -> Option<String> {
        let mut message = None;
        // Taken out, because those that are still written are put back.
        for mut dump in std::mem::take(&mut self.dumps) {
            match dump.pending.poll() {
                // Of several that have finished, the last one is shown.
                Some(result) => message = Some(dump_message(&result, &dump.path, &dump.reason)),
                None => self.dumps.push(dump),
            }
        }
        message
    }

    pub(super) fn written_file(&self) -> WrittenFile {
        written_file(self.recorder.path(), &self.recorder.status())
    }

    /// Starts the scheduled dump, if any, waits for all dumps and closes the ring. A ring without a user-given name is removed. Returns
    /// messages for the user.
    pub(super) fn finish_with_messages(mut self, closing: &ReportInput) -> Vec<String> {
        if let Some(reason) = self.trigger.scheduled_reason().map(str::to_owned) {
            // Its message is not needed, because the one about the finished dump follows.
            self.start_dump_with_message(&reason, closing);
        }
        let mut messages = Vec::new();
        for dump in self.dumps.drain(..) {
            messages.push(dump_message(&dump.pending.wait(), &dump.path, &dump.reason));
        }
        let path = self.recorder.path().to_owned();
        match self.recorder.finish(closing) {
            Err(error) => messages.push(problem_message(format_args!("hindsight: {error}"))),
            Ok(_) if self.is_named => messages.push(format!("saved the hindsight ring to {}", path.display())),
            // A ring that the user did not name is removed: its content was dumped, or nothing happened. It stays if that fails.
            Ok(_) => drop(recording::storage::remove(&path)),
        }
        messages
    }
}

/// Number of dumps beside the ring, including those of earlier runs. 0 if the folder cannot be read.
fn count_dumps_beside(ring: &Path) -> usize {
    let folder = match ring.parent() {
        // The parent of a bare file name is the empty path.
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let names = entries.flatten().map(|entry| entry.file_name());
    names.filter(|name| name.to_string_lossy().starts_with(DUMP_PREFIX)).count()
}

/// Message for the user about a dump: its size and file, or why it failed.
fn dump_message(result: &Result<RecordingSummary, RecordError>, path: &Path, reason: &str) -> String {
    match result {
        Ok(summary) => format!("hindsight: {} in {} ({reason})", format_bytes(summary.bytes), path.display()),
        Err(error) => problem_message(format_args!("hindsight: {error}")),
    }
}
