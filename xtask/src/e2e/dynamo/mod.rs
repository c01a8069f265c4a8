//! `tokengap attach` on real Dynamo workers. The release's own handler passes real SGLang tokens to its own runtime. The report of each
//! response stream must match what the receiving process got.

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

/// Releases with different response plane formats: JSON, JSON without an error for an empty chunk, msgpack.
const RELEASES: [&str; 3] = ["0.9.0", "1.0.0", "1.6.1"];
/// SGLang release that keeps only a request's last queued chunk; [`MERGES`] merges them.
const LOSES: &str = "0.5.9";
/// SGLang release that merges queued chunks.
const MERGES: &str = "0.5.23";

/// Scenario name, SGLang release, changes to the default setting, and checks.
struct Scenario(&'static str, &'static str, fn(&mut Setting), Judge);

/// Checks of a run.
type Judge = fn(&bench::Outcome, &mut Checks);

/// Scenarios for every release. `--quick` runs only the first.
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

/// Scenarios for the newest release only.
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
            // More than a connection buffers (4 MB), and no more than the probe's ring buffer holds.
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

/// Queues all frames before the tokenizer receives the first.
fn backlog(setting: &mut Setting) {
    setting.gap_ms = 0;
    setting.backlog = true;
}

/// All rows of the table for Dynamo.
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

/// Summary of the clients' counts.
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

/// Value at a JSON pointer of the report, or null.
fn at<'v>(report: &'v Value, pointer: &str) -> &'v Value {
    report.pointer(pointer).unwrap_or(&Value::Null)
}

/// Unpacks Dynamo releases for manual use.
pub(super) fn prepare(home: &Home, releases: &[String]) -> Result<()> {
    let releases: Vec<&str> = releases.iter().map(String::as_str).collect();
    home.prepare_dynamo(&releases, &[LOSES, MERGES])
}
