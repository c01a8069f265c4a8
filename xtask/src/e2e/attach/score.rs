//! How well drops are predicted: what attach expects to be lost, token by token, against what each client is missing. What
//! is confirmed is held to the same truth, and must be equal.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use super::super::check::Checks;
use super::super::plan::Engine;
use super::super::session::{Outcome, Setting};
use super::super::setup::Home;
use super::super::{Options, Table, summary};
use super::egress::backlog;
use super::{RELEASES, Scenario, check, kernel, watched};

/// Consumers inside the tokenizer's process that need different turns of its event loop; [`super::egress`] has those over HTTP.
const SCENARIOS: [Scenario; 4] = [
    ("scored, generator", backlog),
    ("scored, 4 more turns", |setting| {
        backlog(setting);
        setting.receiver = &["--turns", "4"];
    }),
    ("scored, other thread", |setting| {
        backlog(setting);
        setting.receiver = &["--other-thread"];
    }),
    ("scored, cumulative", |setting| {
        backlog(setting);
        setting.receiver = &["--cumulative"];
    }),
];

/// Places of tokens in the outputs of requests, from 0.
type Places = BTreeMap<String, BTreeSet<u64>>;

/// The rows of the table that are about predictions alone.
pub(super) fn rows(table: &mut Table, options: &Options, home: &Home, program: &Path, engines: &[Engine]) {
    let usual = |engine: &&Engine| !options.releases.is_empty() || RELEASES.contains(&engine.release.as_str());
    let refusal = kernel::refusal();
    for engine in engines.iter().filter(usual) {
        for (name, change) in &SCENARIOS {
            if let Some(why) = &refusal {
                table.skip(options, engine, name, why);
                continue;
            }
            let mut setting = Setting::new(engine);
            change(&mut setting);
            let mut scored = None;
            table.row(options, engine, name, |checks, dir| {
                let outcome = watched(home, program, &setting, dir)?;
                check::exact(&outcome, checks);
                let score = Score::of(&outcome);
                score.check(&setting, &outcome, checks);
                let told = format!("{score}; {}", summary(&outcome));
                scored = Some(score);
                Ok(told)
            });
            table.scores.extend(scored.map(|score| score.line(engine, name)));
        }
    }
}

/// Tokens that clients miss, tokens predicted, and those that are both.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Score {
    lost: usize,
    predicted: usize,
    both: usize,
}

impl Score {
    pub(super) fn of(outcome: &Outcome) -> Self {
        let Some(report) = &outcome.report else {
            return Self::default();
        };
        let (lost, predicted) = (missing(outcome), listed(&report["losses"]["predicted"]));
        let none = BTreeSet::new();
        let both =
            |(rid, places): (&String, &BTreeSet<u64>)| places.intersection(lost.get(rid).unwrap_or(&none)).count();
        Self {
            lost: lost.values().map(BTreeSet::len).sum(),
            predicted: predicted.values().map(BTreeSet::len).sum(),
            both: predicted.iter().map(both).sum(),
        }
    }

    /// What holds whatever the consumer: nothing is predicted where nothing can be lost. And a consumer that needs no turns
    /// of its own loses what the turns of the event loop say.
    pub(super) fn check(&self, setting: &Setting, outcome: &Outcome, checks: &mut Checks) {
        let Some(report) = &outcome.report else { return };
        let keeps_last = report["source"]["waiter"] == "keeps-last";
        let incremental = report["source"]["mode"] == "incremental";
        if !keeps_last || !incremental {
            checks.equal("tokens predicted to be lost where none can be", &0, &self.predicted);
            checks.equal("tokens lost there", &0, &self.lost);
        } else if setting.receiver.is_empty() && !setting.http && report["losses"]["predicted"].is_object() {
            checks.equal(
                "tokens predicted, lost, and both",
                &[self.lost; 2],
                &[self.predicted, self.both],
            );
        }
    }

    fn share(part: usize, of: usize) -> String {
        match of {
            0 => "-".into(),
            _ => format!("{:.3}", part as f64 / of as f64),
        }
    }

    /// A line of the table that [`Table::end`] prints.
    pub(super) fn line(self, engine: &Engine, name: &str) -> String {
        format!(
            "| {} | {name} | {} | {} | {} | {} |",
            engine.name(),
            self.lost,
            self.predicted,
            Self::share(self.both, self.predicted),
            Self::share(self.both, self.lost)
        )
    }
}

impl std::fmt::Display for Score {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (precision, recall) = (
            Self::share(self.both, self.predicted),
            Self::share(self.both, self.lost),
        );
        write!(
            f,
            "{} tokens predicted (precision {precision}, recall {recall})",
            self.predicted
        )
    }
}

/// What the report says to be missing, `losses.confirmed`, is what clients miss: the same tokens of the same requests.
pub(super) fn confirmed(outcome: &Outcome, checks: &mut Checks) {
    if let Some(report) = &outcome.report {
        let told = listed(&report["losses"]["confirmed"]);
        checks.equal("tokens missing, by request and place", &missing(outcome), &told);
    }
}

/// What each client misses.
fn missing(outcome: &Outcome) -> Places {
    let clients = match outcome.each_client.len() {
        0 => &outcome.receiver.clients,
        _ => &outcome.each_client,
    };
    let places = |ranges: &Vec<[u64; 2]>| ranges.iter().flat_map(|&[first, after]| first..after).collect();
    let each = clients.iter().map(|client| {
        (
            client.rid.clone(),
            client.missing.as_ref().map(places).unwrap_or_default(),
        )
    });
    each.filter(|(_, places): &(_, BTreeSet<u64>)| !places.is_empty())
        .collect()
}

/// What a list of the report's `losses` names; it counts places from 1.
fn listed(list: &Value) -> Places {
    let all = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let places = |line: &Value| {
        let ranges = all(&line["ranges"]);
        let bounds = ranges
            .iter()
            .filter_map(|range| Some((range["tokens"][0].as_u64()?, range["tokens"][1].as_u64()?)));
        bounds.flat_map(|(first, last)| first.saturating_sub(1)..last).collect()
    };
    let each = all(&list["lines"]);
    let named = each
        .iter()
        .map(|line| (line["rid"].as_str().unwrap_or_default().to_owned(), places(line)));
    named
        .filter(|(_, places): &(_, BTreeSet<u64>)| !places.is_empty())
        .collect()
}
