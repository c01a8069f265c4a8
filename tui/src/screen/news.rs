//! Whether a run has anything new to show. Where nothing passes it is read once a second, for its clock.

use std::time::{Duration, Instant};

use crate::observer::{Run, Stage};
use crate::replay::Position;

/// It is read so often even where its clock stands still: what watching costs is shown, too.
const ANYWAY: Duration = Duration::from_millis(1_500);

/// What was shown last, and when; nothing where the next look has to find something new.
#[derive(Default)]
pub(super) struct News(Option<(Shown, Instant)>);

#[derive(PartialEq)]
struct Shown {
    events: u64,
    second: u64,
    /// Findings that hold: time alone may bring and end one.
    active: usize,
    stage: Stage,
    position: Option<Position>,
}

impl News {
    /// Whether there is something new since it last said so.
    pub(super) fn come(&mut self, run: &Run<'_>, now: Instant) -> bool {
        let ledger = run.analysis.ledger();
        let shown = Shown {
            events: ledger.totals().events,
            second: ledger.now().since(ledger.started().unwrap_or_default()) / 1_000_000_000,
            active: run.analysis.findings().iter().filter(|finding| finding.active).count(),
            stage: run.stage,
            position: run.position.cloned(),
        };
        let same = |(before, at): &(Shown, Instant)| *before == shown && now - *at < ANYWAY;
        if self.0.as_ref().is_some_and(same) {
            return false;
        }
        self.0 = Some((shown, now));
        true
    }
}

#[cfg(test)]
mod tests {
    use trace::Analysis;

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
        scene.send(600 * MS, &[("a", 1, 1)]);
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
