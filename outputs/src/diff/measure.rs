//! The measures: their value in each slot, and how to judge a change.

use std::ops::Range;

use super::rank::{self, MannWhitney};
use super::{Compared, Options, Unit, Verdict, outcome};
use crate::report::{HopSeries, Report, Series, SpreadSeries, ThreadSeries};

/// Direction of improvement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Good {
    More,
    Less,
    Neither,
}

/// Samples of one measure; `None` if a run does not observe it.
struct Measure {
    name: String,
    unit: Unit,
    good: Good,
    a: Option<Vec<f64>>,
    b: Option<Vec<f64>>,
    /// Exact totals of both runs, if a count is conclusive: none against some needs no test for noise.
    exact: Option<(u64, u64)>,
}

pub(super) fn compare(a: &Report, b: &Report, options: &Options) -> Vec<Compared> {
    let (Some(of_a), Some(of_b)) = (&a.series, &b.series) else {
        return Vec::new();
    };
    let measures = measures((a, of_a), (b, of_b));
    let tests: Vec<Option<MannWhitney>> = measures.iter().map(|m| test(m, options)).collect();
    let level = rank::level(tests.iter().flatten().map(MannWhitney::p).collect(), options.alpha);
    let few = [of_a, of_b].map(|s| loaded(s).len()).into_iter().min().unwrap_or(0);
    let judged = measures.into_iter().zip(tests);
    let mut all: Vec<Compared> = judged.map(|(m, test)| judge(m, test.as_ref(), level, few, options)).collect();
    let behind_gaps = all.iter().rposition(|m| m.name.starts_with("gap, ")).map_or(0, |place| place + 1);
    all.splice(behind_gaps..behind_gaps, outcome::latency(a, b, options.least_time_ns));
    all
}

fn test(measure: &Measure, options: &Options) -> Option<MannWhitney> {
    let (a, b) = (measure.a.as_ref()?, measure.b.as_ref()?);
    (a.len() >= options.least_slots && b.len() >= options.least_slots).then(|| MannWhitney::of(a, b))
}

fn judge(measure: Measure, test: Option<&MannWhitney>, level: f64, few: usize, options: &Options) -> Compared {
    let mean = |values: &Option<Vec<f64>>| {
        let values = values.as_ref().filter(|v| !v.is_empty())?;
        Some(values.iter().sum::<f64>() / values.len() as f64)
    };
    let (a, b) = (mean(&measure.a), mean(&measure.b));
    let (p, interval) = (test.map(MannWhitney::p), test.and_then(|test| test.interval(level)));
    let ends = a.zip(b);
    let large = ends.is_some_and(|(a, b)| matters(measure.unit, a, b, options));
    // A single slot can move the mean: the slots must shift in the same direction, and perhaps as far as matters.
    let shifted = ends.zip(interval).is_some_and(|((a, b), [low, high])| {
        let (beyond_zero, end) = if b > a { (low >= 0.0, high) } else { (high <= 0.0, low) };
        beyond_zero && matters(measure.unit, a, a + end, options)
    });
    let (verdict, note) = match (measure.exact, p) {
        // Proven losses after a run without losses are a fact, regardless of the number of slots.
        (Some((0, some)), _) if some > 0 => {
            (Verdict::Worse, Some(format!("none before, {some} after: counted, not sampled")))
        }
        (Some((some, 0)), _) if some > 0 => {
            (Verdict::Better, Some(format!("{some} before, none after: counted, not sampled")))
        }
        (_, Some(p)) if p <= level && shifted && large => {
            let rises = a < b;
            let verdict = match measure.good {
                Good::Neither => Verdict::Changed,
                Good::More if rises => Verdict::Better,
                Good::Less if !rises => Verdict::Better,
                _ => Verdict::Worse,
            };
            (verdict, None)
        }
        (_, Some(_)) if large && few < options.least_slots_for_noise => (
            Verdict::NotEnoughData,
            Some(format!(
                "{few} slots under load are too few to distinguish this from noise, {} are needed: record for longer",
                options.least_slots_for_noise
            )),
        ),
        (_, Some(_)) => (Verdict::WithinNoise, None),
        (_, None) => rejection(&measure, few, options),
    };
    Compared {
        name: measure.name,
        unit: measure.unit,
        a,
        b,
        change: a.zip(b).filter(|(a, _)| *a != 0.0).map(|(a, b)| b / a - 1.0),
        interval,
        p,
        verdict,
        note,
    }
}

fn rejection(measure: &Measure, few: usize, options: &Options) -> (Verdict, Option<String>) {
    let min = options.least_slots;
    let (verdict, why) = match (&measure.a, &measure.b) {
        (None, None) => (Verdict::NotComparable, String::from("neither run observes it")),
        (None, _) => (Verdict::NotComparable, String::from("the first run does not observe it")),
        (_, None) => (Verdict::NotComparable, String::from("the second run does not observe it")),
        _ if few < min => (
            Verdict::NotEnoughData,
            format!("a run has only {few} slots under load, {min} are needed: record for longer"),
        ),
        _ => (Verdict::NotEnoughData, format!("it has a value in fewer than {min} slots of a run")),
    };
    (verdict, Some(why))
}

/// Whether a change would be large enough if it were certain.
fn matters(unit: Unit, a: f64, b: f64, options: &Options) -> bool {
    let (distance, relative) = ((b - a).abs(), (b - a).abs() / a.abs().max(b.abs()).max(f64::MIN_POSITIVE));
    // Relative to the larger value, so that a rise and the fall back to the old value count the same.
    let min = options.least_change / (1.0 + options.least_change);
    match unit {
        Unit::Ns => distance >= options.least_time_ns as f64 && relative >= 1.0 / 3.0,
        Unit::PerSecond | Unit::Number => relative >= min,
        // A change within a few hundredths is not meaningful.
        Unit::Share => relative >= min && distance >= 0.02,
    }
}

fn measures((report_a, a): (&Report, &Series), (report_b, b): (&Report, &Series)) -> Vec<Measure> {
    let mut all = Vec::new();
    let mut add = |name: &str, unit: Unit, good: Good, of: &dyn Fn(&Series) -> Option<Vec<f64>>| {
        let (a, b) = (of(a), of(b));
        // Skips measures that neither run observes.
        if a.is_some() || b.is_some() {
            all.push(Measure { name: name.to_owned(), unit, good, a, b, exact: None });
        }
    };
    add("tokens sent", Unit::PerSecond, Good::More, &|s| Some(per_second(s, &s.tokens.sent)));
    add("tokens received", Unit::PerSecond, Good::More, &|s| s.tokens.received.as_ref().map(|c| per_second(s, c)));
    add("tokens delivered", Unit::PerSecond, Good::More, &|s| s.tokens.delivered.as_ref().map(|c| per_second(s, c)));
    add("requests live", Unit::Number, Good::Neither, &|s| {
        Some(per_slot(s, |slot| Some(*s.requests.live.get(slot)? as f64)))
    });
    add("tokens a chunk", Unit::Number, Good::Neither, &|s| Some(ratio(s, &s.tokens.sent, &s.chunks.sent)));
    add("gap, median", Unit::Ns, Good::Less, &|s| quantile(s, s.gap_ns.as_ref(), |g| &g.p50));
    add("gap, p99", Unit::Ns, Good::Less, &|s| quantile(s, s.gap_ns.as_ref(), |g| &g.p99));
    for (place, name) in distinct(a.hops.iter().chain(&b.hops).map(|h| &h.name)).into_iter().enumerate() {
        let on = |what: &str| format!("{what} on {name}");
        if place == 0 {
            add(&on("tokens a frame"), Unit::Number, Good::Neither, &|s| {
                Some(ratio(s, &s.tokens.sent, hop(s, name)?.frames_sent.as_ref()?))
            });
        }
        add(&on("chunks a frame"), Unit::Number, Good::Neither, &|s| {
            let hop = hop(s, name)?;
            Some(ratio(s, &hop.chunks, hop.frames_sent.as_ref().or(hop.frames_received.as_ref())?))
        });
        add(&on("queue wait, median"), Unit::Ns, Good::Less, &|s| {
            quantile(s, hop(s, name)?.queue_wait_ns.as_ref(), |r| &r.p50)
        });
        add(&on("queue wait, p99"), Unit::Ns, Good::Less, &|s| {
            quantile(s, hop(s, name)?.queue_wait_ns.as_ref(), |r| &r.p99)
        });
        add(&on("backlog, frames"), Unit::Number, Good::Less, &|s| {
            let backlog = hop(s, name)?.backlog_max_frames.as_ref()?;
            Some(per_slot(s, |slot| Some(*backlog.get(slot)? as f64)))
        });
        add(&on("frames a wakeup"), Unit::Number, Good::Neither, &|s| {
            let hop = hop(s, name)?;
            // A receiver that never catches up completes no wakeup.
            let wakeups = hop.wakeups.as_deref().unwrap_or_default();
            Some(ratio(s, hop.frames_received.as_ref()?, wakeups))
        });
    }
    let receiving = a.threads.iter().chain(&b.threads).filter(|t| t.receives);
    for role in distinct(receiving.map(|t| &t.role)) {
        let known =
            |s: &Series, values: Vec<f64>| s.threads.iter().any(|t| t.receives && t.role == *role).then_some(values);
        add(&format!("CPU of the {role} a token"), Unit::Ns, Good::Less, &|s| known(s, cpu_per_token(s, role)));
        add(&format!("{role} on a CPU"), Unit::Share, Good::Neither, &|s| {
            known(s, share(s, role, |t| Some(&t.on_cpu)))
        });
        add(&format!("{role} waiting for a CPU"), Unit::Share, Good::Less, &|s| {
            known(s, share(s, role, |t| t.run_wait.as_ref())).filter(|v| !v.is_empty())
        });
        add(&format!("{role} throttled"), Unit::Share, Good::Less, &|s| {
            known(s, share(s, role, |t| t.throttled.as_ref())).filter(|v| !v.is_empty())
        });
    }
    add("chunks merged", Unit::Share, Good::Less, &|s| s.chunks.merged.as_ref().map(|c| ratio(s, c, &s.chunks.sent)));
    add("chunks dropped, predicted", Unit::Share, Good::Less, &|s| {
        s.chunks.dropped_predicted.as_ref().map(|c| ratio(s, c, &s.chunks.sent))
    });
    add("chunks dropped, confirmed", Unit::Share, Good::Less, &|s| {
        s.chunks.dropped_confirmed.as_ref().map(|c| ratio(s, c, &s.chunks.sent))
    });
    if let (Some(a), Some(b), Some(last)) =
        (report_a.chunks.dropped_confirmed, report_b.chunks.dropped_confirmed, all.last_mut())
    {
        last.exact = Some((a, b));
    }
    all
}

/// Names in the order in which they first occur.
fn distinct<'a>(names: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

/// Slots to compare: from the first to the last with traffic, as long as new requests arrive. The first and last of these are left out
/// because load ramps up and down in them.
pub(super) fn loaded(series: &Series) -> Range<usize> {
    // After the last new request the remaining ones drain, and the load is no longer comparable.
    let begun = &series.requests.begun;
    let moved = |slot: usize| series.tokens.sent.get(slot).is_some_and(|&n| n > 0);
    let first = (0..series.len()).find(|&slot| moved(slot) || begun[slot] > 0);
    let last = (0..series.len()).rfind(|&slot| begun[slot] > 0).or((0..series.len()).rfind(|&slot| moved(slot)));
    match (first, last) {
        (Some(first), Some(last)) if first + 2 < last => first + 1..last,
        _ => 0..0,
    }
}

/// Values of the loaded slots that have one.
fn per_slot(series: &Series, value: impl Fn(usize) -> Option<f64>) -> Vec<f64> {
    loaded(series).filter_map(value).filter(|v| v.is_finite()).collect()
}

/// Rate of `column` per second.
fn per_second(series: &Series, column: &[u64]) -> Vec<f64> {
    per_slot(series, |slot| Some(*column.get(slot)? as f64 / series.seconds(slot)))
}

/// Ratio of `part` to `whole`, in slots where `whole` is not 0.
fn ratio(series: &Series, part: &[u64], whole: &[u64]) -> Vec<f64> {
    per_slot(series, |slot| {
        let whole = *whole.get(slot)?;
        (whole > 0).then_some(*part.get(slot)? as f64 / whole as f64)
    })
}

/// CPU nanoseconds of all receiving threads of `role` per token sent; empty if unknown.
fn cpu_per_token(series: &Series, role: &str) -> Vec<f64> {
    per_slot(series, |slot| {
        let tokens = *series.tokens.sent.get(slot)?;
        let threads = series.threads.iter().filter(|t| t.receives && t.role == role);
        let on: Vec<f64> = threads.filter_map(|t| *t.on_cpu.get(slot)?).collect();
        (tokens > 0 && !on.is_empty()).then(|| on.iter().sum::<f64>() * series.seconds(slot) * 1e9 / tokens as f64)
    })
}

/// Share of time of the thread of `role` with the highest share.
fn share(series: &Series, role: &str, of: fn(&ThreadSeries) -> Option<&Vec<Option<f64>>>) -> Vec<f64> {
    per_slot(series, |slot| {
        let threads = series.threads.iter().filter(|t| t.receives && t.role == role);
        threads.filter_map(|t| *of(t)?.get(slot)?).reduce(f64::max)
    })
}

fn hop<'a>(series: &'a Series, name: &str) -> Option<&'a HopSeries> {
    series.hops.iter().find(|h| h.name == name)
}

/// A quantile of `spread`, in slots that have one.
fn quantile(
    series: &Series,
    spread: Option<&SpreadSeries>,
    of: fn(&SpreadSeries) -> &Vec<Option<u64>>,
) -> Option<Vec<f64>> {
    spread.map(|spread| per_slot(series, |slot| of(spread).get(slot)?.map(|ns| ns as f64)))
}
