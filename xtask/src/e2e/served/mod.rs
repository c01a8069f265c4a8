//! The engine answers over HTTP, and its clients are processes of their own: what tokengap says was delivered and lost must be
//! what they were given and not given. Seen in two ways: by attach from outside, and by relays before the engine's sockets and
//! before its HTTP port, which need no privilege.

mod check;
mod leavers;
mod openai;

use std::path::Path;

use anyhow::Result;

use self::check::{delivered, predicted_only};
use super::check::{Checks, exact};
use super::plan::{Engine, Plan};
use super::session::{Outcome, Session, Setting};
use super::setup::Home;
use super::table::{Needs, Table};
use super::tap::Relay;
use super::{Options, attach, summary};

/// Releases with a consumer that keeps the last chunk, and the one that merges.
const RELEASES: [&str; 4] = ["0.4.6.post4", "0.5.6", "0.5.9", "0.5.23"];

/// A scenario's name, the releases it is run with, and what it changes in the ordinary setting.
type Scenario = (&'static str, &'static [&'static str], fn(&mut Setting));

/// What is run in both ways.
const SCENARIOS: [Scenario; 10] = [
    ("mixed", &["0.5.6", "0.5.23"], |_| {}),
    ("backlog", &RELEASES, backlog),
    ("asyncio, backlog", &["0.5.6", "0.5.23"], |setting| {
        backlog(setting);
        setting.receiver = &["--loop", "asyncio"];
    }),
    ("middleware, backlog", &["0.4.6.post4", "0.5.9", "0.5.23"], |setting| {
        backlog(setting);
        setting.receiver = &["--middleware"];
    }),
    ("middleware, asyncio", &["0.5.6"], |setting| {
        backlog(setting);
        setting.receiver = &["--middleware", "--loop", "asyncio"];
    }),
    ("other thread, backlog", &["0.5.6", "0.5.9"], |setting| {
        backlog(setting);
        setting.receiver = &["--other-thread"];
    }),
    ("more turns, backlog", &["0.4.6.post4", "0.5.9"], |setting| {
        backlog(setting);
        setting.receiver = &["--turns", "4"];
    }),
    ("cumulative, backlog", &["0.5.6", "0.5.23"], |setting| {
        backlog(setting);
        setting.receiver = &["--cumulative"];
    }),
    ("detokenizer, backlog", &["0.5.6", "0.5.23"], |setting| {
        backlog(setting);
        setting.detokenizer = true;
    }),
    ("stalls", &["0.5.6", "0.5.9", "0.5.23"], stalls),
];

/// All frames wait before the tokenizer takes the first.
pub(super) fn backlog(setting: &mut Setting) {
    setting.plan = Plan {
        tokens: 200,
        ..Plan::PLAIN
    };
    setting.gap_ms = 0;
    setting.backlog = true;
}

/// A loop that stands still twice, for about a dozen frames each time, while few of many requests are live: what was reported
/// of real servers.
fn stalls(setting: &mut Setting) {
    setting.plan = Plan {
        requests: 1000,
        tokens: 16,
        stagger: 1,
        ..Plan::PLAIN
    };
    setting.gap_ms = 4;
    setting.receiver = &["--stall", "0.05", "--stall-every", "6000"];
}

/// How the engine is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By the probe.
    Attach,
    /// By relays alone.
    Tap,
}

impl Way {
    /// Both with one release, and with any that was asked for; one with the others, which must say the same.
    fn of(engine: &Engine, asked: bool) -> &'static [Self] {
        if asked || engine.release == "0.5.9" {
            &[Self::Attach, Self::Tap]
        } else if Self::Attach.refusal().is_none() {
            &[Self::Attach]
        } else {
            &[Self::Tap]
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Attach => "attach",
            Self::Tap => "tap",
        }
    }

    /// Why it cannot be done here.
    fn refusal(self) -> Option<String> {
        match self {
            Self::Attach => attach::kernel::refusal(),
            Self::Tap => None,
        }
    }

    /// One run from its start to its end.
    fn watch(self, home: &Home, program: &Path, setting: &Setting, dir: &Path) -> Result<Outcome> {
        if self == Self::Attach {
            return attach::watched(home, program, setting, dir);
        }
        let setting = Setting {
            http_relayed: setting.http,
            ..setting.clone()
        };
        let mut session = Session::start(home, &setting, &Relay::Tokengap(program.into()), dir)?;
        session.go()?;
        session.finish()
    }

    /// What each way must say of every run, whatever its clients are like.
    fn exact(self, outcome: &Outcome, checks: &mut Checks) {
        match self {
            Self::Attach => {
                attach::check::exact(outcome, checks);
            }
            Self::Tap => exact(outcome, checks),
        }
    }
}

/// The rows of the table that are about deliveries.
pub(super) fn rows(table: &mut Table, options: &Options, home: &Home, program: &Path, engines: &[Engine]) {
    let asked = !options.releases.is_empty();
    for engine in engines {
        // What is on the wire inside changes nothing at the other end, but for how outputs queue up.
        let scenarios = if engine.msgpack {
            &SCENARIOS[..2]
        } else {
            &SCENARIOS[..]
        };
        for &way in Way::of(engine, asked) {
            let runs = |releases: &[&str]| asked || releases.contains(&engine.release.as_str());
            let mut row = |name: &str, run: &dyn Fn(&mut Checks, &Path) -> Result<String>| {
                // Who loses something there is a matter of time.
                let timed = ["http, stalls", "http, leavers"].contains(&name);
                table.needs(if timed { Needs::Machine } else { Needs::Core });
                let name = format!("{}, {name}", way.name());
                match way.refusal() {
                    Some(why) => table.skip(options, engine, &name, &why),
                    None => table.row(options, engine, &name, run),
                }
            };
            for (name, _, change) in scenarios.iter().filter(|(_, releases, _)| runs(releases)) {
                let mut setting = Setting::new(engine);
                setting.http = true;
                change(&mut setting);
                row(&format!("http, {name}"), &|checks, dir| {
                    let outcome = way.watch(home, program, &setting, dir)?;
                    way.exact(&outcome, checks);
                    delivered(&outcome, checks);
                    attach::score::confirmed(&outcome, checks);
                    if *name == "stalls" {
                        some_are_affected(&outcome, checks);
                    }
                    Ok(summary(&outcome))
                });
            }
            if engine.msgpack {
                continue;
            }
            if runs(&["0.5.6", "0.5.23"]) {
                row("http, leavers", &|checks, dir| {
                    leavers::run(way, home, program, engine, dir, checks)
                });
            }
            if runs(&["0.5.9", "0.5.23"]) {
                row("openai", &|checks, dir| {
                    openai::run(way, home, program, engine, dir, checks)
                });
            }
            if runs(&["0.5.9"]) {
                row("clients inside", &|checks, dir| {
                    let mut setting = Setting::new(engine);
                    backlog(&mut setting);
                    // Without the flag on its command line the mode is not known, and nothing is predicted.
                    setting.receiver = &["--stream-output", "--other-thread"];
                    let outcome = way.watch(home, program, &setting, dir)?;
                    way.exact(&outcome, checks);
                    predicted_only(&outcome, checks);
                    if way == Way::Attach {
                        let predicted = outcome
                            .report
                            .as_ref()
                            .and_then(|r| r["chunks"]["dropped_predicted"].as_u64());
                        checks.equal("loss is predicted", &true, &predicted.is_some_and(|chunks| chunks > 0));
                    }
                    Ok(summary(&outcome))
                });
            }
        }
    }
}

/// The stalls hit some requests, and all of these by queues of chunks.
fn some_are_affected(outcome: &Outcome, checks: &mut Checks) {
    let (Some(totals), Some(report)) = (&outcome.clients, &outcome.report) else {
        return;
    };
    // A release that merges need not have merged: its loop may have come round between the frames.
    if report["source"]["waiter"] == "keeps-last" {
        checks.equal("somebody loses tokens", &true, &(totals.clients_with_loss > 0));
    }
    // A few of a hundred on a machine with time; more on one without.
    checks.equal("some lose none", &true, &(totals.clients_with_loss < totals.finished));
    let wakeup = report["hops"][0]["wakeup_frames_max"].as_u64();
    checks.equal(
        "backlogs of several chunks a wakeup, where wakeups are seen",
        &true,
        &wakeup.is_none_or(|frames| frames >= 8),
    );
}
