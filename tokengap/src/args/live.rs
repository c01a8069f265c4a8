//! Flags that every live source has, and those of the screen.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use trace::detect::Severity;
use trace::ledger::DEFAULT_CHUNK_HISTORY;
use tui::{FINISHED_SHOWN, SavedFilter};

use super::{LimitArgs, RecordArgs, TUNING, TelemetryArgs, parse_duration, parse_severity};
use crate::headless;

/// Flags of every live source.
#[derive(Args, Clone, Debug)]
pub(crate) struct LiveArgs {
    #[command(flatten)]
    pub(crate) outcome: OutcomeArgs,

    /// Stop after this time, for example 5s, 2m or 1h 30m.
    #[arg(long, value_name = "T", value_parser = parse_duration)]
    pub(crate) duration: Option<Duration>,

    #[command(flatten)]
    pub(crate) report: ReportArgs,

    /// Read flags from this TOML file: one section per command, and [live] for flags that live commands share. Flags on the
    /// command line take precedence. SIGHUP reloads it.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Print the effective configuration as TOML and exit.
    #[arg(long)]
    pub(crate) print_config: bool,

    #[command(flatten)]
    pub(crate) record: RecordArgs,

    #[command(flatten)]
    pub(crate) telemetry: TelemetryArgs,

    #[command(flatten)]
    pub(crate) screen: ScreenArgs,

    #[command(flatten)]
    pub(crate) limits: LimitArgs,
}

/// Result of a run: the screen, or the report that is printed without it, and the exit code.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct OutcomeArgs {
    /// Run without the screen and print the report at the end. Implied when stdout is not a terminal.
    #[arg(long)]
    pub(crate) headless: bool,

    /// Print the report as JSON, schema tokengap.report/2, or tokengap.watch/2 of several runs (implies --headless).
    #[arg(long)]
    pub(crate) json: bool,

    /// Exit with status 1 if a finding has at least this severity.
    #[arg(long, value_name = "SEVERITY", value_parser = parse_severity)]
    pub(crate) fail_on: Option<Severity>,
}

impl OutcomeArgs {
    /// Returns whether a run with these flags has no screen.
    pub(crate) fn is_headless(self) -> bool {
        self.asks_for_report() || !headless::has_terminal()
    }

    /// Returns whether the flags ask for the report in place of the screen.
    pub(crate) fn asks_for_report(self) -> bool {
        self.headless || self.json
    }
}

/// Contents of a run's report.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ReportArgs {
    /// Number of slowest requests listed in the report; 0 lists none.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) slowest: usize,
}

/// Limits of the screen's memory, for each run that it shows.
#[derive(Args, Clone, Debug)]
pub(crate) struct ScreenArgs {
    /// Named filter of requests for the screen: `slow=gap>1s`. Type /@slow to apply it. Repeatable.
    #[arg(long = "filter", value_name = "NAME=FILTER", value_parser = SavedFilter::parse, help_heading = "Screen")]
    pub(crate) filters: Vec<SavedFilter>,

    /// Maximum number of chunk timestamps kept for the request view, 48 bytes each; the oldest are evicted.
    #[arg(long, value_name = "N", default_value_t = DEFAULT_CHUNK_HISTORY, help_heading = TUNING)]
    pub(crate) journal: usize,

    /// Maximum number of finished requests in the table. Older ones remain in the totals.
    #[arg(long, value_name = "N", default_value_t = FINISHED_SHOWN, help_heading = TUNING)]
    pub(crate) rows: usize,
}

impl ScreenArgs {
    /// Number of events of chunks that the ledger keeps for the request view.
    pub(crate) fn chunk_history(&self, outcome: OutcomeArgs) -> usize {
        if outcome.is_headless() { 0 } else { self.journal }
    }

    /// Settings of the screen.
    pub(crate) fn options(&self) -> tui::ScreenOptions {
        tui::ScreenOptions { chunk_history: self.journal, finished_rows: self.rows, filters: self.filters.clone() }
    }
}
