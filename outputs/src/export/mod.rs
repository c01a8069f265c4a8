//! Exports of a run in the formats of other tools: one module per format, all fed with the same events in the same order.
//!
//! An [`Export`] has its own [`Analysis`], so requests, losses and findings equal those of the report. Output is
//! streamed, and the analysis's limits bound the memory. docs/reference/exports.md describes the formats.

mod csv;
mod events;
mod json;
mod opening;
mod otlp;
#[cfg(feature = "parquet")]
mod parquet;
mod perfetto;
mod request_row;
mod request_stage;
mod selection;
mod span_id;

use std::io;
use std::ops::RangeInclusive;

pub use self::opening::Opening;
pub use self::otlp::{EncodedItems, LiveSpans, MetricsWindow, Resource, encode_metrics};

use recording::{ReadError, Record, Recording};
use trace::ReportInput;
use trace::analysis::{Analysis, Config};
use trace::clock::{Anchor, MonoNs};
use trace::engine::Engines;
use trace::event::{Event, Finish};
use trace::ledger::{Ledger, Limits, RequestSummary, RequestTimeline};
use trace::words::names;

use self::opening::CaptureClock;
use self::selection::Selection;
use crate::report::Report;
use crate::report::hostile::{EscapeForm, EscapingWriter};

/// Export formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Chrome's trace events as a bare JSON array, for Perfetto's UI and trace processor.
    Perfetto,
    /// OTLP/JSON, one `TracesData` per line and one trace per request.
    Otlp,
    /// Observations as JSON Lines, one flat object per line: docs/reference/events.schema.json.
    Events,
    /// CSV, one row per request.
    Csv,
    /// Parquet with the columns of CSV. Needs the cargo feature `parquet`.
    Parquet,
}

names! {
    Format { Perfetto = "perfetto", Otlp = "otlp", Events = "events", Csv = "csv", Parquet = "parquet" }
}

impl Format {
    /// How output of this format is escaped; `None` for binary output.
    fn escape_form(self) -> Option<EscapeForm> {
        match self {
            Self::Perfetto | Self::Otlp | Self::Events => Some(EscapeForm::Json),
            Self::Csv => Some(EscapeForm::Text),
            Self::Parquet => None,
        }
    }

    /// Description for users.
    pub fn about(self) -> &'static str {
        match self {
            Self::Perfetto => "Chrome trace events as a JSON array, for ui.perfetto.dev",
            Self::Otlp => "OTLP/JSON, one trace per request, one line each",
            Self::Events => "All events, one flat JSON object per line",
            Self::Csv => "One row per request",
            Self::Parquet => {
                "One row per request, for asking many recordings at once. Packages have it; from source, build with --features parquet"
            }
        }
    }
}

/// Content and limits of an export.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Export only these requests; empty exports all.
    pub rids: Vec<String>,
    /// Export only requests whose first token waited at least this long between scheduler and tokenizer, in nanoseconds.
    pub slow_ns: Option<u64>,
    /// With [`Self::slow_ns`], also export requests that lost tokens.
    pub losing: bool,
    /// Export only observations in this range, in nanoseconds since the start of the capture, and requests that overlap it.
    pub range_ns: Option<RangeInclusive<u64>>,
    /// Maximum number of chunks and deliveries per request in [`Format::Perfetto`]; the first and the last are always shown.
    pub chunks: u32,
    /// Write token ids in [`Format::Events`], if the recording contains them.
    pub tokens: bool,
    /// Name of the recording, in each row of [`Format::Parquet`].
    pub recording: Option<String>,
}

impl Options {
    /// Whether the options select the request with this id, as far as the id decides.
    fn wants_rid(&self, rid: &str) -> bool {
        self.rids.is_empty() || self.rids.iter().any(|wanted| wanted == rid)
    }

    /// Whether the options select the request. Its id must be wanted, and it must be slow or, with `losing`, have lost tokens.
    fn wants_request(&self, summary: &RequestSummary) -> bool {
        if !self.wants_rid(&summary.rid) {
            return false;
        }
        let loses_tokens = self.losing && summary.tokens_lost.is_some_and(|lost| lost > 0);
        let is_slow = match self.slow_ns {
            // A request whose gap is unknown does not count as slow.
            Some(min_ns) => summary.gap_ns.is_some_and(|gap_ns| gap_ns >= min_ns),
            // Without a limit, every request counts as slow, and `losing` adds none.
            None => true,
        };
        is_slow || loses_tokens
    }
}

/// What all writers of one format need beside an event.
#[derive(Clone, Copy)]
struct ExportContext<'a> {
    clock: &'a CaptureClock,
    ledger: &'a Ledger,
    options: &'a Options,
}

/// A closed request, or one in flight at the end of the capture.
struct ExportedRequest<'a> {
    summary: &'a RequestSummary,
    timeline: &'a RequestTimeline,
    /// Whether the capture ended before the request did, or before its end was received.
    is_open: bool,
    /// Whether its first token was sent and not received when the capture ended, as far as that is observed.
    is_waiting: bool,
}

impl ExportedRequest<'_> {
    /// Word for the state of the request. `aborted`, `waiting` and `finished` mean the same as on the screen. `open`: the capture ended
    /// before the end of the request was received. `orphaned`: the request was removed after silence or at a memory limit.
    fn state(&self) -> &'static str {
        if self.summary.finish == Some(Finish::Abort) {
            "aborted"
        } else if self.is_waiting {
            // Checked before `open`, because a waiting request is open, too.
            "waiting"
        } else if self.is_open {
            "open"
        } else if self.summary.finish.is_some() {
            "finished"
        } else {
            "orphaned"
        }
    }
}

/// Writer of one format.
trait Exporter {
    /// Writes an event that the analysis has already applied.
    fn write_event(&mut self, _event: &Event<'_>, _context: &ExportContext<'_>) -> io::Result<()> {
        Ok(())
    }

    /// Called after each tick of the analysis.
    fn write_tick(&mut self, _now: MonoNs, _context: &ExportContext<'_>) -> io::Result<()> {
        Ok(())
    }

    /// Writes the buffered lines to the output, if the format allows it before the end.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Called once for each selected request when it is complete.
    fn write_request(&mut self, _request: &ExportedRequest<'_>, _context: &ExportContext<'_>) -> io::Result<()> {
        Ok(())
    }

    /// Called at the end of the capture; `report` equals that of `tokengap report`.
    fn write_end(&mut self, report: &Report, context: &ExportContext<'_>) -> io::Result<()>;
}

/// An export in progress.
pub struct Export<'w> {
    analysis: Analysis,
    selection: Selection,
    exporter: Box<dyn Exporter + 'w>,
}

impl<'w> Export<'w> {
    /// Starts an export to `out`. `config` is that of the recorded run. `opening` was read ahead of the first event.
    pub fn new(
        format: Format,
        options: Options,
        config: Config,
        opening: &Opening,
        out: impl io::Write + 'w,
    ) -> io::Result<Self> {
        let out: Box<dyn io::Write + 'w> = match format.escape_form() {
            Some(form) => Box::new(EscapingWriter::new(out, form)),
            None => Box::new(out),
        };
        let exporter: Box<dyn Exporter + 'w> = match format {
            Format::Perfetto => Box::new(perfetto::Perfetto::new(out, opening)),
            Format::Otlp => Box::new(otlp::Otlp::new(out, opening)),
            Format::Events => Box::new(events::Events::new(out, opening, &options)),
            Format::Csv => Box::new(csv::Csv::new(out)?),
            #[cfg(feature = "parquet")]
            Format::Parquet => Box::new(parquet::Parquet::new(out, opening, &options)?),
            #[cfg(not(feature = "parquet"))]
            Format::Parquet => return Err(io::ErrorKind::Unsupported.into()),
        };
        // Only the screen shows recent seconds and the history of chunks, so they are not kept.
        let limits = Limits { recent_seconds: 0, ..config.limits };
        let mut analysis = Analysis::new(Config { limits, chunk_history: 0, ..config });
        analysis.keep_timelines();
        Ok(Self { analysis, selection: Selection::new(opening.clock(), options), exporter })
    }

    /// Applies and exports an event.
    pub fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        self.analysis.apply(event);
        self.selection.export_event_and_closed_requests(event, &self.analysis, &mut *self.exporter)
    }

    /// Applies a tick of the recorded run.
    pub fn tick(&mut self, now: MonoNs) -> io::Result<()> {
        self.analysis.tick(now);
        self.selection.export_tick_and_closed_requests(now, &self.analysis, &mut *self.exporter)
    }

    /// Applies and exports a record of the recorded run.
    fn apply_and_export_record(&mut self, record: &Record<'_>) -> io::Result<()> {
        match record {
            Record::Event(event) => self.event(event)?,
            Record::Tick(now) => self.tick(*now)?,
            // A reading of both clocks.
            Record::Anchor(anchor) => self.anchor(*anchor),
            // Its content is part of `recording.input()`, which the end of the export uses.
            Record::Closing(_) => {}
        }
        Ok(())
    }

    /// Sets the relation of the engine's clock to wall time from here on.
    pub fn anchor(&mut self, anchor: Anchor) {
        self.selection.clock.anchor = anchor;
    }

    /// Writes the buffered lines to the output, if the format allows it before the end.
    pub fn flush(&mut self) -> io::Result<()> {
        self.exporter.flush()
    }

    /// Writes the requests in flight, the findings and the end of the output. Returns the report of the run.
    pub fn finish(mut self, input: &ReportInput) -> io::Result<Report> {
        let report = Report::of(&self.analysis, input);
        self.selection.export_open_requests_and_end(&self.analysis, &report, &mut *self.exporter)?;
        Ok(report)
    }
}

/// Exports all of `recording`. Skips damaged parts. Calls `progress` with the number of bytes processed so far, and with the error of each
/// part that is skipped.
pub fn export_recording(
    recording: &Recording,
    engines: Engines,
    format: Format,
    options: Options,
    out: impl io::Write,
    progress: &mut dyn FnMut(u64, Option<&ReadError>),
) -> io::Result<()> {
    let header = recording.header();
    let opening = read_opening(recording)?;
    let config = Config { engines, ..header.config };
    let mut export = Export::new(format, options, config, &opening, out)?;
    let mut reader = recording.reader();
    let mut reported_bytes = reader.offset();
    loop {
        match reader.next() {
            Ok(Some(record)) => export.apply_and_export_record(&record)?,
            Ok(None) => break,
            // The reader continues behind the damaged part.
            Err(error @ ReadError::Damaged { .. }) => progress(reader.offset(), Some(&error)),
            Err(error) => return Err(io::Error::other(error)),
        }
        // The offset changes only at the end of a block, which has several records.
        if reported_bytes != reader.offset() {
            reported_bytes = reader.offset();
            progress(reported_bytes, None);
        }
    }
    export.finish(&recording.input())?;
    Ok(())
}

/// Reads the recording's first seconds for its start and the threads of its processes. The export reads them again from the beginning.
fn read_opening(recording: &Recording) -> io::Result<Opening> {
    let header = recording.header();
    let mut opening = Opening::new(&header.source, &header.tokengap, header.anchor);
    let mut reader = recording.reader();
    loop {
        match reader.next() {
            Ok(Some(Record::Event(event))) => {
                let needs_more = opening.read_if_in_opening(&event);
                if !needs_more {
                    return Ok(opening);
                }
            }
            // Damage is reported when it is reached during writing.
            Ok(Some(_)) | Err(ReadError::Damaged { .. }) => {}
            Ok(None) => return Ok(opening),
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}
