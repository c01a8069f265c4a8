//! Optional Python stack samples of the engine as events, taken on a separate thread.

use std::collections::HashMap;

use anyhow::Context;
use probe_user::Degraded;
use probe_user::discover::Process;
use probe_user::python::{Function, Hits, Interval, PythonStacks, ThreadStacks};
use trace::ThreadId;
use trace::event::{Event, StackSample, What};
use trace::report::SamplingCost;

use super::lanes::Sink;

/// Options set by the user.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PythonOptions {
    hertz: u32,
    /// Sample every process of the engine instead of only those that serve clients, and the main process.
    every_role: bool,
}

impl PythonOptions {
    /// Fails in a build that has no sampler.
    #[expect(clippy::unnecessary_wraps, reason = "as in a build without the sampler")]
    pub(crate) fn new(hertz: u32, every_role: bool) -> anyhow::Result<Self> {
        Ok(Self { hertz, every_role })
    }
}

/// Stack samplers of the engine's processes.
pub(super) struct PythonWatch {
    options: PythonOptions,
    stacks: PythonStacks,
    roles: HashMap<u32, &'static str>,
}

impl PythonWatch {
    pub(super) fn start(options: PythonOptions) -> anyhow::Result<Self> {
        Ok(Self {
            options,
            stacks: PythonStacks::start(options.hertz).context("cannot start a thread to read stacks")?,
            roles: HashMap::new(),
        })
    }

    /// Starts sampling a process, if its role is selected.
    pub(super) fn add(&mut self, process: &Process) {
        let role = process.role;
        let serves = role.answers_clients() || role.is_main();
        if (serves || self.options.every_role) && self.roles.insert(process.id.pid, role.word()).is_none() {
            self.stacks.add(process.id.pid);
        }
    }

    pub(super) fn poll(&self, sink: Sink<'_>) {
        self.stacks.poll(|interval| {
            let role = self.roles.get(&interval.pid).copied().unwrap_or_default();
            for thread in &interval.threads {
                emit_samples(&interval, role, thread, sink);
            }
        });
    }

    pub(super) fn cost(&self) -> SamplingCost {
        self.stacks.cost()
    }

    /// Processes that cannot be sampled.
    pub(super) fn refused(&self) -> Vec<Degraded> {
        self.stacks.refused()
    }

    pub(super) fn degraded(&self) -> Vec<String> {
        let refused = self.refused().into_iter().map(|d| format!("{d}; {}", d.remedy()));
        refused.chain(self.stacks.notes()).collect()
    }
}

fn emit_samples(interval: &Interval, role: &str, thread: &ThreadStacks, sink: Sink<'_>) {
    let mut emit = |function: &str, file: &str, hits: Hits| {
        let sample = StackSample {
            thread: ThreadId { pid: interval.pid, tid: thread.tid },
            role,
            function,
            file,
            interval_ns: interval.interval_ns,
            samples: thread.samples,
            total: hits.total,
            own: hits.own,
            gil: Some(hits.gil),
        };
        sink(&Event::new(interval.at, What::Stack(sample)));
    };
    if thread.functions.is_empty() {
        emit("", "", Hits::default());
    }
    for (Function { function, file }, hits) in &thread.functions {
        emit(function, file, *hits);
    }
}
