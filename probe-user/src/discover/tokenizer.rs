//! The `tokenizer.json` of an engine, found through its command line, in its own root.

use std::path::{Path, PathBuf};

use super::topology::Engine;
use super::watch::Watcher;
use crate::opener_client::request::ProcessLink;
use crate::proc::{ProcDir, ReadError, split_strings};

/// Maximum size of a command line, and of an environment.
const MAX_ARGUMENT_BYTES: usize = 4 << 20;
/// Maximum size of a tokenizer.
const MAX_TOKENIZER_BYTES: usize = 128 << 20;
const FILE_NAME: &str = "tokenizer.json";

impl Watcher {
    /// Content of the engine's `tokenizer.json`. An error says why it cannot be had.
    pub fn read_tokenizer(&self, engine: &Engine) -> Result<Vec<u8>, String> {
        let kind = engine.kind.ok_or("the engine is not known")?;
        for process in &engine.processes {
            let Ok(dir) = ProcDir::open(process.id.pid) else {
                continue;
            };
            let argv = split_strings(&dir.read("cmdline", MAX_ARGUMENT_BYTES).unwrap_or_default());
            if let Some(name) = kind.tokenizer(&argv) {
                return read_named_tokenizer(&dir, name);
            }
        }
        Err("no command line names the model".to_owned())
    }
}

/// Reads the tokenizer of this name: a directory, or a model in the cache of the Hugging Face Hub.
fn read_named_tokenizer(process: &ProcDir, name: &str) -> Result<Vec<u8>, String> {
    let cwd = process.link(ProcessLink::WorkingFolder).unwrap_or_else(|_| PathBuf::from("/"));
    let local = cwd.join(name).join(FILE_NAME);
    let root = process.root().map_err(|error| format!("the root of process {}: {error}", process.pid))?;
    let missing = match root.read(&local, MAX_TOKENIZER_BYTES) {
        Ok(json) => return Ok(json),
        Err(error @ ReadError::Gone) => format!("{}: {error}", local.display()),
        Err(error) => return Err(format!("{}: {error}", local.display())),
    };
    let variables = split_strings(&process.environment(MAX_ARGUMENT_BYTES).unwrap_or_default());
    let model = hub_cache(&variables).join(format!("models--{}", name.replace('/', "--")));
    let revision = root.read(&model.join("refs/main"), 1 << 10);
    let revision = revision.map_err(|_| missing)?;
    let revision = String::from_utf8_lossy(&revision);
    let cached = model.join("snapshots").join(revision.trim()).join(FILE_NAME);
    root.read(&cached, MAX_TOKENIZER_BYTES).map_err(|error| format!("{}: {error}", cached.display()))
}

/// Cache of the Hub, as its client library finds it.
fn hub_cache(variables: &[String]) -> PathBuf {
    const FOLDER_BY_VARIABLE: [(&str, &str); 5] = [
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
        ("HOME", ".cache/huggingface/hub"),
    ];
    for (name, folder) in FOLDER_BY_VARIABLE {
        let value = variables.iter().find_map(|variable| variable.strip_prefix(name)?.strip_prefix('='));
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            return Path::new(value).join(folder);
        }
    }
    PathBuf::from("/root/.cache/huggingface/hub")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hub_cache_is_where_its_library_looks() {
        let of = |variables: &[&str]| {
            let variables: Vec<String> = variables.iter().map(|v| (*v).to_owned()).collect();
            hub_cache(&variables)
        };
        assert_eq!(of(&["HOME=/home/x"]), Path::new("/home/x/.cache/huggingface/hub"));
        assert_eq!(of(&["HF_HOME=/data", "HOME=/home/x"]), Path::new("/data/hub"));
        assert_eq!(of(&["HF_HUB_CACHE=/hub", "HF_HOME=/data"]), Path::new("/hub"));
        assert_eq!(of(&["HF_HOME=", "HOME=/h"]), Path::new("/h/.cache/huggingface/hub"));
    }

    #[test]
    fn a_tokenizer_is_read_from_a_directory_and_a_missing_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE_NAME), "{}").unwrap();
        let own = ProcDir::open(std::process::id()).unwrap();
        assert_eq!(read_named_tokenizer(&own, folder.path().to_str().unwrap()), Ok(b"{}".to_vec()));
        let missing = read_named_tokenizer(&own, "/no/such/model").unwrap_err();
        assert_eq!(missing, "/no/such/model/tokenizer.json: not there");
    }
}
