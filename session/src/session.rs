//! Pipeline of a run, live or recorded.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use outputs::report::{PairReport, Report};
use serde_json::Value;
use trace::engine::Engines;
use trace::{Analysis, Config, Event, MonoNs, ReportInput};

use crate::about::About;
use crate::observer::{NoObserver, Notice, Observer, Run, RunStage, ScreenCommand};
use crate::sink::{DumpRules, OutputStatus, Sink};
use crate::telemetry::Telemetry;

/// A run, live or recorded: every event and tick goes to the analysis, the outputs and the observer.
pub struct Session {
    analysis: Analysis,
    engines: Engines,
    chunk_history: usize,
    observer: Box<dyn Observer>,
    sink: Sink,
    telemetry: Telemetry,
    /// Features disabled during the run.
    degraded: Vec<String>,
    /// The analysis panicked, so its state may be inconsistent.
    has_failed: bool,
    notice: Notice,
    /// Number of slow requests that the report lists.
    slowest: usize,
    /// Input of the report, once the outputs are closed.
    final_input: Option<ReportInput>,
    has_served_final_state: bool,
}

impl Session {
    /// Creates a run without telemetry. `slowest` is the number of slow requests that its report lists.
    pub fn new(config: &Config, observer: Box<dyn Observer>, sink: Sink, slowest: usize) -> Self {
        Self {
            analysis: Analysis::new(*config),
            // These two are kept for `restart`, because the configuration in a recording lacks them.
            engines: config.engines,
            chunk_history: config.chunk_history,
            observer,
            sink,
            telemetry: Telemetry::default(),
            degraded: Vec::new(),
            has_failed: false,
            notice: Notice::default(),
            slowest,
            final_input: None,
            has_served_final_state: false,
        }
    }

    /// Adds telemetry to the run.
    #[must_use]
    pub fn with_telemetry(mut self, telemetry: Telemetry) -> Self {
        // The spans of a request are made from its timeline.
        if telemetry.pushes_requests() {
            self.analysis.keep_timelines();
        }
        Self { telemetry, ..self }
    }

    /// State of the analysis.
    pub fn analysis(&self) -> &Analysis {
        &self.analysis
    }

    /// Passes an event to the analysis, and then to all that show or write the run. Discards it if the analysis has crashed.
    pub fn process_event(&mut self, event: &Event<'_>) {
        if self.has_failed {
            return;
        }
        self.analysis.apply(event);
        // After the analysis, because telemetry reads its state.
        self.sink.write_event(event);
        self.telemetry.process_event(event, &self.analysis);
        self.observer.observe_event(event);
    }

    /// Processes a tick: lets the analysis look for findings as of `now`, writes the tick to the outputs, and shows their new messages.
    /// Discards the tick if the analysis has crashed.
    pub fn process_tick(&mut self, now: MonoNs, about: &dyn About) {
        if self.has_failed {
            return;
        }
        self.analysis.tick(now);
        let output_problems = self.output_problems();
        // Fields instead of `self`, because the outputs are borrowed beside the closure.
        let degraded = &self.degraded;
        let slowest = self.slowest;
        // Made only when an output needs it, which is rarer than ticks.
        let make_input = || report_input(about, all_degraded_lines(about, &output_problems, degraded), slowest);
        let find_engine = || about.engine();
        self.sink.write_tick(now, &self.analysis, &make_input);
        self.telemetry.process_tick(now, &self.analysis, &make_input, &find_engine);
        for message in [self.sink.take_message(), self.telemetry.take_message()].into_iter().flatten() {
            self.notify(message);
        }
        self.observer.observe_tick(&self.analysis);
    }

    /// Restarts the run with an empty state and the limits of `config`. Keeps the facts about engines and the length of the chunk history,
    /// because the configuration in a recording lacks them.
    pub fn restart(&mut self, config: Config) {
        let Self { engines, chunk_history, .. } = *self;
        self.analysis = Analysis::new(Config { engines, chunk_history, ..config });
        if self.telemetry.pushes_requests() {
            self.analysis.keep_timelines();
        }
        self.observer.observe_restart();
    }

    /// Whether the run is served, or its metrics are pushed.
    pub fn has_telemetry(&self) -> bool {
        self.telemetry.is_used()
    }

    /// Sets the pair whose decode server is the engine of this run; `None` if the engine is the decode server of no pair. The served report
    /// and the metrics show the pair until the next call, but only for a limited time.
    pub fn set_pair(&mut self, pair: Option<PairReport>) {
        self.telemetry.set_pair(pair);
    }

    /// Outputs of the run.
    pub fn sink(&mut self) -> &mut Sink {
        &mut self.sink
    }

    /// Closes the outputs of the run and returns messages about them.
    pub fn close_files(&mut self, input: &ReportInput) -> Vec<String> {
        self.sink.close_files(input)
    }

    /// Applies the flags that can change during a run.
    pub fn update_limits(&mut self, slowest: usize, rules: DumpRules) {
        self.slowest = slowest;
        self.sink.update_dump_rules(rules);
    }

    /// Shows a message to the observer.
    pub fn notify(&mut self, text: String) {
        self.notice = Notice { number: self.notice.number + 1, text };
    }

    /// Adds a line about a disabled feature to the report, unless the report already has it.
    pub fn add_degraded_line(&mut self, line: String) {
        if !self.degraded.contains(&line) {
            self.degraded.push(line);
        }
    }

    /// Disables the analysis after a panic, and removes the observer. Further events and ticks are discarded.
    pub(crate) fn disable_analysis(&mut self) {
        self.has_failed = true;
        self.remove_observer();
        self.add_degraded_line(
            "analysis crashed and was disabled; traffic is still relayed. Please report this bug.".into(),
        );
    }

    /// Returns whether the analysis was disabled after a panic.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Removes the observer, which restores the terminal.
    pub fn remove_observer(&mut self) {
        self.observer = Box::new(NoObserver);
    }

    /// Dumps the hindsight ring, which keeps the recent past on disk, into a recording. Shows the user a message about it. `reason` is the
    /// reason that the message names.
    pub(crate) fn dump_hindsight_ring(&mut self, reason: &str, about: &dyn About) {
        let input = self.report_input(about);
        let message = self.sink.dump_hindsight_ring(reason, &input);
        self.notify(message);
    }

    /// Answers the clients that ask for the state of the run, and lets the observer, such as a screen, draw it and read keys. Executes the
    /// user's commands about outputs, and returns any other command.
    pub fn show_run(&mut self, about: &dyn About, stage: RunStage) -> ScreenCommand {
        if self.has_failed {
            return ScreenCommand::None;
        }
        let output_problems = self.output_problems();
        // Fields instead of `self`, because the closures borrow some of them while others are changed.
        let Self { analysis, observer, sink, telemetry, degraded, notice, slowest, .. } = self;
        // Both are closures, because most calls need neither. They run only if a client asks for a report, or if the screen shows or
        // exports one.
        let list_degraded = || all_degraded_lines(about, &output_problems, degraded);
        let input = || report_input(about, list_degraded(), *slowest);
        telemetry.answer_requests(analysis, &input, about.is_attached());
        // A defect of the screen must not end the run.
        let command = catch_unwind(AssertUnwindSafe(|| {
            observer.show_run(&Run {
                analysis,
                about,
                stage,
                notice,
                writing: &|| OutputStatus { endpoint: telemetry.endpoint_status(), ..sink.output_status() },
                degraded: &list_degraded,
                report: &|| Report::of(analysis, &input()),
            })
        }));
        let command = self.command_or_remove_failed_observer(command);
        self.execute_output_command(command, about)
    }

    /// Executes a command about outputs, and returns any other one, which the run loop executes.
    fn execute_output_command(&mut self, command: ScreenCommand, about: &dyn About) -> ScreenCommand {
        match command {
            ScreenCommand::Record => {
                let input = self.report_input(about);
                let message = self.sink.toggle_recording_with_message(&self.analysis, &input);
                self.notify(message);
                ScreenCommand::Stay
            }
            ScreenCommand::Dump => {
                self.dump_hindsight_ring("requested on the screen", about);
                ScreenCommand::Stay
            }
            other => other,
        }
    }

    /// The command that the observer has given. An observer that failed (the inner `Err`) or panicked (the outer `Err`) gives none: it is
    /// removed, and reported as degraded.
    fn command_or_remove_failed_observer(
        &mut self,
        show_result: thread::Result<anyhow::Result<ScreenCommand>>,
    ) -> ScreenCommand {
        match show_result {
            Ok(Ok(command)) => command,
            // Without its terminal, the user could no longer end the run.
            Ok(Err(error)) => {
                self.remove_observer();
                self.add_degraded_line(format!("screen: {error:#}"));
                ScreenCommand::End
            }
            // A panic is a bug of the screen, which must not end the run.
            Err(_) => {
                self.remove_observer();
                self.add_degraded_line(
                    "screen crashed and was disabled; the run continues. Please report this bug.".into(),
                );
                ScreenCommand::None
            }
        }
    }

    /// Sleeps for `time`, or until the observer needs attention.
    pub fn sleep(&mut self, time: Duration) {
        self.observer.sleep(time);
    }

    /// Ends the run: closes the recording with the contents of the report, and queues the last spans and metrics to push. Does not wait, so
    /// that several runs all close their recordings before any of them waits. Passes messages about the outputs to `show_message`. A second
    /// call does nothing.
    pub fn close_outputs(&mut self, about: &dyn About, show_message: &dyn Fn(&str)) {
        if self.final_input.is_some() {
            return;
        }
        // Restores the terminal, on which the messages are shown.
        self.remove_observer();
        let input = self.report_input(about);
        for message in self.close_files(&input) {
            show_message(&message);
        }
        if self.telemetry.has_push() {
            let report = Report::of(&self.analysis, &input);
            self.telemetry.queue_last_pushes(&self.analysis, &report, &input);
        }
        self.final_input = Some(input);
    }

    /// Waits until the last spans and metrics are pushed, and serves the final state of the run to clients that ask for it. Closes the
    /// outputs first, unless [`Self::close_outputs`] was called, and passes messages about them to `show_message`. A second call does
    /// nothing.
    pub fn serve_final_state(&mut self, about: &dyn About, show_message: &dyn Fn(&str)) {
        self.close_outputs(about, show_message);
        if self.has_served_final_state {
            return;
        }
        // Always `Some`, because `close_outputs` sets it.
        let Some(input) = &mut self.final_input else { return };
        self.has_served_final_state = true;
        self.telemetry.close_push();
        // Lists the problems again, because closing the outputs may have failed since `final_input` was made.
        let mut output_problems = self.sink.problems();
        output_problems.extend(self.telemetry.problems());
        let degraded = all_degraded_lines(about, &output_problems, &self.degraded);
        input.degraded = degraded.into_iter().map(Value::from).collect();
        self.telemetry.serve_final_state(&self.analysis, input);
    }

    /// Ends the run and returns its final report. Waits until the clients of its stream have received the end. Passes messages about the
    /// outputs to `show_message`.
    pub fn finish(mut self, about: &dyn About, show_message: &dyn Fn(&str)) -> Report {
        self.serve_final_state(about, show_message);
        self.telemetry.wait_until_clients_received_end();
        // Closing the outputs has set the final input.
        let input = self.final_input.take().unwrap_or_else(|| self.report_input(about));
        Report::of(&self.analysis, &input)
    }

    /// Input of a report as of now, with the current problems of the outputs.
    fn report_input(&self, about: &dyn About) -> ReportInput {
        report_input(about, all_degraded_lines(about, &self.output_problems(), &self.degraded), self.slowest)
    }

    /// Problems of outputs and telemetry.
    fn output_problems(&self) -> Vec<String> {
        let mut problems = self.sink.problems();
        problems.extend(self.telemetry.problems());
        problems
    }
}

/// Problems that the report lists: first those of the source, then those of the outputs, then features that the session has disabled.
fn all_degraded_lines(about: &dyn About, output_problems: &[String], disabled_features: &[String]) -> Vec<String> {
    let mut all = about.degraded_lines();
    all.extend(output_problems.iter().cloned());
    all.extend(disabled_features.iter().cloned());
    all
}

/// Input of a report that lists the problems `degraded_lines`, and the `slowest_count` slowest requests.
fn report_input(about: &dyn About, degraded_lines: Vec<String>, slowest_count: usize) -> ReportInput {
    let own_usage = about.own_usage();
    ReportInput {
        wall: about.wall(),
        slowest: slowest_count,
        cpu_ns: own_usage.cpu_ns,
        rss_bytes: own_usage.rss_bytes,
        degraded: degraded_lines.into_iter().map(Value::from).collect(),
        wire: about.wire_json(),
        sampling: about.stack_sampling_cost(),
        demo: about.demo_truth_json(),
        ..ReportInput::for_source(about.kind())
    }
}
