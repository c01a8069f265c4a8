//! Selection of events and requests, common to all formats. Each request is written once, when it is complete.

use std::io;

use trace::analysis::Analysis;
use trace::clock::MonoNs;
use trace::event::{Event, What};
use trace::ledger::{ClosedRequest, RequestTimeline, Summary, TimedRequest};

use super::{Clock, Closed, ExportContext, Exporter, Options, stage};

use crate::report::Report;

pub(super) struct Follow {
    pub(super) clock: Clock,
    options: Options,
}

impl Follow {
    pub(super) fn new(clock: Clock, options: Options) -> Self {
        Self { clock, options }
    }

    /// Processes an event that `analysis` has already applied.
    pub(super) fn event(
        &mut self,
        event: &Event<'_>,
        analysis: &Analysis,
        exporter: &mut dyn Exporter,
    ) -> io::Result<()> {
        if matches!(event.what, What::Hop(_) | What::Engine(_)) || self.in_range(event.at, event.at) {
            exporter.event(event, &self.context(analysis))?;
        }
        self.write_closed(analysis, exporter)
    }

    /// Processes a tick that `analysis` has already applied.
    pub(super) fn tick(&mut self, now: MonoNs, analysis: &Analysis, exporter: &mut dyn Exporter) -> io::Result<()> {
        if self.in_range(now, now) {
            exporter.tick(now, &self.context(analysis))?;
        }
        self.write_closed(analysis, exporter)
    }

    /// Writes the requests in flight and the end of the output.
    pub(super) fn finish(
        &mut self,
        analysis: &Analysis,
        report: &Report,
        exporter: &mut dyn Exporter,
    ) -> io::Result<()> {
        let ledger = analysis.ledger();
        let none = RequestTimeline::default();
        for TimedRequest { request, timeline } in ledger.timed_requests() {
            let summary = Summary { rid: request.rid.clone(), numbers: ledger.numbers(request) };
            let timeline = timeline.unwrap_or(&none);
            let request = Closed { summary: &summary, timeline, open: summary.finish.is_none() };
            self.write_request(&request, analysis, exporter)?;
        }
        exporter.finish(report, &self.context(analysis))
    }

    fn write_closed(&self, analysis: &Analysis, exporter: &mut dyn Exporter) -> io::Result<()> {
        for ClosedRequest { summary, timeline } in analysis.ledger().closed_requests() {
            self.write_request(&Closed { summary, timeline, open: false }, analysis, exporter)?;
        }
        Ok(())
    }

    fn write_request(&self, request: &Closed<'_>, analysis: &Analysis, exporter: &mut dyn Exporter) -> io::Result<()> {
        let (from, to) = stage::span(request);
        if self.options.wants(request.summary) && self.in_range(from, to) {
            exporter.closed(request, &self.context(analysis))?;
        }
        Ok(())
    }

    /// Whether the time from `from` to `to` overlaps the exported range.
    fn in_range(&self, from: MonoNs, to: MonoNs) -> bool {
        self.options
            .range_ns
            .as_ref()
            .is_none_or(|range| self.clock.at(from) <= *range.end() && *range.start() <= self.clock.at(to))
    }

    fn context<'a>(&'a self, analysis: &'a Analysis) -> ExportContext<'a> {
        ExportContext { clock: &self.clock, ledger: analysis.ledger(), options: &self.options }
    }
}
