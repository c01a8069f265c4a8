//! Optional Python stack samples of the engine as events, read by another process.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use probe_user::Degraded;
use probe_user::discover::Process;
use probe_user::python::{Function, Hits};
use trace::event::{Event, StackSample, What};
use trace::{MonoNs, SamplingCost, ThreadId};

use super::inbox::RunId;
use super::lanes::Sink;
use crate::stacks::{StackReader, ThreadSamples};

/// Maximum number of samples kept for the runs that they are of.
const MAX_UNREAD: usize = 4_096;

/// Options set by the user, and the process that reads stacks.
#[derive(Clone, Debug)]
pub struct PythonOptions {
    reader: Arc<StackReader>,
    /// Sample every process of the engine instead of only those that serve clients, and the main process.
    samples_every_role: bool,
}

impl PythonOptions {
    /// Starts the process that reads stacks, before this process gives up the right to start any. Fails in a build that has no sampler.
    pub fn start(hertz: u32, samples_every_role: bool) -> anyhow::Result<Self> {
        Ok(Self { reader: Arc::new(StackReader::start(hertz)?), samples_every_role })
    }

    /// Resident memory of the process that reads stacks; `None` if it is unknown.
    pub fn rss_bytes(&self) -> Option<u64> {
        self.reader.rss_bytes()
    }

    /// CPU time of the process that reads stacks.
    pub fn cpu_ns(&self) -> u64 {
        self.reader.total_cost().cpu_ns
    }
}

/// Stack samples of the engines' processes.
pub(super) struct PythonWatch {
    options: PythonOptions,
    /// Sampled processes.
    sampled: HashMap<u32, SampledProcess>,
    /// Samples that no run has taken yet.
    unread: Vec<ThreadSamples>,
}

struct SampledProcess {
    run: RunId,
    role: &'static str,
}

impl PythonWatch {
    /// Samples no process yet.
    pub(super) fn start(options: PythonOptions) -> Self {
        Self { options, sampled: HashMap::new(), unread: Vec::new() }
    }

    /// Starts sampling a process of a run. Skips one that is neither the main process nor serves clients, unless every role is sampled.
    pub(super) fn add_process(&mut self, run: RunId, process: &Process) {
        let role = process.role;
        let is_usually_sampled = role.answers_clients() || role.is_main();
        if !is_usually_sampled && !self.options.samples_every_role {
            return;
        }
        let sampled = SampledProcess { run, role: role.word() };
        let is_new = self.sampled.insert(process.id.pid, sampled).is_none();
        if is_new {
            self.options.reader.sample_processes(self.sampled.keys().copied());
        }
    }

    /// Stops sampling the processes of a run.
    pub(super) fn remove_run(&mut self, run: RunId) {
        self.sampled.retain(|_, process| process.run != run);
        self.options.reader.sample_processes(self.sampled.keys().copied());
    }

    /// Emits the samples of a run's processes that the reader has taken since the last call. Keeps those of other runs, up to a limit.
    pub(super) fn emit_samples_of_run(&mut self, run: RunId, sink: Sink<'_>) {
        let Self { options, sampled, unread } = self;
        options.reader.take_new_samples(|samples| unread.push(samples));
        for samples in std::mem::take(unread) {
            // Dropped if they are of an earlier engine's process, which no run samples any more.
            let Some(process) = sampled.get(&samples.pid) else { continue };
            if process.run == run {
                emit_functions_of_thread(&samples, process.role, sink);
            } else {
                // These wait until the other run is polled.
                unread.push(samples);
            }
        }
        // Limited, because a run that is not polled any more never fetches its samples.
        unread.truncate(MAX_UNREAD);
    }

    pub(super) fn cost(&self) -> SamplingCost {
        self.options.reader.total_cost()
    }

    /// Whether no more samples are taken.
    pub(super) fn has_ended(&self) -> bool {
        self.options.reader.has_ended()
    }

    /// Processes of a run that cannot be sampled, with the reasons.
    pub(super) fn refusals_of_run(&self, run: RunId) -> Vec<Degraded> {
        let of_run = self.sampled.iter().filter(|(_, process)| process.run == run);
        let pids: BTreeSet<u32> = of_run.map(|(pid, _)| *pid).collect();
        self.options.reader.refusals_among(&pids)
    }

    pub(super) fn degraded_lines(&self, run: RunId) -> Vec<String> {
        let refused = self.refusals_of_run(run).into_iter().map(|refusal| format!("{refusal}; {}", refusal.remedy()));
        refused.chain(self.options.reader.report_lines()).collect()
    }
}

/// Emits an event per function of a thread. Without any, it emits one with an empty name, so that the samples of the thread count.
fn emit_functions_of_thread(thread: &ThreadSamples, role: &str, sink: Sink<'_>) {
    if thread.stacks.functions.is_empty() {
        let no_function = Function::new("", "");
        emit_function_samples(thread, &no_function, Hits::default(), role, sink);
    }
    for (function, hits) in &thread.stacks.functions {
        emit_function_samples(thread, function, *hits, role, sink);
    }
}

/// Emits how many of a thread's samples have found this function on the stack (`hits`).
fn emit_function_samples(thread: &ThreadSamples, function: &Function, hits: Hits, role: &str, sink: Sink<'_>) {
    let sample = StackSample {
        thread: ThreadId { pid: thread.pid, tid: thread.stacks.tid },
        role,
        function: &function.function,
        file: &function.file,
        interval_ns: thread.interval_ns,
        samples: thread.stacks.samples,
        total: hits.total,
        own: hits.own,
        gil: Some(hits.gil),
    };
    sink(&Event::new(MonoNs(thread.at_ns), What::Stack(sample)));
}
