//! Frames that could not be decoded.

use super::{DetectContext, Severity, Verdict};
use crate::words::{plural, share};

/// Share of undecoded frames that causes a warning.
const WARNING_SHARE: f64 = 0.001;
/// Share that is critical, because the rest of the report cannot be trusted.
const CRITICAL_SHARE: f64 = 0.05;

pub(super) fn check(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    for (place, group) in context.ledger.groups().iter().enumerate() {
        let (mut undecoded, mut frames) = (0, 0);
        for counts in context.ledger.members(place).map(|hop| hop.counts) {
            undecoded += counts.undecoded;
            frames += counts.frames_sent.max(counts.frames_received);
        }
        if undecoded == 0 {
            continue;
        }
        let part = undecoded as f64 / frames.max(1) as f64;
        let severity = if part >= CRITICAL_SHARE {
            Severity::Critical
        } else if part >= WARNING_SHARE {
            Severity::Warning
        } else {
            Severity::Info
        };
        let reasons = context.ledger.undecoded_by_reason(place);
        let often = reasons.iter().max_by_key(|(_, n)| **n).map_or("", |(reason, _)| reason);
        let summary = format!(
            "cannot decode {} ({}) on {}; most common reason: {often}",
            plural(undecoded, "frame"),
            share(undecoded, frames),
            group.name,
        );
        found.push(
            Verdict::new(severity, summary)
                .hop(&group.name)
                .since(context.ledger.totals().undecoded_since)
                .weight(undecoded)
                .with("frames_undecoded", undecoded)
                .with("frames", frames)
                .with("most_frequent_reason", often)
                .advice("save one such frame and run `tokengap decode` on it"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::scene::Scene;
    use super::*;
    use crate::clock::MonoNs;
    use crate::event::{Capabilities, Event, Hop, What};
    use crate::id::{FrameId, HopId};
    use crate::ledger::{Ledger, Limits};

    #[test]
    fn undecodable_frames_are_reported_with_a_reason() {
        let mut scene = Scene::skip_path();
        scene.send(0, &[("a", 1, 1)]);
        scene.send_undecodable(0, 1, "class unknown");
        let found = scene.check(check, 2);
        assert_eq!(found[0].severity, Severity::Critical);
        assert_eq!(found[0].evidence["frames"], 2);
        assert!(found[0].summary.ends_with("class unknown"));
    }

    #[test]
    fn a_hop_takes_its_reasons_to_its_new_name() {
        let mut ledger = Ledger::new(Limits::default());
        let mut apply = |what| ledger.apply(&Event { at: MonoNs(1), what });
        let named = |id, name| What::Hop(Hop::new(HopId(id), name, Capabilities::default()));
        apply(named(0, "a->b"));
        apply(named(1, "c->b"));
        let id = FrameId::new(HopId(1), 0, 0);
        let reason = "layout";
        apply(What::Undecoded(crate::event::Undecoded::new(id, 9, reason)));
        apply(named(1, "a->b"));
        let group = ledger.groups().iter().position(|group| group.name == "a->b").expect("a->b");
        assert_eq!(ledger.undecoded_by_reason(group), [("layout", 1)].into());
    }
}
