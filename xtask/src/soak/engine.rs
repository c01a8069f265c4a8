//! The real engine's output path at a steady rate until stopped: a scheduler, a tokenizer and its clients.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;

use crate::e2e::plan::{Engine, Plan};
use crate::e2e::process::Process;
use crate::e2e::session::{Setting, role};
use crate::e2e::setup::Home;
use crate::e2e::truth::{ClientTotals, ReceiverTotals, SenderTotals};

/// SGLang release of the engine.
pub(super) const RELEASE: &str = "0.5.23";

const STARTUP: Duration = Duration::from_mins(1);
/// Time that a process may run beyond the soak before it ends by itself.
const LATER_S: u64 = 600;

/// Its processes.
pub(super) struct Running {
    receiver: Process,
    sender: Process,
    clients: Option<Process>,
}

/// Final counts of the processes.
#[derive(Debug)]
pub(super) struct Totals {
    pub(super) sender: SenderTotals,
    pub(super) receiver: ReceiverTotals,
    pub(super) clients: Option<ClientTotals>,
}

/// Where its frames go, and where they come from.
pub(super) struct Ends<'a> {
    /// Endpoint that the tokenizer binds.
    pub(super) back: &'a str,
    /// Endpoint that the scheduler connects to.
    pub(super) front: &'a str,
    /// Run clients as a separate process that speaks HTTP.
    pub(super) http: bool,
}

impl Running {
    /// Starts the tokenizer, and what `between` starts when that is there, then scheduler and clients; nothing is sent yet.
    pub(super) fn start(
        home: &Home,
        ends: &Ends<'_>,
        time: Duration,
        dir: &Path,
        between: impl FnOnce() -> Result<()>,
    ) -> Result<Self> {
        let engine = Engine {
            release: RELEASE.into(),
            msgpack: false,
        };
        let setting = Setting {
            plan: Plan {
                requests: 16,
                rounds: 0,
                burst: 2,
                stagger: 1,
                ..Plan::PLAIN
            },
            ..Setting::new(&engine)
        };
        let deadline = (time.as_secs() + LATER_S).to_string();
        let part = |name: &str| {
            role(home, &setting, name)
                .args(["--deadline", &deadline])
                .args(setting.plan.options())
        };
        let receiver = part("receive").args(["--bind", ends.back]);
        let receiver = receiver.args(ends.http.then_some("--http"));
        let mut receiver = receiver.start_briefly("receiver", dir)?;
        let ready = receiver.line("READY", STARTUP)?;
        between()?;
        let mut clients = None;
        if ends.http {
            let url = ready.split_whitespace().last().unwrap_or_default();
            let process = part("client").args(["--url", url]).start_briefly("clients", dir)?;
            clients.insert(process).line("READY", STARTUP)?;
        }
        let sender = part("send").args(["--connect", ends.front, "--control", ends.front]);
        let sender = sender.args(["--health-every", "25", "--gap", "25e-3"]);
        let mut sender = sender.start_briefly("sender", dir)?;
        sender.line("READY", STARTUP)?;
        Ok(Self {
            receiver,
            sender,
            clients,
        })
    }

    pub(super) fn go(&mut self) -> Result<()> {
        self.receiver.say("go")?;
        self.sender.say("go")
    }

    pub(super) fn tokenizer_pid(&self) -> u32 {
        self.receiver.pid()
    }

    /// Lets the requests in hand finish, and everything drain.
    pub(super) fn end(mut self) -> Result<Totals> {
        self.sender.stop();
        let sender = totals(&mut self.sender)?;
        // The rounds that are registered ahead never come.
        let clients = match &mut self.clients {
            Some(clients) => {
                std::thread::sleep(Duration::from_secs(1));
                clients.stop();
                Some(totals(clients)?)
            }
            None => None,
        };
        self.receiver.stop();
        let receiver = totals(&mut self.receiver)?;
        Ok(Totals {
            sender,
            receiver,
            clients,
        })
    }
}

fn totals<T: DeserializeOwned>(process: &mut Process) -> Result<T> {
    let said = process.line("DONE", STARTUP)?;
    serde_json::from_str(&said).with_context(|| format!("totals: {said}"))
}
