//! Results by release.

use std::collections::BTreeMap;
use std::fmt;

use super::judge::{Response, Verdict};

/// Rows in their order.
#[derive(Debug, Default)]
pub(super) struct Table(Vec<(String, Row)>);

#[derive(Debug, Default)]
pub(super) struct Row {
    responses: u64,
    tokens: u64,
    equal: u64,
    equal_calls: u64,
    unjudged: BTreeMap<&'static str, u64>,
    /// Responses whose parser changed the arguments, by parser.
    changed: BTreeMap<String, u64>,
    /// Findings that no response deserves.
    accused: BTreeMap<&'static str, u64>,
}

impl Table {
    pub(super) fn row(&mut self, release: String) -> &mut Row {
        self.0.push((release, Row::default()));
        &mut self.0.last_mut().expect("a row was added").1
    }

    /// Number of wrong findings.
    pub(super) fn accused(&self) -> u64 {
        self.0.iter().flat_map(|(_, row)| row.accused.values()).sum()
    }
}

impl Row {
    pub(super) fn enter(&mut self, response: &Response, verdicts: Vec<Verdict>) {
        self.responses += 1;
        self.tokens += response.tokens();
        for verdict in verdicts {
            match verdict {
                Verdict::Equal => self.equal += 1,
                Verdict::EqualCalls => self.equal_calls += 1,
                Verdict::Unjudged(why) => *self.unjudged.entry(why).or_default() += 1,
                Verdict::Changed => *self.changed.entry(response.parser().to_owned()).or_default() += 1,
                Verdict::Accused(kind) => *self.accused.entry(kind).or_default() += 1,
            }
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| release | responses | tokens | text equal | calls equal | unjudged | changed by its parser | accused |"
        )?;
        writeln!(f, "|---|--:|--:|--:|--:|--:|--:|--:|")?;
        let sum = |counts: &BTreeMap<&'static str, u64>| counts.values().sum::<u64>();
        for (release, row) in &self.0 {
            writeln!(
                f,
                "| {release} | {} | {} | {} | {} | {} | {} | {} |",
                row.responses,
                row.tokens,
                row.equal,
                row.equal_calls,
                sum(&row.unjudged),
                row.changed.values().sum::<u64>(),
                sum(&row.accused),
            )?;
        }
        for (release, row) in &self.0 {
            writeln!(
                f,
                "\n{release}: unjudged {:?}; changed by {:?}; accused {:?}",
                row.unjudged, row.changed, row.accused
            )?;
        }
        Ok(())
    }
}
