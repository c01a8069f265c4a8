//! The run of one engine, with its line in the screen's list of runs.

use std::time::{Duration, Instant};

use serde_json::Value;
use session::{About, Flow, LiveSource, Session, Source};
use sources::attach::{EngineRun, EngineState};
use trace::{Analysis, SamplingCost};
use tui::RunView;
use tui::pods::{KeyFigures, PodLine, PodState};

use crate::app::{self, FinishedRun};

/// Interval of updates of the run list.
const UPDATE_INTERVAL: Duration = Duration::from_millis(500);

/// An engine on a screen that may show several.
pub(super) struct WatchedEngine {
    engine: EngineRun,
    screen: Option<RunView>,
    state: PodState,
    since: Instant,
    next_update: Instant,
}

impl WatchedEngine {
    pub(super) fn new(engine: EngineRun, screen: Option<RunView>) -> Self {
        let now = Instant::now();
        Self { engine, screen, state: PodState::default(), since: now, next_update: now }
    }

    /// Sets the run's line in the list of runs, if there is one.
    fn update_line(&mut self, analysis: &Analysis) {
        let now = Instant::now();
        let Some(RunView { screen, run_index }) = self.screen.as_ref().filter(|_| now >= self.next_update) else {
            return;
        };
        self.next_update = now + UPDATE_INTERVAL;
        if !screen.borrow().has_run_list() {
            return;
        }
        let state = shown_state(self.engine.engine_state());
        if state != self.state {
            self.state = state;
            self.since = now;
        }
        let missed = analysis.ledger().totals().missed;
        let line = PodLine {
            name: self.title(),
            state,
            state_age_ns: (now - self.since).as_nanos() as u64,
            reason: self.engine.obstacle().unwrap_or_default(),
            records_missed: missed.reported() + missed.unannounced,
            begun_wall_ns: None,
            figures: KeyFigures::from_analysis(analysis),
        };
        screen.borrow_mut().set_pod(*run_index, line);
    }

    fn title(&self) -> String {
        let name = self.engine.name();
        self.engine.side().map_or_else(|| name.clone(), |side| format!("{name} {side}"))
    }

    pub(super) fn name(&self) -> String {
        self.engine.name()
    }

    /// Side of a pair, while the engine runs.
    pub(super) fn side(&self) -> Option<&'static str> {
        self.engine.side()
    }

    /// Drops the screen, which the last of its runs closes.
    pub(super) fn leave_screen(&mut self) {
        self.screen = None;
    }

    /// Why nothing could be observed.
    pub(super) fn failure(&self) -> Option<String> {
        self.engine.failure()
    }

    pub(super) fn finish(self, session: Session) -> FinishedRun {
        FinishedRun {
            name: self.engine.name(),
            endpoint: None,
            side: self.engine.side(),
            state: shown_state(self.engine.engine_state()).label().to_lowercase(),
            records_before: None,
            records_missed: None,
            gaps: None,
            report: session.finish(&self, &app::print_message),
        }
    }
}

fn shown_state(state: EngineState) -> PodState {
    match state {
        EngineState::Attached => PodState::Live,
        EngineState::Waiting => PodState::Waiting,
        EngineState::Ended => PodState::Ended,
    }
}

impl About for WatchedEngine {
    fn kind(&self) -> &str {
        self.engine.kind()
    }

    fn degraded(&self) -> Vec<String> {
        self.engine.degraded()
    }

    fn is_attached(&self) -> bool {
        self.engine.is_attached()
    }

    fn wire(&self) -> Option<Value> {
        self.engine.wire()
    }

    fn sampling(&self) -> Option<SamplingCost> {
        self.engine.sampling()
    }

    fn cost(&self) -> (Option<u64>, Option<u64>) {
        self.engine.cost()
    }
}

impl Source for WatchedEngine {
    fn poll(&mut self, session: &mut Session) -> Flow {
        let flow = LiveSource::poll(&mut self.engine, &mut |event| session.event(event));
        self.update_line(session.analysis());
        flow
    }

    fn stop(&mut self) {
        LiveSource::stop(&mut self.engine);
    }

    fn is_live(&self) -> bool {
        true
    }
}
