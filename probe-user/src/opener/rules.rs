//! Processes and files that are opened: those that discovery examines.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use adapter::discover::Engines;
use foreign::ReadError;

use crate::discover::StatedRole;
use crate::discover::libzmq::is_libzmq_name;
use crate::library::{is_libc_name, is_libssl_name};
use crate::opener_client::request::ProcessLink;
use crate::proc::maps::{MappedFile, executable_mappings};
use crate::proc::{ProcDir, split_nul_separated};

use super::MAX_MAPPINGS_BYTES;

/// Maximum number of processes that are remembered.
const MAX_REMEMBERED: usize = 16_384;
/// Maximum size of a command line.
const MAX_ARGUMENT_BYTES: usize = 6 << 20;

/// Processes that discovery examines: named by the user, with a title or command of an engine, or executing code of libzmq or an engine's
/// extension.
pub(super) struct ExaminedProcesses {
    engines: Engines,
    /// Held open, so that no other process gets their inodes.
    named: Vec<ProcDir>,
    /// The last program of each process that was found to be one.
    remembered: Mutex<HashMap<u32, ProgramOfProcess>>,
}

#[derive(PartialEq, Eq)]
struct ProgramOfProcess {
    /// Inode of its directory in `/proc`.
    inode: u64,
    /// It may execute another program at any time.
    path: PathBuf,
}

impl ExaminedProcesses {
    /// Remembers the processes that have the ids `named` now. A later process with one of these ids is not one of them.
    pub(super) fn new(engines: Engines, named: &[u32]) -> Self {
        let named = named.iter().filter_map(|pid| ProcDir::with_opener(*pid, None).ok()).collect();
        Self { engines, named, remembered: Mutex::default() }
    }

    /// Returns whether files of this process may be opened: it belongs to an engine, or the user named it.
    pub(super) fn may_open_files_of(&self, process: &ProcDir) -> Result<bool, ReadError> {
        let inode = process.inode()?;
        // The inode of a directory in `/proc` differs for a later process with the same id.
        if self.named.iter().any(|named| named.inode() == Ok(inode)) {
            return Ok(true);
        }
        // Read before the examination, so that a program which the process executes later is not remembered as examined.
        let program = ProgramOfProcess { inode, path: process.read_process_link(ProcessLink::Program)? };
        if self.is_remembered(process.pid, &program) {
            return Ok(true);
        }
        // No lock is held here, because reading the files of a process may take for ever.
        let belongs_to_engine = self.has_stated_role(process) || self.executes_engine_library(process)?;
        if belongs_to_engine {
            self.remember_program(process.pid, program);
        }
        Ok(belongs_to_engine)
    }

    /// Returns whether the process was found to belong to an engine while it executed the same program.
    fn is_remembered(&self, pid: u32, program: &ProgramOfProcess) -> bool {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner).get(&pid) == Some(program)
    }

    /// Remembers that the process belongs to an engine while it executes this program.
    fn remember_program(&self, pid: u32, program: ProgramOfProcess) {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        // Forgotten processes are examined again, which costs time only.
        if remembered.len() >= MAX_REMEMBERED {
            remembered.clear();
        }
        remembered.insert(pid, program);
    }

    /// Returns whether the command line or title says that the process belongs to an engine.
    fn has_stated_role(&self, process: &ProcDir) -> bool {
        let argv = split_nul_separated(&process.read("cmdline", MAX_ARGUMENT_BYTES).unwrap_or_default());
        let role_by_user = None;
        StatedRole::from_argv(&argv, role_by_user, self.engines).role.is_some()
            || self.engines.iter().any(|engine| engine.is_frontend(&argv))
    }

    /// Returns whether the process has libzmq, or the extension of an engine, in its executable mappings.
    fn executes_engine_library(&self, process: &ProcDir) -> Result<bool, ReadError> {
        let maps = process.mappings(MAX_MAPPINGS_BYTES)?;
        Ok(executable_mappings(&maps).any(|mapping| {
            let path = Path::new(OsStr::from_bytes(mapping.path));
            path.file_name().is_some_and(|name| is_libzmq_name(name.as_bytes()))
                || is_engine_extension(path, self.engines)
        }))
    }
}

/// Whether a path is that of an extension with an engine's server.
fn is_engine_extension(path: &Path, engines: Engines) -> bool {
    let mut servers = engines.iter().filter_map(|engine| engine.inner_server());
    servers.any(|server| (server.is_extension)(path))
}

/// Whether a mapped file is one of the libraries that are probed.
pub(super) fn is_probed_library(file: &MappedFile, engines: Engines) -> bool {
    let name = file.name();
    is_libzmq_name(name) || is_libc_name(name) || is_libssl_name(name) || is_engine_extension(&file.path, engines)
}

/// Whether a path names a tokenizer, or a file that states the release of a package or the revision of a model.
pub(super) fn is_metadata_file(path: &Path, engines: Engines) -> bool {
    let folder_name = name_of_folder(path.parent());
    let is_of_package = path.ends_with("METADATA") && folder_name.ends_with(DIST_INFO);
    // `MODEL/refs/main` names the current revision of a model.
    let model_name = name_of_folder(path.ancestors().nth(2));
    let is_of_model = path.ends_with("refs/main") && model_name.starts_with(b"models--");
    let is_tokenizer = path.ends_with("tokenizer.json") || is_of_model;
    let mut source_files = engines.iter().filter_map(|engine| engine.package()).flat_map(|package| package.source);
    is_of_package || is_tokenizer || source_files.any(|file| path.ends_with(file))
}

/// Last part of a folder's path; empty if there is none.
fn name_of_folder(folder: Option<&Path>) -> &[u8] {
    folder.and_then(Path::file_name).map_or(b"", OsStr::as_bytes)
}

const DIST_INFO: &[u8] = b".dist-info";

/// Whether a name in a folder of packages is needed to find the release of an engine. That is the name of a folder with metadata or with an
/// engine's source files.
pub(super) fn is_package_name(name: &[u8], engines: Engines) -> bool {
    let mut sources = engines.iter().filter_map(|engine| engine.package()).flat_map(|package| package.source);
    name.ends_with(DIST_INFO)
        || sources.any(|file| file.split('/').next().is_some_and(|folder| folder.as_bytes() == name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::toy::TOY;

    #[test]
    fn only_metadata_and_tokenizers_are_opened() {
        let is_opened = |path: &str| is_metadata_file(Path::new(path), &[TOY]);
        assert!(is_opened("/usr/lib/toy-1.0.dist-info/METADATA") && is_opened("/m/tokenizer.json"));
        assert!(is_opened("/hub/models--a--b/refs/main") && !is_opened("/a/refs/main"));
        for path in ["/etc/shadow", "/METADATA", "/root/METADATA", "/a.dist-info/RECORD", "/m/my-tokenizer.json", "/"] {
            assert!(!is_opened(path), "{path}");
        }
        assert!(is_package_name(b"toy-1.0.dist-info", &[TOY]) && !is_package_name(b".ssh", &[TOY]));
    }
}
