//! Examination of one process: its title, command, mapped files and environment.

use std::path::{Path, PathBuf};

use super::degraded::Part;
use super::launch::{self, Flags, Launcher, Program};
use super::libzmq::{self, LibZmq, Libraries};
use super::package::{self, Installed, Interpreter, PythonVersion};
use super::proc::stat::Stat;
use super::proc::{ProcDir, ReadError, maps, stat, strings};
use super::role::{self, Rank, Role, RoleSource};
use super::setting::Setting;
use super::spec::RoleSpec;
use super::streaming::{PICKLE_SWITCH, RUST_SERVER};
use super::topology::{Process, ProcessId};

/// Environment variables that are kept. Others may hold secrets, so they are discarded.
const VARIABLES: [&str; 4] = [PICKLE_SWITCH, RUST_SERVER, "PYTHONPATH", "VIRTUAL_ENV"];
/// `MAX_ARG_STRLEN * 48`, the maximum size of arguments on common systems.
const ARGUMENTS: usize = 6 << 20;
/// 65,530 mappings (`vm.max_map_count`) take 6 MiB; some systems allow ten times as many.
pub(crate) const MAPS: usize = 64 << 20;
const THREADS: usize = 8192;

/// A role with its source.
pub(crate) type Played = (Role, RoleSource);

/// A process that may belong to an engine.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) id: ProcessId,
    pub(crate) ns_pids: Vec<u32>,
    pub(crate) parent: u32,
    pub(crate) group: u32,
    pub(crate) title: String,
    /// Role given by the user, the title or the command. Inference adds others.
    pub(crate) stated: Option<Played>,
    pub(crate) rank: Rank,
    pub(crate) launcher: Option<Launcher>,
    pub(crate) flags: Flags,
    /// The [`VARIABLES`] that are set; `None` when the environment cannot be read or the title has overwritten it.
    pub(crate) environment: Option<Vec<(String, String)>>,
    pub(crate) libzmq: Option<LibZmq>,
    pub(crate) python: Option<Setting<PythonVersion>>,
    pub(crate) installed: Installed,
    pub(crate) io_threads: Vec<u32>,
    pub(crate) dynamo: bool,
    pub(crate) net_ns: Option<u64>,
    /// Role at the last scan.
    pub(crate) last_role: Option<Played>,
    /// Parts that could not be read for lack of permission.
    pub(crate) refused: Vec<Part>,
    /// The libzmq file that could not be read, with the error.
    pub(crate) libzmq_error: Option<(PathBuf, ReadError)>,
}

/// Result of an examination.
#[derive(Debug)]
pub(crate) enum Examined {
    /// Currently not recognisable as part of an engine.
    Other,
    /// A Python process without a known title that may not be examined.
    Refused,
    /// The process has more than [`MAPS`] bytes of mappings, which is the limit.
    TooLarge,
    /// A possible process of an engine.
    Candidate(Box<Candidate>),
}

/// Examines a process. `by_hand`: the user named it; `is_parent`: it started a process of an engine.
pub(crate) fn examine(
    process: &ProcDir,
    stat: &Stat,
    by_hand: Option<&RoleSpec>,
    is_parent: bool,
    libraries: &mut Libraries,
) -> Result<Examined, ReadError> {
    let argv = strings(&process.read("cmdline", ARGUMENTS)?);
    let titled = argv.first().and_then(|title| role::from_title(title));
    let launcher = launch::launcher(&argv);
    let stated = match (by_hand.and_then(|spec| spec.role), titled, launcher) {
        (Some(role), ..) => Some((role, RoleSource::Hand)),
        (None, Some((role, _)), _) => Some((role, RoleSource::Title)),
        (None, None, Some(_)) => Some((Role::Tokenizer, RoleSource::CommandLine)),
        (None, None, None) => None,
    };
    let named = stated.is_some() || by_hand.is_some();
    let python = argv
        .first()
        .is_some_and(|a| a.rsplit('/').next().is_some_and(|name| name.starts_with("python")));
    let mut refused = Vec::new();
    let mut unread = None;
    let files = match process.read("maps", MAPS) {
        Ok(text) => maps::files(&text),
        Err(ReadError::Denied) if named || (is_parent && python) => {
            refused.push(Part::Maps);
            Vec::new()
        }
        Err(ReadError::Denied) => return Ok(if python { Examined::Refused } else { Examined::Other }),
        Err(ReadError::TooLong(_)) if !named => return Ok(Examined::TooLarge),
        Err(ReadError::TooLong(limit)) => {
            unread = Some((process.path().join("maps"), ReadError::TooLong(limit)));
            Vec::new()
        }
        Err(e) => return Err(e),
    };
    let zmq = libzmq::mapped(&files);
    if zmq.is_none() && !named && refused.is_empty() {
        return Ok(Examined::Other);
    }
    let status = process.read("status", 64 << 10)?;
    let mut candidate = Candidate {
        id: ProcessId {
            pid: process.pid(),
            start_time: stat.start_time,
        },
        ns_pids: stat::ns_pids(&status),
        parent: stat.parent,
        group: stat.group,
        title: title(&argv, stat, titled.is_some(), launcher),
        stated,
        rank: titled.map(|(_, rank)| rank).unwrap_or_default(),
        launcher,
        flags: if launcher.is_some() {
            Flags::parse(&argv)
        } else {
            Flags::default()
        },
        environment: None,
        libzmq: None,
        python: package::python(&files),
        installed: Installed::default(),
        io_threads: io_threads(process),
        dynamo: files.iter().any(|file| is_dynamo(&file.path)),
        net_ns: None,
        last_role: None,
        refused,
        libzmq_error: unread,
    };
    candidate.environment = candidate
        .allowed(Part::Environment, process.read("environ", ARGUMENTS))
        .and_then(|e| environment(&e));
    candidate.net_ns = candidate.allowed(Part::Namespaces, process.namespace("net"));
    if let Some(file) = zmq {
        let (lib, error) = libraries.learn(process, file);
        candidate.libzmq = Some(lib);
        candidate.libzmq_error = error.map(|e| (file.path.clone(), e));
    }
    let exe = candidate.allowed(Part::Root, process.link("exe"));
    candidate.installed = Installed::find(process, &candidate.import_from(process, &argv, &files, exe.as_deref()));
    Ok(Examined::Candidate(Box::new(candidate)))
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
        self.environment
            .as_ref()?
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value.as_str())
    }

    fn import_from(
        &self,
        process: &ProcDir,
        argv: &[String],
        files: &[maps::MappedFile],
        exe: Option<&Path>,
    ) -> Vec<PathBuf> {
        let cwd = process.link("cwd").ok();
        // The title replaces the command, so neither interpreter nor script is known.
        let argv = if matches!(self.stated, Some((_, RoleSource::Title))) {
            &[]
        } else {
            argv
        };
        package::search_path(Interpreter {
            files,
            version: self.python.as_ref().map(|p| p.value),
            argv0: argv.first().map(String::as_str),
            script: match launch::program(argv) {
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
            parent: self.parent,
            group: self.group,
            role,
            role_source,
            rank: self.rank,
            title: self.title.clone(),
            libzmq: self.libzmq.clone(),
            python: self.python.clone(),
            pyzmq: self.installed.pyzmq.clone(),
            io_threads: self.io_threads.clone(),
            dynamo: self.dynamo,
        }
    }
}

/// Whether the file is the native module of `ai-dynamo-runtime`: `dynamo/_core.abi3.so`.
fn is_dynamo(file: &Path) -> bool {
    let named = |name: &str| name.starts_with("_core.") && Path::new(name).extension().is_some_and(|kind| kind == "so");
    file.file_name().and_then(|name| name.to_str()).is_some_and(named)
        && file.parent().is_some_and(|folder| folder.ends_with("dynamo"))
}

/// Extracts the kept variables. `setproctitle` overwrites the environment with its title and fills the rest with zeros. That must be
/// distinguished from unset variables.
fn environment(bytes: &[u8]) -> Option<Vec<(String, String)>> {
    let strings = strings(bytes);
    if !bytes.is_empty() && !strings.first().is_some_and(|s| s.contains('=')) {
        return None;
    }
    let pairs = strings.iter().filter_map(|s| s.split_once('='));
    Some(
        pairs
            .filter(|(name, _)| VARIABLES.contains(name))
            .map(|(n, v)| (n.to_owned(), v.to_owned()))
            .collect(),
    )
}

/// Name for display. Never contains arguments.
fn title(argv: &[String], stat: &Stat, titled: bool, launcher: Option<Launcher>) -> String {
    const LONGEST: usize = 60;
    let name = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    let text = match (launcher, launch::program(argv)) {
        _ if titled => argv.first().cloned().unwrap_or_default(),
        (Some(Launcher::Sglang), _) => "python -m sglang.launch_server".into(),
        (Some(Launcher::Dynamo), _) => "python -m dynamo.sglang".into(),
        (None, Some(Program::Script(script))) => format!("{} {}", stat.comm, name(script)),
        (None, Some(Program::Module(module))) => format!("{} -m {module}", stat.comm),
        (None, None) => stat.comm.clone(),
    };
    text.chars().filter(|c| !c.is_control()).take(LONGEST).collect()
}

/// Threads that libzmq names `ZMQbg/IO/0`, `ZMQbg/IO/1`, and so on.
pub(crate) fn io_threads(process: &ProcDir) -> Vec<u32> {
    let (threads, _) = process.numbers("task", THREADS).unwrap_or_default();
    let io = |tid: &u32| {
        process
            .read(&format!("task/{tid}/comm"), 64)
            .is_ok_and(|name| name.starts_with(b"ZMQbg/IO"))
    };
    threads.into_iter().filter(io).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overwritten_environment_is_unknown_and_an_empty_one_is_not() {
        assert_eq!(environment(&[0; 1278]), None);
        assert_eq!(environment(b"er_DP0_TP0\0\0\0\0"), None);
        assert_eq!(environment(b""), Some(vec![]));
        let kept = environment(b"HF_TOKEN=secret\0SGLANG_USE_PICKLE_IPC=0\0EMPTY=\0").unwrap();
        assert_eq!(kept, [("SGLANG_USE_PICKLE_IPC".to_owned(), "0".to_owned())]);
    }

    #[test]
    fn dynamos_runtime_is_known_by_its_module() {
        let is = |path| is_dynamo(Path::new(path));
        assert!(is("/usr/lib/python3.12/site-packages/dynamo/_core.abi3.so"));
        assert!(!is("/usr/lib/python3.12/site-packages/pydantic_core/_core.abi3.so"));
        assert!(!is("/usr/lib/python3.12/site-packages/dynamo/_core.py"));
    }

    #[test]
    fn a_title_on_screen_never_shows_arguments() {
        let stat = Stat {
            comm: "python3".into(),
            state: 'S',
            parent: 1,
            group: 1,
            start_time: 1,
            kernel: false,
        };
        let argv: Vec<String> = ["python3", "/srv/race.py", "--api-key", "secret"]
            .map(str::to_owned)
            .into();
        assert_eq!(title(&argv, &stat, false, None), "python3 race.py");
        assert_eq!(
            title(&argv, &stat, false, Some(Launcher::Sglang)),
            "python -m sglang.launch_server"
        );
        assert_eq!(
            title(&["sglang::detokenizer".into()], &stat, true, None),
            "sglang::detokenizer"
        );
    }

    #[test]
    fn an_ordinary_process_is_passed_over() {
        let me = super::super::proc::ProcRoot::new("/proc")
            .process(std::process::id())
            .unwrap();
        let stat = Stat::parse(&me.read("stat", 4096).unwrap()).unwrap();
        let examined = examine(&me, &stat, None, true, &mut Libraries::default()).unwrap();
        assert!(matches!(examined, Examined::Other));
        let spec = RoleSpec {
            pid: std::process::id(),
            role: Some(Role::Scheduler),
        };
        let named = examine(&me, &stat, Some(&spec), false, &mut Libraries::default()).unwrap();
        let Examined::Candidate(named) = named else {
            panic!("a process named by hand is always taken")
        };
        assert_eq!(named.stated, Some((Role::Scheduler, RoleSource::Hand)));
        assert_eq!(named.ns_pids.first(), Some(&std::process::id()));
    }
}
