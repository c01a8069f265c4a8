//! The analysis behind every source and sink: events in, ledger state and findings out.

use serde::{Deserialize, Serialize};

use crate::clock::MonoNs;
use crate::detect::attribution::Attribution;
use crate::detect::{DetectContext, Finding, Findings};
use crate::engine::Engines;
use crate::event::Event;
use crate::fault;
use crate::ledger::{Ledger, Limits};
use crate::time_series::TimeSeries;

/// Interval between detector runs. Ticks in between only age records.
const CHECK_EVERY_NS: u64 = 500_000_000;

/// Memory limits and the known engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Limits of memory and of retention time.
    pub limits: Limits,
    /// Facts about engines; not serialized.
    #[serde(skip)]
    pub engines: Engines,
    /// Number of recent events of chunks kept for [`Ledger::history`], 48 bytes each; not serialized.
    #[serde(skip)]
    pub chunk_history: usize,
}

/// State of a run.
#[derive(Debug)]
pub struct Analysis {
    ledger: Ledger,
    time_series: TimeSeries,
    findings: Findings,
    checked_at: Option<MonoNs>,
}

impl Analysis {
    /// Creates an empty analysis.
    pub fn new(config: Config) -> Self {
        let Config { limits, engines, chunk_history } = config;
        Self {
            ledger: Ledger::new(limits).with_engines(engines).with_history(chunk_history),
            time_series: TimeSeries::new(limits.series_slots, limits.recent_seconds),
            findings: Findings::default(),
            checked_at: None,
        }
    }

    /// Keeps the timeline of each request until it is closed ([`Ledger::closed_requests`]), for exports. Called before the first event.
    pub fn keep_timelines(&mut self) {
        self.ledger.keep_timelines();
    }

    /// Applies an event to the ledger, and counts it in its slot, which is a second of the time series. This is the hot path: a chunk of a
    /// known request allocates nothing.
    pub fn apply(&mut self, event: &Event<'_>) {
        // Does nothing except in tests of faults.
        fault::inject_at("ledger");
        // Ends the current slot first if the event is after its end, so that the event counts in its own slot.
        self.time_series.advance_to(event.at, &mut self.ledger);
        let is_late = self.time_series.prepare_if_event_is_late(event.at, &self.ledger);
        self.ledger.apply(event);
        // A late event belongs to a slot that is over, but the ledger has counted it in the current one.
        if is_late {
            self.time_series.move_counts_of_late_event(event.at, &self.ledger);
        }
    }

    /// Advances time to `now` and removes records that are too old. Runs the detectors every half second. Called about every 100 ms.
    pub fn tick(&mut self, now: MonoNs) {
        self.time_series.advance_to(now, &mut self.ledger);
        self.ledger.tick(now);
        if self.checked_at.is_none_or(|at| now.since(at) >= CHECK_EVERY_NS) {
            self.checked_at = Some(now);
            // Does nothing except in tests of faults.
            fault::inject_at("detectors");
            self.findings.run_detectors(&DetectContext::new(&self.ledger, now));
        }
    }

    /// State derived from the events so far.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Findings so far, worst first.
    pub fn findings(&self) -> Vec<&Finding> {
        self.findings.sorted_worst_first()
    }

    /// Attribution of the time of chunks and first tokens so far.
    pub fn attribution(&self) -> Attribution<'_> {
        Attribution::of_token_time(&self.ledger)
    }

    /// Time series of the run so far.
    pub fn time_series(&self) -> &TimeSeries {
        &self.time_series
    }

    /// Runs the detectors on a copy of the findings and returns it. [`Self::findings`] returns those of the last detector run, up to half a
    /// second old, which would disagree with the ledger's current numbers.
    pub fn findings_now(&self) -> Findings {
        let mut findings = self.findings.clone();
        findings.run_detectors(&DetectContext::new(&self.ledger, self.ledger.now()));
        findings
    }
}
