//! The engine of every source and sink: events in, state and judgement out.

use serde::{Deserialize, Serialize};

use crate::clock::MonoNs;
use crate::course::Course;
use crate::detect::attribution::Attribution;
use crate::detect::{Finding, Findings, Look, Thresholds};
use crate::event::Event;
use crate::fault;
use crate::ledger::{Ledger, Limits};
use crate::metrics;
use crate::report::{self, Report, ReportInput};

/// Detectors look this often; between looks only records age.
const LOOK_EVERY_NS: u64 = 500_000_000;

/// How much to remember and what to find too much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Bounds of memory and patience.
    pub limits: Limits,
    /// What counts as too much.
    pub thresholds: Thresholds,
}

/// A run under observation. Its serialized form is an image: who takes one over and enters the same events from then on, in the
/// same version of this crate, comes to the same report. It has to be checked with [`Self::is_sound`] when it comes from elsewhere.
#[derive(Debug, Serialize, Deserialize)]
pub struct Analysis {
    thresholds: Thresholds,
    ledger: Ledger,
    course: Course,
    findings: Findings,
    looked: Option<MonoNs>,
}

impl Analysis {
    /// Nothing seen yet.
    pub fn new(config: Config) -> Self {
        let Config { limits, thresholds } = config;
        Self {
            thresholds,
            ledger: Ledger::new(limits).slow_from(thresholds.gap_warning_ns),
            course: Course::new(limits.series_slots),
            findings: Findings::default(),
            looked: None,
        }
    }

    /// Enters an event. The hot path: nothing is allocated for a chunk of a known request.
    pub fn apply(&mut self, event: &Event<'_>) {
        fault::here("ledger");
        self.course.at(event.at, &mut self.ledger);
        self.ledger.apply(event);
    }

    /// Lets time pass: records age, detectors look. Called about every 100 ms.
    pub fn tick(&mut self, now: MonoNs) {
        self.course.at(now, &mut self.ledger);
        self.ledger.tick(now);
        if self.looked.is_none_or(|at| now.since(at) >= LOOK_EVERY_NS) {
            self.looked = Some(now);
            fault::here("detectors");
            self.findings.look(&Look::at(&self.ledger, &self.thresholds, now));
        }
    }

    /// Whether an image is one that a run makes, as far as going on from it depends on that.
    pub fn is_sound(&self) -> bool {
        self.ledger.is_sound() && self.course.is_sound()
    }

    /// Holds no more than `most` allows from now on; whether it was allowed more before.
    pub fn keep_within(&mut self, most: Limits) -> bool {
        self.ledger.keep_within(most)
    }

    /// What has been seen so far.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// How the run went, slot by slot.
    pub fn course(&self) -> &Course {
        &self.course
    }

    /// What counts as too much.
    pub fn thresholds(&self) -> &Thresholds {
        &self.thresholds
    }

    /// What has been found so far, worst first.
    pub fn findings(&self) -> Vec<&Finding> {
        self.findings.sorted()
    }

    /// Where the time of chunks and first tokens has gone so far.
    pub fn attribution(&self) -> Attribution<'_> {
        Attribution::of(&self.ledger, &self.thresholds)
    }

    /// The same, as the report carries it.
    pub fn path(&self) -> Vec<report::LegLine> {
        report::legs(&self.attribution())
    }

    /// The report of what has been seen and found so far, after a last look.
    pub fn report(&self, input: &ReportInput) -> Report {
        report::build(&self.ledger, &self.course, &self.findings_now(), self.path(), input)
    }

    /// The same as metrics.
    pub fn metrics(&self, input: &metrics::Input<'_>) -> Vec<metrics::Family> {
        metrics::collect(&self.ledger, &self.findings_now(), &self.attribution(), input)
    }

    /// What is found at this instant. [`Self::findings`] are those of the last look, half a second ago at most: beside numbers
    /// of the ledger they would differ from them.
    pub fn findings_now(&self) -> Findings {
        let mut findings = self.findings.clone();
        findings.look(&Look::at(&self.ledger, &self.thresholds, self.ledger.now()));
        findings
    }
}
