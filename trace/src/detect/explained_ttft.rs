//! Time to first token that findings explain, and its share in their words.

use crate::engine::Facts;
use crate::ledger::{Ttft, TtftLeg, TtftMoment, TtftPart};
use crate::words::{count, percent, plural};

use TtftMoment::{
    Arrived, BatchEntered, Dispatched, FirstDelivered, FirstReceived, FirstSent, Processed, Queued, Read,
    SchedulerReceived,
};

/// Time to first token that findings of this kind explain. It is the sum of the long waits on certain legs. A leg is the time of a request
/// between two moments on its path. `None` for kinds that explain no leg. Findings of equal severity are ordered by this time.
pub(super) fn explained_ttft_ns(ttft: &Ttft, finding_kind: &str) -> Option<u128> {
    // A silence of the engine explains waits on any leg. They are counted separately.
    if finding_kind == "engine-silent" {
        return Some(ttft.silenced().part.ns);
    }
    let is_explained = condition_of_explained_legs(finding_kind)?;
    let explained_legs = ttft.late_legs().iter().filter(|late| is_explained(late.leg));
    Some(explained_legs.map(|late| late.ns).sum())
}

/// Returns the condition by which findings of this kind explain a leg of a request. A leg is the time between two moments on the request's
/// path. `None` for kinds that explain no leg.
fn condition_of_explained_legs(finding_kind: &str) -> Option<fn(TtftLeg) -> bool> {
    // Moments compare in the order of the path.
    let condition: fn(TtftLeg) -> bool = match finding_kind {
        "first-token-gap" => |leg| leg.from == FirstSent && leg.to <= FirstReceived,
        "late-delivery" => is_behind_receive,
        "late-read" => |leg| is_between(leg, Arrived, Read),
        "late-dispatch" => |leg| is_between(leg, Read, Dispatched),
        "late-receive" => |leg| is_between(leg, Dispatched, SchedulerReceived),
        "late-intake" => |leg| is_between(leg, SchedulerReceived, Queued),
        "queued" => |leg| is_between(leg, Queued, BatchEntered),
        "slow-prefill" => |leg| is_between(leg, BatchEntered, FirstSent),
        // Explains a leg that is several in one, because the moments between them were not observed.
        "slow-first-token" => TtftLeg::is_merged,
        _ => return None,
    };
    Some(condition)
}

fn is_between(leg: TtftLeg, from: TtftMoment, to: TtftMoment) -> bool {
    leg == TtftLeg { from, to }
}

/// Whether the leg ends in the process that answers clients, or behind it.
pub(super) fn is_behind_receive(leg: TtftLeg) -> bool {
    leg.from >= FirstSent && leg.to > FirstReceived
}

/// `91 % of the TTFT of 34 of 120 requests`. It is a share of the time of these 34 requests alone, because that is what their clients saw.
pub(super) fn describe_share(ttft: &Ttft, part: TtftPart) -> String {
    let judged = ttft.judged().requests;
    format!("{} of the TTFT of {} of {}", percent(part.share()), count(part.requests), plural(judged, "request"))
}

/// `91 % of the TTFT of 34 of 120 requests was spent in the scheduler's queue`
pub(super) fn describe_part(ttft: &Ttft, part: TtftPart, place: &str) -> String {
    format!("{} was spent {place}", describe_share(ttft, part))
}

/// Describes where a request is while it is on a leg, a part of its path. `leg_from` is the moment with which the leg begins.
pub(super) fn describe_place_of_request(engine: &dyn Facts, leg_from: TtftMoment) -> String {
    let source = engine.source();
    let receiver = engine.receiver();
    match leg_from {
        Arrived => "in the server's socket".to_owned(),
        Read => format!("in the {receiver} before dispatch"),
        Dispatched => format!("on the way to the {source}"),
        SchedulerReceived => format!("in the {source} before its queue"),
        Queued => format!("in the {source}'s queue"),
        BatchEntered => "in slow prefills".to_owned(),
        FirstSent => format!("on the way to the {receiver}"),
        FirstReceived | Processed | FirstDelivered => format!("in the {receiver} after the first token"),
    }
}
