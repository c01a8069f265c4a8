//! Accuracy of predicted drops: predicted lost tokens against the tokens that each client misses. Confirmed losses must equal the same
//! truth.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use super::super::check::Checks;
use super::super::plan::Engine;
use super::super::served::backlog;
use super::super::session::{Outcome, Setting};
use super::super::setup::Home;
use super::super::table::Table;
use super::super::{Options, summary};
use super::{RELEASES, Scenario, check, kernel, watched};

/// Consumers that need different numbers of event loop turns. The flag is on the command line as in production: without it attach does not
/// know the mode and predicts nothing.
const SCENARIOS: [Scenario; 6] = [
    ("scored, generator", |setting| consumer(setting, &["--stream-output"])),
    ("scored, 4 more turns", |setting| {
        consumer(setting, &["--stream-output", "--turns", "4"]);
    }),
    ("scored, other thread", |setting| {
        consumer(setting, &["--stream-output", "--other-thread"]);
    }),
    ("scored, http", |setting| {
        consumer(setting, &["--stream-output"]);
        setting.http = true;
    }),
    ("scored, http, asyncio", |setting| {
        consumer(setting, &["--stream-output", "--loop", "asyncio"]);
        setting.http = true;
    }),
    ("scored, cumulative", |setting| consumer(setting, &["--cumulative"])),
];

/// With these flags a consumer needs extra turns that cannot be observed from outside.
const OWN_TURNS: [&str; 2] = ["--turns", "--other-thread"];

fn consumer(setting: &mut Setting, receiver: &'static [&'static str]) {
    backlog(setting);
    setting.receiver = receiver;
}

/// Positions of tokens in the outputs of requests, 0-based.
type Places = BTreeMap<String, BTreeSet<u64>>;

/// Rows of the table for predictions alone.
pub(super) fn rows(table: &mut Table, options: &Options, home: &Home, program: &Path, engines: &[Engine]) {
    let usual = |engine: &&Engine| !options.releases.is_empty() || RELEASES.contains(&engine.release.as_str());
    let refusal = kernel::refusal();
    for engine in engines.iter().filter(usual) {
        // Test all consumers on one release only: their differences do not depend on the release.
        let all = !options.releases.is_empty() || engine.release == "0.5.9";
        for (name, change) in &SCENARIOS[..if all { SCENARIOS.len() } else { 1 }] {
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
                scored = Some(score);
                Ok(summary(&outcome))
            });
            if let Some(score) = scored {
                table.score(score.line(engine, name));
            }
        }
    }
}

/// Comparison of a prediction with the truth: by requests, by tokens per request, and by token positions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Score {
    /// Number of requests that lost tokens, that were predicted to, and both.
    requests: [usize; 3],
    /// The same in tokens, counted per request regardless of position.
    tokens: [usize; 3],
    /// Predicted tokens whose position matches a lost token.
    places: usize,
}

impl Score {
    pub(super) fn of(outcome: &Outcome) -> Self {
        let Some(report) = &outcome.report else {
            return Self::default();
        };
        let (lost, predicted) = (missing(outcome), listed(&report["losses"]["predicted"]));
        let sum = |of: &Places| of.values().map(BTreeSet::len).sum();
        let pairs: Vec<_> = predicted
            .iter()
            .filter_map(|(rid, said)| Some((said, lost.get(rid)?)))
            .collect();
        let common = pairs.iter().map(|(said, lost)| said.len().min(lost.len())).sum();
        Self {
            requests: [lost.len(), predicted.len(), pairs.len()],
            tokens: [sum(&lost), sum(&predicted), common],
            places: pairs.iter().map(|(said, lost)| said.intersection(lost).count()).sum(),
        }
    }

    /// Checks for every consumer: nothing is predicted where nothing can be lost, and confirmed losses equal the truth. For a consumer
    /// without extra turns, the predicted tokens must match exactly.
    fn check(&self, setting: &Setting, outcome: &Outcome, checks: &mut Checks) {
        let Some(report) = &outcome.report else { return };
        let keeps_last = report["source"]["waiter"] == "keeps-last";
        if !keeps_last || setting.receiver.contains(&"--cumulative") {
            checks.equal("tokens predicted to be lost where none can be", &0, &self.tokens[1]);
            checks.equal("tokens lost there", &0, &self.tokens[0]);
            return;
        }
        checks.equal("mode", &Some("incremental"), &report["source"]["mode"].as_str());
        if setting.http {
            confirmed(outcome, checks);
        }
        if !setting.receiver.iter().any(|option| OWN_TURNS.contains(option)) {
            let predicted = listed(&report["losses"]["predicted"]);
            checks.equal("tokens predicted, by request and place", &missing(outcome), &predicted);
        }
    }

    fn share(part: usize, of: usize) -> String {
        match of {
            0 => "-".into(),
            _ => format!("{:.3}", part as f64 / of as f64),
        }
    }

    fn precision_and_recall([lost, predicted, both]: [usize; 3]) -> String {
        format!("{} | {}", Self::share(both, predicted), Self::share(both, lost))
    }

    /// Returns a line of the table that [`Table::end`] prints.
    fn line(self, engine: &Engine, name: &str) -> String {
        let [lost, predicted, _] = self.tokens;
        format!(
            "| {} | {} | {lost} | {predicted} | {} | {} | {} |",
            engine.name(),
            name.trim_start_matches("scored, "),
            Self::precision_and_recall(self.requests),
            Self::precision_and_recall(self.tokens),
            Self::share(self.places, predicted)
        )
    }
}

/// Checks that `losses.confirmed` lists exactly the tokens that clients miss.
pub(in super::super) fn confirmed(outcome: &Outcome, checks: &mut Checks) {
    if let Some(report) = &outcome.report {
        let told = listed(&report["losses"]["confirmed"]);
        checks.equal("tokens missing, by request and place", &missing(outcome), &told);
    }
}

/// Tokens that each client misses.
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

/// Parses a list in the report's `losses`, whose positions are 1-based.
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
