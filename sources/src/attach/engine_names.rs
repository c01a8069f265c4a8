//! Names of engines, by which the user selects those to watch.

use std::collections::BTreeSet;

use probe_user::discover::Engine;

use super::AttachOptions;
use super::engine_search::{EngineSearch, FoundEngine};

/// Names of the engines to watch; empty for all of them.
#[derive(Clone, Debug, Default)]
pub struct EngineNames {
    /// The names, each as reports show it.
    pub names: BTreeSet<String>,
}

impl EngineNames {
    /// A search for further engines with these names, which ignores those that were `found`.
    pub(super) fn into_search(self, options: &AttachOptions, found: &[FoundEngine]) -> EngineSearch {
        let mut search = EngineSearch::new(self.names, options.may_read_tokenizers());
        for known in found {
            search.mark_as_found(&known.engine);
        }
        search
    }

    /// The engines with these names, or all if there are no names. Reads their command lines and ports. If one of the names is not running,
    /// the error lists those that are.
    pub fn select_engines(&self, engines: Vec<Engine>) -> anyhow::Result<Vec<Engine>> {
        if self.names.is_empty() {
            return Ok(engines);
        }
        // Only the names are needed here.
        let may_read_tokenizer = false;
        let mut running: Vec<FoundEngine> =
            engines.into_iter().map(|engine| FoundEngine::inspect(engine, may_read_tokenizer)).collect();
        let running_names: BTreeSet<&str> = running.iter().map(|found| found.traits.name.as_str()).collect();
        if let Some(unknown) = self.names.iter().find(|name| !running_names.contains(name.as_str())) {
            let running_names: Vec<&str> = running_names.into_iter().collect();
            anyhow::bail!("no engine is named {unknown}: running are {}", running_names.join(", "));
        }
        running.retain(|found| self.names.contains(&found.traits.name));
        Ok(running.into_iter().map(|found| found.engine).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::engine_search::tests::titled;
    use super::*;

    #[test]
    fn engines_are_selected_by_name() {
        // Pids beyond the kernel's limit, so that no process is asked.
        let [first, second] = [5_000_001, 5_000_002];
        let select = |names: &[&str]| {
            let names = EngineNames { names: names.iter().map(|name| (*name).to_owned()).collect() };
            let engines = [first, second].map(|pid| titled(pid, Vec::new())).into();
            let selected = names.select_engines(engines).map_err(|error| error.to_string())?;
            Ok::<_, String>(selected.iter().map(|engine| engine.processes[0].id.pid).collect::<Vec<u32>>())
        };
        assert_eq!(select(&[]), Ok(vec![first, second]));
        assert_eq!(select(&["engine:pid-5000002"]), Ok(vec![second]));
        assert_eq!(select(&["engine:pid-5000002", "engine:pid-5000001"]), Ok(vec![first, second]));
        let unknown = "no engine is named sglang:1: running are engine:pid-5000001, engine:pid-5000002";
        assert_eq!(select(&["engine:pid-5000001", "sglang:1"]), Err(unknown.to_owned()));
    }
}
