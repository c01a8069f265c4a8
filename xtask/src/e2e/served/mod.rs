//! The engine serves HTTP to clients in their own processes. Reported deliveries and losses must equal what the clients got and missed. Two
//! ways to observe: attach from outside, and relays in front of the engine's sockets and its HTTP port, which need no privileges.

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

/// Releases whose consumer keeps only the last chunk, and one that merges.
const RELEASES: [&str; 4] = ["0.4.6.post4", "0.5.6", "0.5.9", "0.5.23"];

/// Scenario name, its releases, and its changes to the default setting.
type Scenario = (&'static str, &'static [&'static str], fn(&mut Setting));

/// Scenarios for both ways.
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

/// Queues all frames before the tokenizer receives the first.
pub(super) fn backlog(setting: &mut Setting) {
    setting.plan = Plan {
        tokens: 200,
        ..Plan::PLAIN
    };
    setting.gap_ms = 0;
    setting.backlog = true;
}

/// An event loop that blocks twice, for about a dozen frames each, with few of many requests live, as reported from real servers.
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

/// Way to observe the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The probe.
    Attach,
    /// Relays only.
    Tap,
}

impl Way {
    /// Both ways for one release and for requested ones; a single way for the others.
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

    /// Reason why this way is unavailable here.
    fn refusal(self) -> Option<String> {
        match self {
            Self::Attach => attach::kernel::refusal(),
            Self::Tap => None,
        }
    }

    /// Observes one run from start to end.
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

    /// Checks for every run, independent of its clients.
    fn exact(self, outcome: &Outcome, checks: &mut Checks) {
        match self {
            Self::Attach => {
                attach::check::exact(outcome, checks);
            }
            Self::Tap => exact(outcome, checks),
        }
    }
}

/// The rows of the table for deliveries.
pub(super) fn rows(table: &mut Table, options: &Options, home: &Home, program: &Path, engines: &[Engine]) {
    let asked = !options.releases.is_empty();
    for engine in engines {
        // The internal wire format does not affect deliveries, except for how outputs queue up.
        let scenarios = if engine.msgpack {
            &SCENARIOS[..2]
        } else {
            &SCENARIOS[..]
        };
        for &way in Way::of(engine, asked) {
            let runs = |releases: &[&str]| asked || releases.contains(&engine.release.as_str());
            let mut row = |name: &str, run: &dyn Fn(&mut Checks, &Path) -> Result<String>| {
                // In these scenarios timing decides which clients lose tokens.
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
                    // Without the flag on the command line, the mode is unknown and nothing is predicted.
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

/// Checks that the stalls affect some requests, all of them through queued chunks.
fn some_are_affected(outcome: &Outcome, checks: &mut Checks) {
    let (Some(totals), Some(report)) = (&outcome.clients, &outcome.report) else {
        return;
    };
    // A release that merges need not have merged: its event loop may have run between the frames.
    if report["source"]["waiter"] == "keeps-last" {
        checks.equal("somebody loses tokens", &true, &(totals.clients_with_loss > 0));
    }
    // A few of a hundred on an idle machine, more on a loaded one.
    checks.equal("some lose none", &true, &(totals.clients_with_loss < totals.finished));
    let wakeup = report["hops"][0]["wakeup_frames_max"].as_u64();
    checks.equal(
        "backlogs of several chunks a wakeup, where wakeups are seen",
        &true,
        &wakeup.is_none_or(|frames| frames >= 8),
    );
}
