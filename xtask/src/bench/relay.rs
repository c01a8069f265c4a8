//! The relay against a direct connection, `zmq_proxy` and the least that a relay can do: libzmq peers on both sides, real frames,
//! taking turns.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use zmq_tap::relay::{Observation, Options, Pair, Payload, Relay, step_aside};
use zmq_tap::wire::{Decoder, Limits};

/// The frame that those of all sizes are made of.
pub(super) const FIXTURE: &str = "zmq-tap/fixtures/messages/0.5.9/skip_delta_256rid.pkl";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Turns each way takes; the medians are compared
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Bytes that pass in one turn, in MiB
    #[arg(long, default_value_t = 1_024)]
    volume: u64,
    /// Messages a second that the sender sends; 0 is as fast as it goes
    #[arg(long, default_value_t = 0)]
    rate: u64,
    /// Message sizes in KiB
    #[arg(long, value_delimiter = ',', default_value = "16,64,256")]
    sizes: Vec<u64>,
    /// Be the relay of one turn: LISTEN UPSTREAM decode|count
    #[arg(long, hide = true, num_args = 3)]
    serve: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Direct,
    Counting,
    Decoding,
    ZmqProxy,
    /// A loop of system calls in C, by its name there.
    Floor(&'static str),
}

const WAYS: [(Way, &str); 7] = [
    (Way::Direct, "direct"),
    (Way::Counting, "tokengap, frames counted"),
    (Way::Decoding, "tokengap, frames decoded"),
    (Way::ZmqProxy, "zmq_proxy"),
    (Way::Floor("copy"), "floor: read, write"),
    (Way::Floor("splice"), "floor: splice"),
    (Way::Floor("tee"), "floor: splice, tee, read"),
];

/// What one turn measured.
struct Turn {
    /// Messages a second at the receiver.
    rate: f64,
    /// What the process between had to do; a direct connection has none.
    between: Option<Cost>,
}

/// Costs of the process between.
struct Cost {
    /// CPU microseconds a message: of the thread that copies, and of all threads.
    copying_us: f64,
    all_us: f64,
    /// Resident memory at its highest, in MiB.
    peak_mib: f64,
    /// Share of the messages that were decoded (or seen); `zmq_proxy` looks at none.
    observed: Option<f64>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if let [listen, upstream, mode] = &args.serve[..] {
        return serve(listen, upstream, mode == "decode");
    }
    if cfg!(debug_assertions) {
        bail!("a debug build measures nothing: cargo run --release -p xtask -- bench relay");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("the workspace")?;
    let folder = tempfile::tempdir()?;
    let peer = compile(folder.path())?;
    println!(
        "{:26} {:>9} {:>9} {:>7} {:>12} {:>12} {:>9} {:>9}",
        "libzmq peers over ipc", "bytes", "msg/s", "ratio", "copy us/msg", "all us/msg", "peak MiB", "observed"
    );
    for &size in &args.sizes {
        let message = folder.path().join(format!("{size}.pkl"));
        frame(&root.join(FIXTURE), size << 10, &message)?;
        let bytes = std::fs::metadata(&message)?.len();
        let count = (args.volume << 20) / bytes;
        let mut turns = WAYS.map(|_| Vec::new());
        for round in 0..=args.rounds {
            for (turns, (way, _)) in turns.iter_mut().zip(WAYS) {
                let turn = turn(way, &peer, folder.path(), &message, (count, args.rate))?;
                // The first round warms up.
                if round > 0 {
                    turns.push(turn);
                }
            }
        }
        let rate = |turns: &[Turn]| median(turns.iter().map(|turn| turn.rate)).unwrap_or(f64::NAN);
        let direct = rate(&turns[0]);
        for (turns, (_, name)) in turns.iter().zip(WAYS) {
            let costs = || turns.iter().filter_map(|turn| turn.between.as_ref());
            println!(
                "{name:26} {bytes:9} {:9.0} {:7.2} {:>12} {:>12} {:>9} {:>9}",
                rate(turns),
                rate(turns) / direct,
                shown(median(costs().map(|cost| cost.copying_us))),
                shown(median(costs().map(|cost| cost.all_us))),
                shown(median(costs().map(|cost| cost.peak_mib))),
                shown(median(costs().filter_map(|cost| cost.observed)).map(|share| share * 100.0)),
            );
        }
    }
    Ok(())
}

fn shown(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.1}"))
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn turn(way: Way, peer: &Path, folder: &Path, message: &Path, (count, rate): (u64, u64)) -> anyhow::Result<Turn> {
    // A killed proxy leaves its socket file: every turn has a folder of its own.
    let folder = tempfile::tempdir_in(folder)?;
    let at = |name: &str| format!("ipc://{}", folder.path().join(name).display());
    let (front, back) = (at("front"), at("back"));
    let bytes = std::fs::metadata(message)?.len();
    let receiver = [&"recv".into(), &back, &bytes.to_string(), &count.to_string()].map(String::clone);
    let mut receiver = Process::start(Command::new(peer).args(receiver))?;
    receiver.expect("READY")?;
    let mut between = match way {
        Way::Direct => None,
        Way::ZmqProxy => Some(Process::start(Command::new(peer).args(["proxy", &front, &back]))?),
        Way::Floor(name) => Some(Process::start(Command::new(peer).args([name, &front, &back]))?),
        Way::Counting | Way::Decoding => {
            let mode = if way == Way::Decoding { "decode" } else { "count" };
            let serve = ["bench", "relay", "--serve", &front, &back, mode];
            Some(Process::start(Command::new(std::env::current_exe()?).args(serve))?)
        }
    };
    if let Some(between) = &mut between {
        between.expect("READY")?;
    }
    let to = if way == Way::Direct { &back } else { &front };
    let paced = [count, rate].map(|n| n.to_string());
    let sender = Command::new(peer).arg("send").arg(to).arg(message).args(paced).spawn();
    let mut sender = Process::around(sender?);
    let rate: f64 = receiver.line()?.parse().context("the receiver's rate")?;
    sender.child.wait()?;
    let between = between.map(|mut between| between.cost(way, count as f64)).transpose()?;
    Ok(Turn { rate, between })
}

/// The relay's side of a turn: when its one connection has closed, it says how many messages it decoded (or saw).
fn serve(listen: &str, upstream: &str, decode: bool) -> anyhow::Result<()> {
    let relay = Relay::start(
        vec![Pair {
            listen: listen.parse()?,
            upstream: upstream.parse()?,
        }],
        Options::default(),
    )?;
    let observations = relay.observations();
    std::thread::Builder::new().name("reader".into()).spawn(move || {
        // Decoding takes what the traffic leaves.
        let _ = step_aside();
        let (mut decoder, mut seen) = (Decoder::new(Limits::default()), 0_u64);
        loop {
            match observations.poll() {
                Some(Observation::Frame {
                    payload: Payload::Whole(bytes),
                    ..
                }) => {
                    seen += u64::from(!decode || decoder.decode(&bytes).is_ok());
                }
                // The thread stays, so that its CPU time can still be read.
                Some(Observation::Closed { .. }) => println!("{seen}"),
                Some(_) => {}
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    })?;
    println!("READY");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Ours among the processes of a turn: ended by its own id when dropped.
struct Process {
    child: Child,
    says: Option<BufReader<ChildStdout>>,
}

impl Process {
    fn start(command: &mut Command) -> anyhow::Result<Self> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        Ok(Self::around(child.with_context(|| format!("{command:?}"))?))
    }

    fn around(mut child: Child) -> Self {
        let says = child.stdout.take().map(BufReader::new);
        Self { child, says }
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.says.as_mut().context("it says nothing")?.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    fn expect(&mut self, word: &str) -> anyhow::Result<()> {
        let said = self.line()?;
        if said != word {
            bail!("a peer said {said:?} instead of {word}");
        }
        Ok(())
    }

    fn cost(&mut self, way: Way, count: f64) -> anyhow::Result<Cost> {
        let observed = match way {
            Way::Counting | Way::Decoding => Some(self.line()?.parse::<f64>()? / count),
            Way::Direct | Way::ZmqProxy | Way::Floor(_) => None,
        };
        let (copying, all) = self.cpu_us()?;
        Ok(Cost {
            copying_us: copying / count,
            all_us: all / count,
            peak_mib: self.peak_mib()?,
            observed,
        })
    }

    /// CPU time so far, by the scheduler's own account (nanoseconds): the thread that copies, and all threads.
    fn cpu_us(&self) -> anyhow::Result<(f64, f64)> {
        let (mut copying, mut all) = (0.0, 0.0);
        for task in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let task = task?.path();
            let spent = std::fs::read_to_string(task.join("schedstat"))?;
            let spent: f64 = spent.split(' ').next().context("schedstat")?.parse()?;
            all += spent / 1e3;
            if std::fs::read_to_string(task.join("comm"))?.trim() == "tokengap-relay" {
                copying += spent / 1e3;
            }
        }
        Ok((if copying > 0.0 { copying } else { all }, all))
    }

    fn peak_mib(&self) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .context("VmHWM")?;
        Ok(peak.trim().trim_end_matches(" kB").parse::<f64>()? / 1_024.0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The peers, in C: what is measured is libzmq's own sending and receiving.
fn compile(folder: &Path) -> anyhow::Result<PathBuf> {
    let (source, peer) = (
        concat!(env!("CARGO_MANIFEST_DIR"), "/src/bench/relay_peer.c"),
        folder.join("peer"),
    );
    let built = Command::new("cc")
        .args(["-O2", "-Wall", "-o"])
        .arg(&peer)
        .args([source, "-lzmq", "-pthread"])
        .status();
    match built {
        Ok(status) if status.success() => Ok(peer),
        _ => bail!("the peers need a C compiler and libzmq's headers: apt-get install gcc libzmq3-dev"),
    }
}

/// A frame of about `size` bytes with the requests of `fixture`, again and again.
pub(super) fn frame(fixture: &Path, size: u64, out: &Path) -> anyhow::Result<()> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bench/relay_frame.py");
    let size = size.to_string();
    let mut command = Command::new("python3");
    command
        .arg(script)
        .arg(fixture)
        .arg(size.as_str())
        .arg(out)
        .stdout(Stdio::null());
    if !command.status().context("python3")?.success() {
        bail!("no frame of {size} bytes could be made of {}", fixture.display());
    }
    Ok(())
}
