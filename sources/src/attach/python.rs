//! Optional Python stack samples of the engine as events, read by another process.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use probe_user::Degraded;
use probe_user::discover::Process;
use trace::event::{Event, StackSample, What};
use trace::{MonoNs, SamplingCost, ThreadId};

use super::lanes::Sink;
use crate::stacks::{FunctionHits, StackReader, ThreadSamples};

/// Options set by the user, and the process that reads stacks.
#[derive(Clone, Debug)]
pub struct PythonOptions {
    reader: Arc<StackReader>,
    /// Sample every process of the engine instead of only those that serve clients, and the main process.
    every_role: bool,
}

impl PythonOptions {
    /// Starts the process that reads stacks, before this process gives up the right to start any. Fails in a build that has no sampler.
    pub fn start(hertz: u32, every_role: bool) -> anyhow::Result<Self> {
        Ok(Self { reader: Arc::new(StackReader::start(hertz)?), every_role })
    }

    /// Resident memory of the process that reads stacks.
    pub fn rss_bytes(&self) -> Option<u64> {
        self.reader.rss_bytes()
    }

    /// CPU time of the process that reads stacks.
    pub fn cpu_ns(&self) -> u64 {
        self.reader.cost().cpu_ns
    }
}

/// Stack samples of the engine's processes.
pub(super) struct PythonWatch {
    options: PythonOptions,
    /// Sampled processes with their roles.
    roles: HashMap<u32, &'static str>,
}

impl PythonWatch {
    /// Samples no process yet, and none of an earlier engine.
    pub(super) fn start(options: PythonOptions) -> Self {
        options.reader.sample([]);
        Self { options, roles: HashMap::new() }
    }

    /// Starts sampling a process, if its role is selected.
    pub(super) fn add(&mut self, process: &Process) {
        let role = process.role;
        let serves = role.answers_clients() || role.is_main();
        if (serves || self.options.every_role) && self.roles.insert(process.id.pid, role.word()).is_none() {
            self.options.reader.sample(self.roles.keys().copied());
        }
    }

    pub(super) fn poll(&self, sink: Sink<'_>) {
        self.options.reader.poll(|samples| {
            // Others were taken of an earlier engine.
            if let Some(role) = self.roles.get(&samples.pid) {
                emit_samples(&samples, role, sink);
            }
        });
    }

    pub(super) fn cost(&self) -> SamplingCost {
        self.options.reader.cost()
    }

    /// Whether no more samples are taken.
    pub(super) fn has_ended(&self) -> bool {
        self.options.reader.has_ended()
    }

    /// Processes that cannot be sampled.
    pub(super) fn refused(&self) -> Vec<Degraded> {
        let pids: BTreeSet<u32> = self.roles.keys().copied().collect();
        self.options.reader.refused(&pids)
    }

    pub(super) fn degraded(&self) -> Vec<String> {
        let refused = self.refused().into_iter().map(|d| format!("{d}; {}", d.remedy()));
        refused.chain(self.options.reader.notes()).collect()
    }
}

fn emit_samples(thread: &ThreadSamples, role: &str, sink: Sink<'_>) {
    let mut emit = |hits: &FunctionHits| {
        let sample = StackSample {
            thread: ThreadId { pid: thread.pid, tid: thread.tid },
            role,
            function: &hits.function,
            file: &hits.file,
            interval_ns: thread.interval_ns,
            samples: thread.samples,
            total: hits.total,
            own: hits.own,
            gil: Some(hits.gil),
        };
        sink(&Event::new(MonoNs(thread.at_ns), What::Stack(sample)));
    };
    if thread.functions.is_empty() {
        emit(&FunctionHits { function: String::new(), file: String::new(), total: 0, own: 0, gil: 0 });
    }
    thread.functions.iter().for_each(emit);
}
