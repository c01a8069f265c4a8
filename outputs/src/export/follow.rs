//! State common to all formats, in addition to the analysis: live requests, each reported once when complete.

use std::io;

use super::lives::LiveRequests;
use super::{Clock, Closed, ExportContext, Exporter, Options, stage};
use crate::report::Report;
use trace::analysis::Analysis;
use trace::clock::MonoNs;
use trace::event::{Event, What};
use trace::ledger::{Request, Summary};

pub(super) struct Follow {
    lives: LiveRequests,
    pub(super) clock: Clock,
    options: Options,
    closed: u64,
}

impl Follow {
    pub(super) fn new(clock: Clock, options: Options) -> Self {
        Self { lives: LiveRequests::default(), clock, options, closed: 0 }
    }

    /// Processes an event that `analysis` has already applied.
    pub(super) fn event(
        &mut self,
        event: &Event<'_>,
        analysis: &Analysis,
        exporter: &mut dyn Exporter,
    ) -> io::Result<()> {
        self.lives.event(event, analysis.ledger());
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
        let summary = |request: &Request| Summary { rid: request.rid.clone(), numbers: ledger.numbers(request) };
        for summary in ledger.requests().map(summary) {
            self.write_request(&summary, summary.finish.is_none(), analysis, exporter)?;
        }
        exporter.finish(report, &self.context(analysis))
    }

    fn write_closed(&mut self, analysis: &Analysis, exporter: &mut dyn Exporter) -> io::Result<()> {
        let closed = analysis.ledger().totals().requests.closed;
        let new = (closed - self.closed) as usize;
        self.closed = closed;
        for back in (0..new).rev() {
            let summary = analysis.ledger().finished().nth_back(back).cloned();
            if let Some(summary) = summary {
                self.write_request(&summary, false, analysis, exporter)?;
            }
        }
        Ok(())
    }

    fn write_request(
        &mut self,
        summary: &Summary,
        open: bool,
        analysis: &Analysis,
        exporter: &mut dyn Exporter,
    ) -> io::Result<()> {
        let life = self.lives.close(summary);
        let request = Closed { summary, life: &life, open };
        let (from, to) = stage::span(&request);
        if self.options.wants(summary) && self.in_range(from, to) {
            exporter.closed(&request, &self.context(analysis))?;
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
        ExportContext { clock: &self.clock, ledger: analysis.ledger(), lives: &self.lives, options: &self.options }
    }
}
