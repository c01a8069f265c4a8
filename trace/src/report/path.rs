//! Where a chunk's time goes between scheduler and tokenizer: it waits on hops, and is worked on by what stands between them.

use serde::{Deserialize, Serialize};

use super::Spread;
use super::build::spread;
use crate::ledger::{Group, Hop, Ledger, Passage};
use crate::path;

/// What a chunk does on a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LegKind {
    /// Waits on a hop: taken minus sent, of every chunk.
    Wait,
    /// Is inside a process that sends it on: sent on minus taken, of every chunk.
    Inside,
    /// Both, where takes are not seen: sent on minus sent to it, of each request's first chunk.
    WaitAndInside,
}

/// One leg of the path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LegLine {
    /// The hop, or the role of the process.
    pub name: String,
    /// What a chunk does there.
    pub kind: LegKind,
    /// How long; of a hop, over frames.
    pub ns: Spread,
    /// The mean over chunks.
    pub mean_ns: u64,
    /// Its part of the means of all legs, from 0 to 1.
    pub share: f64,
    /// Share of the window for which the process had a frame in hand, mean over its siblings; `null` where that is not seen.
    pub busy: Option<f64>,
}

/// The legs in the order of the path; empty where nothing between two stages was seen.
pub(super) fn legs(ledger: &Ledger, window_ns: u64) -> Vec<LegLine> {
    let groups: Vec<(usize, &Group)> = ledger.groups().iter().enumerate().collect();
    let ends: Vec<(&str, &str)> = groups.iter().map(|(_, g)| path::ends(&g.name)).collect();
    let mut order: Vec<usize> = (0..groups.len()).collect();
    order.sort_by_key(|&at| path::depth(&ends, ends[at].0));
    let mut legs: Vec<LegLine> = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for at in order {
        let (place, group) = groups[at];
        legs.extend(wait(group));
        let role = ends[at].1;
        if !seen.contains(&role) {
            seen.push(role);
            let into = |hop: &&Hop| ends[hop.group()].1 == role;
            let busy = busy(ledger.hops().iter().filter(into), window_ns);
            let passage = ledger.passages().iter().find(|p| p.role == role);
            legs.extend(passage.and_then(|p| inside(p, busy, ledger.members(place).any(|h| h.sees().taken))));
        }
    }
    let whole = legs.iter().fold(0_u64, |sum, leg| sum.saturating_add(leg.mean_ns));
    for leg in &mut legs {
        leg.share = if whole > 0 {
            leg.mean_ns as f64 / whole as f64
        } else {
            0.0
        };
    }
    legs
}

fn leg(name: &str, kind: LegKind, ns: Spread, mean_ns: u128, busy: Option<f64>) -> LegLine {
    LegLine {
        name: name.to_owned(),
        kind,
        ns,
        mean_ns: u64::try_from(mean_ns).unwrap_or(u64::MAX),
        share: 0.0,
        busy,
    }
}

fn wait(group: &Group) -> Option<LegLine> {
    let (chunks, ns) = group.waited;
    let mean = ns.checked_div(chunks.into())?;
    Some(leg(&group.name, LegKind::Wait, spread(&group.residence)?, mean, None))
}

fn inside(passage: &Passage, busy: Option<f64>, sees_takes: bool) -> Option<LegLine> {
    let (kind, of, ns) = if sees_takes {
        (LegKind::Inside, &passage.inside, passage.inside_ns)
    } else {
        (LegKind::WaitAndInside, &passage.through, passage.through_ns)
    };
    let mean = ns.checked_div(of.count().into())?;
    Some(leg(&passage.role, kind, spread(of)?, mean, busy))
}

/// How much of the window the receivers of these hops had a frame in hand, mean over those where that is seen.
pub(super) fn busy<'h>(hops: impl Iterator<Item = &'h Hop>, window_ns: u64) -> Option<f64> {
    let (mut sum, mut count) = (0_u64, 0_u64);
    for hop in hops.filter(|hop| hop.sees().handled) {
        sum = sum.saturating_add(hop.counts().busy_ns);
        count += 1;
    }
    let whole = window_ns.saturating_mul(count);
    (whole > 0).then(|| (sum as f64 / whole as f64).min(1.0))
}
