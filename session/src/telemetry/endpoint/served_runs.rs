//! The runs that one endpoint serves: one, or one for each engine of a machine.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outputs::metrics::Family;
use outputs::report::Report;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use super::store::SectionStore;
use crate::about::EngineIdentity;
use crate::telemetry::health::RunHealth;
use crate::telemetry::snapshot::SnapshotClient;

/// Characters of a name that a query must not contain.
const RESERVED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'&').add(b'+').add(b'<').add(b'>');

/// What the endpoint reads of a run.
pub(super) struct ServedRun {
    engine: Mutex<Option<EngineIdentity>>,
    pub(super) metrics: SnapshotClient<Vec<Family>>,
    pub(super) report: SnapshotClient<Report>,
    pub(super) health: SnapshotClient<RunHealth>,
    pub(super) store: Arc<SectionStore>,
}

impl ServedRun {
    /// Creates a run whose snapshots and stored stream the endpoint reads. Its engine is set later.
    pub(super) fn new(
        metrics: SnapshotClient<Vec<Family>>,
        report: SnapshotClient<Report>,
        health: SnapshotClient<RunHealth>,
        store: Arc<SectionStore>,
    ) -> Self {
        Self { engine: Mutex::default(), metrics, report, health, store }
    }

    /// Engine of the run, if it is one of those of a machine.
    pub(super) fn engine(&self) -> Option<EngineIdentity> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_engine(&self, engine: Option<EngineIdentity>) {
        *self.engine.lock().unwrap_or_else(PoisonError::into_inner) = engine;
    }

    /// Name of the engine; empty if it is not known.
    pub(super) fn name(&self) -> String {
        self.engine().map(|engine| engine.name).unwrap_or_default()
    }
}

/// All runs of an endpoint, in the order in which they were added.
#[derive(Clone, Default)]
pub(super) struct ServedRuns {
    runs: Arc<Mutex<Vec<Arc<ServedRun>>>>,
}

impl ServedRuns {
    /// Adds a run, and returns the number of runs before it.
    pub(super) fn add_run(&self, run: Arc<ServedRun>) -> usize {
        let mut runs = self.lock();
        runs.push(run);
        runs.len() - 1
    }

    pub(super) fn list(&self) -> Vec<Arc<ServedRun>> {
        self.lock().clone()
    }

    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<ServedRun>>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run of the engine that the query names, or all runs if it names none. `Err` has the unknown name.
    pub(super) fn select_runs(&self, query: Option<&str>) -> Result<Vec<Arc<ServedRun>>, String> {
        let runs = self.list();
        let Some(wanted) = query.and_then(engine_parameter) else { return Ok(runs) };
        match runs.into_iter().find(|run| run.name() == wanted) {
            Some(run) => Ok(vec![run]),
            None => Err(wanted),
        }
    }

    /// One line for each engine that has a name, with the address that selects it: `PATH?engine=NAME`.
    pub(super) fn engine_addresses(&self, path: &str) -> String {
        let names = self.list().into_iter().map(|run| run.name()).filter(|name| !name.is_empty());
        names.map(|name| format!("{path}?engine={}\n", encode_name(&name))).collect::<Vec<String>>().concat()
    }
}

/// Value of the parameter `engine` of a query.
fn engine_parameter(query: &str) -> Option<String> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix("engine="))?;
    Some(percent_decode_str(value).decode_utf8_lossy().into_owned())
}

/// Encodes the name of an engine for the query of a URL.
pub fn encode_name(name: &str) -> String {
    utf8_percent_encode(name, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_decoded_as_they_are_encoded() {
        for name in ["sglang:30000", "sglang:30000 (pid 7)", "vllm:a%20b&engine=c#d+e", "\u{e9}\n"] {
            assert_eq!(engine_parameter(&format!("a=b&engine={}", encode_name(name))).as_deref(), Some(name));
        }
        assert_eq!(encode_name("sglang:30000"), "sglang:30000");
        assert_eq!(engine_parameter("engines=x&motor"), None);
    }
}
