//! The run of one engine, with its line in the screen's list of runs.

use std::time::{Duration, Instant};

use outputs::report::RunReport;
use serde_json::Value;
use session::{About, EngineIdentity, Flow, LiveSource, OwnUsage, Session, Source};
use sources::attach::{EngineRun, EngineState};
use trace::{Analysis, MonoNs, SamplingCost};
use tui::RunView;
use tui::pods::{KeyFigures, PodLine, PodState};

use crate::app;

/// Interval of updates of the run list.
const UPDATE_INTERVAL: Duration = Duration::from_millis(500);

/// An engine on a screen that may show several.
pub(super) struct WatchedEngine {
    engine: EngineRun,
    screen: Option<RunView>,
    state: PodState,
    state_since: Instant,
    next_update: Instant,
}

impl WatchedEngine {
    pub(super) fn new(engine: EngineRun, screen: Option<RunView>) -> Self {
        let now = Instant::now();
        Self { engine, screen, state: PodState::default(), state_since: now, next_update: now }
    }

    /// The run's line in the list of runs, as of `now`.
    fn run_list_line_at(&self, now: Instant, analysis: &Analysis) -> PodLine {
        let missed = analysis.ledger().totals().missed;
        PodLine {
            name: self.engine.name(),
            role: self.role(),
            port: self.engine.port(),
            model: self.engine.model().unwrap_or_default().to_owned(),
            state: self.state,
            state_age_ns: (now - self.state_since).as_nanos() as u64,
            reason: self.engine.reason_no_engine_is_watched().unwrap_or_default(),
            records_missed: missed.reported() + missed.unannounced,
            // Unlike a remote run, this one has all its records.
            begun_wall_ns: None,
            figures: KeyFigures::from_analysis(analysis),
        }
    }

    /// Updates the run's line in the list of runs on the screen (its `PodLine`), at most once per interval. Does nothing without a screen
    /// or a list.
    fn update_run_list_line(&mut self, analysis: &Analysis) {
        let now = Instant::now();
        let Some(RunView { screen, run_index }) = &self.screen else { return };
        if now < self.next_update {
            return;
        }
        self.next_update = now + UPDATE_INTERVAL;
        // Without a list, nothing would show the figures, which are not free.
        if !screen.borrow().has_run_list() {
            return;
        }
        let state = run_state_of_engine(self.engine.engine_state());
        if state != self.state {
            self.state = state;
            self.state_since = now;
        }
        let line = self.run_list_line_at(now, analysis);
        let mut screen = screen.borrow_mut();
        screen.set_pod_line(*run_index, line);
        screen.set_run_list_note(self.engine.describe_unwatched_engines());
    }

    /// Role of the engine among others; empty while it is not watched, because its settings are not known.
    fn role(&self) -> &'static str {
        match self.engine.side() {
            Some(side) => side,
            None if self.engine.is_attached() => "single",
            None => "",
        }
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

    /// Reason why nothing could be observed; `None` without one.
    pub(super) fn failure(&self) -> Option<String> {
        self.engine.failure()
    }

    /// Closes the outputs of the run. Waits for nothing.
    pub(super) fn close_outputs(&self, session: &mut Session) {
        session.close_outputs(self, &app::print_message);
    }

    /// Waits for the pushes of the run, and serves its final state.
    pub(super) fn serve_final_state(&self, session: &mut Session) {
        session.serve_final_state(self, &app::print_message);
    }

    /// Finishes the run and returns its report.
    pub(super) fn finish(self, session: Session) -> RunReport {
        RunReport {
            name: self.engine.name(),
            endpoint: None,
            side: self.engine.side(),
            port: self.engine.port(),
            model: self.engine.model().map(str::to_owned),
            state: self.engine.engine_state().word().to_owned(),
            // These are of runs that `tokengap watch` shows.
            records_before: None,
            records_missed: None,
            gaps: None,
            report: session.finish(&self, &app::print_message),
        }
    }
}

/// State of the engine as the list of runs shows it.
fn run_state_of_engine(state: EngineState) -> PodState {
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

    fn degraded_lines(&self) -> Vec<String> {
        self.engine.degraded_lines()
    }

    fn is_attached(&self) -> bool {
        self.engine.is_attached()
    }

    fn engine(&self) -> Option<EngineIdentity> {
        self.engine.engine()
    }

    fn observed_until(&self) -> MonoNs {
        self.engine.observed_until()
    }

    fn wire_json(&self) -> Option<Value> {
        self.engine.wire_json()
    }

    fn stack_sampling_cost(&self) -> Option<SamplingCost> {
        self.engine.stack_sampling_cost()
    }

    fn own_usage(&self) -> OwnUsage {
        self.engine.own_usage()
    }
}

impl Source for WatchedEngine {
    /// Passes new events of the engine to the session, and updates its line in the list of runs.
    fn poll(&mut self, session: &mut Session) -> Flow {
        let flow = LiveSource::poll(&mut self.engine, &mut |event| session.process_event(event));
        self.update_run_list_line(session.analysis());
        flow
    }

    fn stop(&mut self) {
        LiveSource::stop(&mut self.engine);
    }

    fn is_live(&self) -> bool {
        true
    }
}
