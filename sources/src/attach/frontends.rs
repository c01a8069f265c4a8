//! Frontends on this machine: processes between a server and its clients. Only their writes are observed.

use std::collections::BTreeSet;

use probe_user::discover::{Engine, ProcessId};
use responses::Frontends;

use super::inbox::RunId;
use super::node::Node;

/// Maximum number of frontends observed.
const MAX_FRONTENDS: usize = 16;

/// Side of a disaggregated pair whose clients receive the output of another worker.
const PREFILL: &str = "prefill";

/// Observes the writes of a frontend for a run, unless `observed_count` frontends are too many already. `engine_side` is `prefill` or
/// `decode` for an engine of such a pair. An error says why the writes are not observed.
fn observe_frontend(
    run: RunId,
    frontend: ProcessId,
    engine_side: Option<&str>,
    observed_count: usize,
    node: &mut Node,
) -> Result<(), String> {
    if engine_side == Some(PREFILL) {
        return Err("the responses of a prefill server continue in another worker".to_owned());
    }
    if observed_count >= MAX_FRONTENDS {
        return Err(format!("more than {MAX_FRONTENDS} frontends"));
    }
    match node.observe_frontend(run, frontend) {
        Ok(true) => Ok(()),
        Ok(false) => Err("the probe runs in a PID namespace of its own".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[derive(Default)]
pub(super) struct FrontendWatch {
    /// Frontends at the last update.
    found: Vec<ProcessId>,
    /// Processes whose writes are or were observed. Records of one that has exited may still be unread.
    pub(super) observed: BTreeSet<u32>,
    /// Why the others are not.
    refused: Option<String>,
}

impl FrontendWatch {
    /// Observes the writes of the frontends that discovery has found since the last call, up to the limit. A frontend is a process between
    /// the engine and its clients. Keeps the reason for the last one that is not observed.
    pub(super) fn observe_new_frontends(&mut self, run: RunId, engine: &Engine, node: &mut Node) {
        // This is called at each turn, and the frontends rarely change.
        if self.found == node.discovery.topology().frontends {
            return;
        }
        let found_now = node.discovery.topology().frontends.clone();
        let found_before = std::mem::replace(&mut self.found, found_now);
        // `prefill` or `decode` for a server of such a pair.
        let side = engine.settings.disaggregation.as_ref().map(|setting| setting.value.word);
        // Frontends that have exited make room for others.
        let still_running = found_before.iter().filter(|id| self.found.contains(id));
        let mut observed_count = still_running.filter(|id| self.observed.contains(&id.pid)).count();
        for id in &self.found {
            // Known frontends were tried before. A process of the engine is observed as such.
            if found_before.contains(id) || engine.process_with_pid(id.pid).is_some() {
                continue;
            }
            match observe_frontend(run, *id, side, observed_count, node) {
                Ok(()) => {
                    tracing::info!("frontend {} is observed", id.pid);
                    self.observed.insert(id.pid);
                    observed_count += 1;
                }
                Err(why) => self.refused = Some(why),
            }
        }
    }

    /// Lines for the report about responses whose wait in a frontend is not known, with the reasons.
    pub(super) fn degraded_lines(&self, frontends: &Frontends) -> Vec<String> {
        let mut degraded = frontends.degraded_lines();
        if !frontends.observed && frontends.streams > 0 {
            let why = self
                .refused
                .as_deref()
                .unwrap_or("no frontend process is visible: it runs on another machine or in another PID namespace");
            degraded.push(format!("frontend: no wait of {} responses is known: {why}", frontends.streams));
        }
        degraded
    }
}
