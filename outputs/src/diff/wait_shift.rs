//! Wait of a chunk before and after, and the leg to which the wait moved.

use serde::{Deserialize, Serialize};
use trace::detect::attribution::LegKind;
use trace::path::{self, Ends};
use trace::words::{duration, known_or_dash, percent};

use crate::report::{LegLine, Report};

/// Share that a leg must lose before its wait counts as moved.
const MOVED_SHARE: f64 = 0.2;
/// A path that takes less than this part of its former time has no significant wait left.
const NEGLIGIBLE_SHARE: f64 = 0.1;
/// Minimum change of a wait that at least doubles or halves.
pub(super) const CHANGED_NS: u64 = 20_000_000;

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

/// Direction in which the time of a leg changed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LegChange {
    Shorter,
    Longer,
}

/// A row of the table of legs.
pub(super) struct LegCells {
    pub(super) place: String,
    pub(super) a_time: String,
    pub(super) a_share: String,
    pub(super) b_time: String,
    pub(super) b_share: String,
}

impl LegShift {
    /// Its row of a table: place, then time and share of both runs.
    pub(super) fn table_cells(&self) -> LegCells {
        LegCells {
            place: describe_leg(&self.name, self.kind),
            a_time: known_or_dash(self.a_ns, duration),
            a_share: known_or_dash(self.a_share, percent),
            b_time: known_or_dash(self.b_ns, duration),
            b_share: known_or_dash(self.b_share, percent),
        }
    }

    /// Whether the time at least halved or doubled. `None` if it did neither, is unknown, or a wait changed by less than users notice.
    pub(super) fn leg_change(&self) -> Option<LegChange> {
        let before_ns = self.a_ns?;
        let after_ns = self.b_ns?;
        // Users do not notice so small a change of a wait.
        if self.kind == LegKind::Wait && before_ns.abs_diff(after_ns) < CHANGED_NS {
            return None;
        }
        if before_ns >= 2 * after_ns {
            Some(LegChange::Shorter)
        } else if after_ns >= 2 * before_ns {
            Some(LegChange::Longer)
        } else {
            None
        }
    }

    /// Compares this leg, which at least one of the paths has, between the paths `a` and `b`.
    fn of_leg(leg: &LegLine, a: &[LegLine], b: &[LegLine]) -> Self {
        let leg_a = find_same_leg(a, leg);
        let leg_b = find_same_leg(b, leg);
        Self {
            name: leg.name.clone(),
            kind: leg.kind,
            a_ns: leg_a.map(|leg| leg.mean_ns),
            b_ns: leg_b.map(|leg| leg.mean_ns),
            a_share: leg_a.map(|leg| leg.share),
            b_share: leg_b.map(|leg| leg.share),
        }
    }

    /// Whether this compares the leg, which then has the same name and kind.
    fn is_shift_of(&self, leg: &LegLine) -> bool {
        self.name == leg.name && self.kind == leg.kind
    }
}

impl WaitShift {
    /// Time of a chunk on the whole path of one of the runs.
    fn path_ns(&self, time_of: fn(&LegShift) -> Option<u64>) -> u64 {
        self.legs.iter().filter_map(time_of).fold(0, u64::saturating_add)
    }

    /// Whether the time on the whole path of either run is long enough for users to notice. Otherwise a moved wait explains nothing.
    pub(super) fn is_noticed(&self) -> bool {
        self.path_ns(|leg| leg.a_ns).max(self.path_ns(|leg| leg.b_ns)) >= CHANGED_NS
    }

    /// Compares the legs of both runs' paths: the hops, and the processes between them. `None` unless both runs observed some.
    pub(super) fn of_runs(a: &Report, b: &Report) -> Option<Self> {
        let longest_a = LongestLeg::of_path(&a.path)?;
        let longest_b = LongestLeg::of_path(&b.path)?;
        let legs = legs_of_both(&a.path, &b.path);
        // Share that the longest leg of run `a` has in run `b`. A leg that `b` does not have takes none of its time.
        let shift_of_longest_a = legs.iter().find(|leg| leg.is_shift_of(longest_a.leg));
        let remaining_share = shift_of_longest_a.and_then(|leg| leg.b_share).unwrap_or(0.0);
        Some(Self {
            from: longest_a.leg.name.clone(),
            to: longest_b.leg.name.clone(),
            summary: summarise_shift(&longest_a, &longest_b, remaining_share),
            legs,
        })
    }
}

/// The longest leg of a path, and the time of the whole path.
struct LongestLeg<'p> {
    leg: &'p LegLine,
    path_ns: u64,
}

impl<'p> LongestLeg<'p> {
    /// `None` for a path without legs.
    fn of_path(path: &'p [LegLine]) -> Option<Self> {
        let leg = path.iter().max_by_key(|leg| leg.mean_ns)?;
        Some(Self { leg, path_ns: path.iter().fold(0, |sum, leg| sum.saturating_add(leg.mean_ns)) })
    }

    /// Name of the leg in a sentence.
    fn description(&self) -> String {
        describe_leg(&self.leg.name, self.leg.kind)
    }

    /// `98 % of 921.0 ms a chunk`.
    fn part_of_path(&self) -> String {
        format!("{} of {} a chunk", percent(self.leg.share), duration(self.path_ns))
    }
}

/// States how the wait on the path of a chunk changed: it disappeared, grew, moved, shrank or stays. The first of these that holds counts.
/// A leg is a hop or a process on the path; the two given ones are the longest of their runs. `remaining_share` is the share of the first
/// run's longest leg in the second run.
fn summarise_shift(longest_before: &LongestLeg<'_>, longest_after: &LongestLeg<'_>, remaining_share: f64) -> String {
    // The path as a whole.
    let before_ns = longest_before.path_ns;
    let after_ns = longest_after.path_ns;
    let is_negligible = (after_ns as f64) < NEGLIGIBLE_SHARE * before_ns as f64;
    let is_noticed = before_ns.abs_diff(after_ns) >= CHANGED_NS;
    let has_grown = is_noticed && after_ns >= 2 * before_ns;
    let has_shrunk = is_noticed && before_ns >= 2 * after_ns;
    // Its longest leg.
    let is_other_leg =
        longest_before.leg.name != longest_after.leg.name || longest_before.leg.kind != longest_after.leg.kind;
    let lost_share = longest_before.leg.share - remaining_share;
    let has_moved = is_other_leg && lost_share >= MOVED_SHARE;
    // Texts for the sentence.
    let from_leg = longest_before.description();
    let to_leg = longest_after.description();
    let before = longest_before.part_of_path();
    let after = longest_after.part_of_path();
    if is_negligible {
        let left = duration(after_ns);
        format!("the wait has disappeared: {from_leg} had {before}, and {left} is left, most of it {to_leg}")
    } else if has_grown {
        describe_changed_length("grew", longest_before, longest_after)
    } else if has_moved {
        format!("the wait moved from {from_leg} ({before}) to {to_leg} ({after})")
    } else if has_shrunk {
        describe_changed_length("shrank", longest_before, longest_after)
    } else {
        format!("the wait stays: {from_leg} had {before}, {to_leg} has {after}")
    }
}

/// States how long the wait was and is, and where most of it was and is.
fn describe_changed_length(verb: &str, longest_before: &LongestLeg<'_>, longest_after: &LongestLeg<'_>) -> String {
    format!(
        "the wait {verb} from {} to {} a chunk: most of it was {} ({}), and is {} ({})",
        duration(longest_before.path_ns),
        duration(longest_after.path_ns),
        longest_before.description(),
        percent(longest_before.leg.share),
        longest_after.description(),
        percent(longest_after.leg.share)
    )
}

/// Name of a leg in a sentence: `a->b` for a wait on that hop, `inside the b` for a process.
fn describe_leg(name: &str, kind: LegKind) -> String {
    match kind {
        LegKind::Wait => name.to_owned(),
        kind => kind.describe(name),
    }
}

/// Legs of both paths, each once, in path order.
fn legs_of_both(a: &[LegLine], b: &[LegLine]) -> Vec<LegShift> {
    let mut legs: Vec<LegShift> = Vec::new();
    for leg in a.iter().chain(b) {
        let is_listed = legs.iter().any(|listed| listed.is_shift_of(leg));
        if !is_listed {
            legs.push(LegShift::of_leg(leg, a, b));
        }
    }
    // Both ends of each leg. A process is at both ends of its own leg.
    let hops: Vec<Ends<Box<str>>> = legs.iter().map(|leg| Ends::from(&*leg.name).to_owned()).collect();
    legs.sort_by_key(|leg| path_position(leg, &hops));
    legs
}

/// Position of a leg in path order. Hops have even positions: twice the number of `hops` before them. A process has the odd position just
/// before the hops that leave it.
fn path_position(leg: &LegShift, hops: &[Ends<Box<str>>]) -> usize {
    let Ends { from, to } = Ends::from(&*leg.name);
    // Hops that a chunk crosses before it is at `from`.
    let hops_before = path::max_hops_before_role(hops, from);
    let hop_position = 2 * hops_before;
    let is_process = from == to;
    if is_process { hop_position.saturating_sub(1) } else { hop_position }
}

/// The leg of a path with the same name and kind as `leg`; `None` if the path has none.
fn find_same_leg<'l>(path: &'l [LegLine], leg: &LegLine) -> Option<&'l LegLine> {
    path.iter().find(|candidate| candidate.name == leg.name && candidate.kind == leg.kind)
}
