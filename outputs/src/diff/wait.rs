//! Wait of a chunk before and after, and the leg to which the wait moved.

use serde::{Deserialize, Serialize};
use trace::detect::attribution::LegKind;
use trace::path::{self, Ends};
use trace::words::{duration, known, percent};

use crate::report::{LegLine, Report};

/// Share that a leg must lose before its wait counts as moved.
const MOVED: f64 = 0.2;
/// A path that takes less than this part of its former time has no significant wait left.
const NEGLIGIBLE: f64 = 0.1;
/// Minimum change of a wait that at least doubles or halves.
const CHANGED_NS: u64 = 20_000_000;

/// Legs of both runs, with the longest of each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaitShift {
    /// Longest leg of the first run: a hop, or the role of a process.
    pub from: String,
    /// Longest leg of the second run.
    pub to: String,
    /// Conclusion in one sentence.
    pub summary: String,
    /// Every leg of either run, in path order.
    pub legs: Vec<LegShift>,
}

/// One leg of both runs; `null` if a run does not have or observe it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LegShift {
    /// Name of the hop, or role of the process.
    pub name: String,
    /// Kind of time a chunk spends there.
    pub kind: LegKind,
    /// Mean over the chunks of the first run.
    pub a_ns: Option<u64>,
    /// Mean over the chunks of the second run.
    pub b_ns: Option<u64>,
    /// Share of the first run's path, from 0 to 1.
    pub a_share: Option<f64>,
    /// Share of the second run's path, from 0 to 1.
    pub b_share: Option<f64>,
}

impl LegShift {
    /// Its row of a table: place, then time and share of both runs.
    pub(super) fn cells(&self) -> [String; 5] {
        let (a, b) = (known(self.a_ns, duration), known(self.b_ns, duration));
        [place(&self.name, self.kind), a, known(self.a_share, percent), b, known(self.b_share, percent)]
    }
}

/// Compares the legs; `None` unless both runs observed some.
pub(super) fn shift(a: &Report, b: &Report) -> Option<WaitShift> {
    let (from, to) = (longest(&a.path)?, longest(&b.path)?);
    let legs = legs(&a.path, &b.path);
    let (before, after) = (whole(&a.path), whole(&b.path));
    let left = legs.iter().find(|leg| same(leg, from)).and_then(|leg| leg.b_share).unwrap_or(0.0);
    let part = |leg: &LegLine, of: u64| format!("{} of {} a chunk", percent(leg.share), duration(of));
    let leg_place = |leg: &LegLine| place(&leg.name, leg.kind);
    let changed = |how: &str| {
        format!(
            "the wait {how} from {} to {} a chunk: most of it was {} ({}), and is {} ({})",
            duration(before),
            duration(after),
            leg_place(from),
            percent(from.share),
            leg_place(to),
            percent(to.share)
        )
    };
    let summary = if (after as f64) < NEGLIGIBLE * before as f64 {
        format!(
            "the wait has disappeared: {} had {}, and {} is left, most of it {}",
            leg_place(from),
            part(from, before),
            duration(after),
            leg_place(to)
        )
    } else if after >= 2 * before && after - before >= CHANGED_NS {
        changed("grew")
    } else if (&from.name, from.kind) != (&to.name, to.kind) && from.share - left >= MOVED {
        format!(
            "the wait moved from {} ({}) to {} ({})",
            leg_place(from),
            part(from, before),
            leg_place(to),
            part(to, after)
        )
    } else if before >= 2 * after && before - after >= CHANGED_NS {
        changed("shrank")
    } else {
        format!(
            "the wait stays: {} had {}, {} has {}",
            leg_place(from),
            part(from, before),
            leg_place(to),
            part(to, after)
        )
    };
    Some(WaitShift { from: from.name.clone(), to: to.name.clone(), summary, legs })
}

/// Describes a leg.
fn place(name: &str, kind: LegKind) -> String {
    match kind {
        LegKind::Wait => name.to_owned(),
        kind => kind.of(name),
    }
}

fn whole(path: &[LegLine]) -> u64 {
    path.iter().fold(0, |sum, leg| sum.saturating_add(leg.mean_ns))
}

fn longest(path: &[LegLine]) -> Option<&LegLine> {
    path.iter().max_by_key(|leg| leg.mean_ns)
}

fn same(shift: &LegShift, leg: &LegLine) -> bool {
    shift.name == leg.name && shift.kind == leg.kind
}

fn legs(a: &[LegLine], b: &[LegLine]) -> Vec<LegShift> {
    let mut legs: Vec<LegShift> = Vec::new();
    for leg in a.iter().chain(b) {
        if !legs.iter().any(|known| same(known, leg)) {
            let [a, b] = [a, b].map(|path| path.iter().find(|l| (&l.name, l.kind) == (&leg.name, leg.kind)));
            legs.push(LegShift {
                name: leg.name.clone(),
                kind: leg.kind,
                a_ns: a.map(|leg| leg.mean_ns),
                b_ns: b.map(|leg| leg.mean_ns),
                a_share: a.map(|leg| leg.share),
                b_share: b.map(|leg| leg.share),
            });
        }
    }
    let hops: Vec<Ends<Box<str>>> = legs.iter().map(|leg| Ends::from(&*leg.name).to_owned()).collect();
    // A process comes after the hops that lead to it.
    legs.sort_by_key(|leg| {
        let Ends { from, to } = Ends::from(&*leg.name);
        let depth = 2 * path::depth(&hops, from);
        if from == to { depth.saturating_sub(1) } else { depth }
    });
    legs
}

#[cfg(test)]
mod tests {
    use trace::{Analysis, Config, ReportInput};

    use super::*;

    const MS: u64 = 1_000_000;

    fn run(legs: &[(&str, LegKind, u64)]) -> Report {
        let mut report = Report::of(&Analysis::new(Config::default()), &ReportInput::of("attach"));
        let whole: u64 = legs.iter().map(|leg| leg.2).sum();
        let line = |&(name, kind, ms): &(&str, LegKind, u64)| LegLine {
            name: name.to_owned(),
            kind,
            ns: None,
            mean_ns: ms * MS,
            share: ms as f64 / whole as f64,
            recent_share: None,
            first_token_mean_ns: None,
            first_token_share: None,
            recent_first_token_share: None,
            busy: None,
            thread: None,
            worker: None,
        };
        report.path = legs.iter().map(line).collect();
        report
    }

    #[test]
    fn a_wait_moves_stays_shrinks_or_grows() {
        use LegKind::{Inside, Wait};
        let one = run(&[
            ("scheduler->detokenizer", Wait, 900),
            ("detokenizer", Inside, 20),
            ("detokenizer->worker", Wait, 1),
        ]);
        let four = run(&[
            ("scheduler->detokenizer-router", Wait, 300),
            ("detokenizer-router", Inside, 15),
            ("detokenizer-router->detokenizer", Wait, 2),
            ("detokenizer", Inside, 4),
            ("detokenizer->worker", Wait, 1),
        ]);
        let moved = shift(&one, &four).expect("both have legs");
        assert_eq!(moved.from.as_str(), "scheduler->detokenizer");
        assert_eq!(moved.to.as_str(), "scheduler->detokenizer-router");
        assert_eq!(
            moved.summary,
            "the wait moved from scheduler->detokenizer (98 % of 921.0 ms a chunk) to scheduler->detokenizer-router (93 % of 322.0 ms a chunk)"
        );
        let names: Vec<&str> = moved.legs.iter().map(|leg| leg.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "scheduler->detokenizer",
                "scheduler->detokenizer-router",
                "detokenizer-router",
                "detokenizer-router->detokenizer",
                "detokenizer",
                "detokenizer->worker"
            ]
        );
        let unchanged = shift(&four, &four).expect("legs");
        assert!(
            unchanged.summary.starts_with("the wait stays: scheduler->detokenizer-router had"),
            "{}",
            unchanged.summary
        );
        let quick = run(&[("scheduler->detokenizer", Wait, 1), ("detokenizer", Inside, 20)]);
        let vanished = shift(&one, &quick).expect("legs");
        assert!(
            vanished.summary.ends_with("21.0 ms is left, most of it inside the detokenizer"),
            "{}",
            vanished.summary
        );
        let grown = shift(&quick, &one).expect("legs");
        assert_eq!(
            grown.summary,
            "the wait grew from 21.0 ms to 921.0 ms a chunk: most of it was inside the detokenizer (95 %), and is \
             scheduler->detokenizer (98 %)"
        );
        assert!(shift(&one, &run(&[])).is_none());
    }
}
