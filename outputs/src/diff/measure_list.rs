//! The measures that two runs have: their values in each slot under load.

use super::MeasureUnit;
use super::problem_outcome::{DROPPED_CONFIRMED, DROPPED_PREDICTED, MERGED};
use crate::report::{HopSeries, Series, SpreadSeries, ThreadSeries};

/// Direction of improvement.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum GoodDirection {
    /// More, unless as much more load explains it; less is worse unless as much less load explains it.
    MoreAtEqualLoad,
    Less,
    Neither,
}

/// Samples of one measure, one for each slot; `None` if a run does not observe it.
pub(super) struct Measure {
    pub(super) name: String,
    pub(super) unit: MeasureUnit,
    pub(super) good: GoodDirection,
    pub(super) a: Option<Vec<f64>>,
    pub(super) b: Option<Vec<f64>>,
    /// Shares of all chunks of both runs, shown instead of the mean of slots.
    pub(super) whole_runs: Option<[Option<f64>; 2]>,
    /// Exact totals of both runs, if a count is conclusive: none against some needs no test for noise.
    pub(super) exact: Option<ExactTotals>,
    /// Smallest difference that matters, in the measure's unit.
    pub(super) least_distance: f64,
}

/// Totals of a whole run, before and after.
#[derive(Clone, Copy)]
pub(super) struct ExactTotals {
    pub(super) a: u64,
    pub(super) b: u64,
}

/// Change of the mean backlog below which nobody waits longer: a few frames are always on their way.
const LEAST_BACKLOG_CHANGE: f64 = 10.0;

/// The measures of two runs, in the order of the path.
struct MeasureList<'s> {
    a: &'s Series,
    b: &'s Series,
    measures: Vec<Measure>,
}

impl MeasureList<'_> {
    /// Adds a measure and returns it. `samples_of` returns the value of the measure in each slot of a run. If neither run observes the
    /// measure, adds nothing and returns `None`.
    fn add_measure(
        &mut self,
        name: &str,
        unit: MeasureUnit,
        good: GoodDirection,
        samples_of: impl Fn(&Series) -> Option<Vec<f64>>,
    ) -> Option<&mut Measure> {
        let a = samples_of(self.a);
        let b = samples_of(self.b);
        if a.is_none() && b.is_none() {
            return None;
        }
        let name = name.to_owned();
        // The last three are set later for the few measures that have them.
        self.measures.push(Measure { name, unit, good, a, b, whole_runs: None, exact: None, least_distance: 0.0 });
        self.measures.last_mut()
    }

    /// Adds the measures of the whole traffic: token rates, live requests and first-token gaps. Each has a unit and the direction in which
    /// it improves.
    fn add_traffic_measures(&mut self) {
        use GoodDirection::{Less, MoreAtEqualLoad, Neither};
        use MeasureUnit::{Ns, Number, PerSecond};
        self.add_measure("tokens sent", PerSecond, MoreAtEqualLoad, |run| Some(per_second(run, &run.tokens.sent)));
        self.add_measure("tokens received", PerSecond, MoreAtEqualLoad, |run| {
            Some(per_second(run, run.tokens.received.as_ref()?))
        });
        self.add_measure("tokens delivered", PerSecond, MoreAtEqualLoad, |run| {
            Some(per_second(run, run.tokens.delivered.as_ref()?))
        });
        self.add_measure("requests live", Number, Neither, |run| Some(live_requests(run)));
        self.add_measure("tokens a chunk", Number, Neither, |run| {
            Some(ratio_per_slot(run, &run.tokens.sent, &run.chunks.sent))
        });
        self.add_measure("gap, median", Ns, Less, |run| quantile_per_slot(run, run.gap_ns.as_ref(), |gap| &gap.p50));
        self.add_measure("gap, p99", Ns, Less, |run| quantile_per_slot(run, run.gap_ns.as_ref(), |gap| &gap.p99));
    }

    /// Adds the measures of the hop with this name, a channel from one process to the next: sizes of its frames, queue wait, backlog
    /// (frames sent and not yet received) and wakeups of the receiver. Each has a unit and the direction in which it improves.
    fn add_hop_measures(&mut self, name: &str) {
        use GoodDirection::{Less, Neither};
        use MeasureUnit::{Ns, Number};
        self.add_measure(&format!("chunks a frame on {name}"), Number, Neither, |run| {
            chunks_per_frame_by_slot(run, hop_named(run, name)?)
        });
        self.add_measure(&format!("queue wait, median on {name}"), Ns, Less, |run| {
            quantile_per_slot(run, hop_named(run, name)?.queue_wait_ns.as_ref(), |wait| &wait.p50)
        });
        self.add_measure(&format!("queue wait, p99 on {name}"), Ns, Less, |run| {
            quantile_per_slot(run, hop_named(run, name)?.queue_wait_ns.as_ref(), |wait| &wait.p99)
        });
        let backlog = self.add_measure(&format!("backlog, frames on {name}"), Number, Less, |run| {
            let frames = hop_named(run, name)?.backlog_max_frames.as_ref()?;
            Some(per_slot(run, |slot| Some(frames.count_in(slot)? as f64)))
        });
        // A few frames are always on their way, so a small difference does not matter.
        if let Some(backlog) = backlog {
            backlog.least_distance = LEAST_BACKLOG_CHANGE;
        }
        self.add_measure(&format!("frames a wakeup on {name}"), Number, Neither, |run| {
            frames_per_wakeup_by_slot(run, hop_named(run, name)?)
        });
    }

    /// Adds the measures of the threads that receive frames in processes of this role, such as the tokenizer. Each has a unit and the
    /// direction in which it improves.
    fn add_receiver_measures(&mut self, role: &str) {
        use GoodDirection::{Less, Neither};
        use MeasureUnit::{Ns, Share};
        self.add_measure(&format!("CPU of the {role} a token"), Ns, Less, |run| {
            has_receiver(run, role).then(|| receiver_cpu_ns_per_token_by_slot(run, role))
        });
        self.add_measure(&format!("{role} on a CPU"), Share, Neither, |run| {
            has_receiver(run, role).then(|| highest_thread_share_per_slot(run, role, |thread| Some(&thread.on_cpu)))
        });
        // Not every source observes these.
        self.add_measure(&format!("{role} waiting for a CPU"), Share, Less, |run| {
            none_if_empty(highest_thread_share_per_slot(run, role, |thread| thread.run_wait.as_ref()))
        });
        self.add_measure(&format!("{role} throttled"), Share, Less, |run| {
            none_if_empty(highest_thread_share_per_slot(run, role, |thread| thread.throttled.as_ref()))
        });
    }

    /// Adds the shares of merged and dropped chunks.
    fn add_chunk_outcome_measures(&mut self) {
        use GoodDirection::Less;
        use MeasureUnit::Share;
        self.add_measure(MERGED, Share, Less, |run| {
            Some(ratio_per_slot(run, run.chunks.merged.as_ref()?, &run.chunks.sent))
        });
        self.add_measure(DROPPED_PREDICTED, Share, Less, |run| {
            Some(ratio_per_slot(run, run.chunks.dropped_predicted.as_ref()?, &run.chunks.sent))
        });
        self.add_measure(DROPPED_CONFIRMED, Share, Less, |run| {
            Some(ratio_per_slot(run, run.chunks.dropped_confirmed.as_ref()?, &run.chunks.sent))
        });
    }
}

/// All measures that one of the runs observes.
pub(super) fn list_measures(a: &Series, b: &Series) -> Vec<Measure> {
    let mut list = MeasureList { a, b, measures: Vec::new() };
    list.add_traffic_measures();
    let hops = distinct_names(a.hops.iter().chain(&b.hops).map(|hop| &hop.name));
    if let Some(origin) = hops.first() {
        // Tokens are counted where they are sent, so they go with the frames of the first hop only.
        list.add_measure(&format!("tokens a frame on {origin}"), MeasureUnit::Number, GoodDirection::Neither, |run| {
            Some(ratio_per_slot(run, &run.tokens.sent, hop_named(run, origin)?.frames_sent.as_ref()?))
        });
    }
    for name in hops {
        list.add_hop_measures(name);
    }
    let receivers = a.threads.iter().chain(&b.threads).filter(|thread| thread.receives);
    for role in distinct_names(receivers.map(|thread| &thread.role)) {
        list.add_receiver_measures(role);
    }
    list.add_chunk_outcome_measures();
    list.measures
}

/// Number of live requests in each loaded slot.
pub(super) fn live_requests(series: &Series) -> Vec<f64> {
    per_slot(series, |slot| Some(series.requests.live.count_in(slot)? as f64))
}

/// The values; `None` for an empty list, because the run does not observe the measure.
fn none_if_empty(values: Vec<f64>) -> Option<Vec<f64>> {
    if values.is_empty() { None } else { Some(values) }
}

/// Names in the order in which they first occur.
fn distinct_names<'a>(names: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

/// Indices of the slots to compare. A slot is a short span of a run. The slots lie between the first one with traffic and the last one with
/// a new request, or with tokens if no request is new. The load ramps up and down in these two, so they are left out.
pub(super) fn loaded_slot_indices(series: &Series) -> Vec<usize> {
    // `None`, for an unobserved slot, is less than `Some(0)`.
    let has_new_request = |slot: &usize| series.requests.begun[*slot] > Some(0);
    let has_tokens = |slot: &usize| series.tokens.sent.count_in(*slot) > Some(0);
    let first = (0..series.len()).find(|slot| has_tokens(slot) || has_new_request(slot));
    let last_with_new_request = (0..series.len()).rfind(has_new_request);
    let last_with_tokens = (0..series.len()).rfind(has_tokens);
    // After the last new request the remaining ones drain, and the load is no longer comparable.
    let last = last_with_new_request.or(last_with_tokens);
    let (Some(first), Some(last)) = (first, last) else { return Vec::new() };
    let slots_between = first + 1..last;
    // A single slot shows no spread.
    if slots_between.len() < 2 {
        return Vec::new();
    }
    slots_between.filter(|slot| is_under_load(series, *slot)).collect()
}

/// Whether a request is live in the slot, or a token sent. A pause between two tests is no load.
fn is_under_load(series: &Series, slot: usize) -> bool {
    let requests = &series.requests;
    // `None`, for an unobserved slot or one that the column does not have, is less than `Some(0)`.
    let has_begun = requests.begun.count_in(slot) > Some(0);
    has_begun || [&series.tokens.sent, &requests.live].iter().any(|column| column.count_in(slot) > Some(0))
}

/// A column of counts, some of which may be unobserved.
trait CountColumn {
    /// Number that this column has for the slot; `None` if it was not observed.
    fn count_in(&self, slot: usize) -> Option<u64>;
}

impl CountColumn for Vec<u64> {
    fn count_in(&self, slot: usize) -> Option<u64> {
        self.get(slot).copied()
    }
}

impl CountColumn for Vec<Option<u64>> {
    fn count_in(&self, slot: usize) -> Option<u64> {
        self.get(slot).copied().flatten()
    }
}

/// Values of the loaded slots for which `value_of` has a finite one.
fn per_slot(series: &Series, value_of: impl Fn(usize) -> Option<f64>) -> Vec<f64> {
    loaded_slot_indices(series).into_iter().filter_map(value_of).filter(|value| value.is_finite()).collect()
}

/// Rate of `column` per second.
fn per_second(series: &Series, column: &impl CountColumn) -> Vec<f64> {
    per_slot(series, |slot| Some(column.count_in(slot)? as f64 / series.seconds(slot)))
}

/// Ratio of `part` to `whole` in each loaded slot where `whole` is not 0.
fn ratio_per_slot(series: &Series, part: &impl CountColumn, whole: &impl CountColumn) -> Vec<f64> {
    per_slot(series, |slot| {
        let part = part.count_in(slot)?;
        let whole = whole.count_in(slot)?;
        if whole > 0 { Some(part as f64 / whole as f64) } else { None }
    })
}

/// Chunks in each frame of the hop; `None` if its frames are not observed.
fn chunks_per_frame_by_slot(series: &Series, hop: &HopSeries) -> Option<Vec<f64>> {
    // Where sends are not observed, frames are counted as they are received.
    Some(match &hop.frames_sent {
        Some(sent) => ratio_per_slot(series, &hop.chunks, sent),
        None => ratio_per_slot(series, &hop.chunks, hop.frames_received.as_ref()?),
    })
}

/// Frames that the hop's receiver takes each time it wakes up; `None` if receives are not observed.
fn frames_per_wakeup_by_slot(series: &Series, hop: &HopSeries) -> Option<Vec<f64>> {
    let received = hop.frames_received.as_ref()?;
    // A receiver that never catches up completes no wakeup. The run observes the measure, but has no sample.
    Some(hop.wakeups.as_ref().map_or_else(Vec::new, |wakeups| ratio_per_slot(series, received, wakeups)))
}

/// Whether a thread of the role receives frames.
fn has_receiver(series: &Series, role: &str) -> bool {
    receiving_threads(series, role).next().is_some()
}

/// Threads of the role that receive frames.
fn receiving_threads<'s>(series: &'s Series, role: &'s str) -> impl Iterator<Item = &'s ThreadSeries> {
    series.threads.iter().filter(move |thread| thread.receives && thread.role == role)
}

/// CPU nanoseconds of all receiving threads of `role` per token sent, in each loaded slot (a short span of the run under load). Leaves out
/// slots without tokens or samples.
fn receiver_cpu_ns_per_token_by_slot(series: &Series, role: &str) -> Vec<f64> {
    const NS_PER_SECOND: f64 = 1e9;
    per_slot(series, |slot| {
        let tokens = series.tokens.sent.count_in(slot)?;
        // Share of the slot that each thread was on a CPU. A thread without a sample in the slot has none.
        let cpu_shares: Vec<f64> =
            receiving_threads(series, role).filter_map(|thread| *thread.on_cpu.get(slot)?).collect();
        if tokens == 0 || cpu_shares.is_empty() {
            return None;
        }
        let cpu_ns = cpu_shares.iter().sum::<f64>() * series.seconds(slot) * NS_PER_SECOND;
        Some(cpu_ns / tokens as f64)
    })
}

/// The highest share that a receiving thread of `role` has in each loaded slot, by the column of shares that `column_of` selects. Empty if
/// none is known.
fn highest_thread_share_per_slot(
    series: &Series,
    role: &str,
    column_of: fn(&ThreadSeries) -> Option<&Vec<Option<f64>>>,
) -> Vec<f64> {
    per_slot(series, |slot| {
        let threads = receiving_threads(series, role);
        let shares = threads.filter_map(|thread| column_of(thread)?.get(slot).copied().flatten());
        shares.reduce(f64::max)
    })
}

/// The hop with this name. `None` if the run has none.
fn hop_named<'a>(series: &'a Series, name: &str) -> Option<&'a HopSeries> {
    series.hops.iter().find(|hop| hop.name == name)
}

/// A quantile of `spread`, in slots that have one; `None` if it was not observed.
fn quantile_per_slot(
    series: &Series,
    spread: Option<&SpreadSeries>,
    column_of: fn(&SpreadSeries) -> &Vec<Option<u64>>,
) -> Option<Vec<f64>> {
    let column = column_of(spread?);
    Some(per_slot(series, |slot| column.get(slot)?.map(|ns| ns as f64)))
}
