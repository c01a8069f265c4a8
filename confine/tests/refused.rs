//! A confined process tries each forbidden call, which must be refused, and each needed one, which must succeed. Without arguments this
//! program is the test; with the names of a kind of process and an attempt it is that process.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use confine::{Kept, Plan, Reach, UNPRIVILEGED, Work};
use rustix::process::{Pid, Signal};

/// Expected end of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    /// Refused with an error.
    Refused,
    /// Ended by the kernel.
    Killed,
}

/// Chooses who is signalled when a descriptor becomes ready.
const FIOSETOWN: libc::c_long = 0x8901;

/// Kinds of process: their work, and whether they leave root.
const KINDS: [(&str, Work, bool); 5] = [
    ("files", Work::Files, false),
    ("network", Work::Network, false),
    ("probe", Work::Probe, false),
    ("probe as another user", Work::Probe, true),
    ("move", Work::Move, false),
];

/// Capabilities that `attach` keeps.
const KEPT: Kept = Kept::SYS_PTRACE
    .union(Kept::DAC_READ_SEARCH)
    .union(Kept::SYS_ADMIN)
    .union(Kept::BPF)
    .union(Kept::PERFMON);

const READS_MEMORY: &str = "open the memory of another for reading";
const WRITES_MEMORY: &str = "open the memory of another for writing";
const USES_MAP: &str = "use an eBPF map";
const LOADS_PROGRAM: &str = "load an eBPF program";
const OPENS_MAP: &str = "open an eBPF map of another";
/// Whether these are permitted to a user other than root is a setting of the machine.
const ROOTS: [&str; 5] = [READS_MEMORY, WRITES_MEMORY, USES_MAP, LOADS_PROGRAM, OPENS_MAP];

/// Attempts, each with its end under `Files`, `Network`, `Probe`, `Probe` as another user, and `Move`.
const ATTEMPTS: &[(&str, [End; 5])] = {
    use End::{Done, Killed, Refused};
    &[
        // Needed by all kinds of work.
        ("status", [Done, Done, Done, Done, Done]),
        ("read the input", [Done, Done, Done, Done, Done]),
        ("write the output", [Done, Done, Done, Refused, Done]),
        ("replace the output", [Done, Done, Done, Refused, Done]),
        ("start a thread", [Done, Done, Done, Done, Done]),
        ("panic and go on", [Done, Done, Done, Done, Done]),
        ("read what is missing", [Done, Done, Done, Done, Done]),
        // Depends on the kind of work.
        ("listen at its port", [Killed, Done, Done, Done, Done]),
        ("connect to its port", [Killed, Done, Done, Done, Done]),
        ("listen at its socket", [Killed, Done, Done, Refused, Done]),
        ("listen where a killed process did", [Killed, Done, Done, Refused, Done]),
        ("open a pidfd", [Killed, Refused, Done, Done, Done]),
        (
            "take a descriptor of another",
            [Killed, Refused, Refused, Refused, Done],
        ),
        ("signal itself", [Done, Done, Done, Done, Done]),
        ("signal another", [Refused, Refused, Refused, Refused, Done]),
        ("signal another by its pidfd", [Killed, Refused, Refused, Refused, Done]),
        ("give a file away", [Killed, Refused, Refused, Refused, Done]),
        ("enter a network namespace", [Killed, Refused, Done, Done, Done]),
        ("have its own open files", [Done, Done, Done, Done, Done]),
        // Files beside those named: a process that watches others has no Landlock.
        ("read a secret", [Refused, Refused, Done, Done, Done]),
        ("write beside", [Refused, Refused, Done, Refused, Done]),
        ("remove beside", [Refused, Refused, Done, Refused, Done]),
        ("connect elsewhere", [Killed, Refused, Done, Done, Done]),
        ("listen elsewhere", [Killed, Refused, Done, Done, Done]),
        // A file that only root may write: the memory of a process of root's.
        (READS_MEMORY, [Refused, Refused, Done, Done, Done]),
        (WRITES_MEMORY, [Refused, Refused, Done, Refused, Done]),
        // `attach` loads its programs first, and then refuses to.
        (USES_MAP, [Killed, Refused, Done, Done, Done]),
        (LOADS_PROGRAM, [Killed, Refused, Done, Refused, Done]),
        (OPENS_MAP, [Killed, Refused, Done, Refused, Done]),
        // Never.
        ("run a program", [Killed, Refused, Refused, Refused, Refused]),
        ("become another user", [Killed, Refused, Refused, Refused, Refused]),
        ("change the root", [Killed, Refused, Refused, Refused, Refused]),
        ("make memory executable", [Killed, Refused, Refused, Refused, Refused]),
        ("leave its namespace", [Killed, Refused, Refused, Refused, Refused]),
        (
            "enter a namespace of mounts",
            [Killed, Refused, Refused, Refused, Refused],
        ),
        ("be traced", [Killed, Refused, Refused, Refused, Refused]),
        (
            "write the memory of another",
            [Killed, Refused, Refused, Refused, Refused],
        ),
        (
            "have another signalled by a descriptor",
            [Killed, Refused, Refused, Refused, Refused],
        ),
        (
            "have another signalled by an ioctl",
            [Killed, Refused, Refused, Refused, Refused],
        ),
    ]
};

fn main() -> ExitCode {
    let line: Vec<String> = std::env::args().skip(1).collect();
    if let [marker, work, attempt, folder, port] = line.as_slice()
        && marker == "--attempt"
    {
        let &(_, work, leaves_root) = KINDS.iter().find(|named| named.0 == work).expect("a kind");
        return confined(
            work,
            leaves_root,
            attempt,
            Path::new(folder),
            port.parse().expect("a port"),
        );
    }
    let (mut failed, mut tried) = (0, 0);
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("SKIPPED: processes that leave root, and the memory of others: only root can");
    }
    for &(attempt, ends) in ATTEMPTS {
        for ((name, _, leaves_root), expected) in KINDS.iter().zip(ends) {
            if (*leaves_root || ROOTS.contains(&attempt)) && !is_root {
                continue;
            }
            tried += 1;
            let out = in_a_process(name, attempt);
            let end = match (out.status.code(), out.status.signal()) {
                (Some(0), _) => Some(End::Done),
                (Some(1), _) => Some(End::Refused),
                (_, Some(signal)) if signal == Signal::SYS.as_raw() => Some(End::Killed),
                _ => None,
            };
            let right = end == Some(expected);
            println!("{} {name}: {attempt}: {end:?}", if right { "ok    " } else { "FAILED" });
            if !right {
                let said = String::from_utf8_lossy(&out.stderr);
                println!("       expected {expected:?}, ended with {}: {said}", out.status);
                failed += 1;
            }
        }
    }
    println!("\n{tried} attempts, {failed} came out otherwise");
    ExitCode::from(u8::from(failed > 0))
}

fn in_a_process(work: &str, attempt: &str) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["given", "out", "beside", "left"] {
        fs::create_dir(folder.path().join(name)).expect("made");
    }
    for name in ["given/input", "out/old", "beside/secret"] {
        fs::write(folder.path().join(name), "precious").expect("written");
    }
    // Leave the socket file in place.
    drop(UnixListener::bind(folder.path().join("left/socket")).expect("a socket"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--attempt", work, attempt])
        .arg(folder.path())
        .arg(port.to_string())
        .output()
        .expect("started")
}

/// Runs the attempt in this process. Exit code 0: it succeeded; 1: it was refused.
fn confined(work: Work, leaves_root: bool, attempt: &str, folder: &Path, port: u16) -> ExitCode {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let own_port = free.local_addr().expect("bound").port();
    drop(free);
    let mut plan = Plan::new(work)
        .read(folder.join("given/input"))
        .make(&folder.join("out/new"))
        .make(&folder.join("left/socket"))
        .port(Reach::Listen(own_port))
        .port(Reach::Connect(port));
    let is_root = rustix::process::geteuid().is_root();
    let watches = matches!(work, Work::Probe | Work::Move);
    let kept = if watches && is_root { KEPT } else { Kept::empty() };
    plan = plan.keep(kept);
    if leaves_root {
        plan = plan.unprivileged();
    }
    let outcome = plan.apply();
    assert_eq!(outcome.unprivileged, leaves_root, "{outcome:?}");
    assert!(outcome.seccomp, "{outcome:?}");
    assert_eq!(outcome.landlock, !watches, "{outcome:?}");
    assert!(outcome.missing.is_empty(), "{outcome:?}");
    if leaves_root {
        confine::refuse_programs().expect("a further filter");
        confine::refuse_programs().expect_err("none after the last");
    }
    let place = Place {
        folder,
        port,
        own_port,
        user: if leaves_root {
            UNPRIVILEGED
        } else {
            rustix::process::getuid().as_raw()
        },
        kept,
    };
    match place.attempt(attempt) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(1)
        }
    }
}

struct Place<'a> {
    folder: &'a Path,
    /// A port with a listener.
    port: u16,
    /// A free port that the plan permits.
    own_port: u16,
    /// Expected user id.
    user: u32,
    /// Expected capabilities.
    kept: Kept,
}

impl Place<'_> {
    fn at(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn attempt(&self, name: &str) -> io::Result<()> {
        match name {
            "status" => self.status(),
            "read the input" => fs::read(self.at("given/input")).map(drop),
            "write the output" => {
                let mut file = File::create(self.at("out/new"))?;
                file.write_all(b"whole")?;
                file.set_len(3)?;
                file.sync_all()?;
                File::open(self.at("out"))?.sync_all()
            }
            "replace the output" => {
                let mut file = tempfile::NamedTempFile::new_in(self.at("out"))?;
                file.write_all(b"whole")?;
                file.persist(self.at("out/old"))?;
                let file = tempfile::NamedTempFile::new_in(self.at("out"))?;
                file.persist_noclobber(self.at("out/another"))?;
                fs::remove_file(self.at("out/old"))
            }
            "start a thread" => {
                let named = std::thread::Builder::new().name("inside".into());
                let inside = named.spawn(|| fs::read_to_string("/proc/thread-self/comm"))?;
                let comm = inside.join().expect("it ends")?;
                assert_eq!(comm.trim(), "inside");
                Ok(())
            }
            "panic and go on" => {
                let caught = std::panic::catch_unwind(|| panic!("on purpose"));
                assert!(caught.is_err());
                Ok(())
            }
            "read what is missing" => {
                let error = File::open(self.at("beside/nothing")).expect_err("not there");
                assert_eq!(error.kind(), io::ErrorKind::NotFound);
                Ok(())
            }
            "listen at its port" => TcpListener::bind(("127.0.0.1", self.own_port)).map(drop),
            "connect to its port" => TcpStream::connect(("127.0.0.1", self.port)).map(drop),
            "listen at its socket" => listen_at(&self.at("out/socket")),
            "listen where a killed process did" => {
                fs::write(self.at("left/note"), "mine")?;
                fs::remove_file(self.at("left/socket"))?;
                listen_at(&self.at("left/socket"))
            }
            "open a pidfd" => Ok(rustix::process::pidfd_open(
                rustix::process::getpid(),
                rustix::process::PidfdFlags::empty(),
            )
            .map(drop)?),
            "signal itself" => Ok(rustix::process::test_kill_process(rustix::process::getpid())?),
            "take a descriptor of another" => through_none(libc::SYS_pidfd_getfd, [0; 5]),
            "signal another by its pidfd" => through_none(libc::SYS_pidfd_send_signal, [0; 5]),
            "give a file away" => through_none(libc::SYS_fchown, [0; 5]),
            "have another signalled by a descriptor" => {
                through_none(libc::SYS_fcntl, [libc::F_SETOWN.into(), 1, 0, 0, 0])
            }
            "have another signalled by an ioctl" => through_none(libc::SYS_ioctl, [FIOSETOWN, 0, 0, 0, 0]),
            // Write 0 bytes, which the kernel confirms if the call is permitted.
            "write the memory of another" => call(libc::SYS_process_vm_writev, [1, 0, 0, 0, 0, 0]),
            // Signal 0 only tests whether a signal may be sent.
            "signal another" => Ok(rustix::process::test_kill_process(Pid::INIT)?),
            USES_MAP => bpf(1),
            LOADS_PROGRAM => bpf(5),
            OPENS_MAP => bpf(14),
            READS_MEMORY => File::open(memory_of_another()).map(drop),
            WRITES_MEMORY => OpenOptions::new().write(true).open(memory_of_another()).map(drop),
            "read a secret" => fs::read(self.at("beside/secret")).map(drop),
            "write beside" => OpenOptions::new().write(true).open(self.at("beside/secret")).map(drop),
            "remove beside" => fs::remove_file(self.at("beside/secret")),
            "connect elsewhere" => TcpStream::connect(("127.0.0.1", self.own_port))
                .map(drop)
                .or_else(|error| match error.kind() {
                    io::ErrorKind::ConnectionRefused => Ok(()),
                    _ => Err(error),
                }),
            "listen elsewhere" => TcpListener::bind("127.0.0.1:0").map(drop),
            "run a program" => Command::new("/bin/true").status().map(drop),
            "become another user" => call(libc::SYS_setuid, [0; 6]),
            "change the root" => call(libc::SYS_chroot, [c"/".as_ptr() as usize as _, 0, 0, 0, 0, 0]),
            "make memory executable" => {
                let (size, of) = (4_096, libc::PROT_READ | libc::PROT_EXEC);
                let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                call(libc::SYS_mmap, [0, size, of.into(), kind.into(), -1, 0])
            }
            "have its own open files" => call(
                libc::SYS_close_range,
                [-1, -1, libc::CLOSE_RANGE_UNSHARE.into(), 0, 0, 0],
            ),
            "leave its namespace" => call(libc::SYS_unshare, [libc::CLONE_NEWNS.into(), 0, 0, 0, 0, 0]),
            "enter a network namespace" => enter(libc::CLONE_NEWNET),
            "enter a namespace of mounts" => enter(libc::CLONE_NEWNS),
            "be traced" => call(libc::SYS_ptrace, [libc::PTRACE_TRACEME.into(), 0, 0, 0, 0, 0]),
            other => panic!("{other} is nothing to try"),
        }
    }
}

fn listen_at(path: &Path) -> io::Result<()> {
    let listener = UnixListener::bind(path)?;
    let mut there = UnixStream::connect(path)?;
    let mut here = listener.accept()?.0;
    there.write_all(b"x")?;
    here.read_exact(&mut [0])?;
    fs::remove_file(path)
}

/// Memory of the program that started this one.
fn memory_of_another() -> PathBuf {
    PathBuf::from(format!("/proc/{}/mem", std::os::unix::process::parent_id()))
}

fn enter(kind: i32) -> io::Result<()> {
    through_none(libc::SYS_setns, [kind.into(), 0, 0, 0, 0])
}

/// Makes an invalid request with this command: shows whether the call reached the kernel's check of it.
fn bpf(command: libc::c_long) -> io::Result<()> {
    match call(libc::SYS_bpf, [command, 0, 0, 0, 0, 0]) {
        Err(error) if !matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => Ok(()),
        other => other,
    }
}

/// Calls with an invalid descriptor: shows whether the call reached the kernel's check of it.
fn through_none(number: libc::c_long, with: [libc::c_long; 5]) -> io::Result<()> {
    match call(number, [-1, with[0], with[1], with[2], with[3], with[4]]) {
        Err(error) if error.raw_os_error() == Some(libc::EBADF) => Ok(()),
        other => other,
    }
}

/// Makes a raw system call.
#[expect(unsafe_code, reason = "calls that no safe function makes are what is tried")]
fn call(number: libc::c_long, with: [libc::c_long; 6]) -> io::Result<()> {
    // SAFETY: none of the calls above writes through an argument, and each that succeeds would change only this process, which
    // is of no use afterwards.
    match unsafe { libc::syscall(number, with[0], with[1], with[2], with[3], with[4], with[5]) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

impl Place<'_> {
    /// Status lines of this process and of a thread started later, as the kernel reports them.
    fn status(&self) -> io::Result<()> {
        let limits = fs::read_to_string("/proc/self/limits")?;
        let cores = limits.lines().find_map(|line| line.strip_prefix("Max core file size"));
        let cores: Vec<&str> = cores.expect("a line").split_whitespace().take(2).collect();
        assert_eq!(
            cores,
            ["0", "0"],
            "nothing may be left of what is in memory, nor asked for again"
        );
        let inside = std::thread::spawn(|| fs::read_to_string("/proc/thread-self/status"));
        for status in [
            fs::read_to_string("/proc/self/status")?,
            inside.join().expect("it ends")?,
        ] {
            let of = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name));
                line.unwrap_or_default().trim_start_matches(':').trim().to_owned()
            };
            assert_eq!((of("NoNewPrivs").as_str(), of("Seccomp").as_str()), ("1", "2"));
            let (none, kept) = (0, self.kept.bits());
            for (set, expected) in [
                ("CapInh", none),
                ("CapPrm", kept),
                ("CapEff", kept),
                ("CapBnd", kept),
                ("CapAmb", none),
            ] {
                assert_eq!(u64::from_str_radix(&of(set), 16).ok(), Some(expected), "{set}");
            }
            for ids in ["Uid", "Gid"] {
                let ids = of(ids);
                assert!(ids.split_whitespace().all(|id| id.parse() == Ok(self.user)), "{ids}");
            }
            if self.user == UNPRIVILEGED {
                assert_eq!(of("Groups"), "");
            }
        }
        Ok(())
    }
}
