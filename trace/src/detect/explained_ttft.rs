//! Time to first token that findings explain.

use crate::ledger::{Ttft, TtftLeg, TtftMoment};

use TtftMoment::{Arrived, BatchEntered, Dispatched, FirstReceived, FirstSent, Queued, Read, SchedulerReceived};

/// Time to first token that a finding of this kind explains, by which findings of equal severity are ordered; `None` if it explains none.
pub(super) fn explained_ttft_ns(ttft: &Ttft, kind: &str) -> Option<u128> {
    let is_explained: fn(TtftLeg) -> bool = match kind {
        "engine-silent" => return Some(ttft.silenced().ns),
        "first-token-gap" => |leg| leg.from == FirstSent && leg.to <= FirstReceived,
        "late-delivery" => |leg| leg.from >= FirstSent && leg.to > FirstReceived,
        "late-read" => |leg| is_between(leg, Arrived, Read),
        "late-dispatch" => |leg| is_between(leg, Read, Dispatched),
        "late-receive" => |leg| is_between(leg, Dispatched, SchedulerReceived),
        "late-intake" => |leg| is_between(leg, SchedulerReceived, Queued),
        "queued" => |leg| is_between(leg, Queued, BatchEntered),
        "slow-prefill" => |leg| is_between(leg, BatchEntered, FirstSent),
        "slow-first-token" => TtftLeg::is_merged,
        _ => return None,
    };
    Some(ttft.late_legs().iter().filter(|late| is_explained(late.leg)).map(|late| late.ns).sum())
}

fn is_between(leg: TtftLeg, from: TtftMoment, to: TtftMoment) -> bool {
    leg == TtftLeg { from, to }
}
