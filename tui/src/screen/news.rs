//! Detects whether a run has anything new to show. Without traffic it is refreshed once a second, to update the clock.

use std::time::{Duration, Instant};

use trace::Event;
use trace::event::What;

use crate::observer::{Run, Stage};
use crate::replay::Position;

/// Maximum time without a refresh. Applies even if the run's clock does not advance, because tokengap's resource use is shown too.
const ANYWAY: Duration = Duration::from_millis(1_500);

/// State at the last refresh.
#[derive(Default)]
pub(super) struct News {
    /// Number of events of all runs, without samples, which arrive ten times a second regardless of traffic.
    told: u64,
    /// State and time of the last refresh; `None` forces one.
    shown: Option<(Shown, Instant)>,
}

#[derive(PartialEq)]
struct Shown {
    told: u64,
    second: u64,
    /// Active findings, which can start and end by time alone.
    active: usize,
    stage: Stage,
    position: Option<Position>,
}

impl News {
    pub(super) fn note(&mut self, event: &Event<'_>) {
        let sample = matches!(event.what, What::Cpu(_) | What::Queue(_) | What::Hot(_));
        self.told += u64::from(!sample);
    }

    /// Forces the next check to succeed.
    pub(super) fn forget(&mut self) {
        self.shown = None;
    }

    /// Returns whether anything is new since the last time it returned true.
    pub(super) fn come(&mut self, run: &Run<'_>, now: Instant) -> bool {
        let ledger = run.analysis.ledger();
        let shown = Shown {
            told: self.told,
            second: ledger.now().since(ledger.started().unwrap_or_default()) / 1_000_000_000,
            active: run.analysis.findings().iter().filter(|finding| finding.active).count(),
            stage: run.stage,
            position: run.position.cloned(),
        };
        let same = |(before, at): &(Shown, Instant)| *before == shown && now - *at < ANYWAY;
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
    use crate::sink::Writing;
    use crate::state::scene::{MS, Scene};

    const SOON: Duration = Duration::from_millis(200);

    fn come(news: &mut News, analysis: &Analysis, now: Instant) -> bool {
        let run = Run {
            analysis,
            source: "tap",
            stage: Stage::Running,
            position: None,
            file: None,
            wall: None,
            notice: (0, ""),
            writing: &Writing::default,
            degraded: &Vec::new,
            under_way: &|| None,
            report: &|| analysis.report(&trace::report::ReportInput::of("tap")),
        };
        news.come(&run, now)
    }

    #[test]
    fn an_event_another_second_and_a_long_silence_are_news() {
        let (mut news, mut now) = (News::default(), Instant::now());
        let mut scene = Scene::delivering();
        assert!(come(&mut news, &scene.analysis, now), "the first look");
        now += SOON;
        scene.tick(500 * MS);
        assert!(!come(&mut news, &scene.analysis, now));
        let event = |what| Event { at: MonoNs(0), what };
        news.note(&event(What::Queue(QueueSample {
            hop: "scheduler->tokenizer",
            receive_bytes: Some(1),
            send_bytes: None,
        })));
        assert!(!come(&mut news, &scene.analysis, now), "a sample");
        let id = FrameId {
            hop: HopId(0),
            lane: 0,
            seq: 0,
        };
        news.note(&event(What::Forwarded(id)));
        assert!(come(&mut news, &scene.analysis, now), "an event");
        now += SOON;
        scene.tick(999 * MS);
        assert!(!come(&mut news, &scene.analysis, now));
        scene.tick(1_000 * MS);
        assert!(come(&mut news, &scene.analysis, now), "the clock");
        assert!(!come(&mut news, &scene.analysis, now + SOON));
        assert!(come(&mut news, &scene.analysis, now + ANYWAY));
    }
}
