//! Reports of several runs in one document: those of the engines of a machine, or of watched pods.

use serde::Serialize;
use trace::detect::order::FindingRank;
use trace::words::{count, duration, known_or_dash, percent};

use super::hostile::escape_and_cut_line as escape_line;
use super::{Report, TtftGroupLine};

/// Schema name of the document.
const SCHEMA: &str = "tokengap.watch/2";

/// Report of one of several runs.
#[derive(Debug, Serialize)]
pub struct RunReport {
    /// Name of the engine, or of the pod.
    pub name: String,
    /// Address of a watched run; `null` for an engine of this machine.
    pub endpoint: Option<String>,
    /// Side of a pair of servers: `prefill` or `decode`.
    pub side: Option<&'static str>,
    /// Port of the engine's HTTP server; `null` if unknown, also to the source of a watched run.
    pub port: Option<u16>,
    /// Name of its model, as the port.
    pub model: Option<String>,
    /// State of the connection or engine.
    pub state: String,
    /// Records of a watched run before the first received one; `null` if nothing was received.
    pub records_before: Option<u64>,
    /// Missed records of a watched run, and the number of gaps they form.
    pub records_missed: Option<u64>,
    /// Number of gaps that the missed records form.
    pub gaps: Option<u64>,
    /// Its report.
    pub report: Report,
}

impl RunReport {
    /// Times to first token of most requests; `None` without any.
    fn ttft(&self) -> Option<&TtftGroupLine> {
        self.report.ttft.as_ref()?.main_group()
    }

    /// Part of the time to first token with the largest share: `62 % prefill`; `None` without that time.
    fn longest_part(&self) -> Option<String> {
        let longest = self.ttft()?.longest_leg()?;
        Some(format!("{} {}", percent(longest.share), longest.name))
    }

    /// Name of the run, with the side of a pair or the address.
    pub fn title(&self) -> String {
        let addition = self.side.map(str::to_owned).or_else(|| self.endpoint.clone());
        addition.map_or_else(|| self.name.clone(), |addition| format!("{} ({addition})", self.name))
    }
}

/// The reports of several runs.
#[derive(Debug, Serialize)]
pub struct RunsReport<'a> {
    schema: &'static str,
    /// Name and headline of the run with the worst finding.
    worst: WorstRun<'a>,
    runs: &'a [RunReport],
    /// Names of the runs that gave no report.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    no_answer: Vec<String>,
}

#[derive(Debug, Serialize)]
struct WorstRun<'a> {
    name: &'a str,
    verdict: &'a str,
}

impl<'a> RunsReport<'a> {
    /// Document with these reports, which names the worst of them; `None` if there are none.
    pub fn of_runs(runs: &'a [RunReport]) -> Option<Self> {
        let run = worst_run(runs)?;
        let worst = WorstRun { name: &run.name, verdict: &run.report.verdict };
        Some(Self { schema: SCHEMA, worst, runs, no_answer: Vec::new() })
    }

    /// Names the runs that gave no report.
    #[must_use]
    pub fn with_unanswered(self, no_answer: Vec<String>) -> Self {
        Self { no_answer, ..self }
    }
}

/// Column of the list of runs.
struct ListColumn {
    heading: &'static str,
    cell: fn(&RunReport) -> String,
}

/// Columns in their order.
const COLUMNS: [ListColumn; 11] = [
    ListColumn { heading: "run", cell: |run| escape_line(&run.name) },
    ListColumn {
        heading: "role",
        cell: |run| run.side.unwrap_or(if run.endpoint.is_some() { "-" } else { "single" }).to_owned(),
    },
    ListColumn { heading: "port", cell: |run| run.port.map_or_else(|| "-".to_owned(), |port| port.to_string()) },
    ListColumn { heading: "model", cell: |run| run.model.as_deref().map_or_else(|| "-".to_owned(), escape_line) },
    ListColumn { heading: "state", cell: |run| run.state.clone() },
    ListColumn { heading: "requests", cell: |run| count(run.report.requests.seen) },
    ListColumn { heading: "TTFT p50", cell: |run| known_or_dash(run.ttft().map(|ttft| ttft.ns.p50), duration) },
    ListColumn { heading: "TTFT p99", cell: |run| known_or_dash(run.ttft().map(|ttft| ttft.ns.p99), duration) },
    ListColumn { heading: "longest part", cell: |run| run.longest_part().unwrap_or_else(|| "-".to_owned()) },
    ListColumn { heading: "lost", cell: |run| known_or_dash(run.report.chunks.tokens_lost, count) },
    ListColumn {
        heading: "finding",
        cell: |run| run.report.findings.first().map_or_else(|| "-".to_owned(), |finding| finding.kind.clone()),
    },
];

/// One line for each run, with headings.
pub fn list_runs(runs: &[RunReport]) -> String {
    let mut rows = vec![COLUMNS.map(|column| column.heading.to_owned())];
    rows.extend(runs.iter().map(|run| COLUMNS.map(|column| (column.cell)(run))));
    let width_of_column = |index: usize| rows.iter().map(|row| row[index].chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for row in &rows {
        let mut line = String::new();
        for (index, cell) in row.iter().enumerate() {
            let width = width_of_column(index);
            append!(line, "{cell:width$}  ");
        }
        append_line!(out, "{}", line.trim_end());
    }
    out
}

/// The run with the most severe report, and among those the one with the finding of the highest rank. Without findings, a run that observed
/// nothing is worse than one without problems. `None` if there are no runs.
pub fn worst_run(runs: &[RunReport]) -> Option<&RunReport> {
    // Of equal ones, `max_by_key` has the last, which is the first of the reversed list.
    runs.iter().rev().max_by_key(|run| (run.report.severity, run.report.worst_rank(), run.report.saw_nothing()))
}

impl Report {
    /// Highest rank of its findings, of which the first need not explain most; `None` without any.
    fn worst_rank(&self) -> Option<FindingRank> {
        self.findings.iter().map(|finding| finding.rank(self.capture_length_ns())).max()
    }

    /// Whether no traffic was observed.
    pub fn saw_nothing(&self) -> bool {
        // `None`, for frames that are not observed, is less than `Some(0)`.
        let has_frames = self.hops.iter().any(|hop| hop.frames_sent > Some(0) || hop.frames_received > Some(0));
        let has_responses = self.answers.as_ref().is_some_and(|answers| answers.seen > 0);
        !has_frames && !has_responses && self.own.frames_undecoded == 0
    }
}

#[cfg(test)]
mod tests {
    use trace::detect::Severity;
    use trace::{Analysis, Config, ReportInput};

    use super::super::FindingLine;
    use super::*;

    fn run(name: &str, severity: Option<Severity>, undecoded: u64) -> RunReport {
        let mut report = Report::of(&Analysis::new(Config::default()), &ReportInput::for_source("attach"));
        report.severity = severity;
        report.own.frames_undecoded = undecoded;
        RunReport {
            name: name.to_owned(),
            endpoint: None,
            side: None,
            port: Some(30_000),
            model: Some("model".to_owned()),
            state: "live".to_owned(),
            records_before: None,
            records_missed: None,
            gaps: None,
            report,
        }
    }

    #[test]
    fn a_run_that_observed_nothing_is_worse_than_one_without_findings() {
        let worst = |runs: &[RunReport]| worst_run(runs).map(|run| run.name.clone());
        let healthy = || run("healthy", None, 1);
        let unobserved = || run("unobserved", None, 0);
        let sick = || run("sick", Some(Severity::Info), 1);
        assert_eq!(worst(&[healthy(), unobserved(), run("second", None, 0)]).as_deref(), Some("unobserved"));
        assert_eq!(worst(&[unobserved(), sick(), run("second", Some(Severity::Info), 1)]).as_deref(), Some("sick"));
        assert_eq!(worst(&[]), None);
    }

    #[test]
    fn of_equal_severity_the_run_whose_finding_explains_more_is_the_worst() {
        let runs = [("prefill", 273), ("decode", 2_700), ("later", 2_700)].map(|one| {
            let mut sick = run(one.0, Some(Severity::Warning), 1);
            let finding = FindingLine::of_kind("consumer-starved", Severity::Warning);
            sick.report.findings = vec![FindingLine { explained_ns: Some(one.1 * 1_000_000), ..finding }];
            sick
        });
        assert_eq!(worst_run(&runs).map(|run| &*run.name), Some("decode"));
        // Lost tokens explain no time, and come first.
        let mut runs = runs;
        runs[1].report.findings.insert(0, FindingLine::of_kind("dropped-chunks", Severity::Warning));
        assert_eq!(worst_run(&runs[..2]).map(|run| &*run.name), Some("decode"));
    }

    #[test]
    fn the_list_has_one_aligned_line_for_each_run() {
        let decode = RunReport { side: Some("decode"), ..run("sglang:30000-2", None, 0) };
        let watched =
            RunReport { endpoint: Some("gpu-7:9464".to_owned()), port: None, model: None, ..run("gpu-7", None, 0) };
        let expected = "\
run             role    port   model  state  requests  TTFT p50  TTFT p99  longest part  lost  finding
sglang:30000-2  decode  30000  model  live   0         -         -         -             -     -
gpu-7           -       -      -      live   0         -         -         -             -     -
";
        assert_eq!(list_runs(&[decode, watched]), expected);
    }
}
