//! One run of the engine: its processes, started and stopped in order, with a relay in the path.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

use super::plan::{Engine, Plan};
use super::process::Process;
use super::setup::Home;
use super::tap::{Relay, Splice, Tap, Transport};
use super::truth::{Client, ClientTotals, DetokenizerTotals, ReceiverTotals, SenderTotals, Truth};

/// Time limit: importing a release takes seconds on a busy machine.
pub(super) const STARTUP: Duration = Duration::from_mins(1);
/// Time limit in seconds of every process of a run.
const DEADLINE_S: u64 = 90;

/// Hops of the path with a detokenizer.
pub(crate) const HOPS: [&str; 2] = ["scheduler->detokenizer", "detokenizer->tokenizer"];
/// Hop of the path without a detokenizer, as named by a tap that sees only the sender.
pub(crate) const ONLY_HOP: &str = "scheduler->upstream";

/// Settings of a run.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one switch of the run, read by its name"
)]
pub(crate) struct Setting {
    pub(crate) engine: Engine,
    pub(crate) plan: Plan,
    pub(crate) transport: Transport,
    /// Put a detokenizer in the path, which gives two hops to tap.
    pub(crate) detokenizer: bool,
    /// Start receiving only when everything has been sent.
    pub(crate) backlog: bool,
    /// Take a scheduler step only when all clients have the output of the previous one: [`Session::walk`].
    pub(crate) lockstep: bool,
    /// Pause between two scheduler steps in milliseconds.
    pub(crate) gap_ms: u32,
    /// Run clients as a separate process that speaks HTTP to the tokenizer.
    pub(crate) http: bool,
    /// Relay the HTTP responses as well.
    pub(crate) http_relayed: bool,
    /// Further options of `python -m engine ... receive`.
    pub(crate) receiver: &'static [&'static str],
    /// Further options of `python -m engine ... send`.
    pub(crate) sender: &'static [&'static str],
    /// Further options of `python -m engine ... client`.
    pub(crate) clients: &'static [&'static str],
}

impl Setting {
    /// Default: one sender directly to the tokenizer over ipc, with every kind of request.
    pub(crate) fn new(engine: &Engine) -> Self {
        Self {
            engine: engine.clone(),
            plan: Plan::MIXED,
            transport: Transport::Ipc,
            detokenizer: false,
            backlog: false,
            lockstep: false,
            gap_ms: 2,
            http: false,
            http_relayed: false,
            receiver: &[],
            sender: &[],
            clients: &[],
        }
    }
}

/// A run in progress: all processes are connected and nothing has been sent.
#[derive(Debug)]
pub(crate) struct Session<'a> {
    setting: &'a Setting,
    dir: PathBuf,
    relay: Relay,
    splices: Vec<Splice>,
    tap: Option<Tap>,
    taps_started: u32,
    receiver: Process,
    detokenizer: Option<Process>,
    senders: Vec<Process>,
    clients: Option<Process>,
}

/// The truth recorded by the engine's processes.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) senders: Vec<Truth<SenderTotals>>,
    pub(crate) detokenizer: Option<Truth<DetokenizerTotals>>,
    pub(crate) receiver: Truth<ReceiverTotals>,
    /// Totals of the HTTP clients.
    pub(crate) clients: Option<ClientTotals>,
    /// Each of the HTTP clients.
    pub(crate) each_client: Vec<Client>,
    /// Report of the last tap; `None` without a tap.
    pub(crate) report: Option<Value>,
}

impl Outcome {
    /// Tokens that clients missed, by their own count.
    pub(crate) fn lost(&self) -> u64 {
        self.clients
            .as_ref()
            .map_or(self.receiver.totals.given.lost, |clients| clients.lost)
    }
}

impl<'a> Session<'a> {
    /// Starts receiver, detokenizer, tap and senders, in this order. `dir` is an empty folder for their files.
    pub(crate) fn start(home: &Home, setting: &'a Setting, relay: &Relay, dir: &Path) -> Result<Self> {
        let tokenizer = Splice::new(relay, setting.transport, dir, "tokenizer")?;
        let mut splices = vec![tokenizer.clone()];
        let receive = role(home, setting, "receive")
            .args(["--bind", &tokenizer.back])
            .args(setting.receiver)
            .args(setting.detokenizer.then_some("--detokenizer"))
            .args(setting.lockstep.then_some("--lockstep"))
            .args(setting.http.then_some("--http"))
            .args(setting.plan.options())
            .start("receiver", dir)?;
        let mut detokenizer = None;
        let mut output = tokenizer.clone();
        if setting.detokenizer {
            output = Splice::new(relay, setting.transport, dir, "detokenizer")?;
            splices.insert(0, output.clone());
            splices[0].hop = Some(HOPS[0]);
            splices[1].hop = Some(HOPS[1]);
            let detokenize = role(home, setting, "detokenize");
            let ends = ["--bind", &output.back, "--connect", &tokenizer.front];
            detokenizer = Some(detokenize.args(ends).start("detokenizer", dir)?);
        }
        let mut session = Self {
            setting,
            dir: dir.into(),
            relay: relay.clone(),
            splices,
            tap: None,
            taps_started: 0,
            receiver: receive,
            detokenizer,
            senders: Vec::new(),
            clients: None,
        };
        let ready = session.receiver.line("READY", STARTUP)?;
        // Format: READY pid endpoint url
        let mut url = ready.split_whitespace().last().unwrap_or_default().to_owned();
        if setting.http_relayed {
            let clients = Splice::http(relay, &url)?;
            url.clone_from(&clients.front);
            session.splices.push(clients);
        }
        if let Some(detokenizer) = &mut session.detokenizer {
            detokenizer.line("READY", STARTUP)?;
        }
        session.start_tap()?;
        if setting.http {
            let clients = role(home, setting, "client")
                .args(["--url", &url])
                .args(setting.clients)
                .args(setting.plan.options());
            let clients = session.clients.insert(clients.start("clients", dir)?);
            clients.line("READY", STARTUP)?;
        }
        for number in 0..setting.plan.senders {
            let sender = role(home, setting, "send")
                .args(["--connect", &output.front, "--control", &tokenizer.front])
                .args(["--sender", &number.to_string(), "--health-every", "25"])
                .args(["--gap", &format!("{}e-3", setting.gap_ms)])
                .args(setting.sender)
                .args(setting.detokenizer.then_some("--detokenizer"))
                .args(setting.lockstep.then_some("--lockstep"))
                .args(setting.plan.options())
                .start(&format!("sender{number}"), dir)?;
            session.senders.push(sender);
        }
        for sender in &mut session.senders {
            sender.line("READY", STARTUP)?;
        }
        Ok(session)
    }

    /// Endpoint that senders connect to: the tap's own listener.
    pub(crate) fn front(&self) -> &str {
        &self.splices[0].front
    }

    /// Process id of the tokenizer.
    pub(crate) fn tokenizer_pid(&self) -> u32 {
        self.receiver.pid()
    }

    fn start_tap(&mut self) -> Result<()> {
        let name = format!("tap{}", self.taps_started);
        self.taps_started += 1;
        self.tap = Tap::start(&self.relay, &name, &self.splices, &self.dir)?;
        Ok(())
    }

    /// Starts the senders, and the receiver unless the setting wants a backlog.
    pub(crate) fn go(&mut self) -> Result<()> {
        if !self.setting.backlog {
            self.receiver.say("go")?;
        }
        for process in self.detokenizer.iter_mut().chain(&mut self.senders) {
            process.say("go")?;
        }
        Ok(())
    }

    /// Takes the only scheduler's steps one by one, each after all earlier frames have reached their clients. The clients' outputs then do
    /// not depend on timing.
    pub(crate) fn walk(&mut self) -> Result<()> {
        let sender = self.senders.first_mut().context("no scheduler to take steps")?;
        let mut taken = 0;
        loop {
            sender.say("step")?;
            let stepped = sender.line("STEPPED", STARTUP)?;
            let mut numbers = stepped.split_whitespace().map(str::parse::<u64>);
            let (Some(Ok(sent)), Some(Ok(left))) = (numbers.next(), numbers.next()) else {
                bail!("the scheduler said STEPPED {stepped}");
            };
            while taken < sent {
                self.receiver.line("TOOK", STARTUP)?;
                taken += 1;
            }
            if left == 0 {
                return Ok(());
            }
        }
    }

    /// Kills the tap with SIGKILL, waits, and starts another. Returns both times (`CLOCK_MONOTONIC`, ns).
    pub(crate) fn replace_tap(&mut self, pause: Duration) -> Result<(u64, u64)> {
        self.tap.take().context("no tap is running")?.kill()?;
        let killed_ns = mono_ns();
        thread::sleep(pause);
        self.start_tap()?;
        Ok((killed_ns, mono_ns()))
    }

    /// Waits for the senders, drains the path, stops every process and reads the truth files.
    pub(crate) fn finish(mut self) -> Result<Outcome> {
        let patience = Duration::from_secs(DEADLINE_S + 15);
        // Detect a receiver that fails early; otherwise the senders would wait until their deadline.
        while !self
            .senders
            .iter_mut()
            .map(Process::ended)
            .collect::<Result<Vec<_>>>()?
            .iter()
            .all(Option::is_some)
        {
            if let Some(complaint) = self.receiver.ended()? {
                bail!("{complaint}");
            }
            thread::sleep(Duration::from_millis(20));
        }
        let mut senders = Vec::new();
        for (number, sender) in self.senders.drain(..).enumerate() {
            sender.end_well(patience)?;
            senders.push(Truth::read(&self.dir.join(format!("sender{number}.truth")))?);
        }
        let detokenizer = match self.detokenizer {
            Some(mut detokenizer) => {
                detokenizer.stop();
                detokenizer.end_well(patience)?;
                Some(Truth::read(&self.dir.join("detokenizer.truth"))?)
            }
            None => None,
        };
        if self.setting.backlog {
            // Everything has been sent: wait until the last frames have crossed the relay into the receiver's queue.
            thread::sleep(Duration::from_millis(300));
            self.receiver.say("go")?;
        }
        let (mut clients, mut each_client) = (None, Vec::new());
        if let Some(process) = self.clients {
            process.end_well(patience)?;
            let truth = Truth::read(&self.dir.join("clients.truth"))?;
            (clients, each_client) = (Some(truth.totals), truth.clients);
        }
        self.receiver.stop();
        self.receiver.end_well(patience)?;
        let receiver = Truth::read(&self.dir.join("receiver.truth"))?;
        // Use SIGTERM (as a supervisor) or SIGINT (as a terminal): both must drain and report.
        let signal = match self.setting.transport {
            Transport::Ipc => Signal::TERM,
            Transport::Tcp => Signal::INT,
        };
        let report = self.tap.take().map(|tap| tap.report(signal)).transpose()?.flatten();
        Ok(Outcome {
            senders,
            detokenizer,
            receiver,
            clients,
            each_client,
            report,
        })
    }
}

/// The clock of the harness's truth files.
pub(crate) fn mono_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Builder of a harness command line.
pub(crate) struct Role(Command);

pub(crate) fn role(home: &Home, setting: &Setting, name: &str) -> Role {
    let mut command = Command::new(&home.python);
    command.current_dir(&home.root);
    // The server's command line shows how it streams and that its consumers are in process.
    if name == "receive" && setting.receiver.contains(&"--stream-output") {
        command.arg("engine/sglang/launch_server.py");
    } else {
        command.args(["-m", "engine"]);
    }
    command.args([setting.engine.release.as_str(), name]);
    // Set the path that a real installation would use, because attach detects the release from it.
    command.env("PYTHONPATH", home.source(&setting.engine.release));
    // Allow bytecode caching: every process imports hundreds of modules.
    command.env_remove("PYTHONDONTWRITEBYTECODE");
    command.env("SGLANG_USE_PICKLE_IPC", if setting.engine.msgpack { "0" } else { "1" });
    command.args(["--wait-go", "--deadline", &DEADLINE_S.to_string()]);
    Role(command)
}

impl Role {
    pub(crate) fn args<I: IntoIterator<Item: AsRef<std::ffi::OsStr>>>(mut self, args: I) -> Self {
        self.0.args(args);
        self
    }

    /// Starts it without a truth file, which grows with every message; only its final totals are available.
    pub(crate) fn start_briefly(self, name: &str, dir: &Path) -> Result<Process> {
        Process::start(name, self.0, dir)
    }

    /// Starts it with its truth in `NAME.truth`.
    pub(super) fn start(mut self, name: &str, dir: &Path) -> Result<Process> {
        self.0.arg("--truth").arg(dir.join(format!("{name}.truth")));
        Process::start(name, self.0, dir)
    }
}
