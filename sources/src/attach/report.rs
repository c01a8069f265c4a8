//! Report of what is observed of an engine, and of the limits of the observation.

use probe_user::discover::Process;
use serde_json::{Value, json};
use session::{About, OwnUsage};
use trace::{MonoNs, SamplingCost};

use super::node::Node;
use super::python::PythonWatch;
use super::queues::QueueProblems;
use super::start::concerns_engine;
use super::{Attach, own_usage_with_stack_reader, trial};

impl About for Attach {
    fn kind(&self) -> &'static str {
        "attach"
    }

    /// What the report says about the observed processes: the side of a pair, matched requests, missed messages, and by what each is
    /// observed.
    fn wire_json(&self) -> Option<Value> {
        let mut fields = serde_json::Map::new();
        // Set for a server of a pair, which does only prefill or only decode.
        if let Some(side) = self.engine.settings.disaggregation.as_ref().map(|setting| setting.value) {
            fields.insert("disaggregation".to_owned(), json!({"mode": side.word, "sends": side.sends}));
        }
        if let Some(pairs) = self.interpreter.egress.matched_pairs_json() {
            fields.insert("joined_by_content".to_owned(), pairs);
        }
        if let Some(missed) = self.missed_json() {
            fields.insert("missed".to_owned(), missed);
        }
        let observed = self
            .probed_processes_with_means()
            .map(|(process, means)| json!({"pid": process.id.pid, "process": process.role.word(), "by": means}));
        fields.insert("observed".to_owned(), Value::Array(observed.collect()));
        Some(Value::Object(fields))
    }

    fn stack_sampling_cost(&self) -> Option<SamplingCost> {
        self.node.lock().python.as_ref().map(PythonWatch::cost)
    }

    fn own_usage(&self) -> OwnUsage {
        own_usage_with_stack_reader(self.options.python.as_ref())
    }

    fn observed_until(&self) -> MonoNs {
        if self.has_unread { self.read_until } else { MonoNs::now() }
    }

    /// Lines for the report: all limits of the observation of this engine.
    fn degraded_lines(&self) -> Vec<String> {
        let node = self.node.lock();
        let missing_parts = node.missing_parts(self.run);
        let mut degraded: Vec<String> = missing_parts.map(|part| format!("{part}; {}", part.remedy())).collect();
        degraded.extend(self.degraded.iter().cloned());
        degraded.extend(node.discovery.degraded_lines());
        degraded.extend(self.describe_limits_between_engines(&node));
        degraded.extend(self.late_processes.describe_late_processes());
        let with_inner_server = self.engine.processes.iter().filter(|process| process.inner_server.is_some());
        degraded.extend(with_inner_server.map(describe_limits_of_inner_server));
        degraded.extend(self.interpreter.lanes.degraded_lines());
        degraded.extend(self.interpreter.egress.degraded());
        degraded.extend(self.interpreter.reads.degraded_lines());
        degraded.extend(self.describe_overflow(&node));
        degraded.extend(self.describe_limits_of_queues());
        degraded.extend(node.python.iter().flat_map(|python| python.degraded_lines(self.run)));
        degraded
    }
}

impl Attach {
    /// Numbers of messages that were missed; `None` if none was. They are counted by the kernel side's numbering of messages per socket,
    /// which continues across lost records.
    fn missed_json(&self) -> Option<Value> {
        let misses = self.interpreter.lanes.matcher.misses();
        if misses.lost_sent == 0 && misses.lost_received == 0 {
            return None;
        }
        Some(json!({"sends": misses.lost_sent, "receives": misses.lost_received}))
    }

    /// Lines about connections to other engines, and processes that belong to two engines. Only one of their runs watches such a process.
    fn describe_limits_between_engines(&self, node: &Node) -> Vec<String> {
        let blind_spots = node.discovery.topology().blind_spots.iter();
        let between_engines = blind_spots.filter(|blind| blind.is_between_engines());
        let own = between_engines.filter(|blind| concerns_engine(blind, &self.engine));
        let mut lines: Vec<String> = own.map(trial::describe_with_remedy).collect();
        for (name, pid) in node.names_and_shared_pids_of_unwatched_engines(self.run) {
            lines.push(format!("engine: {name} is not watched: its pid {pid} is watched as a process of this engine"));
        }
        for (pid, other) in &self.pids_of_others {
            lines
                .push(format!("engine: pid {pid} is connected to this engine, and is watched as a process of {other}"));
        }
        lines
    }

    /// Line about observations that the full ring buffer has dropped; `None` without any.
    fn describe_overflow(&self, node: &Node) -> Option<String> {
        let overflowed = self.interpreter.overflowed;
        if overflowed == 0 {
            return None;
        }
        // The kernel side counts only the total of all runs.
        let shared =
            if node.has_several_runs() { " (its share, estimated from the traffic of all engines)" } else { "" };
        Some(format!(
            "{overflowed} observations dropped because the ring buffer was full{shared}: use a larger --ring than {} bytes, or give tokengap a CPU",
            self.options.probe.ring_bytes
        ))
    }

    /// Lines about sockets whose queues are not sampled.
    fn describe_limits_of_queues(&self) -> Vec<String> {
        let QueueProblems { connections_beyond_limit, refused } = self.queues.problems();
        let mut lines: Vec<String> = refused.map(|why| format!("queues: {why}")).into_iter().collect();
        if connections_beyond_limit > 0 {
            lines.push(format!("queues: {connections_beyond_limit} connections beyond the limit"));
        }
        lines
    }
}

/// Line about a process whose frames go to a server inside it, which receives them unobserved.
fn describe_limits_of_inner_server(process: &Process) -> String {
    format!(
        "pid {}: frames are observed when the {} passes them to the server inside its process; when that takes them is not observed; token ids are not read",
        process.id.pid, process.role
    )
}
