//! Detects whether a run has anything new to show. Without traffic it is refreshed once a second, to update the clock.

use std::time::{Duration, Instant};

use trace::Event;
use trace::event::What;

use session::playback::Position;
use session::{Run, Stage};

/// Maximum time without a refresh. Applies even if the run's clock does not advance, because tokengap's resource use is shown too.
const MAX_AGE: Duration = Duration::from_millis(1_500);

#[derive(Default)]
pub(super) struct ChangeTracker {
    /// Number of events of all runs, without samples, which arrive ten times a second regardless of traffic.
    events: u64,
    /// State and time of the last refresh; `None` forces one.
    shown: Option<(Shown, Instant)>,
}

/// Events, second of the run, active findings, which can start and end by time alone, and progress.
type Shown = (u64, u64, usize, Stage, Option<Position>);

impl ChangeTracker {
    pub(super) fn count(&mut self, event: &Event<'_>) {
        let sample = matches!(event.what, What::Cpu(_) | What::Queue(_) | What::Stack(_));
        self.events += u64::from(!sample);
    }

    /// Forces the next check to request a refresh.
    pub(super) fn reset(&mut self) {
        self.shown = None;
    }

    /// Returns whether anything is new since the last time it returned true.
    pub(super) fn needs_refresh(&mut self, run: &Run<'_>, now: Instant) -> bool {
        let ledger = run.analysis.ledger();
        let second = ledger.now().since(ledger.started().unwrap_or_default()) / 1_000_000_000;
        let active = run.analysis.findings().iter().filter(|finding| finding.active).count();
        let shown = (self.events, second, active, run.stage, run.about.position());
        let same = |(before, at): &(Shown, Instant)| *before == shown && now - *at < MAX_AGE;
        if self.shown.as_ref().is_some_and(same) {
            return false;
        }
        self.shown = Some((shown, now));
        true
    }
}

#[cfg(test)]
mod tests {
    use trace::event::QueueSample;
    use trace::{Analysis, FrameId, HopId, MonoNs};

    use super::*;
    use crate::state::scene::{MS, Scene};
    use session::About;
    use session::sink::Writing;

    struct Tap;

    impl About for Tap {
        fn kind(&self) -> &'static str {
            "tap"
        }
    }

    const SOON: Duration = Duration::from_millis(200);

    fn needs_refresh(changes: &mut ChangeTracker, analysis: &Analysis, now: Instant) -> bool {
        let run = Run {
            analysis,
            about: &Tap,
            stage: Stage::Running,
            notice: (0, ""),
            writing: &Writing::default,
            degraded: &Vec::new,
            report: &|| outputs::report::Report::of(analysis, &trace::ReportInput::of("tap")),
        };
        changes.needs_refresh(&run, now)
    }

    #[test]
    fn events_clock_seconds_and_timeouts_trigger_a_refresh() {
        let (mut changes, mut now) = (ChangeTracker::default(), Instant::now());
        let mut scene = Scene::delivering();
        assert!(needs_refresh(&mut changes, &scene.analysis, now), "the first check");
        now += SOON;
        scene.tick(500 * MS);
        assert!(!needs_refresh(&mut changes, &scene.analysis, now));
        let event = |what| Event { at: MonoNs(0), what };
        let sample = QueueSample { hop: "scheduler->tokenizer", receive_bytes: Some(1), send_bytes: None };
        changes.count(&event(What::Queue(sample)));
        assert!(!needs_refresh(&mut changes, &scene.analysis, now), "a sample");
        let id = FrameId::new(HopId(0), 0, 0);
        changes.count(&event(What::Processed(id)));
        assert!(needs_refresh(&mut changes, &scene.analysis, now), "an event");
        now += SOON;
        scene.tick(999 * MS);
        assert!(!needs_refresh(&mut changes, &scene.analysis, now));
        scene.tick(1_000 * MS);
        assert!(needs_refresh(&mut changes, &scene.analysis, now), "the clock");
        assert!(!needs_refresh(&mut changes, &scene.analysis, now + SOON));
        assert!(needs_refresh(&mut changes, &scene.analysis, now + MAX_AGE));
    }
}
