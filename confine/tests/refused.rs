//! A confined process tries each forbidden call, which must be refused, and each needed one, which must succeed. Without arguments this
//! program is the test; with `--attempt` it is the confined process of one attempt.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use confine::{Capabilities, Plan, PortAccess, Work};
use rustix::process::{Pid, Signal};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttemptResult {
    Allowed,
    /// Refused with an error.
    Refused,
    /// Ended by the kernel.
    Killed,
}

/// Chooses the process that is signalled when a descriptor becomes ready.
const FIOSETOWN: libc::c_long = 0x8901;

const FIFREEZE: libc::c_long = 0xc004_5877;
const EXT4_IOC_SHUTDOWN: libc::c_long = 0x8004_587d;

/// Kinds of process. Those of `attach` drop root.
const KINDS: [(&str, Work); 5] = [
    ("files", Work::Files),
    ("network", Work::Network),
    ("observe", Work::Observe),
    ("attach", Work::Attach),
    ("move", Work::Move),
];

/// The process that opens files for others, and the attempts that it is allowed. All others are refused.
const OPEN_KIND: (&str, Work) = ("open", Work::Open);
const ALLOWED_FOR_OPEN: [&str; 10] = [
    "check the process status",
    "read the input",
    "start a thread",
    "catch a panic",
    "read a missing file",
    "signal itself",
    "unshare its descriptor table",
    "read a secret",
    READS_MEMORY,
    "query the size of a terminal",
];
/// The process that reads Python stacks, which is also allowed [`READS_MEMORY_BY_CALL`].
const MEMORY_KIND: (&str, Work) = ("memory", Work::Memory);
/// Capabilities to read other processes.
const READ_CAPABILITIES: Capabilities = Capabilities::SYS_PTRACE.union(Capabilities::DAC_READ_SEARCH);
/// Capabilities to attach programs.
const ATTACH_CAPABILITIES: Capabilities = Capabilities::SYS_PTRACE
    .union(Capabilities::DAC_READ_SEARCH)
    .union(Capabilities::SYS_ADMIN)
    .union(Capabilities::BPF)
    .union(Capabilities::PERFMON);

const READS_MEMORY: &str = "open the memory of another process for reading";
const READS_MEMORY_BY_CALL: &str = "read the memory of another process";
const WRITES_MEMORY: &str = "open the memory of another process for writing";
const USES_MAP: &str = "use an eBPF map";
const LOADS_PROGRAM: &str = "load an eBPF program";
const OPENS_MAP: &str = "open an eBPF map of another process";
const ATTACHES: &str = "attach an eBPF program";
/// Attempts whose result for other users depends on settings of the machine.
const ROOT_ONLY: [&str; 6] = [READS_MEMORY, WRITES_MEMORY, USES_MAP, LOADS_PROGRAM, OPENS_MAP, ATTACHES];

/// Attempts, each with its result under `Files`, `Network`, `Observe`, `Attach` and `Move`.
type Attempt = (&'static str, [AttemptResult; 5], fn(&Fixture<'_>) -> io::Result<()>);

const ATTEMPTS: &[Attempt] = {
    use AttemptResult::{Allowed, Killed, Refused};
    const EVERYWHERE: [AttemptResult; 5] = [Allowed; 5];
    const ONLY_OBSERVERS: [AttemptResult; 5] = [Killed, Refused, Allowed, Allowed, Allowed];
    const ONLY_MOVE: [AttemptResult; 5] = [Killed, Refused, Refused, Refused, Allowed];
    const ATTACHERS: [AttemptResult; 5] = [Killed, Refused, Refused, Allowed, Allowed];
    const SOCKETS: [AttemptResult; 5] = [Killed, Allowed, Allowed, Refused, Allowed];
    const WITH_FILES_OF_ROOT: [AttemptResult; 5] = [Allowed, Allowed, Refused, Refused, Allowed];
    const OTHER_PORTS: [AttemptResult; 5] = [Killed, Refused, Allowed, Refused, Allowed];
    const OTHER_FILES: [AttemptResult; 5] = [Refused, Refused, Refused, Allowed, Allowed];
    const OTHER_FILES_OF_ROOT: [AttemptResult; 5] = [Refused, Refused, Refused, Refused, Allowed];
    const UNLISTED: [AttemptResult; 5] = [Refused; 5];
    const NEVER: [AttemptResult; 5] = [Killed, Refused, Refused, Refused, Refused];
    &[
        // Needed by all kinds of work.
        ("check the process status", EVERYWHERE, |f| f.status()),
        ("read the input", EVERYWHERE, |f| fs::read(f.path_of("input/file")).map(drop)),
        ("write the output", WITH_FILES_OF_ROOT, |f| {
            let mut file = File::create(f.path_of("out/new"))?;
            file.write_all(b"content")?;
            file.set_len(3)?;
            file.sync_all()?;
            File::open(f.path_of("out"))?.sync_all()
        }),
        ("replace the output", WITH_FILES_OF_ROOT, |f| {
            let mut file = tempfile::NamedTempFile::new_in(f.path_of("out"))?;
            file.write_all(b"content")?;
            file.persist(f.path_of("out/old"))?;
            let file = tempfile::NamedTempFile::new_in(f.path_of("out"))?;
            file.persist_noclobber(f.path_of("out/another"))?;
            fs::remove_file(f.path_of("out/old"))
        }),
        ("start a thread", EVERYWHERE, |_| {
            let builder = std::thread::Builder::new().name("thread".into());
            let thread = builder.spawn(|| fs::read_to_string("/proc/thread-self/comm"))?;
            let comm = thread.join().expect("the thread ended")?;
            assert_eq!(comm.trim(), "thread");
            Ok(())
        }),
        ("catch a panic", EVERYWHERE, |_| {
            let caught = std::panic::catch_unwind(|| panic!("on purpose"));
            assert!(caught.is_err());
            Ok(())
        }),
        ("read a missing file", EVERYWHERE, |f| {
            let error = File::open(f.path_of("other/missing")).expect_err("no such file");
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
            Ok(())
        }),
        // Depends on the kind of work.
        ("listen on its port", SOCKETS, |f| TcpListener::bind(("127.0.0.1", f.own_port)).map(drop)),
        ("connect to its port", SOCKETS, |f| TcpStream::connect(("127.0.0.1", f.port)).map(drop)),
        ("listen on its socket", [Killed, Allowed, Refused, Refused, Allowed], |f| listen_at(&f.path_of("out/socket"))),
        ("replace a stale socket", [Killed, Allowed, Refused, Refused, Allowed], |f| {
            fs::write(f.path_of("stale/note"), "mine")?;
            fs::remove_file(f.path_of("stale/socket"))?;
            listen_at(&f.path_of("stale/socket"))
        }),
        ("open a pidfd", ONLY_OBSERVERS, |_| {
            Ok(rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty())
                .map(drop)?)
        }),
        ("duplicate a descriptor of another process", ONLY_MOVE, |_| {
            with_invalid_descriptor(libc::SYS_pidfd_getfd, [0; 5])
        }),
        ("signal itself", EVERYWHERE, |_| Ok(rustix::process::test_kill_process(rustix::process::getpid())?)),
        (
            "signal another process",
            [Refused, Refused, Refused, Refused, Allowed],
            // Signal 0 only tests whether a signal may be sent.
            |_| Ok(rustix::process::test_kill_process(Pid::INIT)?),
        ),
        ("signal another process by its pidfd", ONLY_MOVE, |_| {
            with_invalid_descriptor(libc::SYS_pidfd_send_signal, [0; 5])
        }),
        ("change the owner of a file", ONLY_MOVE, |_| with_invalid_descriptor(libc::SYS_fchown, [0; 5])),
        ("enter a network namespace", ATTACHERS, |_| enter(libc::CLONE_NEWNET)),
        ("unshare its descriptor table", EVERYWHERE, |_| {
            raw_syscall(libc::SYS_close_range, [-1, -1, libc::CLOSE_RANGE_UNSHARE.into(), 0, 0, 0])
        }),
        // Files and ports outside the plan. A process that observes others has no Landlock.
        ("read a secret", OTHER_FILES, |f| fs::read(f.path_of("other/secret")).map(drop)),
        ("write another file", OTHER_FILES_OF_ROOT, |f| {
            OpenOptions::new().write(true).open(f.path_of("other/secret")).map(drop)
        }),
        ("remove another file", OTHER_FILES_OF_ROOT, |f| fs::remove_file(f.path_of("other/secret"))),
        ("connect to another port", OTHER_PORTS, |f| {
            TcpStream::connect(("127.0.0.1", f.own_port)).map(drop).or_else(|error| match error.kind() {
                io::ErrorKind::ConnectionRefused => Ok(()),
                _ => Err(error),
            })
        }),
        ("listen on another port", OTHER_PORTS, |_| TcpListener::bind("127.0.0.1:0").map(drop)),
        // A file that only root may write: the memory of a root process.
        (READS_MEMORY, OTHER_FILES, |_| File::open(memory_of_another()).map(drop)),
        (WRITES_MEMORY, OTHER_FILES_OF_ROOT, |_| OpenOptions::new().write(true).open(memory_of_another()).map(drop)),
        (READS_MEMORY_BY_CALL, ONLY_MOVE, |_| {
            // Read 0 bytes, which the kernel confirms if the call is permitted.
            raw_syscall(libc::SYS_process_vm_readv, [1, 0, 0, 0, 0, 0])
        }),
        // The process that attaches has loaded its programs.
        (USES_MAP, ATTACHERS, |_| bpf(1)),
        (LOADS_PROGRAM, [Killed, Refused, Refused, Refused, Allowed], |_| bpf(5)),
        (OPENS_MAP, [Killed, Refused, Refused, Refused, Allowed], |_| bpf(14)),
        (ATTACHES, ATTACHERS, |_| bpf(28)),
        ("open a perf event", ATTACHERS, |_| match raw_syscall(libc::SYS_perf_event_open, [0, 0, -1, -1, 0, 0]) {
            // A null attribute is not read.
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Ok(()),
            other => other,
        }),
        // Never.
        ("run a program", NEVER, |_| Command::new("/bin/true").status().map(drop)),
        ("change the user id", NEVER, |_| raw_syscall(libc::SYS_setuid, [0; 6])),
        ("change the root directory", NEVER, |_| {
            raw_syscall(libc::SYS_chroot, [c"/".as_ptr() as usize as _, 0, 0, 0, 0, 0])
        }),
        ("map executable memory", NEVER, |_| {
            let (size, protection) = (4_096, libc::PROT_READ | libc::PROT_EXEC);
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            raw_syscall(libc::SYS_mmap, [0, size, protection.into(), kind.into(), -1, 0])
        }),
        ("unshare the mount namespace", NEVER, |_| {
            raw_syscall(libc::SYS_unshare, [libc::CLONE_NEWNS.into(), 0, 0, 0, 0, 0])
        }),
        ("enter a mount namespace", NEVER, |_| enter(libc::CLONE_NEWNS)),
        ("request tracing", NEVER, |_| raw_syscall(libc::SYS_ptrace, [libc::PTRACE_TRACEME.into(), 0, 0, 0, 0, 0])),
        ("write the memory of another process", NEVER, |_| {
            // Write 0 bytes, which the kernel confirms if the call is permitted.
            raw_syscall(libc::SYS_process_vm_writev, [1, 0, 0, 0, 0, 0])
        }),
        ("signal another process through fcntl", NEVER, |_| {
            with_invalid_descriptor(libc::SYS_fcntl, [libc::F_SETOWN.into(), 1, 0, 0, 0])
        }),
        ("signal another process through ioctl", NEVER, |_| {
            with_invalid_descriptor(libc::SYS_ioctl, [FIOSETOWN, 0, 0, 0, 0])
        }),
        ("freeze a file system", UNLISTED, |_| with_invalid_descriptor(libc::SYS_ioctl, [FIFREEZE, 0, 0, 0, 0])),
        ("shut down a file system", UNLISTED, |_| {
            with_invalid_descriptor(libc::SYS_ioctl, [EXT4_IOC_SHUTDOWN, 0, 0, 0, 0])
        }),
        ("query the size of a terminal", EVERYWHERE, |_| {
            with_invalid_descriptor(libc::SYS_ioctl, [libc::TIOCGWINSZ as libc::c_long, 0, 0, 0, 0])
        }),
    ]
};

/// Releases whose Landlock restricts files, also TCP ports, and also abstract sockets.
const RESTRICTS_FILES: (u32, u32) = (5, 13);
const RESTRICTS_PORTS: (u32, u32) = (6, 7);
const RESTRICTS_SOCKETS: (u32, u32) = (6, 12);

/// Release of the running kernel.
fn kernel() -> (u32, u32) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().expect("a number"));
    (numbers.next().expect("a major release"), numbers.next().expect("a minor release"))
}

fn main() -> ExitCode {
    let line: Vec<String> = std::env::args().skip(1).collect();
    if let [marker, work, attempt, folder, port] = line.as_slice()
        && marker == "--attempt"
    {
        let &(_, work) = KINDS.iter().chain([&MEMORY_KIND, &OPEN_KIND]).find(|kind| kind.0 == work).expect("a kind");
        return attempt_confined(work, attempt, Path::new(folder), port.parse().expect("a port"));
    }
    let (mut failed, mut attempts) = (0, 0);
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("SKIPPED: attempts that need root");
    }
    let has_landlock = kernel() >= RESTRICTS_FILES;
    if !has_landlock {
        println!("SKIPPED: files, network: Landlock restricts files from Linux 5.13 on");
    }
    for &(attempt, results, _) in ATTEMPTS {
        let is_allowed_for_open = ALLOWED_FOR_OPEN.contains(&attempt);
        let of_open = allowed_or_refused(is_allowed_for_open);
        let of_memory = allowed_or_refused(is_allowed_for_open || attempt == READS_MEMORY_BY_CALL);
        let others = [(&MEMORY_KIND, of_memory), (&OPEN_KIND, of_open)];
        for ((name, work), expected) in KINDS.iter().zip(results).chain(others) {
            if (drops_root(*work) || ROOT_ONLY.contains(&attempt)) && !is_root {
                continue;
            }
            if matches!(work, Work::Files | Work::Network) && !has_landlock {
                continue;
            }
            if *work == Work::Network && attempt.ends_with("another port") && kernel() < RESTRICTS_PORTS {
                println!("SKIPPED: {name}: {attempt}: Landlock restricts ports from Linux 6.7 on");
                continue;
            }
            attempts += 1;
            let out = run_attempt(name, attempt);
            let result = match (out.status.code(), out.status.signal()) {
                (Some(0), _) => Some(AttemptResult::Allowed),
                (Some(1), _) => Some(AttemptResult::Refused),
                (_, Some(signal)) if signal == Signal::SYS.as_raw() => Some(AttemptResult::Killed),
                _ => None,
            };
            let matches = result == Some(expected);
            println!("{} {name}: {attempt}: {result:?}", if matches { "ok    " } else { "FAILED" });
            if !matches {
                let stderr = String::from_utf8_lossy(&out.stderr);
                println!("       expected {expected:?}, ended with {}: {stderr}", out.status);
                failed += 1;
            }
        }
    }
    println!("\n{attempts} attempts, {failed} with an unexpected result");
    ExitCode::from(u8::from(failed > 0))
}

fn allowed_or_refused(is_allowed: bool) -> AttemptResult {
    if is_allowed { AttemptResult::Allowed } else { AttemptResult::Refused }
}

fn run_attempt(work: &str, attempt: &str) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["input", "out", "other", "stale"] {
        fs::create_dir(folder.path().join(name)).expect("made");
    }
    for name in ["input/file", "out/old", "other/secret"] {
        fs::write(folder.path().join(name), "precious").expect("written");
    }
    fs::set_permissions(folder.path().join("other/secret"), Permissions::from_mode(0o600)).expect("changed");
    // Leave the socket file in place.
    drop(UnixListener::bind(folder.path().join("stale/socket")).expect("a socket"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--attempt", work, attempt])
        .arg(folder.path())
        .arg(port.to_string())
        .output()
        .expect("started")
}

/// Whether this kind of process changes root's user id.
fn drops_root(work: Work) -> bool {
    matches!(work, Work::Observe | Work::Attach | Work::Memory | Work::Open)
}

/// Runs the attempt in this process. Exit code 0: it succeeded; 1: it was refused.
fn attempt_confined(work: Work, attempt: &str, folder: &Path, port: u16) -> ExitCode {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let own_port = listener.local_addr().expect("bound").port();
    drop(listener);
    let mut plan = Plan {
        read: vec![folder.join("input/file")],
        ports: vec![PortAccess::Listen(own_port), PortAccess::Connect(port)],
        unprivileged: drops_root(work),
        ..Plan::new(work)
    };
    plan.permit_creation(&folder.join("out/new"));
    plan.permit_creation(&folder.join("stale/socket"));
    let is_root = rustix::process::geteuid().is_root();
    let observes = matches!(work, Work::Observe | Work::Attach | Work::Memory | Work::Open | Work::Move);
    let kept = match work {
        Work::Open | Work::Memory if is_root => READ_CAPABILITIES,
        Work::Attach | Work::Move if is_root => ATTACH_CAPABILITIES,
        _ => Capabilities::empty(),
    };
    plan.keep = kept;
    let outcome = plan.apply();
    assert_eq!(outcome.user.is_some(), drops_root(work), "{outcome:?}");
    assert!(outcome.seccomp, "{outcome:?}");
    assert_eq!(outcome.landlock, !observes, "{outcome:?}");
    let has_gaps = work == Work::Network && kernel() < RESTRICTS_SOCKETS;
    assert_eq!(outcome.missing.len(), usize::from(has_gaps), "{outcome:?}");
    if work == Work::Attach {
        confine::refuse_programs().expect("a further filter");
        confine::refuse_programs().expect_err("no filter after the final one");
    }
    let fixture = Fixture {
        folder,
        port,
        own_port,
        user: outcome.user.unwrap_or_else(|| rustix::process::getuid().as_raw()),
        drops_root: drops_root(work),
        kept,
    };
    let &(.., run) = ATTEMPTS.iter().find(|(name, ..)| *name == attempt).expect("an attempt");
    match run(&fixture) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(1)
        }
    }
}

struct Fixture<'a> {
    folder: &'a Path,
    /// A port with a listener.
    port: u16,
    /// A free port that the plan permits.
    own_port: u16,
    /// Expected user id.
    user: u32,
    drops_root: bool,
    kept: Capabilities,
}

impl Fixture<'_> {
    fn path_of(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Status lines of this process and of a thread started later, as the kernel reports them.
    fn status(&self) -> io::Result<()> {
        let limits = fs::read_to_string("/proc/self/limits")?;
        let core_limit = limits.lines().find_map(|line| line.strip_prefix("Max core file size"));
        let core_limit: Vec<&str> = core_limit.expect("a line").split_whitespace().take(2).collect();
        assert_eq!(core_limit, ["0", "0"], "core dumps are disabled and cannot be enabled again");
        let thread = std::thread::spawn(|| fs::read_to_string("/proc/thread-self/status"));
        for status in [fs::read_to_string("/proc/self/status")?, thread.join().expect("the thread ended")?] {
            let of = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name));
                line.unwrap_or_default().trim_start_matches(':').trim().to_owned()
            };
            assert_eq!((of("NoNewPrivs").as_str(), of("Seccomp").as_str()), ("1", "2"));
            let (none, kept) = (0, self.kept.bits());
            for (set, expected) in
                [("CapInh", none), ("CapPrm", kept), ("CapEff", kept), ("CapBnd", kept), ("CapAmb", none)]
            {
                assert_eq!(u64::from_str_radix(&of(set), 16).ok(), Some(expected), "{set}");
            }
            for ids in ["Uid", "Gid"] {
                let ids = of(ids);
                assert!(ids.split_whitespace().all(|id| id.parse() == Ok(self.user)), "{ids}");
            }
            if self.drops_root {
                assert_ne!(self.user, 0);
                assert_eq!(of("Groups"), "");
            }
        }
        Ok(())
    }
}

fn listen_at(path: &Path) -> io::Result<()> {
    let listener = UnixListener::bind(path)?;
    let mut client = UnixStream::connect(path)?;
    let mut server = listener.accept()?.0;
    client.write_all(b"x")?;
    server.read_exact(&mut [0])?;
    fs::remove_file(path)
}

/// Memory of the program that started this one.
fn memory_of_another() -> PathBuf {
    PathBuf::from(format!("/proc/{}/mem", std::os::unix::process::parent_id()))
}

fn enter(kind: i32) -> io::Result<()> {
    with_invalid_descriptor(libc::SYS_setns, [kind.into(), 0, 0, 0, 0])
}

/// Makes an invalid request with this command, which shows whether the call reached the kernel's check of it.
fn bpf(command: libc::c_long) -> io::Result<()> {
    match raw_syscall(libc::SYS_bpf, [command, 0, 0, 0, 0, 0]) {
        Err(error) if !matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => Ok(()),
        other => other,
    }
}

/// Makes the call with an invalid descriptor, which shows whether the call reached the kernel's check of it.
fn with_invalid_descriptor(number: libc::c_long, arguments: [libc::c_long; 5]) -> io::Result<()> {
    match raw_syscall(number, [-1, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4]]) {
        Err(error) if error.raw_os_error() == Some(libc::EBADF) => Ok(()),
        other => other,
    }
}

/// Makes a raw system call.
#[expect(unsafe_code, reason = "the attempts need system calls that no safe function makes")]
fn raw_syscall(number: libc::c_long, arguments: [libc::c_long; 6]) -> io::Result<()> {
    // SAFETY: none of the calls above writes through an argument, and each that succeeds would change only this process, which
    // exits afterwards.
    match unsafe {
        libc::syscall(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5])
    } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
