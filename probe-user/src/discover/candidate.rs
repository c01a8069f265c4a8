//! Examination of one process: its title, command, mapped files and environment.

use std::path::{Path, PathBuf};

use adapter::discover::{
    EngineKind, Flags, Launcher, Program, PythonVersion, Rank, Role, RoleSource, RoleWithSource, Setting, program,
};

use super::degraded::Part;
use super::libzmq::{self, LibZmq};
use super::package::{self, Installed, Interpreter};
use super::python_version::find_python_version;
use super::spec::RoleSpec;
use super::topology::{Process, ProcessId};
use crate::opener_client::request::ProcessLink;
use crate::proc::stat::Stat;
use crate::proc::{ProcDir, ReadError, maps, stat, strings};

/// Environment variables that are kept in addition to those of the engines. Others may hold secrets, so they are discarded.
const VARIABLES: [&str; 2] = ["PYTHONPATH", "VIRTUAL_ENV"];
/// `MAX_ARG_STRLEN * 48`, the maximum size of arguments on common systems.
const ARGUMENTS: usize = 6 << 20;
/// 65,530 mappings (`vm.max_map_count`) take 6 MiB; some systems allow ten times as many.
pub(crate) const MAPS: usize = 64 << 20;
const THREADS: usize = 8192;

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
    pub(crate) installed: Installed,
    pub(crate) io_threads: Vec<u32>,
    pub(crate) connects_to_clients: Option<EngineKind>,
    pub(crate) inner_server: Option<EngineKind>,
    pub(crate) is_frontend: bool,
    pub(crate) net_ns: Option<u64>,
    /// Role at the last scan.
    pub(crate) last_role: Option<RoleWithSource>,
    /// Parts that could not be read for lack of permission.
    pub(crate) refused: Vec<Part>,
    /// The libzmq file that could not be read, with the error.
    pub(crate) libzmq_error: Option<(PathBuf, ReadError)>,
}

#[derive(Debug)]
pub(crate) enum Examined {
    /// Currently not recognisable as part of an engine.
    Other,
    /// A Python process without a known title that may not be examined.
    Refused,
    /// The process has more than [`MAPS`] bytes of mappings, which is the limit.
    TooLarge,
    /// A frontend without libzmq.
    Frontend,
    /// A possible process of an engine beyond the limits of [`Room`].
    LeftOut,
    /// A possible process of an engine. Its directory is held open, so reads reach that process, or fail once it has exited.
    Candidate(Box<Candidate>, ProcDir),
}

/// Whether further candidates are kept. Each costs a descriptor and a scan of its sockets, and any user can start processes that look
/// like candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Processes that have libzmq, and nothing else of an engine.
    pub(crate) has_unnamed: bool,
    /// Processes with a title or command of an engine.
    pub(crate) has_stated: bool,
}

/// Examines a process. `by_hand`: the user named it; `is_parent`: it started a process of an engine. Both are kept without `room`.
pub(crate) fn examine(
    process: ProcDir,
    stat: &Stat,
    by_hand: Option<&RoleSpec>,
    is_parent: bool,
    room: Room,
    engines: &[EngineKind],
) -> Result<Examined, ReadError> {
    let argv = strings(&process.read("cmdline", ARGUMENTS)?);
    let Stated { role: stated, titled, launcher } = Stated::of(&argv, by_hand, engines);
    let named = stated.is_some() || by_hand.is_some();
    let python = argv.first().is_some_and(|a| a.rsplit('/').next().is_some_and(|name| name.starts_with("python")));
    let is_frontend = engines.iter().any(|engine| engine.is_frontend(&argv));
    let mut refused = Vec::new();
    let mut unread = None;
    let files = match process.mappings(MAPS) {
        Ok(text) => maps::files(&text),
        Err(ReadError::Denied) if named || (is_parent && python) => {
            refused.push(Part::Maps);
            Vec::new()
        }
        Err(ReadError::NotExamined) => return Ok(if is_frontend { Examined::Frontend } else { Examined::Other }),
        Err(ReadError::Denied) => return Ok(if python { Examined::Refused } else { Examined::Other }),
        Err(ReadError::TooLong(_)) if !named => return Ok(Examined::TooLarge),
        Err(ReadError::TooLong(limit)) => {
            unread = Some((process.path.join("maps"), ReadError::TooLong(limit)));
            Vec::new()
        }
        Err(e) => return Err(e),
    };
    let zmq = libzmq::mapped(&files).into_iter().next();
    if zmq.is_none() && !named && refused.is_empty() {
        return Ok(if is_frontend { Examined::Frontend } else { Examined::Other });
    }
    let has_room = if stated.is_some() { room.has_stated } else { room.has_unnamed };
    if by_hand.is_none() && !is_parent && !has_room {
        return Ok(Examined::LeftOut);
    }
    let status = process.read("status", 64 << 10)?;
    let mut candidate = Candidate {
        id: ProcessId { pid: process.pid, start_time: stat.start_time },
        ns_pids: stat::ns_pids(&status),
        parent: stat.parent,
        title: title(&argv, stat, titled.is_some(), launcher),
        stated,
        rank: titled.map(|(_, rank)| rank).unwrap_or_default(),
        launcher,
        flags: if launcher.is_some() {
            Flags::parse(&argv, engines.iter().flat_map(|engine| engine.flags()))
        } else {
            Flags::default()
        },
        python: find_python_version(&files),
        io_threads: io_threads(&process),
        connects_to_clients: engines.iter().copied().find(|engine| {
            let mut paths = files.iter().map(|file| &file.path);
            paths.any(|path| engine.connects_to_clients(path))
        }),
        inner_server: inner_server(engines, files.iter().map(|file| &*file.path)),
        is_frontend,
        refused,
        libzmq_error: unread,
        ..Candidate::default()
    };
    candidate.environment =
        candidate.allowed(Part::Environment, process.environment(ARGUMENTS)).and_then(|e| environment(&e, engines));
    candidate.net_ns = candidate.allowed(Part::Namespaces, process.network_namespace());
    if let Some(file) = zmq {
        let (lib, error) = libzmq::learn(&process, file);
        candidate.libzmq = Some(lib);
        candidate.libzmq_error = error.map(|e| (file.path.clone(), e));
    }
    let exe = candidate.allowed(Part::Root, process.link(ProcessLink::Program));
    let dirs = candidate.import_from(&process, &argv, &files, exe.as_deref());
    candidate.installed = Installed::find(&process, &dirs, engines);
    Ok(Examined::Candidate(Box::new(candidate), process))
}

/// Role and settings of a process as its title, its command or the user states them.
#[derive(Debug)]
pub(crate) struct Stated {
    pub(crate) role: Option<RoleWithSource>,
    pub(crate) titled: Option<(Role, Rank)>,
    pub(crate) launcher: Option<Launcher>,
}

impl Stated {
    pub(crate) fn of(argv: &[String], by_hand: Option<&RoleSpec>, engines: &[EngineKind]) -> Self {
        let titled = argv.first().and_then(|title| engines.iter().find_map(|engine| engine.role_of_title(title)));
        let launcher = Launcher::of(argv, engines);
        let role = match (by_hand.and_then(|spec| spec.role), titled, launcher) {
            (Some(role), ..) => Some((role, RoleSource::Hand)),
            (None, Some((role, _)), _) => Some((role, RoleSource::Title)),
            (None, None, Some(launcher)) => Some((launcher.role, RoleSource::CommandLine)),
            (None, None, None) => None,
        };
        Self { role, titled, launcher }
    }
}

impl Candidate {
    /// Unwraps a result and records a refusal. Missing or oversized parts remain unknown.
    fn allowed<T>(&mut self, part: Part, result: Result<T, ReadError>) -> Option<T> {
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

    fn variable(&self, name: &str) -> Option<&str> {
        self.environment.as_ref()?.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    fn import_from(
        &self,
        process: &ProcDir,
        argv: &[String],
        files: &[maps::MappedFile],
        exe: Option<&Path>,
    ) -> Vec<PathBuf> {
        let cwd = process.link(ProcessLink::WorkingFolder).ok();
        // The title replaces the command, so neither interpreter nor script is known.
        let argv = if matches!(self.stated, Some((_, RoleSource::Title))) { &[] } else { argv };
        package::search_path(Interpreter {
            files,
            version: self.python.as_ref().map(|p| p.value),
            argv0: argv.first().map(String::as_str),
            script: match program(argv) {
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
    pub(crate) fn process(&self, role: Role, role_source: RoleSource) -> Process {
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

/// Engine whose inner server is an extension among these mapped files.
pub(crate) fn inner_server<'a>(
    engines: &[EngineKind],
    mut files: impl Iterator<Item = &'a Path>,
) -> Option<EngineKind> {
    let extension = |path: &Path| {
        engines.iter().copied().find(|engine| {
            let is_extension = engine.inner_server().map(|server| server.is_extension);
            is_extension.is_some_and(|is| is(path))
        })
    };
    files.find_map(extension)
}

/// Extracts the kept variables. `setproctitle` overwrites the environment with its title and fills the rest with zeros. That must be
/// distinguished from unset variables.
fn environment(bytes: &[u8], engines: &[EngineKind]) -> Option<Vec<(String, String)>> {
    let strings = strings(bytes);
    if !bytes.is_empty() && !strings.first().is_some_and(|s| s.contains('=')) {
        return None;
    }
    let pairs = strings.iter().filter_map(|s| s.split_once('='));
    Some(
        pairs
            .filter(|(name, _)| {
                VARIABLES.contains(name) || engines.iter().any(|engine| engine.variables().contains(name))
            })
            .map(|(n, v)| (n.to_owned(), v.to_owned()))
            .collect(),
    )
}

/// Name for display. Never contains arguments.
fn title(argv: &[String], stat: &Stat, titled: bool, launcher: Option<Launcher>) -> String {
    const LONGEST: usize = 60;
    let name = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    let text = match (launcher, program(argv)) {
        _ if titled => argv.first().cloned().unwrap_or_default(),
        (Some(launcher), _) => launcher.command.into(),
        (None, Some(Program::Script(script))) => format!("{} {}", stat.comm, name(script)),
        (None, Some(Program::Module(module))) => format!("{} -m {module}", stat.comm),
        (None, None) => stat.comm.clone(),
    };
    text.chars().filter(|c| !c.is_control()).take(LONGEST).collect()
}

/// Threads that libzmq names `ZMQbg/IO/0`, `ZMQbg/IO/1`, and so on.
pub(crate) fn io_threads(process: &ProcDir) -> Vec<u32> {
    let (threads, _) = process.threads(THREADS).unwrap_or_default();
    let io = |tid: &u32| process.read(&format!("task/{tid}/comm"), 64).is_ok_and(|name| name.starts_with(b"ZMQbg/IO"));
    threads.into_iter().filter(io).collect()
}

#[cfg(test)]
mod tests {
    use super::super::toy::{SOURCE, TOY};
    use super::*;

    #[test]
    fn an_overwritten_environment_is_unknown_and_an_empty_one_is_not() {
        let environment = |bytes: &[u8]| environment(bytes, &[TOY]);
        assert_eq!(environment(&[0; 1278]), None);
        assert_eq!(environment(b"er_DP0_TP0\0\0\0\0"), None);
        assert_eq!(environment(b""), Some(vec![]));
        let variables = environment(b"HF_TOKEN=secret\0TOY_CODEC=0\0EMPTY=\0").unwrap();
        assert_eq!(variables, [("TOY_CODEC".to_owned(), "0".to_owned())]);
    }

    #[test]
    fn a_title_on_screen_never_shows_arguments() {
        let stat = Stat { comm: "python3".into(), state: 'S', parent: 1, start_time: 1, kernel: false };
        let argv: Vec<String> = ["python3", "/srv/race.py", "--api-key", "secret"].map(str::to_owned).into();
        assert_eq!(title(&argv, &stat, false, None), "python3 race.py");
        assert_eq!(title(&argv, &stat, false, Launcher::of(&["toy-serve".into()], &[TOY])), "toy-serve");
        assert_eq!(title(&["toy::source".into()], &stat, true, None), "toy::source");
    }

    #[test]
    fn an_unrelated_process_is_skipped() {
        let me = || ProcDir::of(std::process::id()).unwrap();
        let stat = Stat::parse(&me().read("stat", 4096).unwrap()).unwrap();
        let room = Room { has_unnamed: false, has_stated: false };
        let examined = examine(me(), &stat, None, true, room, &[TOY]).unwrap();
        assert!(matches!(examined, Examined::Other));
        let spec = RoleSpec { pid: std::process::id(), role: Some(SOURCE) };
        let named = examine(me(), &stat, Some(&spec), false, room, &[TOY]).unwrap();
        let Examined::Candidate(named, _) = named else { panic!("a process set with --pid is always a candidate") };
        assert_eq!(named.stated, Some((SOURCE, RoleSource::Hand)));
        assert_eq!(named.ns_pids.first(), Some(&std::process::id()));
    }
}
