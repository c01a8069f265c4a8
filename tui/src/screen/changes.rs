//! Detects whether a run has anything new to show. Without traffic it is refreshed once a second, to update the clock.

use std::time::{Duration, Instant};

use trace::Event;
use trace::event::What;

use session::playback::Position;
use session::{Run, RunStage};

/// Maximum time without a refresh. Applies even if the run's clock does not advance, because tokengap's resource use is shown too.
const MAX_REFRESH_INTERVAL: Duration = Duration::from_millis(1_500);
const NS_PER_SECOND: u64 = 1_000_000_000;

#[derive(Default)]
pub(super) struct ChangeTracker {
    /// Number of events of all runs, without samples, which arrive ten times a second regardless of traffic.
    events: u64,
    /// The last refresh; `None` forces one.
    last_refresh: Option<LastRefresh>,
}

struct LastRefresh {
    state: ShownState,
    at: Instant,
}

/// What makes a refresh worth its cost.
#[derive(PartialEq)]
struct ShownState {
    events: u64,
    second: u64,
    /// Findings can start and end by time alone.
    active_findings: usize,
    stage: RunStage,
    position: Option<Position>,
}

impl ShownState {
    /// What the run shows now. It has passed `event_count` events so far, without samples.
    fn of_run(run: &Run<'_>, event_count: u64) -> Self {
        let ledger = run.analysis.ledger();
        let running_ns = ledger.now().since(ledger.started().unwrap_or_default());
        Self {
            events: event_count,
            // The clock on the screen shows whole seconds.
            second: running_ns / NS_PER_SECOND,
            active_findings: run.analysis.findings().iter().filter(|finding| finding.active).count(),
            stage: run.stage,
            position: run.about.position(),
        }
    }
}

impl ChangeTracker {
    /// Counts an event, unless it is a sample.
    pub(super) fn count_event_unless_sample(&mut self, event: &Event<'_>) {
        // Samples come at any load, so they alone do not make a refresh worth its cost.
        let is_sample = matches!(event.what, What::Cpu(_) | What::Queue(_) | What::Stack(_));
        if !is_sample {
            self.events += 1;
        }
    }

    /// Makes the next check request a refresh.
    pub(super) fn force_refresh(&mut self) {
        self.last_refresh = None;
    }

    /// Returns whether a refresh is due, and if so, notes it as done at `now`. It is due if the shown state has changed since the last
    /// refresh, or if [`MAX_REFRESH_INTERVAL`] has passed.
    pub(super) fn note_refresh_if_due(&mut self, run: &Run<'_>, now: Instant) -> bool {
        let state = ShownState::of_run(run, self.events);
        if let Some(last) = &self.last_refresh
            && last.state == state
            && now - last.at < MAX_REFRESH_INTERVAL
        {
            return false;
        }
        self.last_refresh = Some(LastRefresh { state, at: now });
        true
    }
}

#[cfg(test)]
mod tests {
    use trace::event::QueueSample;
    use trace::{Analysis, FrameId, HopId, MonoNs};

    use super::*;
    use crate::state::tests::scene::{MS, Scene};
    use session::sink::OutputStatus;
    use session::{About, Notice};

    struct Tap;

    impl About for Tap {
        fn kind(&self) -> &'static str {
            "tap"
        }
    }

    const SOON: Duration = Duration::from_millis(200);

    fn note_refresh_if_due(changes: &mut ChangeTracker, analysis: &Analysis, now: Instant) -> bool {
        let run = Run {
            analysis,
            about: &Tap,
            stage: RunStage::Running,
            notice: &Notice::default(),
            writing: &OutputStatus::default,
            degraded: &Vec::new,
            report: &|| outputs::report::Report::of(analysis, &trace::ReportInput::for_source("tap")),
        };
        changes.note_refresh_if_due(&run, now)
    }

    #[test]
    fn events_clock_seconds_and_timeouts_trigger_a_refresh() {
        let (mut changes, mut now) = (ChangeTracker::default(), Instant::now());
        let mut scene = Scene::delivering();
        assert!(note_refresh_if_due(&mut changes, &scene.analysis, now), "the first check");
        now += SOON;
        scene.tick(500 * MS);
        assert!(!note_refresh_if_due(&mut changes, &scene.analysis, now));
        let event = |what| Event { at: MonoNs(0), what };
        let sample = QueueSample { hop: "scheduler->tokenizer", receive_bytes: Some(1), send_bytes: None };
        changes.count_event_unless_sample(&event(What::Queue(sample)));
        assert!(!note_refresh_if_due(&mut changes, &scene.analysis, now), "a sample");
        let id = FrameId::new(HopId(0), 0, 0);
        changes.count_event_unless_sample(&event(What::Processed(id)));
        assert!(note_refresh_if_due(&mut changes, &scene.analysis, now), "an event");
        now += SOON;
        scene.tick(999 * MS);
        assert!(!note_refresh_if_due(&mut changes, &scene.analysis, now));
        scene.tick(1_000 * MS);
        assert!(note_refresh_if_due(&mut changes, &scene.analysis, now), "the clock");
        assert!(!note_refresh_if_due(&mut changes, &scene.analysis, now + SOON));
        assert!(note_refresh_if_due(&mut changes, &scene.analysis, now + MAX_REFRESH_INTERVAL));
    }
}
