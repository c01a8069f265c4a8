//! `tokengap attach` on real Dynamo workers: real SGLang tokens, given by the release's own handler to its own runtime, and what
//! the report says of each response stream against what the process at its other end was given.

mod bench;
mod expected;

use std::path::Path;

use anyhow::Result;
use serde_json::Value;

use self::bench::{Bench, Clients, Setting};
use self::expected::{accidents, apart, joined, quiet_but_for};
use super::Options;
use super::attach::kernel;
use super::check::Checks;
use super::plan::{Engine, Plan};
use super::setup::Home;
use super::table::{Needs, Table};

/// Releases that differ in what they put on a response plane: JSON, JSON without an error for an empty chunk, msgpack.
const RELEASES: [&str; 3] = ["0.9.0", "1.0.0", "1.6.1"];
/// An SGLang release that keeps a request's last chunk alone, and below one that merges them.
const LOSES: &str = "0.5.9";
/// See [`LOSES`].
const MERGES: &str = "0.5.23";

/// A scenario's name, the SGLang release under it, and what it changes in the ordinary setting.
struct Scenario(&'static str, &'static str, fn(&mut Setting), Judge);

/// What must hold of a run.
type Judge = fn(&bench::Outcome, &mut Checks);

/// What is run with each release. The first is the one that `--quick` runs.
const SCENARIOS: [Scenario; 4] = [
    Scenario(
        "dynamo",
        MERGES,
        |_| {},
        |outcome, checks| {
            apart(outcome, checks);
            quiet_but_for(outcome, &[], checks);
        },
    ),
    Scenario("dynamo, backlog", LOSES, backlog, |outcome, checks| {
        apart(outcome, checks);
        quiet_but_for(outcome, &["short-answers"], checks);
    }),
    Scenario(
        "dynamo, content",
        LOSES,
        |setting| {
            backlog(setting);
            setting.sender = &["--own-ids"];
        },
        |outcome, checks| {
            apart(outcome, checks);
            expected::named_by_content(outcome, checks);
            quiet_but_for(outcome, &["short-answers"], checks);
        },
    ),
    Scenario(
        "dynamo, frontend",
        LOSES,
        |setting| {
            backlog(setting);
            setting.clients = Clients::Frontend;
        },
        |outcome, checks| {
            if outcome.traced {
                joined(outcome, checks);
            } else {
                apart(outcome, checks);
            }
        },
    ),
];

/// What is run with the newest release alone.
const NEWEST: [Scenario; 6] = [
    Scenario(
        "dynamo, log line",
        LOSES,
        |setting| {
            backlog(setting);
            setting.worker = &["--say-ids"];
        },
        joined,
    ),
    Scenario(
        "dynamo, stopped reader",
        MERGES,
        |setting| {
            setting.standstill = true;
            // More than a connection holds (4 MB), and no more than the probe's ring takes.
            setting.plan.requests = 4;
            setting.worker = &["--pad", "65536"];
        },
        |outcome, checks| {
            apart(outcome, checks);
            expected::held_up(outcome, checks);
            quiet_but_for(outcome, &[], checks);
        },
    ),
    Scenario(
        "dynamo, clients leave",
        MERGES,
        |setting| setting.client = &["--leave-at", "3"],
        |outcome, checks| accidents(outcome, "client_left", checks),
    ),
    Scenario(
        "dynamo, failures",
        MERGES,
        |setting| setting.worker = &["--fail-at", "3"],
        |outcome, checks| accidents(outcome, "server_left", checks),
    ),
    Scenario(
        "dynamo, TLS",
        MERGES,
        |setting| setting.tls = true,
        |outcome, checks| expected::hidden(outcome, "it is encrypted (TLS)", checks),
    ),
    Scenario(
        "dynamo, QUIC",
        MERGES,
        |setting| setting.environment = &[("DYN_RESPONSE_PLANE", "quic")],
        |outcome, checks| expected::hidden(outcome, "it is answered over QUIC", checks),
    ),
];

/// All frames wait before the tokenizer takes the first.
fn backlog(setting: &mut Setting) {
    setting.gap_ms = 0;
    setting.backlog = true;
}

/// All rows of the table that are about Dynamo.
pub(super) fn rows(table: &mut Table, options: &Options, home: &Home, program: &Path) {
    let wanted = if options.quick { 1 } else { SCENARIOS.len() };
    for release in RELEASES {
        let newest = release == RELEASES[RELEASES.len() - 1] && !options.quick;
        let more = if newest { &NEWEST[..] } else { &[] };
        for Scenario(name, sglang, change, judge) in SCENARIOS[..wanted].iter().chain(more) {
            let engine = Engine {
                release: format!("{release}+{sglang}"),
                msgpack: false,
            };
            if !table.wants(options, &engine, name) {
                continue;
            }
            let missing = kernel::refusal().or_else(|| {
                home.prepare_dynamo(&[release], &[sglang])
                    .err()
                    .map(|e| format!("{e:#}"))
            });
            if let Some(why) = missing {
                table.skip(options, &engine, name, &why);
                continue;
            }
            let mut setting = Setting {
                dynamo: release,
                sglang,
                plan: Plan {
                    requests: 24,
                    ..Plan::PLAIN
                },
                ..Setting::default()
            };
            change(&mut setting);
            table.needs(if setting.standstill {
                Needs::Machine
            } else {
                Needs::Core
            });
            table.row(options, &engine, name, |checks, dir| {
                let outcome = Bench::run(home, program, &setting, dir)?;
                judge(&outcome, checks);
                Ok(told(&outcome))
            });
        }
    }
}

/// What happened, in the clients' own words.
fn told(outcome: &bench::Outcome) -> String {
    let given: u64 = outcome.clients.iter().map(|client| client.ids).sum();
    let handed = &outcome.worker.totals.given;
    format!(
        "{} streams, {given} tokens came, {} were lost in {} streams",
        outcome.clients.len(),
        handed.lost,
        handed.clients_with_loss
    )
}

/// A number of a report, as it stands there.
fn at<'v>(report: &'v Value, pointer: &str) -> &'v Value {
    report.pointer(pointer).unwrap_or(&Value::Null)
}

/// Unpacks Dynamo releases for use by hand.
pub(super) fn prepare(home: &Home, releases: &[String]) -> Result<()> {
    let releases: Vec<&str> = releases.iter().map(String::as_str).collect();
    home.prepare_dynamo(&releases, &[LOSES, MERGES])
}
