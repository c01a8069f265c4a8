//! Frames that could not be decoded.

use super::{Detector, Look, Severity, Verdict};
use crate::words::{plural, share};

pub(super) struct UndecodedFrames;

impl Detector for UndecodedFrames {
    fn kind(&self) -> &'static str {
        "undecoded"
    }

    fn check(&self, look: &Look<'_>, found: &mut Vec<Verdict>) {
        for (place, group) in look.ledger.groups().iter().enumerate() {
            let (mut undecoded, mut frames) = (0, 0);
            for counts in look.ledger.members(place).map(crate::ledger::Hop::counts) {
                undecoded += counts.undecoded;
                frames += counts.frames_sent.max(counts.frames_taken);
            }
            if undecoded == 0 {
                continue;
            }
            let part = undecoded as f64 / frames.max(1) as f64;
            let severity = if part >= look.thresholds.undecoded_critical_share {
                Severity::Critical
            } else if part >= look.thresholds.undecoded_warning_share {
                Severity::Warning
            } else {
                Severity::Info
            };
            let often = group
                .undecoded
                .iter()
                .max_by_key(|(_, n)| **n)
                .map_or("", |(reason, _)| reason);
            let summary = format!(
                "{} ({}) on {} could not be read, mostly: {often}",
                plural(undecoded, "frame"),
                share(undecoded, frames),
                group.name,
            );
            found.push(
                Verdict::new(severity, summary)
                    .hop(&group.name)
                    .since(look.ledger.totals().undecoded_since)
                    .weight(undecoded)
                    .with("frames_undecoded", undecoded)
                    .with("frames", frames)
                    .with("most_frequent_reason", often)
                    .advice("save one such frame and run `tokengap decode` on it"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::scene::Scene;
    use super::*;

    #[test]
    fn unreadable_frames_are_told_with_their_reason() {
        let mut scene = Scene::skip_path();
        scene.send(0, &[("a", 1, 1)]);
        scene.garble(1, "class unknown");
        let found = scene.check(&UndecodedFrames, 2);
        assert_eq!(
            (found[0].severity, &found[0].evidence["frames"]),
            (Severity::Critical, &2.into())
        );
        assert!(found[0].summary.ends_with("class unknown"));
    }
}
