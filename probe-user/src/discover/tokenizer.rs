//! What the command line of an engine names: its port, its model, and the `tokenizer.json` in its own root.

use std::path::{Path, PathBuf};

use adapter::discover::EngineKind;

use super::topology::Engine;
use crate::opener_client::request::ProcessLink;
use crate::proc::{ProcDir, ProcessRoot, ReadError, split_nul_separated};

/// Maximum size of a command line, and of an environment.
const MAX_ARGUMENT_BYTES: usize = 4 << 20;
/// Maximum size of a tokenizer.
const MAX_TOKENIZER_BYTES: usize = 128 << 20;
/// Maximum size of a file that names a revision of a model.
const MAX_REVISION_BYTES: usize = 1 << 10;
const FILE_NAME: &str = "tokenizer.json";

/// Calls `find` with the command line of each process of the engine. Returns its first result, with the process.
fn find_in_command_lines<T>(
    engine: &Engine,
    find: impl Fn(EngineKind, &[String]) -> Option<T>,
) -> Option<(ProcDir, T)> {
    let kind = engine.kind?;
    engine.processes.iter().find_map(|process| {
        let dir = ProcDir::open(process.id.pid).ok()?;
        let argv = split_nul_separated(&dir.read("cmdline", MAX_ARGUMENT_BYTES).unwrap_or_default());
        let found = find(kind, &argv)?;
        Some((dir, found))
    })
}

/// Port on which the engine serves clients, according to its command line.
pub fn served_port(engine: &Engine) -> Option<u16> {
    find_in_command_lines(engine, |kind, argv| kind.served_port(argv)).map(|(_, port)| port)
}

/// Last part of the name of the engine's model, according to its command line.
pub fn model_name(engine: &Engine) -> Option<String> {
    let (_, model) = find_in_command_lines(engine, |kind, argv| kind.model(argv).map(str::to_owned))?;
    model.trim_end_matches('/').rsplit('/').next().map(str::to_owned)
}

/// Reads the engine's `tokenizer.json`. The error says why it cannot be found or read.
pub fn read_tokenizer(engine: &Engine) -> Result<Vec<u8>, String> {
    // Only a known engine shows where its command line names the model.
    if engine.kind.is_none() {
        return Err(String::from("the engine is not known"));
    }
    let found = find_in_command_lines(engine, |kind, argv| kind.tokenizer(argv).map(str::to_owned));
    let (dir, name) = found.ok_or("no command line names the model")?;
    read_named_tokenizer(&dir, &name)
}

/// Reads the tokenizer of this name: a directory, or a model in the cache of the Hugging Face Hub. The error names the file that cannot be
/// read, and why.
fn read_named_tokenizer(process: &ProcDir, name: &str) -> Result<Vec<u8>, String> {
    let cwd = process.read_process_link(ProcessLink::WorkingFolder).unwrap_or_else(|_| PathBuf::from("/"));
    let local = cwd.join(name).join(FILE_NAME);
    let root = process.root().map_err(|error| format!("the root of process {}: {error}", process.pid))?;
    let local_error = match root.read(&local, MAX_TOKENIZER_BYTES) {
        Ok(json) => return Ok(json),
        Err(error) => error,
    };
    let local_error_text = format!("{}: {local_error}", local.display());
    if local_error != ReadError::Gone {
        return Err(local_error_text);
    }
    // There is no such directory, so `name` may be that of a model in the cache. If it is not, the missing directory is the error.
    let cached = find_cached_tokenizer(process, &root, name).ok_or(local_error_text)?;
    root.read(&cached, MAX_TOKENIZER_BYTES).map_err(|error| format!("{}: {error}", cached.display()))
}

/// Path of a model's tokenizer in the Hub's cache. The cache has a folder for each revision, and `refs/main` names the current one. `None`
/// if the cache does not have the model.
fn find_cached_tokenizer(process: &ProcDir, root: &ProcessRoot<'_>, model: &str) -> Option<PathBuf> {
    let variables = split_nul_separated(&process.environment(MAX_ARGUMENT_BYTES).unwrap_or_default());
    let model_folder = hub_cache_folder(&variables).join(format!("models--{}", model.replace('/', "--")));
    let revision_file = root.read(&model_folder.join("refs/main"), MAX_REVISION_BYTES).ok()?;
    let revision = String::from_utf8_lossy(&revision_file);
    Some(model_folder.join("snapshots").join(revision.trim()).join(FILE_NAME))
}

/// Folder of the Hub's cache. It is chosen by environment variables, as the Hub's client library does. If none is set, it is the folder of
/// the user root.
fn hub_cache_folder(variables: &[String]) -> PathBuf {
    // Each variable with the path of the cache inside the folder that it names. The first variable that is set decides.
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
            hub_cache_folder(&variables)
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
