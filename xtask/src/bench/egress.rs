//! Cost of observing egress for an unrelated process and for one that writes to its clients. Turns alternate between no probe, the probe's
//! two ways of observing the return of a write, and bpftrace.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use probe_user::egress::{CAPTURE, Serves};
use probe_user::{Capture, Options, Probe, Target};
use rustix::process::{Pid, Signal, getppid, kill_process};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Turns each way takes; medians are compared
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// System calls in a turn
    #[arg(long, default_value_t = 1_000_000)]
    calls: u32,
    /// Writes in a turn
    #[arg(long, default_value_t = 50_000)]
    writes: u32,
    /// Bytes of a write
    #[arg(long, default_value_t = 600)]
    bytes: usize,
}

/// Observer attached in a turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    None,
    Sockets,
    EveryCall,
    Bpftrace,
}

const WAYS: [(Way, &str); 4] = [
    (Way::None, "nothing attached"),
    (Way::Sockets, "tokengap, where sockets send"),
    (Way::EveryCall, "tokengap, where any call returns"),
    (Way::Bpftrace, "bpftrace, sys_exit of the process"),
];

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut turns = WAYS.map(|_| (Vec::new(), Vec::new()));
    for round in 0..=args.rounds {
        for ((calls, writes), (way, _)) in turns.iter_mut().zip(WAYS) {
            let stranger = Sleeper::start()?;
            let Some(attached) = Attached::attach(way, stranger.0.id())? else {
                continue;
            };
            let call = calling(args.calls);
            attached.detach()?;
            let Some(attached) = Attached::attach(way, std::process::id())? else {
                continue;
            };
            let write = writing(args)?;
            attached.detach()?;
            // The first round warms up.
            if round > 0 {
                calls.push(call);
                writes.push(write);
            }
        }
    }
    println!(
        "{:36} {:>16} {:>8} {:>16} {:>8}",
        "ns", "getppid, another", "more", "write, watched", "more"
    );
    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    let medians = turns.map(|(mut calls, mut writes)| median(&mut calls).zip(median(&mut writes)));
    let [Some((call, write)), ..] = medians else {
        anyhow::bail!("no turn with nothing attached")
    };
    for (of, (_, name)) in medians.into_iter().zip(WAYS) {
        match of {
            Some((a, b)) => println!("{name:36} {a:16.1} {:8.1} {b:16.1} {:8.1}", a - call, b - write),
            None => println!("{name:36} not installed"),
        }
    }
    Ok(())
}

/// Nanoseconds of a system call that does nothing.
fn calling(calls: u32) -> f64 {
    let begun = Instant::now();
    for _ in 0..calls {
        std::hint::black_box(getppid());
    }
    begun.elapsed().as_nanos() as f64 / f64::from(calls)
}

/// CPU nanoseconds of this thread per write to a TCP socket whose peer reads everything.
fn writing(args: &Args) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let (mut server, _) = listener.accept()?;
    server.set_nodelay(true)?;
    let reader = thread::spawn(move || {
        let mut room = vec![0; 1 << 16];
        while client.read(&mut room).is_ok_and(|read| read > 0) {}
    });
    let event = vec![b'x'; args.bytes];
    let begun = cpu();
    for _ in 0..args.writes {
        server.write_all(&event)?;
    }
    let spent = cpu().saturating_sub(begun);
    drop(server);
    reader.join().map_err(|_| anyhow::anyhow!("the client failed"))?;
    Ok(spent.as_nanos() as f64 / f64::from(args.writes))
}

/// CPU time of this thread.
fn cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// An idle process to observe.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Result<Self> {
        let mut sleep = Command::new("sleep");
        Ok(Self(sleep.arg("600").spawn().context("sleep")?))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

enum Attached {
    None,
    Probe {
        stop: Arc<AtomicBool>,
        reader: JoinHandle<Result<()>>,
    },
    Bpftrace(Child),
}

impl Attached {
    /// Attaches an observer to the writes of a process.
    fn attach(way: Way, pid: u32) -> Result<Option<Self>> {
        if way == Way::None {
            return Ok(Some(Self::None));
        }
        if way == Way::Bpftrace {
            let script =
                format!("tracepoint:raw_syscalls:sys_exit /pid == {pid} && args.id == 1/ {{ @[args.ret] = count(); }}");
            let child = Command::new("bpftrace")
                .args(["-e", &script])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            let Ok(child) = child else { return Ok(None) };
            thread::sleep(Duration::from_secs(2));
            return Ok(Some(Self::Bpftrace(child)));
        }
        let options = Options {
            scheduler: false,
            polls: false,
            every_call: way == Way::EveryCall,
            ..Options::default()
        };
        let mut probe = Probe::attach(&[], options)?;
        let serves = Serves {
            written: CAPTURE,
            read: 0,
        };
        probe.serve(pid, serves)?;
        let capture = Capture { sent: 0, taken: 0 };
        probe.add(&[Target { pid, capture }])?;
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let reader = thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                if probe.poll(Duration::ZERO, |_| {})? == 0 {
                    thread::sleep(Duration::from_millis(4));
                }
            }
            Ok(())
        });
        Ok(Some(Self::Probe { stop, reader }))
    }

    fn detach(self) -> Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Probe { stop, reader } => {
                stop.store(true, Ordering::Relaxed);
                reader.join().map_err(|_| anyhow::anyhow!("the reader failed"))?
            }
            Self::Bpftrace(mut child) => {
                let pid = Pid::from_raw(child.id() as i32).context("bpftrace's pid")?;
                kill_process(pid, Signal::INT)?;
                child.wait()?;
                Ok(())
            }
        }
    }
}
