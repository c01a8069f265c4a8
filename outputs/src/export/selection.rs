//! Selection of events and requests, common to all formats. Each request is written once, when it is complete.

use std::io;

use trace::analysis::Analysis;
use trace::clock::MonoNs;
use trace::event::{Event, What};
use trace::ledger::{ClosedRequest, RequestSummary, RequestTimeline, TimedRequest};

use super::{CaptureClock, ExportContext, ExportedRequest, Exporter, Options, request_stage};

use crate::report::Report;

pub(super) struct Selection {
    pub(super) clock: CaptureClock,
    options: Options,
}

impl Selection {
    /// Selects the requests and the range of time that these options name.
    pub(super) fn new(clock: CaptureClock, options: Options) -> Self {
        Self { clock, options }
    }

    /// Passes an event to the exporter if it is selected, and then the requests that it closed. `analysis` has already applied the event.
    pub(super) fn export_event_and_closed_requests(
        &mut self,
        event: &Event<'_>,
        analysis: &Analysis,
        exporter: &mut dyn Exporter,
    ) -> io::Result<()> {
        // Later events refer to hops and the engine, even if these were announced before the range.
        let is_announcement = matches!(event.what, What::Hop(_) | What::Engine(_));
        // An event is a span without length.
        if is_announcement || self.overlaps_range(event.at, event.at) {
            exporter.write_event(event, &self.context(analysis))?;
        }
        self.export_closed_requests(analysis, exporter)
    }

    /// Passes a tick to the exporter if it is in the exported range, and then the requests that it closed. `analysis` has already applied
    /// the tick.
    pub(super) fn export_tick_and_closed_requests(
        &mut self,
        now: MonoNs,
        analysis: &Analysis,
        exporter: &mut dyn Exporter,
    ) -> io::Result<()> {
        if self.overlaps_range(now, now) {
            exporter.write_tick(now, &self.context(analysis))?;
        }
        self.export_closed_requests(analysis, exporter)
    }

    /// Passes the requests in flight to the exporter, and then the report for the end of the output.
    pub(super) fn export_open_requests_and_end(
        &mut self,
        analysis: &Analysis,
        report: &Report,
        exporter: &mut dyn Exporter,
    ) -> io::Result<()> {
        let ledger = analysis.ledger();
        let empty_timeline = RequestTimeline::default();
        for TimedRequest { request, timeline } in ledger.timed_requests() {
            let summary = RequestSummary { rid: request.rid.clone(), numbers: ledger.numbers(request) };
            let timeline = timeline.unwrap_or(&empty_timeline);
            // The end may have been sent and not been received yet.
            let is_open = summary.finish.is_none() || request.is_end_in_transit();
            // Where gaps are not observed, a wait that has ended may look open.
            let is_waiting = ledger.observes_gaps() && request.first_token_waiting_since().is_some();
            let request = ExportedRequest { summary: &summary, timeline, is_open, is_waiting };
            self.export_request_if_selected(&request, analysis, exporter)?;
        }
        exporter.write_end(report, &self.context(analysis))
    }

    /// Passes the requests that the last event or tick has closed.
    fn export_closed_requests(&self, analysis: &Analysis, exporter: &mut dyn Exporter) -> io::Result<()> {
        for ClosedRequest { summary, timeline } in analysis.ledger().closed_requests() {
            let request = ExportedRequest { summary, timeline, is_open: false, is_waiting: false };
            self.export_request_if_selected(&request, analysis, exporter)?;
        }
        Ok(())
    }

    /// Passes a request if it is selected and overlaps the range of time.
    fn export_request_if_selected(
        &self,
        request: &ExportedRequest<'_>,
        analysis: &Analysis,
        exporter: &mut dyn Exporter,
    ) -> io::Result<()> {
        let span = request_stage::span_of_request(request);
        if self.options.wants_request(request.summary) && self.overlaps_range(span.from, span.to) {
            exporter.write_request(request, &self.context(analysis))?;
        }
        Ok(())
    }

    /// Whether the time from `from` to `to` overlaps the exported range. Without a range, all of the capture is exported.
    fn overlaps_range(&self, from: MonoNs, to: MonoNs) -> bool {
        let Some(range) = &self.options.range_ns else { return true };
        self.clock.since_start_ns(from) <= *range.end() && *range.start() <= self.clock.since_start_ns(to)
    }

    /// What the exporter needs beside an event.
    fn context<'a>(&'a self, analysis: &'a Analysis) -> ExportContext<'a> {
        ExportContext { clock: &self.clock, ledger: analysis.ledger(), options: &self.options }
    }
}
