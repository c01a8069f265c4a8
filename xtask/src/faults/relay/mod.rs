//! Faults of the relay and its environment: with real peers on both sides, received bytes must equal sent bytes.

mod broken;
mod defects;
mod exhausted;
mod stalled;
mod strangers;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use serde_json::Value;

use super::peers::{Arrived, Load, Receiver, Sender, Sent};
use super::tap::{Around, Ends, Held, Tap, lost, seen};
use super::{Bench, Fault, Seen};
use crate::e2e::check::Checks;
use crate::e2e::tap::Transport;

/// All faults, in the order of the table.
pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "traffic ipc",
        what: "none, as fast as it goes",
        run: |bench, dir, checks| traffic(bench, Transport::Ipc, dir, checks),
    },
    Fault {
        name: "traffic tcp",
        what: "none, as fast as it goes",
        run: |bench, dir, checks| traffic(bench, Transport::Tcp, dir, checks),
    },
    Fault {
        name: "killed ipc",
        what: "SIGKILL for the tap, another one started, 3 times (30 with --long); the same with a relay that only copies",
        run: |bench, dir, checks| broken::killed(bench, Transport::Ipc, dir, checks),
    },
    Fault {
        name: "killed tcp",
        what: "the same",
        run: |bench, dir, checks| broken::killed(bench, Transport::Tcp, dir, checks),
    },
    Fault {
        name: "stopped tap",
        what: "SIGSTOP for the tap",
        run: stalled::tap,
    },
    Fault {
        name: "stopped receiver",
        what: "SIGSTOP for the receiver while senders press",
        run: stalled::receiver,
    },
    Fault {
        name: "blocked analysis",
        what: "the ledger takes nothing for a while, at full traffic",
        run: stalled::analysis,
    },
    Fault {
        name: "dead in mid-frame",
        what: "peers that die in the middle of a message",
        run: strangers::dead_in_mid_frame,
    },
    Fault {
        name: "garbage",
        what: "peers that send no ZMTP, or half of it",
        run: strangers::garbage,
    },
    Fault {
        name: "claimed gigabyte",
        what: "messages that claim 1 GiB, and do not come",
        run: strangers::claimed,
    },
    Fault {
        name: "real 256 MiB",
        what: "messages of 256 MiB beside others",
        run: strangers::huge,
    },
    Fault {
        name: "1,000 connections",
        what: "opened at once and dropped, in all kinds of states",
        run: strangers::thousand,
    },
    Fault {
        name: "no files left",
        what: "RLIMIT_NOFILE reached by connections",
        run: exhausted::files,
    },
    Fault {
        name: "little memory",
        what: "a limit of 192 MiB of data, at full traffic, recording, with a blocked analysis",
        run: exhausted::memory,
    },
    Fault {
        name: "no memory left",
        what: "the limit put below what is in use: the tap dies and is started again",
        run: broken::starved,
    },
    Fault {
        name: "full disk",
        what: "recording onto a disk of 64 KiB",
        run: exhausted::disk,
    },
    Fault {
        name: "clock jumps",
        what: "the wall clock goes back a day, and forward ten years, while recording",
        run: defects::clock,
    },
    Fault {
        name: "ledger panics",
        what: "a panic where events are entered",
        run: |bench, dir, checks| defects::panics(bench, "ledger=panic@2000", "analysis:", dir, checks),
    },
    Fault {
        name: "detector panics",
        what: "a panic where detectors look",
        run: |bench, dir, checks| defects::panics(bench, "detectors=panic@3", "analysis:", dir, checks),
    },
    Fault {
        name: "decoder panics",
        what: "a panic where messages are decoded",
        run: |bench, dir, checks| defects::panics(bench, "decoder=panic@2000", "analysis:", dir, checks),
    },
    Fault {
        name: "recorder panics",
        what: "a panic where records are made",
        run: |bench, dir, checks| defects::panics(bench, "recorder=panic@2000", "writing:", dir, checks),
    },
    Fault {
        name: "disk thread panics",
        what: "a panic in the thread that writes the recording",
        run: |bench, dir, checks| defects::panics(bench, "writer=panic@2", "recording stopped:", dir, checks),
    },
];

/// Senders, a tap and a receiver, connected.
struct Line<'a> {
    bench: &'a Bench,
    dir: &'a Path,
    ends: Ends,
    receiver: Receiver,
    tap: Tap,
    senders: Vec<Sender>,
}

/// Messages sent and received on a line, and the tap's report.
struct Ran {
    arrived: Arrived,
    report: Value,
}

impl<'a> Line<'a> {
    fn start(
        bench: &'a Bench,
        transport: Transport,
        loads: &[Load],
        around: &Around<'_>,
        dir: &'a Path,
    ) -> Result<Self> {
        let ends = Ends::new(transport, dir)?;
        let room = loads.iter().map(|load| load.room).max().unwrap_or(0);
        let receiver = Receiver::start(bench, &ends.back, room, dir)?;
        let tap = Tap::start(bench, "tap", &ends, around, dir)?;
        let mut line = Self {
            bench,
            dir,
            ends,
            receiver,
            tap,
            senders: Vec::new(),
        };
        for load in loads {
            line.join(*load)?;
        }
        Ok(line)
    }

    /// Adds another process of senders, which starts sending at once.
    fn join(&mut self, load: Load) -> Result<()> {
        let name = format!("sender{}", load.first);
        let mut sender = Sender::start(self.bench, &name, &self.ends.front, load, self.dir)?;
        sender.go()?;
        self.senders.push(sender);
        Ok(())
    }

    /// Stops the senders, then the tap; returns the received messages and the report.
    fn end(self) -> Result<Ran> {
        self.ended(Sender::end)
    }

    /// Like [`Self::end`], with senders that finish by themselves.
    fn sent(self) -> Result<Ran> {
        self.ended(Sender::sent)
    }

    fn ended(self, how: impl Fn(Sender) -> Result<BTreeMap<u32, Sent>>) -> Result<Ran> {
        let mut sent = BTreeMap::new();
        for sender in self.senders {
            sent.append(&mut how(sender)?);
        }
        let arrived = self.receiver.end(sent)?;
        Ok(Ran {
            arrived,
            report: self.tap.report()?,
        })
    }
}

impl Ran {
    /// Checks that everything arrived and that the report counts all of it.
    fn exact(&self, checks: &mut Checks) {
        self.arrived.exactly(checks);
        checks.equal(
            "messages that the report has seen or says it lacks",
            &self.arrived.messages(),
            &(seen(&self.report) + lost(&self.report)),
        );
    }

    fn told(&self, more: impl Into<String>) -> Seen {
        let (arrived, more) = (&self.arrived, more.into());
        Seen {
            messages: arrived.messages(),
            told: format!("{arrived}{}{more}", if more.is_empty() { "" } else { "; " }),
        }
    }
}

fn traffic(bench: &Bench, transport: Transport, dir: &Path, checks: &mut Checks) -> Result<Seen> {
    let load = Load {
        connections: 4,
        count: if bench.long { 1_000_000 } else { 60_000 },
        rate: 0,
        sizes: "small",
        ..Load::STEADY
    };
    let loads = [load, Load { first: 4, ..load }];
    let line = Line::start(bench, transport, &loads, &Around::default(), dir)?;
    let ran = line.sent()?;
    ran.exact(checks);
    Ok(ran.told(format!("{} not looked into", lost(&ran.report))))
}
