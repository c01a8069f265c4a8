//! The `tokenizer.json` of an engine, found through its command line, in its own root.

use std::path::{Path, PathBuf};

use super::topology::Engine;
use super::watch::Watcher;
use crate::opener_client::request::ProcessLink;
use crate::proc::{ProcDir, ReadError, strings};

/// Maximum size of a command line, and of an environment.
const ARGUMENTS: usize = 4 << 20;
/// Maximum size of a tokenizer.
const TOKENIZER: usize = 128 << 20;
const FILE: &str = "tokenizer.json";

impl Watcher {
    /// Content of the engine's `tokenizer.json`. An error says why it cannot be had.
    pub fn tokenizer(&self, engine: &Engine) -> Result<Vec<u8>, String> {
        let kind = engine.kind.ok_or("the engine is not known")?;
        for process in &engine.processes {
            let Ok(dir) = ProcDir::of(process.id.pid) else {
                continue;
            };
            let argv = strings(&dir.read("cmdline", ARGUMENTS).unwrap_or_default());
            if let Some(name) = kind.tokenizer(&argv) {
                return read(&dir, name);
            }
        }
        Err("no command line names the model".to_owned())
    }
}

/// Reads the tokenizer of this name: a directory, or a model in the cache of the Hugging Face Hub.
fn read(process: &ProcDir, name: &str) -> Result<Vec<u8>, String> {
    let cwd = process.link(ProcessLink::WorkingFolder).unwrap_or_else(|_| PathBuf::from("/"));
    let local = cwd.join(name).join(FILE);
    let root = process.root().map_err(|error| format!("the root of process {}: {error}", process.pid))?;
    let missing = match root.read(&local, TOKENIZER) {
        Ok(json) => return Ok(json),
        Err(error @ ReadError::Gone) => format!("{}: {error}", local.display()),
        Err(error) => return Err(format!("{}: {error}", local.display())),
    };
    let variables = strings(&process.environment(ARGUMENTS).unwrap_or_default());
    let model = hub(&variables).join(format!("models--{}", name.replace('/', "--")));
    let revision = root.read(&model.join("refs/main"), 1 << 10);
    let revision = revision.map_err(|_| missing)?;
    let revision = String::from_utf8_lossy(&revision);
    let cached = model.join("snapshots").join(revision.trim()).join(FILE);
    root.read(&cached, TOKENIZER).map_err(|error| format!("{}: {error}", cached.display()))
}

/// Cache of the Hub, as its client library finds it.
fn hub(variables: &[String]) -> PathBuf {
    let variable = |name: &str| {
        let found = variables.iter().find_map(|v| v.strip_prefix(name)?.strip_prefix('='));
        found.filter(|value| !value.is_empty()).map(Path::new)
    };
    let under = |name, path| Some(variable(name)?.join(path));
    None.or_else(|| under("HF_HUB_CACHE", ""))
        .or_else(|| under("HUGGINGFACE_HUB_CACHE", ""))
        .or_else(|| under("HF_HOME", "hub"))
        .or_else(|| under("XDG_CACHE_HOME", "huggingface/hub"))
        .or_else(|| under("HOME", ".cache/huggingface/hub"))
        .unwrap_or_else(|| PathBuf::from("/root/.cache/huggingface/hub"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hub_cache_is_where_its_library_looks() {
        let of = |variables: &[&str]| {
            let variables: Vec<String> = variables.iter().map(|v| (*v).to_owned()).collect();
            hub(&variables)
        };
        assert_eq!(of(&["HOME=/home/x"]), Path::new("/home/x/.cache/huggingface/hub"));
        assert_eq!(of(&["HF_HOME=/data", "HOME=/home/x"]), Path::new("/data/hub"));
        assert_eq!(of(&["HF_HUB_CACHE=/hub", "HF_HOME=/data"]), Path::new("/hub"));
        assert_eq!(of(&["HF_HOME=", "HOME=/h"]), Path::new("/h/.cache/huggingface/hub"));
    }

    #[test]
    fn a_tokenizer_is_read_from_a_directory_and_a_missing_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), "{}").unwrap();
        let own = ProcDir::of(std::process::id()).unwrap();
        assert_eq!(read(&own, folder.path().to_str().unwrap()), Ok(b"{}".to_vec()));
        let missing = read(&own, "/no/such/model").unwrap_err();
        assert_eq!(missing, "/no/such/model/tokenizer.json: not there");
    }
}
