//! The table of results, printed as rows finish.
//!
//! Rows that check timing run alone on the machine. Rows that check counts need one core and run concurrently in their own processes
//! ([`super::beside`]). The functions that define the rows are therefore called in more than one [`Pass`].

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::Options;
use super::check::Checks;
use super::plan::Engine;

/// Resources that a row needs for valid results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// One core: checks counts, which do not depend on load.
    Core,
    /// The whole machine: checks timing, or inspects all processes.
    Machine,
}

/// Action for the rows in a pass over all of them.
#[derive(Debug)]
pub(super) enum Pass {
    /// Collect rows that need one core.
    Note(Vec<Place>),
    /// Run only this row, without printing.
    One(String, Option<Row>),
    /// Run all rows except these, which have run already.
    Rest(BTreeSet<String>),
}

/// Position of a row in the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) group: String,
    pub(super) engine: String,
    pub(super) name: String,
}

impl Place {
    /// Text that `--only` matches.
    pub(super) fn full(&self) -> String {
        format!("{} {}", self.engine, self.name)
    }
}

/// A finished row.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) place: Place,
    pub(super) took: Duration,
    /// Number of comparisons made.
    pub(super) made: u32,
    pub(super) mismatches: Vec<String>,
    /// The engine's summary, or the error that ended the run.
    pub(super) told: Result<String, String>,
    /// Lines of the table of scores.
    pub(super) scores: Vec<String>,
}

impl Row {
    fn is_good(&self) -> bool {
        self.wrong().next().is_none()
    }

    /// Mismatches, and the error that ended the run.
    fn wrong(&self) -> impl Iterator<Item = &String> {
        self.mismatches.iter().chain(self.told.as_ref().err())
    }
}

/// The table.
#[derive(Debug)]
pub(super) struct Table {
    pass: Pass,
    needs: Needs,
    started: Instant,
    failed: u32,
    passed: u32,
    skipped: u32,
    comparisons: u32,
    /// Rows whose first attempt failed, while they may be repeated.
    repeated: Vec<String>,
    /// Whether this is the second attempt.
    last_attempt: bool,
    /// Prediction scores, one line per run.
    scores: Vec<String>,
    /// Groups with their total time; new rows belong to the last one.
    groups: Vec<(String, Duration)>,
}

impl Table {
    pub(super) fn new(pass: Pass) -> Self {
        Self {
            pass,
            needs: Needs::Machine,
            started: Instant::now(),
            failed: 0,
            passed: 0,
            skipped: 0,
            comparisons: 0,
            repeated: Vec::new(),
            last_attempt: false,
            scores: Vec::new(),
            groups: Vec::new(),
        }
    }

    pub(super) fn head() {
        println!(
            "{:<16} {:<25} {:>6}  {:<6} what the engine says",
            "release", "scenario", "time", "checks"
        );
    }

    /// Starts a group of rows, whose total time is printed at the end.
    pub(super) fn group(&mut self, name: &str, needs: Needs) {
        self.sum(name);
        self.needs = needs;
    }

    /// Sets the needs of the group's following rows.
    pub(super) fn needs(&mut self, needs: Needs) {
        self.needs = needs;
    }

    /// Returns the group's total time, and makes the group the last one.
    fn sum(&mut self, name: &str) -> &mut Duration {
        let at = self.groups.iter().position(|(known, _)| known == name);
        let group = at.map_or_else(|| (name.to_owned(), Duration::ZERO), |at| self.groups.remove(at));
        &mut self.groups.push_mut(group).1
    }

    /// Runs one scenario in its own folder, if this pass includes it.
    pub(super) fn row(
        &mut self,
        options: &Options,
        engine: &Engine,
        name: &str,
        scenario: impl FnOnce(&mut Checks, &Path) -> Result<String>,
    ) {
        if !self.wants(options, engine, name) {
            return;
        }
        let place = Place {
            group: self.groups.last().map(|(group, _)| group.clone()).unwrap_or_default(),
            engine: engine.name(),
            name: name.to_owned(),
        };
        if let Pass::Note(places) = &mut self.pass {
            if self.needs == Needs::Core {
                places.push(place);
            }
            return;
        }
        let started = Instant::now();
        let mut checks = Checks::default();
        let told = tempfile::tempdir()
            .context("making a folder")
            .and_then(|dir| scenario(&mut checks, dir.path()));
        let row = Row {
            place,
            took: started.elapsed(),
            made: checks.made,
            mismatches: checks.mismatches.iter().map(ToString::to_string).collect(),
            told: told.map_err(|error| format!("{error:#}")),
            scores: Vec::new(),
        };
        match &mut self.pass {
            Pass::One(_, kept) => *kept = Some(row),
            Pass::Note(_) | Pass::Rest(_) => self.ran(row),
        }
    }

    /// Adds a row that ran concurrently. A failed row is printed and runs again alone; the second result counts.
    pub(super) fn ran_beside(&mut self, row: Row) {
        if row.is_good() {
            return self.ran(row);
        }
        println!(
            "{:<16} {:<25} not well beside others, so again:",
            row.place.engine, row.place.name
        );
        row.wrong().for_each(|line| println!("    {line}"));
    }

    /// Starts the second attempt of rows that failed, if any did.
    pub(super) fn repeat(&mut self) -> bool {
        self.last_attempt = true;
        if !self.repeated.is_empty() {
            println!("\nSecond attempt at what failed:");
        }
        !self.repeated.is_empty()
    }

    /// Prints a finished row, followed by its mismatches. A row that fails for the first time runs again after all others: their
    /// processes may take the CPU that its times depend on. The second result counts, and the summary names the row.
    fn ran(&mut self, row: Row) {
        let good = row.is_good();
        let repeat = !good && !self.last_attempt;
        let verdict = format!("{}{}", row.made, if good { " ok" } else { " FAIL" });
        let told = row.told.as_ref().map_or("did not run to its end", String::as_str);
        let Place { group, engine, name } = &row.place;
        println!(
            "{engine:<16} {name:<25} {:>5.1}s  {verdict:<6} {told}",
            row.took.as_secs_f64()
        );
        row.wrong().for_each(|line| println!("    {line}"));
        *self.sum(group) += row.took;
        if repeat {
            return self.repeated.push(row.place.full());
        }
        self.comparisons += row.made;
        self.scores.extend(row.scores);
        *(if good { &mut self.passed } else { &mut self.failed }) += 1;
        if let Pass::Rest(done) = &mut self.pass {
            done.insert(row.place.full());
        }
    }

    /// Adds a line to the table of scores for the previous row.
    pub(super) fn score(&mut self, line: String) {
        match &mut self.pass {
            Pass::One(_, Some(row)) => row.scores.push(line),
            _ => self.scores.push(line),
        }
    }

    /// Whether a scenario is selected by the options and belongs to this pass.
    pub(super) fn wants(&self, options: &Options, engine: &Engine, name: &str) -> bool {
        let full = format!("{} {name}", engine.name());
        let asked = options.only.as_ref().is_none_or(|text| full.contains(text.as_str()));
        asked
            && match &self.pass {
                Pass::Note(_) => true,
                Pass::One(one, _) => *one == full,
                Pass::Rest(done) => !done.contains(&full),
            }
    }

    /// Prints that a scenario cannot run here.
    pub(super) fn skip(&mut self, options: &Options, engine: &Engine, name: &str, why: &str) {
        let wanted = self.wants(options, engine, name);
        if let Pass::Rest(done) = &mut self.pass
            && wanted
        {
            println!("{:<16} {name:<25} SKIPPED: {why}", engine.name());
            self.skipped += 1;
            done.insert(format!("{} {name}", engine.name()));
        }
    }

    /// The collected rows of [`Pass::Note`].
    pub(super) fn noted(self) -> Vec<Place> {
        match self.pass {
            Pass::Note(places) => places,
            Pass::One(..) | Pass::Rest(_) => Vec::new(),
        }
    }

    /// The row of [`Pass::One`].
    pub(super) fn one(self) -> Option<Row> {
        match self.pass {
            Pass::One(_, row) => row,
            Pass::Note(_) | Pass::Rest(_) => None,
        }
    }

    pub(super) fn end(&self) -> Result<()> {
        if !self.scores.is_empty() {
            println!("\nPredicted drops against what clients miss:");
            println!(
                "| release | consumer | tokens lost | predicted | precision, requests | recall | precision, tokens | recall | right places |"
            );
            println!("|---|---|--:|--:|--:|--:|--:|--:|--:|");
            self.scores.iter().for_each(|line| println!("{line}"));
            println!();
        }
        let sums = self.groups.iter().filter(|(_, sum)| !sum.is_zero());
        let sums: Vec<_> = sums
            .map(|(name, sum)| format!("{name} {:.0} s", sum.as_secs_f64()))
            .collect();
        let all = self.started.elapsed().as_secs_f64();
        println!("time: {}; all of it {all:.0} s", sums.join(", "));
        println!(
            "{} scenarios passed, {} failed, {} SKIPPED; {} comparisons",
            self.passed, self.failed, self.skipped, self.comparisons
        );
        if !self.repeated.is_empty() {
            println!("failed at the first attempt: {}", self.repeated.join("; "));
        }
        ensure!(
            self.passed + self.failed + self.skipped > 0,
            "no scenario has that name"
        );
        ensure!(self.failed == 0, "the report and the engine differ");
        Ok(())
    }
}
