//! Whether a run has anything new to show. Where nothing passes it is read once a second, for its clock.

use std::time::{Duration, Instant};

use trace::Event;
use trace::event::What;

use crate::observer::{Run, Stage};
use crate::replay::Position;

/// It is read so often even where its clock stands still: what watching costs is shown, too.
const ANYWAY: Duration = Duration::from_millis(1_500);

/// What has come, and what of it was shown.
#[derive(Default)]
pub(super) struct News {
    /// Events of all runs but samples: these come ten times a second, whether anything happens or not.
    told: u64,
    /// When something new was last found; `None` where the next look has to find something.
    shown: Option<(Shown, Instant)>,
}

#[derive(PartialEq)]
struct Shown {
    told: u64,
    second: u64,
    /// Findings that hold: time alone may bring and end one.
    active: usize,
    stage: Stage,
    position: Option<Position>,
}

impl News {
    pub(super) fn note(&mut self, event: &Event<'_>) {
        let sample = matches!(event.what, What::Cpu(_) | What::Queue(_) | What::Hot(_));
        self.told += u64::from(!sample);
    }

    /// The next look finds something new.
    pub(super) fn forget(&mut self) {
        self.shown = None;
    }

    /// Whether there is something new since it last said so.
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
