//! Pipeline of a run, live or recorded: every event and tick goes to the analysis, the outputs and the observer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use serde_json::Value;
use trace::report::{Report, ReportInput};
use trace::{Analysis, Config, Event, MonoNs};

use crate::about::About;
use crate::cli::LiveArgs;
use crate::observer::{Nobody, Observer, Run, Stage, Wish};
use crate::replay::Position;
use crate::sink::Sink;
use crate::telemetry::Telemetry;

pub(crate) struct Drive {
    pub(crate) analysis: Analysis,
    config: Config,
    observer: Box<dyn Observer>,
    sink: Sink,
    telemetry: Telemetry,
    /// Features given up during the run.
    degraded: Vec<String>,
    notice: (u64, String),
    slowest: usize,
}

impl Drive {
    pub(crate) fn new(config: &Config, observer: Box<dyn Observer>, sink: Sink, slowest: usize) -> Self {
        Self {
            analysis: Analysis::new(*config),
            config: *config,
            observer,
            sink,
            telemetry: Telemetry::default(),
            degraded: Vec::new(),
            notice: (0, String::new()),
            slowest,
        }
    }

    /// Adds telemetry to the run.
    pub(crate) fn telling(self, telemetry: Telemetry) -> Self {
        Self { telemetry, ..self }
    }

    /// Processes an event.
    pub(crate) fn event(&mut self, event: &Event<'_>) {
        self.analysis.apply(event);
        self.sink.event(event);
        self.telemetry.event(event, &self.analysis);
        self.observer.event(event);
    }

    /// Processes a tick.
    pub(crate) fn tick(&mut self, now: MonoNs, about: &dyn About) {
        self.analysis.tick(now);
        let trouble = self.trouble();
        let (degraded, slowest) = (&self.degraded, self.slowest);
        let input = || input(about, all_degraded(about, &trouble, degraded), slowest);
        self.sink.tick(now, &self.analysis, &input);
        self.telemetry.tick(now, &self.analysis, &input);
        for said in [self.sink.news(), self.telemetry.news()].into_iter().flatten() {
            self.say(said);
        }
        self.observer.tick(&self.analysis);
    }

    /// Restarts the run with an empty state.
    pub(crate) fn anew(&mut self) {
        self.analysis = Analysis::new(self.config);
        self.observer.anew();
    }

    /// Continues from a state received from elsewhere. `missed` records lie between it and the last processed one.
    pub(crate) fn take_over(&mut self, analysis: Analysis, missed: u64) {
        self.analysis = analysis;
        self.sink.go_on(&self.analysis, missed);
    }

    /// Outputs of the run.
    pub(crate) fn sink(&mut self) -> &mut Sink {
        &mut self.sink
    }

    /// Sets the configuration to use after the next restart of the analysis.
    pub(crate) fn set_config(&mut self, config: Config) {
        self.config = config;
    }

    /// Closes the outputs of the run and returns messages about them.
    pub(crate) fn close(&mut self, input: &ReportInput) -> Vec<String> {
        self.sink.finish(&self.analysis, input)
    }

    /// Applies the flags that can change during a run.
    pub(crate) fn retune(&mut self, args: &LiveArgs) {
        self.slowest = args.slowest;
        self.sink.retune(&args.record);
    }

    /// Shows a message to the observer.
    pub(crate) fn say(&mut self, text: String) {
        self.notice = (self.notice.0 + 1, text);
    }

    /// Records in the report that a feature was given up.
    pub(crate) fn give_up(&mut self, what: String) {
        self.degraded.push(what);
    }

    /// Removes the observer, which restores the terminal.
    pub(crate) fn dismiss(&mut self) {
        self.observer = Box::new(Nobody);
    }

    /// Dumps the hindsight ring.
    pub(crate) fn dump(&mut self, why: &str, about: &dyn About) {
        let input = self.input(about);
        let said = self.sink.dump(why, &input);
        self.say(said);
    }

    /// Runs the observer. Handles requests about outputs and returns any other request.
    pub(crate) fn turn(&mut self, about: &dyn About, stage: Stage, position: Option<&Position>) -> Wish {
        let Self {
            analysis,
            observer,
            sink,
            telemetry,
            degraded,
            notice,
            slowest,
            ..
        } = self;
        let mut trouble = sink.trouble();
        trouble.extend(telemetry.trouble());
        let all = || all_degraded(about, &trouble, degraded);
        telemetry.turn(analysis, &|| input(about, all(), *slowest));
        let wish = catch_unwind(AssertUnwindSafe(|| {
            observer.turn(&Run {
                analysis,
                source: about.kind(),
                stage,
                position,
                file: about.file(),
                wall: about.wall(),
                notice: (notice.0, &notice.1),
                writing: &|| sink.writing(),
                degraded: &all,
                under_way: &|| about.under_way(),
                report: &|| analysis.report(&input(about, all(), *slowest)),
            })
        }));
        match wish {
            Ok(Ok(Wish::Record)) => {
                let input = self.input(about);
                let said = self.sink.toggle(&self.analysis, &input);
                self.say(said);
                Wish::Stay
            }
            Ok(Ok(Wish::Dump)) => {
                self.dump("asked for on the screen", about);
                Wish::Stay
            }
            Ok(Ok(wish)) => wish,
            Ok(Err(error)) => {
                self.dismiss();
                self.give_up(format!("screen: {error:#}"));
                Wish::End
            }
            Err(_) => {
                self.dismiss();
                self.give_up("screen: it failed and was left off; the run went on (this is a bug)".into());
                Wish::None
            }
        }
    }

    /// Sleeps for `time`, or until the observer needs attention.
    pub(crate) fn rest(&mut self, time: Duration) {
        self.observer.rest(time);
    }

    /// Ends the run and closes the recording with the contents of the report.
    pub(crate) fn finish(mut self, about: &dyn About) -> Report {
        self.dismiss();
        let input = self.input(about);
        for said in self.close(&input) {
            errln!("tokengap: {said}");
        }
        if self.telemetry.pushes() {
            let report = self.analysis.report(&input);
            self.telemetry.conclude(&self.analysis, &report, &input);
        }
        let degraded = all_degraded(about, &self.trouble(), &self.degraded);
        let input = ReportInput {
            degraded: degraded.into_iter().map(Value::from).collect(),
            ..input
        };
        self.telemetry.finish(&self.analysis, &input);
        self.analysis.report(&input)
    }

    fn input(&self, about: &dyn About) -> ReportInput {
        input(
            about,
            all_degraded(about, &self.trouble(), &self.degraded),
            self.slowest,
        )
    }

    /// Problems of outputs and telemetry.
    fn trouble(&self) -> Vec<String> {
        let mut trouble = self.sink.trouble();
        trouble.extend(self.telemetry.trouble());
        trouble
    }
}

fn all_degraded(about: &dyn About, trouble: &[String], degraded: &[String]) -> Vec<String> {
    let mut all = about.degraded();
    all.extend(trouble.iter().cloned());
    all.extend(degraded.iter().cloned());
    all
}

fn input(about: &dyn About, degraded: Vec<String>, slowest: usize) -> ReportInput {
    let (cpu_ns, rss_bytes) = about.cost();
    ReportInput {
        wall: about.wall(),
        slowest,
        cpu_ns,
        rss_bytes,
        degraded: degraded.into_iter().map(Value::from).collect(),
        wire: about.wire(),
        sampling: about.sampling(),
        demo: about.truth(),
        ..ReportInput::of(about.kind())
    }
}
