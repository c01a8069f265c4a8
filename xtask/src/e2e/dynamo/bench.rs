//! One run: a scheduler, a Dynamo worker around the tokenizer, clients (directly or through a real frontend), and attach.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::super::attach::watch::Watch;
use super::super::plan::Plan;
use super::super::process::Process;
use super::super::setup::Home;
use super::super::truth::{Client, ClientTotals, ReceiverTotals, SenderTotals, Truth};

/// Time limit: importing and registering take seconds on a busy machine.
const STARTUP: Duration = Duration::from_mins(1);
/// Time limit in seconds of every process of a run.
const DEADLINE_S: u64 = 60;

/// Kind of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Clients {
    /// Clients of the runtime itself.
    #[default]
    Direct,
    /// HTTP clients of `python -m dynamo.frontend`, which send trace ids.
    Frontend,
}

/// Settings of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub(super) dynamo: &'static str,
    pub(super) sglang: &'static str,
    pub(super) plan: Plan,
    pub(super) clients: Clients,
    pub(super) gap_ms: u32,
    pub(super) backlog: bool,
    pub(super) tls: bool,
    /// Stop the clients for a while during the run.
    pub(super) standstill: bool,
    /// Further options of the sender, the worker and the clients.
    pub(super) sender: &'static [&'static str],
    pub(super) worker: &'static [&'static str],
    pub(super) client: &'static [&'static str],
    /// Environment variables of the worker and the clients.
    pub(super) environment: &'static [(&'static str, &'static str)],
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            dynamo: "",
            sglang: "",
            plan: Plan::PLAIN,
            clients: Clients::Direct,
            gap_ms: 5,
            backlog: false,
            tls: false,
            standstill: false,
            sender: &[],
            worker: &[],
            client: &[],
            environment: &[],
        }
    }
}

/// Counts from the processes, and attach's report.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) sender: SenderTotals,
    /// Outputs that the tokenizer gave to Dynamo's handler.
    pub(super) worker: Truth<ReceiverTotals>,
    /// Results of the clients.
    pub(super) clients: Vec<Client>,
    pub(super) report: Value,
    /// The end of every stream, as recorded by attach.
    pub(super) answers: Vec<Value>,
    /// Whether the release derives SGLang's request ids from trace ids and the run had any.
    pub(super) traced: bool,
}

/// A run's folder and settings.
pub(super) struct Bench<'a> {
    home: &'a Home,
    setting: &'a Setting,
    dir: &'a Path,
}

impl<'a> Bench<'a> {
    /// Runs from start to end.
    pub(super) fn run(home: &'a Home, program: &Path, setting: &'a Setting, dir: &'a Path) -> Result<Outcome> {
        let bench = Self { home, setting, dir };
        fs::create_dir(dir.join("instances"))?;
        if setting.tls {
            certificate(dir)?;
        }
        let inbox = format!("ipc://{}/tokenizer.sock", dir.display());
        let frontend = match setting.clients {
            Clients::Direct => None,
            Clients::Frontend => Some(bench.frontend()?),
        };
        let mut worker = bench.role("dynamo.worker", "worker");
        worker
            .args(["--dynamo", setting.dynamo, "--bind", &inbox])
            .args(setting.worker);
        worker.args(frontend.is_some().then_some("--model"));
        let mut worker = Process::start("worker", worker, dir)?;
        worker.line("READY", STARTUP)?;
        let mut sender = bench.role("send", "sender");
        sender.args(["--connect", &inbox, "--gap", &format!("{}e-3", setting.gap_ms)]);
        sender.args(setting.sender);
        let mut sender = Process::start("sender", sender, dir)?;
        sender.line("READY", STARTUP)?;
        let recording = dir.join("run.tgap");
        let record = ["--record", recording.to_str().context("a folder's name is no text")?];
        let watch = Watch::start_with(program, worker.pid(), dir, &record)?;
        let mut clients = bench.role("dynamo.client", "clients");
        clients.args(["--dynamo", setting.dynamo]).args(setting.client);
        if let Some((_, url)) = &frontend {
            clients.args(["--url", url]);
        }
        let clients = Process::start("clients", clients, dir)?;
        worker.line("HOLDS", STARTUP)?;
        if !setting.backlog {
            worker.say("go")?;
        }
        sender.say("go")?;
        if setting.standstill {
            thread::sleep(Duration::from_millis(100));
            clients.signal(Signal::STOP)?;
            thread::sleep(Duration::from_secs(3));
            clients.signal(Signal::CONT)?;
        }
        let patience = Duration::from_secs(DEADLINE_S + 15);
        sender.end_well(patience)?;
        if setting.backlog {
            thread::sleep(Duration::from_millis(300));
            worker.say("go")?;
        }
        clients.end_well(patience)?;
        worker.stop();
        worker.end_well(patience)?;
        let report = watch.report()?;
        let clients: Truth<ClientTotals> = Truth::read(&dir.join("clients.truth"))?;
        let sender: Truth<SenderTotals> = Truth::read(&dir.join("sender.truth"))?;
        Ok(Outcome {
            sender: sender.totals,
            worker: Truth::read(&dir.join("worker.truth"))?,
            clients: clients.clients,
            report,
            answers: answers(program, &recording)?,
            traced: frontend.is_some() && !setting.dynamo.starts_with("1.6"),
        })
    }

    /// A harness command that writes its truth to `NAME.truth`.
    fn role(&self, role: &str, name: &str) -> Command {
        let mut command = Command::new(&self.home.python);
        command.current_dir(&self.home.root);
        command.args(["-m", "engine", self.setting.sglang, role]);
        self.variables(&mut command);
        // Set the path that a real installation would use, because attach detects the release from it.
        command.env("PYTHONPATH", self.home.source(self.setting.sglang));
        command.args(["--wait-go", "--deadline", &DEADLINE_S.to_string()]);
        command.args(self.setting.plan.options());
        command.arg("--truth").arg(self.dir.join(format!("{name}.truth")));
        command
    }

    fn variables(&self, command: &mut Command) {
        command.env("DYN_FILE_KV", self.dir.join("instances"));
        for name in ["DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST"] {
            command.env(name, "127.0.0.1");
        }
        if self.setting.clients == Clients::Frontend {
            // Makes the frontend forward trace ids, which releases up to 1.5 use as SGLang's request ids.
            command.env("DYN_LOGGING_JSONL", "1");
        }
        if self.setting.tls {
            for (name, file) in [("CERT", "cert.pem"), ("KEY", "key.pem"), ("CA_CERT", "cert.pem")] {
                command.env(format!("DYN_TCP_TLS_{name}_PATH"), self.dir.join(file));
            }
        }
        command.envs(self.setting.environment.iter().copied());
    }

    /// Starts the real frontend and returns its address.
    fn frontend(&self) -> Result<(Process, String)> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let discovery = if self.setting.dynamo.starts_with("0.") {
            "--store-kv"
        } else {
            "--discovery-backend"
        };
        let mut command = Command::new(&self.home.python);
        command.current_dir(self.dir);
        self.variables(&mut command);
        command.env("PYTHONPATH", self.home.frontend_path(self.setting.dynamo)?);
        command.args(["-m", "dynamo.frontend", discovery, "file", "--http-host", "127.0.0.1"]);
        command.args(["--http-port", &port.to_string()]);
        let process = Process::start("frontend", command, self.dir)?;
        Ok((process, format!("http://127.0.0.1:{port}")))
    }
}

/// Creates a self-signed certificate for 127.0.0.1.
fn certificate(dir: &Path) -> Result<()> {
    let made = Command::new("openssl")
        .current_dir(dir)
        .args([
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
        ])
        .args(["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-keyout", "key.pem", "-out", "cert.pem"])
        .output()
        .context("starting openssl")?;
    ensure!(made.status.success(), "openssl made no certificate");
    Ok(())
}

/// The end of every stream, from the recording.
fn answers(program: &Path, recording: &PathBuf) -> Result<Vec<Value>> {
    let exported = Command::new(program)
        .args(["export", "--format", "events"])
        .arg(recording)
        .output()?;
    ensure!(exported.status.success(), "the recording cannot be exported");
    let text = String::from_utf8(exported.stdout)?;
    let lines = text.lines().map(serde_json::from_str::<Value>);
    let mut answers: Vec<Value> = lines.collect::<Result<_, _>>()?;
    answers.retain(|line| line["type"] == "answered");
    Ok(answers)
}
