//! OTLP/JSON: traces as a file with one `TracesData` per line, and traces and metrics of a live run for a collector.
//!
//! As the OTLP/JSON encoding requires, ids are hex, 64-bit integers are strings, and enums are integers.

mod envelope;
mod metrics;
mod spans;

use std::io;

pub use envelope::Resource;
pub use metrics::metrics_data;
use trace::analysis::Analysis;
use trace::clock::MonoNs;
use trace::event::Event;

use self::envelope::{RunEngine, TRACES, wrap_in_envelope};
use self::spans::FindingSpan;
use super::json::{Array, Object, ObjectStream};
use super::selection::Selection;
use super::{ExportContext, ExportedRequest, Exporter, Opening, Options};
use crate::report::Report;

/// Export of a recording as lines of `TracesData`: one trace per request, and the capture at the end.
pub(super) struct Otlp<'w> {
    out: ObjectStream<'w>,
    resource: Resource,
}

impl<'w> Otlp<'w> {
    pub(super) fn new(out: Box<dyn io::Write + 'w>, opening: &Opening) -> Self {
        Self { out: ObjectStream::lines(out), resource: Resource::for_source(&opening.source, &opening.tokengap) }
    }
}

impl Exporter for Otlp<'_> {
    fn write_request(&mut self, request: &ExportedRequest<'_>, context: &ExportContext<'_>) -> io::Result<()> {
        self.resource.learn(context.ledger.engine());
        let Self { out, resource } = self;
        out.object(|o| {
            wrap_in_envelope(o, TRACES, resource, |list| {
                spans::write_request_spans(list, request, context);
            });
        });
        out.written()
    }

    fn write_end(&mut self, report: &Report, context: &ExportContext<'_>) -> io::Result<()> {
        self.resource.learn(context.ledger.engine());
        let Self { out, resource } = self;
        out.object(|o| {
            wrap_in_envelope(o, TRACES, resource, |list| {
                spans::write_capture_span(list, &resource.source, report, context.clock);
            });
        });
        self.out.finish()
    }
}

#[derive(Debug, Default)]
struct Encoded {
    json: Vec<u8>,
    spans: u64,
}

impl Encoded {
    fn add(&mut self, fill: impl FnOnce(&mut Array<'_>) -> usize) {
        let added = Array::append(&mut self.json, fill);
        self.spans += added as u64;
    }
}

impl Exporter for Encoded {
    fn write_request(&mut self, request: &ExportedRequest<'_>, context: &ExportContext<'_>) -> io::Result<()> {
        self.add(|list| spans::write_request_spans(list, request, context));
        Ok(())
    }

    fn write_end(&mut self, _: &Report, _: &ExportContext<'_>) -> io::Result<()> {
        Ok(())
    }
}

/// Spans of a run that wait to be pushed. The caller runs the analysis.
pub struct LiveSpans {
    /// `None` if no requests are exported.
    selection: Option<Selection>,
    opening: Opening,
    resource: Resource,
    encoded: Encoded,
    /// Changes of findings up to this tick have their spans.
    told_until: Option<MonoNs>,
    /// Number of spans of findings so far; each has its own id.
    finding_spans: u64,
}

impl LiveSpans {
    /// Starts without data. Requests are exported if `options` is given and the analysis keeps timelines.
    pub fn new(options: Option<Options>, opening: Opening, resource: Resource) -> Self {
        Self {
            selection: options.map(|options| Selection::new(opening.clock(), options)),
            opening,
            resource,
            encoded: Encoded::default(),
            told_until: None,
            finding_spans: 0,
        }
    }

    /// Names the engine of the run.
    pub fn set_run_engine(&mut self, name: String, port: Option<u16>) {
        self.resource.run_engine = Some(RunEngine { name, port });
    }

    /// Whether requests are exported, for which the analysis must keep timelines.
    pub fn has_requests(&self) -> bool {
        self.selection.is_some()
    }

    /// Processes an event that `analysis` has already applied.
    pub fn event(&mut self, event: &Event<'_>, analysis: &Analysis) {
        if let Some(selection) = &mut self.selection {
            // Encoding into memory cannot fail.
            let _ = selection.pass_event(event, analysis, &mut self.encoded);
        }
    }

    /// Processes a tick that `analysis` has already applied.
    pub fn tick(&mut self, now: MonoNs, analysis: &Analysis) {
        if let Some(selection) = &mut self.selection {
            // Encoding into memory cannot fail.
            let _ = selection.pass_tick(now, analysis, &mut self.encoded);
        }
        self.add_finding_spans(now, analysis);
    }

    /// Ends the run; `report` is its final report.
    pub fn finish(&mut self, analysis: &Analysis, report: &Report) {
        if let Some(selection) = &mut self.selection {
            // Encoding into memory cannot fail.
            let _ = selection.pass_end(analysis, report, &mut self.encoded);
        }
        let source = &self.resource.source;
        let clock = self.opening.clock();
        self.encoded.add(|list| spans::write_capture_span(list, source, report, &clock));
    }

    /// Adds spans for findings that started or ended since the last call.
    fn add_finding_spans(&mut self, now: MonoNs, analysis: &Analysis) {
        let source = &self.resource.source;
        let clock = self.opening.clock();
        let Some(capture_start) = analysis.ledger().started() else {
            return;
        };
        let told_until = self.told_until.replace(now);
        for finding in analysis.findings().into_iter().filter(|finding| finding.changed_at > told_until) {
            let Some(&last) = finding.times.episodes().last() else { continue };
            self.finding_spans += 1;
            let to = if finding.active { now } else { last.last };
            let span = FindingSpan { number: self.finding_spans, from: last.first, to };
            self.encoded.add(|list| spans::write_finding_span(list, finding, &span, source, capture_start, &clock));
        }
    }

    /// Number of encoded bytes since the last [`Self::take`].
    pub fn waiting(&self) -> usize {
        self.encoded.json.len()
    }

    /// New spans since the last call as `TracesData`, with their number; `None` if there are none.
    pub fn take(&mut self, analysis: &Analysis) -> Option<(Vec<u8>, u64)> {
        let Encoded { json, spans } = std::mem::take(&mut self.encoded);
        if spans == 0 {
            return None;
        }
        self.learn(analysis);
        let mut out = Vec::with_capacity(json.len() + 1_024);
        Object::write(&mut out, |o| {
            wrap_in_envelope(o, TRACES, &self.resource, |list| list.encoded(&json));
        });
        Some((out, spans))
    }

    /// Updates the service's version from the analysis and returns the service.
    pub fn learn(&mut self, analysis: &Analysis) -> &Resource {
        self.resource.learn(analysis.ledger().engine());
        &self.resource
    }
}
