//! What every event and every tick of a run passes, live or recorded: the analysis, what is written of it, who looks on.

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

/// A run.
pub(crate) struct Drive {
    pub(crate) analysis: Analysis,
    config: Config,
    observer: Box<dyn Observer>,
    sink: Sink,
    telemetry: Telemetry,
    /// What was given up on the way.
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

    /// Tells other systems of it, too.
    pub(crate) fn telling(self, telemetry: Telemetry) -> Self {
        Self { telemetry, ..self }
    }

    /// Enters an event.
    pub(crate) fn event(&mut self, event: &Event<'_>) {
        self.analysis.apply(event);
        self.sink.event(event);
        self.telemetry.event(event, &self.analysis);
        self.observer.event(event);
    }

    /// Lets time pass.
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

    /// Begins again: what was entered is forgotten.
    pub(crate) fn anew(&mut self) {
        self.analysis = Analysis::new(self.config);
        self.observer.anew();
    }

    /// Goes on from a state that was made elsewhere; `missed` records lie between it and what was entered last.
    pub(crate) fn take_over(&mut self, analysis: Analysis, missed: u64) {
        self.analysis = analysis;
        self.sink.go_on(&self.analysis, missed);
    }

    /// What is written of the run.
    pub(crate) fn sink(&mut self) -> &mut Sink {
        &mut self.sink
    }

    /// What was given up is told anew, as it is now.
    pub(crate) fn set_config(&mut self, config: Config) {
        self.config = config;
    }

    /// Closes what is written of the run; what there is to say of it.
    pub(crate) fn close(&mut self, input: &ReportInput) -> Vec<String> {
        self.sink.finish(&self.analysis, input)
    }

    /// Takes what can change under way from new flags.
    pub(crate) fn retune(&mut self, args: &LiveArgs) {
        self.slowest = args.slowest;
        self.sink.retune(&args.record);
    }

    /// Says something to who looks on.
    pub(crate) fn say(&mut self, text: String) {
        self.notice = (self.notice.0 + 1, text);
    }

    /// Notes what was given up; it stands in the report.
    pub(crate) fn give_up(&mut self, what: String) {
        self.degraded.push(what);
    }

    /// Nobody looks on any more: the terminal, if there was one, is itself again.
    pub(crate) fn dismiss(&mut self) {
        self.observer = Box::new(Nobody);
    }

    /// Writes the hindsight ring out.
    pub(crate) fn dump(&mut self, why: &str, about: &dyn About) {
        let input = self.input(about);
        let said = self.sink.dump(why, &input);
        self.say(said);
    }

    /// Lets the observer look; what it wishes of the writing is done here, the rest is given back.
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

    /// Sleeps so long, or until who looks on has something to do.
    pub(crate) fn rest(&mut self, time: Duration) {
        self.observer.rest(time);
    }

    /// Ends the run: the recording is closed with what the report says.
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

    /// What went wrong with writing and telling.
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
