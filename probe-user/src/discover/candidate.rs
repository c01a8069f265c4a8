//! Examination of one process: its title, command, mapped files and environment.

use std::path::{Path, PathBuf};

use adapter::discover::{
    EngineKind, Flags, Launcher, Program, PythonVersion, Rank, Role, RoleSource, RoleWithSource, Setting,
    python_program,
};

use foreign::kernel;

use super::blind_spot::ProcPart;
use super::libzmq::{self, LibZmq};
use super::package::{self, InstalledReleases, PythonInterpreter};
use super::python_version::find_python_version;
use super::spec::RoleSpec;
use super::topology::{Process, ProcessId};
use crate::opener_client::request::ProcessLink;
use crate::proc::stat::ProcessStat;
use crate::proc::{ProcDir, ReadError, maps, split_nul_separated, stat};

/// Environment variables that are kept in addition to those of the engines. Others may hold secrets, so they are discarded.
const KEPT_VARIABLES: [&str; 2] = ["PYTHONPATH", "VIRTUAL_ENV"];
/// `MAX_ARG_STRLEN * 48`, the maximum size of arguments on common systems.
const MAX_ARGUMENT_BYTES: usize = 6 << 20;
/// 65,530 mappings (`vm.max_map_count`) take 6 MiB; some systems allow ten times as many.
pub(crate) const MAX_MAPS_BYTES: usize = 64 << 20;
const MAX_THREADS: usize = 8192;

/// A process that may belong to an engine.
#[derive(Debug, Default)]
pub(crate) struct Candidate {
    pub(crate) id: ProcessId,
    pub(crate) ns_pids: Vec<u32>,
    pub(crate) parent: u32,
    pub(crate) title: String,
    /// Role given by the user, the title or the command. Inference adds others.
    pub(crate) stated: Option<RoleWithSource>,
    pub(crate) rank: Rank,
    pub(crate) launcher: Option<Launcher>,
    pub(crate) flags: Flags,
    /// The kept variables that are set; `None` when the environment cannot be read or the title has overwritten it.
    pub(crate) environment: Option<Vec<(String, String)>>,
    pub(crate) libzmq: Option<LibZmq>,
    pub(crate) python: Option<Setting<PythonVersion>>,
    pub(crate) installed: InstalledReleases,
    pub(crate) io_threads: Vec<u32>,
    pub(crate) connects_to_clients: Option<EngineKind>,
    pub(crate) inner_server: Option<EngineKind>,
    pub(crate) is_frontend: bool,
    pub(crate) net_ns: Option<u64>,
    /// Role at the last scan.
    pub(crate) last_role: Option<RoleWithSource>,
    /// Parts that could not be read for lack of permission.
    pub(crate) refused: Vec<ProcPart>,
    /// The libzmq file that could not be read, with the error.
    pub(crate) libzmq_error: Option<(PathBuf, ReadError)>,
}

#[derive(Debug)]
pub(crate) enum Examination {
    /// Currently not recognisable as part of an engine.
    Other,
    /// A Python process without a known title that may not be examined.
    Refused,
    /// The process has more than [`MAX_MAPS_BYTES`] bytes of mappings, which is the limit.
    TooLarge,
    /// A frontend without libzmq.
    Frontend,
    /// A possible process of an engine beyond the limits of [`CandidateRoom`].
    LeftOut,
    /// A possible process of an engine. Its directory is held open, so reads reach that process, or fail once it has exited.
    Candidate(Box<Candidate>, ProcDir),
}

/// Whether further candidates are kept. Each costs a descriptor and a scan of its sockets, and any user can start processes that look
/// like candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CandidateRoom {
    /// Processes that have libzmq, and nothing else of an engine.
    pub(crate) has_unnamed: bool,
    /// Processes with a title or command of an engine.
    pub(crate) has_stated: bool,
}

/// Examines a process. `user_spec`: the user named it; `is_parent`: it started a process of an engine. Both are kept without `room`.
pub(crate) fn examine_process(
    process: ProcDir,
    stat: &ProcessStat,
    user_spec: Option<&RoleSpec>,
    is_parent: bool,
    room: CandidateRoom,
    engines: &[EngineKind],
) -> Result<Examination, ReadError> {
    let argv = split_nul_separated(&process.read("cmdline", MAX_ARGUMENT_BYTES)?);
    let stated = StatedRole::from_argv(&argv, user_spec, engines);
    let is_named = stated.role.is_some() || user_spec.is_some();
    let program_name = argv.first().and_then(|program| program.rsplit('/').next());
    let is_python = program_name.is_some_and(|name| name.starts_with("python"));
    let is_frontend = engines.iter().any(|engine| engine.is_frontend(&argv));
    let mut refused = Vec::new();
    let mut unread_maps = None;
    let files = match process.mappings(MAX_MAPS_BYTES) {
        Ok(text) => maps::parse_mapped_files(&text),
        Err(ReadError::Denied) if is_named || (is_parent && is_python) => {
            refused.push(ProcPart::Maps);
            Vec::new()
        }
        Err(ReadError::NotExamined) => return Ok(if is_frontend { Examination::Frontend } else { Examination::Other }),
        Err(ReadError::Denied) => return Ok(if is_python { Examination::Refused } else { Examination::Other }),
        Err(ReadError::TooLong(_)) if !is_named => return Ok(Examination::TooLarge),
        Err(ReadError::TooLong(limit)) => {
            unread_maps = Some((process.path.join("maps"), ReadError::TooLong(limit)));
            Vec::new()
        }
        Err(error) => return Err(error),
    };
    let libzmq_file = libzmq::mapped_libzmq_files(&files).into_iter().next();
    // Nearly all processes of a machine end here.
    if libzmq_file.is_none() && !is_named && refused.is_empty() {
        return Ok(if is_frontend { Examination::Frontend } else { Examination::Other });
    }
    let has_room = if stated.role.is_some() { room.has_stated } else { room.has_unnamed };
    if user_spec.is_none() && !is_parent && !has_room {
        return Ok(Examination::LeftOut);
    }
    let described = Candidate::from_process(&process, stat, &argv, &stated, &files, engines)?;
    let mut candidate = Candidate { is_frontend, refused, libzmq_error: unread_maps, ..described };
    let environment = candidate.value_or_record_refusal(ProcPart::Environment, process.environment(MAX_ARGUMENT_BYTES));
    candidate.environment = environment.and_then(|bytes| parse_kept_variables(&bytes, engines));
    candidate.net_ns = candidate.value_or_record_refusal(ProcPart::Namespaces, process.network_namespace_inode());
    if let Some(file) = libzmq_file {
        candidate.libzmq = Some(LibZmq::from_mapped(file));
        let error = process.open_library(file).err();
        candidate.libzmq_error = error.map(|error| (file.path.clone(), error));
    }
    let exe = candidate.value_or_record_refusal(ProcPart::Root, process.read_process_link(ProcessLink::Program));
    let dirs = candidate.import_directories(&process, &argv, &files, exe.as_deref());
    candidate.installed = InstalledReleases::find(&process, &dirs, engines);
    Ok(Examination::Candidate(Box::new(candidate), process))
}

/// Role and settings of a process as its title, its command or the user states them.
#[derive(Debug)]
pub(crate) struct StatedRole {
    pub(crate) role: Option<RoleWithSource>,
    /// Role and rank in the title.
    pub(crate) titled: Option<(Role, Rank)>,
    pub(crate) launcher: Option<Launcher>,
}

impl StatedRole {
    /// Finds the role that is stated: by the user, or else by the title, or else by the command. A title replaces the first argument.
    pub(crate) fn from_argv(argv: &[String], user_spec: Option<&RoleSpec>, engines: &[EngineKind]) -> Self {
        // The role and the rank in the title.
        let titled = argv.first().and_then(|title| engines.iter().find_map(|engine| engine.role_of_title(title)));
        let launcher = Launcher::of_command(argv, engines);
        let role_by_user = user_spec.and_then(|spec| spec.role);
        let role = if let Some(role) = role_by_user {
            Some((role, RoleSource::Hand))
        } else if let Some((role, _rank)) = titled {
            Some((role, RoleSource::Title))
        } else {
            launcher.map(|launcher| (launcher.role, RoleSource::CommandLine))
        };
        Self { role, titled, launcher }
    }
}

impl Candidate {
    /// Creates a candidate from the command, the status and the mapped files of a process. The caller adds what other files show. Fails if
    /// the status cannot be read.
    fn from_process(
        process: &ProcDir,
        stat: &ProcessStat,
        argv: &[String],
        stated: &StatedRole,
        files: &[maps::MappedFile],
        engines: &[EngineKind],
    ) -> Result<Self, ReadError> {
        // `titled` are the role and the rank in the title.
        let StatedRole { role, titled, launcher } = *stated;
        let status = process.read("status", kernel::MAX_STATUS_BYTES)?;
        // Flags of an unknown program may have other meanings.
        let flags = if launcher.is_some() {
            Flags::parse(argv, engines.iter().flat_map(|engine| engine.flags()))
        } else {
            Flags::default()
        };
        Ok(Self {
            id: ProcessId { pid: process.pid, start_time: stat.start_time },
            ns_pids: stat::parse_ns_pids(&status),
            parent: stat.parent,
            title: display_title(argv, stat, titled.is_some(), launcher),
            stated: role,
            rank: titled.map(|(_, rank)| rank).unwrap_or_default(),
            launcher,
            flags,
            python: find_python_version(files),
            io_threads: find_io_thread_ids(process),
            // The engine whose runtime connects to clients instead of listening for them.
            connects_to_clients: find_connecting_engine(engines, files),
            inner_server: find_inner_server(engines, files.iter().map(|file| &*file.path)),
            ..Self::default()
        })
    }

    /// The value of a part that could be read. Records a refusal in the candidate. A part that is missing or too large stays unknown.
    fn value_or_record_refusal<T>(&mut self, part: ProcPart, result: Result<T, ReadError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                if error == ReadError::Denied {
                    self.refused.push(part);
                }
                None
            }
        }
    }

    /// Value of an environment variable. `None` if it is not set, or is not among the kept variables.
    fn variable(&self, name: &str) -> Option<&str> {
        let (_, value) = self.environment.as_ref()?.iter().find(|(known, _)| known == name)?;
        Some(value)
    }

    /// Folders from which the process imports Python packages, as far as its files and variables show them.
    fn import_directories(
        &self,
        process: &ProcDir,
        argv: &[String],
        files: &[maps::MappedFile],
        exe: Option<&Path>,
    ) -> Vec<PathBuf> {
        let cwd = process.read_process_link(ProcessLink::WorkingFolder).ok();
        // A title replaces the command, so neither interpreter nor script is known.
        let has_title = matches!(self.stated, Some((_, RoleSource::Title)));
        let argv = if has_title { &[] } else { argv };
        package::directories_in_import_order(PythonInterpreter {
            files,
            version: self.python.as_ref().map(|python| python.value),
            argv0: argv.first().map(String::as_str),
            script: match python_program(argv) {
                Some(Program::Script(script)) => Some(script),
                _ => None,
            },
            exe,
            cwd: cwd.as_deref(),
            python_path: self.variable("PYTHONPATH"),
            virtual_env: self.variable("VIRTUAL_ENV"),
        })
    }

    /// Describes the process in the given role.
    pub(crate) fn to_process(&self, role: Role, role_source: RoleSource) -> Process {
        Process {
            id: self.id,
            ns_pids: self.ns_pids.clone(),
            role,
            role_source,
            rank: self.rank,
            title: self.title.clone(),
            libzmq: self.libzmq.clone(),
            python: self.python.clone(),
            io_threads: self.io_threads.clone(),
            connects_to_clients: self.connects_to_clients,
            inner_server: self.inner_server,
        }
    }
}

/// Engine whose runtime is among these mapped files. Such a runtime connects to clients instead of listening for them.
fn find_connecting_engine(engines: &[EngineKind], files: &[maps::MappedFile]) -> Option<EngineKind> {
    let mut engines = engines.iter().copied();
    engines.find(|engine| files.iter().any(|file| engine.connects_to_clients(&file.path)))
}

/// Engine whose server runs inside the process that has mapped these files, as an extension module among them shows. `None` if there is
/// none.
pub(crate) fn find_inner_server<'a>(
    engines: &[EngineKind],
    mut files: impl Iterator<Item = &'a Path>,
) -> Option<EngineKind> {
    files.find_map(|path| engine_with_extension(engines, path))
}

/// Engine whose inner server is the extension at this path.
fn engine_with_extension(engines: &[EngineKind], path: &Path) -> Option<EngineKind> {
    engines.iter().copied().find(|engine| engine.inner_server().is_some_and(|server| (server.is_extension)(path)))
}

/// Extracts the environment variables that an engine or [`KEPT_VARIABLES`] names. Returns `None` if `setproctitle` has overwritten the
/// environment with its title, because the variables are then unknown.
fn parse_kept_variables(environ: &[u8], engines: &[EngineKind]) -> Option<Vec<(String, String)>> {
    let strings = split_nul_separated(environ);
    let begins_with_variable = strings.first().is_some_and(|string| string.contains('='));
    let is_overwritten = !environ.is_empty() && !begins_with_variable;
    if is_overwritten {
        return None;
    }
    let mut kept = Vec::new();
    for (name, value) in strings.iter().filter_map(|string| string.split_once('=')) {
        let is_of_engine = engines.iter().any(|engine| engine.variables().contains(&name));
        if is_of_engine || KEPT_VARIABLES.contains(&name) {
            kept.push((name.to_owned(), value.to_owned()));
        }
    }
    Some(kept)
}

/// Name of a process for display. If `is_titled`, the process has replaced its arguments by a title, which is its name. Otherwise its name
/// is the program, without the arguments, which may be secret.
fn display_title(argv: &[String], stat: &ProcessStat, is_titled: bool, launcher: Option<Launcher>) -> String {
    const MAX_LENGTH: usize = 60;
    let text = if is_titled {
        argv.first().cloned().unwrap_or_default()
    } else if let Some(launcher) = launcher {
        launcher.command.into()
    } else {
        interpreter_and_program(argv, stat)
    };
    text.chars().filter(|character| !character.is_control()).take(MAX_LENGTH).collect()
}

/// The process's own name, and the Python script or module that it executes, for example `python -m vllm`.
fn interpreter_and_program(argv: &[String], stat: &ProcessStat) -> String {
    match python_program(argv) {
        Some(Program::Script(path)) => {
            let file_name = path.rsplit('/').next().unwrap_or(path);
            format!("{} {file_name}", stat.comm)
        }
        Some(Program::Module(module)) => format!("{} -m {module}", stat.comm),
        None => stat.comm.clone(),
    }
}

/// Ids of the threads that libzmq names `ZMQbg/IO/0`, `ZMQbg/IO/1`, and so on.
pub(crate) fn find_io_thread_ids(process: &ProcDir) -> Vec<u32> {
    // More than enough, as a name has at most 15 bytes.
    const MAX_NAME_BYTES: usize = 64;
    let mut threads = process.list_threads(MAX_THREADS).unwrap_or_default().items;
    // A thread that has exited since has no name, and is left out.
    threads.retain(|tid| {
        let name = process.read(&format!("task/{tid}/comm"), MAX_NAME_BYTES);
        name.is_ok_and(|name| name.starts_with(b"ZMQbg/IO"))
    });
    threads
}

#[cfg(test)]
mod tests {
    use super::super::toy::{SOURCE, TOY};
    use super::*;

    #[test]
    fn an_overwritten_environment_is_unknown_and_an_empty_one_is_not() {
        let environment = |bytes: &[u8]| parse_kept_variables(bytes, &[TOY]);
        assert_eq!(environment(&[0; 1278]), None);
        assert_eq!(environment(b"er_DP0_TP0\0\0\0\0"), None);
        assert_eq!(environment(b""), Some(vec![]));
        let variables = environment(b"HF_TOKEN=secret\0TOY_CODEC=0\0EMPTY=\0").unwrap();
        assert_eq!(variables, [("TOY_CODEC".to_owned(), "0".to_owned())]);
    }

    #[test]
    fn a_title_on_screen_never_shows_arguments() {
        let stat =
            ProcessStat { comm: "python3".into(), state: 'S', parent: 1, start_time: 1, is_kernel_thread: false };
        let argv: Vec<String> = ["python3", "/srv/race.py", "--api-key", "secret"].map(str::to_owned).into();
        assert_eq!(display_title(&argv, &stat, false, None), "python3 race.py");
        assert_eq!(
            display_title(&argv, &stat, false, Launcher::of_command(&["toy-serve".into()], &[TOY])),
            "toy-serve"
        );
        assert_eq!(display_title(&["toy::source".into()], &stat, true, None), "toy::source");
    }

    #[test]
    fn an_unrelated_process_is_skipped() {
        let me = || ProcDir::open(std::process::id()).unwrap();
        let stat = ProcessStat::parse(&me().read("stat", 4096).unwrap()).unwrap();
        let room = CandidateRoom { has_unnamed: false, has_stated: false };
        let examined = examine_process(me(), &stat, None, true, room, &[TOY]).unwrap();
        assert!(matches!(examined, Examination::Other));
        let spec = RoleSpec { pid: std::process::id(), role: Some(SOURCE) };
        let named = examine_process(me(), &stat, Some(&spec), false, room, &[TOY]).unwrap();
        let Examination::Candidate(named, _) = named else { panic!("a process set with --pid is always a candidate") };
        assert_eq!(named.stated, Some((SOURCE, RoleSource::Hand)));
        assert_eq!(named.ns_pids.first(), Some(&std::process::id()));
    }
}
