//! Time to first token before and after, by leg.

use serde::{Deserialize, Serialize};
use trace::words::{duration, known_or_dash, percent};

use super::wait_shift::LegCells;
use crate::report::{Report, TtftGroupLine, TtftLegLine};

/// Legs of the time to first token of most requests, in both runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TtftShift {
    /// The longest leg of each run, in one sentence.
    pub summary: String,
    /// Mean time of the first run.
    pub a_mean_ns: u64,
    /// Mean time of the second run.
    pub b_mean_ns: u64,
    /// Every leg of either run, in order.
    pub legs: Vec<TtftLegShift>,
}

/// A leg of both runs; `null` if a run does not have it: then the moments around it were not observed, or others between them were.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TtftLegShift {
    /// Its name, as in the report.
    pub name: String,
    /// The same in words.
    pub words: String,
    /// Mean of the first run.
    pub a_ns: Option<u64>,
    /// Mean of the second run.
    pub b_ns: Option<u64>,
    /// Share of the first run's time, from 0 to 1.
    pub a_share: Option<f64>,
    /// Share of the second run's time, from 0 to 1.
    pub b_share: Option<f64>,
}

impl TtftLegShift {
    /// Compares a leg, a part of the time to first token, of both runs. `either` is one of the two that exists, for the name.
    fn new(a: Option<&TtftLegLine>, b: Option<&TtftLegLine>, either: &TtftLegLine) -> Self {
        Self {
            name: either.name.clone(),
            words: either.words.clone(),
            a_ns: a.map(|leg| leg.mean_ns),
            b_ns: b.map(|leg| leg.mean_ns),
            a_share: a.map(|leg| leg.share),
            b_share: b.map(|leg| leg.share),
        }
    }

    /// Its row of a table: place, then time and share of both runs.
    pub(super) fn table_cells(&self) -> LegCells {
        LegCells {
            place: self.words.clone(),
            a_time: known_or_dash(self.a_ns, duration),
            a_share: known_or_dash(self.a_share, percent),
            b_time: known_or_dash(self.b_ns, duration),
            b_share: known_or_dash(self.b_share, percent),
        }
    }
}

impl TtftShift {
    /// Compares the legs, the parts of the time to first token between observed moments. `None` unless in both runs most requests have the
    /// same observed moments.
    pub(super) fn between(a: &Report, b: &Report) -> Option<Self> {
        // Why a run has no such group is in its own report.
        let group_a = a.ttft.as_ref()?.group_of_most_requests().ok()?;
        let group_b = b.ttft.as_ref()?.group_of_most_requests().ok()?;
        Self::of_groups(group_a, group_b)
    }

    /// Compares the legs of a group of the first run with those of a group of the second. `None` if a group has no longest leg.
    fn of_groups(a: &TtftGroupLine, b: &TtftGroupLine) -> Option<Self> {
        let summary = describe_longest_legs(a, a.longest_leg()?, b, b.longest_leg()?);
        Some(Self { summary, a_mean_ns: a.mean_ns, b_mean_ns: b.mean_ns, legs: legs_of_both(a, b) })
    }
}

/// Names the longest leg of each run, with its share of the time to first token.
fn describe_longest_legs(a: &TtftGroupLine, a_leg: &TtftLegLine, b: &TtftGroupLine, b_leg: &TtftLegLine) -> String {
    // The two times differ in length if they do not begin and end with the same moments.
    let other_parts =
        if (a.from, a.to) == (b.from, b.to) { "" } else { "; other parts of it were observed, so only shares compare" };
    format!("most of TTFT was {}, and is {}{other_parts}", describe_part(a, a_leg), describe_part(b, b_leg))
}

/// `prefill (62 % of 1.200 s)`
fn describe_part(group: &TtftGroupLine, leg: &TtftLegLine) -> String {
    format!("{} ({} of {})", leg.words, percent(leg.share), duration(group.mean_ns))
}

/// Legs of both groups, in the order of the moments that they begin and end with. Each leg is listed once.
fn legs_of_both(a: &TtftGroupLine, b: &TtftGroupLine) -> Vec<TtftLegShift> {
    let mut legs: Vec<&TtftLegLine> = a.legs.iter().chain(&b.legs).collect();
    legs.sort_by_key(|leg| [leg.from, leg.to]);
    // After the sort, both runs' lines of a leg are neighbours.
    legs.dedup_by_key(|leg| [leg.from, leg.to]);
    legs.iter().map(|leg| TtftLegShift::new(find_same_leg(a, leg), find_same_leg(b, leg), leg)).collect()
}

/// The leg of a group between the same moments as `leg`; `None` if the group has none.
fn find_same_leg<'g>(group: &'g TtftGroupLine, leg: &TtftLegLine) -> Option<&'g TtftLegLine> {
    group.legs.iter().find(|own| (own.from, own.to) == (leg.from, leg.to))
}

#[cfg(test)]
mod tests {
    use trace::ledger::TtftMoment::{self, Arrived, BatchEntered, Dispatched, FirstSent, Queued};
    use trace::stats::Spread;

    use super::*;

    fn leg(name: &str, [from, to]: [TtftMoment; 2], mean_ns: u64, share: f64) -> TtftLegLine {
        TtftLegLine {
            name: name.to_owned(),
            words: format!("the {name}"),
            from,
            to,
            ns: Spread::default(),
            mean_ns,
            share,
            recent_share: None,
        }
    }

    fn group(from: TtftMoment, mean_ns: u64, legs: Vec<TtftLegLine>) -> TtftGroupLine {
        TtftGroupLine { from, to: FirstSent, ns: Spread::default(), mean_ns, recent_mean_ns: None, legs }
    }

    #[test]
    fn the_longest_leg_of_each_run_is_named_beside_all_legs() {
        let queue = [Queued, BatchEntered];
        let prefill = [BatchEntered, FirstSent];
        let a = group(Queued, 100_000_000, vec![leg("queue", queue, 10, 0.1), leg("prefill", prefill, 90, 0.9)]);
        let b = group(Queued, 900_000_000, vec![leg("queue", queue, 800, 0.9), leg("prefill", prefill, 90, 0.1)]);
        let shift = TtftShift::of_groups(&a, &b).expect("legs");
        assert_eq!(
            shift.summary,
            "most of TTFT was the prefill (90 % of 100.0 ms), and is the queue (90 % of 900.0 ms)"
        );
        let rows: Vec<_> = shift.legs.iter().map(|leg| (&*leg.name, leg.a_ns, leg.b_ns)).collect();
        assert_eq!(rows, [("queue", Some(10), Some(800)), ("prefill", Some(90), Some(90))]);

        let dispatched = leg("dispatch", [Dispatched, Queued], 5, 0.05);
        let merged = leg("queue+prefill", [Queued, FirstSent], 95, 0.95);
        let other = group(Arrived, 100_000_000, vec![dispatched, merged]);
        let shift = TtftShift::of_groups(&a, &other).expect("legs");
        assert!(shift.summary.ends_with("; other parts of it were observed, so only shares compare"), "{shift:?}");
        let rows: Vec<_> = shift.legs.iter().map(|leg| (&*leg.name, leg.a_ns, leg.b_ns)).collect();
        let expected = [
            ("dispatch", None, Some(5)),
            ("queue", Some(10), None),
            ("queue+prefill", None, Some(95)),
            ("prefill", Some(90), None),
        ];
        assert_eq!(rows, expected);
    }
}
