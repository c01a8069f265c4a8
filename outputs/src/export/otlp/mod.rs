//! OTLP/JSON: traces as a file with one `TracesData` per line, and traces and metrics of a live run for a collector.
//!
//! As the OTLP/JSON encoding requires, ids are hex, 64-bit integers are strings, and enums are integers.

mod envelope;
mod metrics;
mod spans;

use std::io;

pub use envelope::Resource;
pub use metrics::{MetricsWindow, encode_metrics};
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
    /// Starts an export to `out`, of which nothing is written yet.
    pub(super) fn new(out: Box<dyn io::Write + 'w>, opening: &Opening) -> Self {
        Self { out: ObjectStream::as_lines(out), resource: Resource::for_source(&opening.source, &opening.tokengap) }
    }
}

impl Exporter for Otlp<'_> {
    /// Writes a line with the spans of a request.
    fn write_request(&mut self, request: &ExportedRequest<'_>, context: &ExportContext<'_>) -> io::Result<()> {
        // The engine may have become known since the last line.
        self.resource.set_engine(context.ledger.engine());
        let Self { out, resource } = self;
        out.write_object(|object| {
            wrap_in_envelope(object, TRACES, resource, |list| {
                // The returned number of spans is needed only for pushing.
                spans::write_request_spans(list, request, context);
            });
        });
        out.take_write_result()
    }

    /// Writes a line with the span of the whole capture.
    fn write_end(&mut self, report: &Report, context: &ExportContext<'_>) -> io::Result<()> {
        self.resource.set_engine(context.ledger.engine());
        let Self { out, resource } = self;
        out.write_object(|object| {
            wrap_in_envelope(object, TRACES, resource, |list| {
                spans::write_capture_span(list, &resource.source, report, context.clock);
            });
        });
        self.out.finish()
    }
}

/// Encoded spans or metric points, with their number.
#[derive(Debug, Default)]
pub struct EncodedItems {
    /// JSON.
    pub json: Vec<u8>,
    /// Number of spans or points.
    pub items: u64,
}

impl EncodedItems {
    /// Adds the spans that `fill` writes. It returns their number.
    fn add_spans(&mut self, fill: impl FnOnce(&mut Array<'_>) -> usize) {
        let added = Array::encode_elements(&mut self.json, fill);
        self.items += added as u64;
    }
}

impl Exporter for EncodedItems {
    /// Adds the spans of a request. Never fails.
    fn write_request(&mut self, request: &ExportedRequest<'_>, context: &ExportContext<'_>) -> io::Result<()> {
        self.add_spans(|list| spans::write_request_spans(list, request, context));
        Ok(())
    }

    /// Adds nothing, because [`LiveSpans::add_final_spans`] adds the span of the capture.
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
    /// Spans without the envelope.
    encoded: EncodedItems,
    /// Changes of findings up to this tick have their spans.
    reported_until: Option<MonoNs>,
    /// Number of spans of findings so far; each has its own id.
    finding_spans: u64,
}

impl LiveSpans {
    /// Starts to collect the spans of a live run. Spans of requests are among them if `options` is given and the analysis keeps timelines.
    pub fn new(options: Option<Options>, opening: Opening, resource: Resource) -> Self {
        Self {
            selection: options.map(|options| Selection::new(opening.clock(), options)),
            opening,
            resource,
            encoded: EncodedItems::default(),
            reported_until: None,
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

    /// Adds the spans of the requests that an event has closed, if requests are exported. `analysis` has already applied the event.
    pub fn add_spans_closed_by_event(&mut self, event: &Event<'_>, analysis: &Analysis) {
        if let Some(selection) = &mut self.selection {
            // Encoding into memory cannot fail.
            let _ = selection.export_event_and_closed_requests(event, analysis, &mut self.encoded);
        }
    }

    /// Adds the spans of the requests that a tick has closed, if requests are exported, and those of the findings that have changed.
    /// `analysis` has already applied the tick.
    pub fn add_spans_closed_by_tick(&mut self, now: MonoNs, analysis: &Analysis) {
        if let Some(selection) = &mut self.selection {
            // Encoding into memory cannot fail.
            let _ = selection.export_tick_and_closed_requests(now, analysis, &mut self.encoded);
        }
        self.add_finding_spans(now, analysis);
    }

    /// Adds the spans of the requests in flight, if requests are exported, and the span of the whole capture. Called at the end of the run.
    pub fn add_final_spans(&mut self, analysis: &Analysis, report: &Report) {
        if let Some(selection) = &mut self.selection {
            // Encoding into memory cannot fail.
            let _ = selection.export_open_requests_and_end(analysis, report, &mut self.encoded);
        }
        let source = &self.resource.source;
        let clock = self.opening.clock();
        self.encoded.add_spans(|list| spans::write_capture_span(list, source, report, &clock));
    }

    /// Adds spans for findings that started or ended since the last call.
    fn add_finding_spans(&mut self, now: MonoNs, analysis: &Analysis) {
        let source = &self.resource.source;
        let clock = self.opening.clock();
        // Before the first event there is no capture.
        let Some(capture_start) = analysis.ledger().started() else { return };
        let reported_until = self.reported_until.replace(now);
        // `None` is less than any time, so the first call adds all findings that have ever changed.
        for finding in analysis.findings().into_iter().filter(|finding| finding.changed_at > reported_until) {
            // Without an episode, a finding has no time of its own.
            let Some(&latest) = finding.times.episodes().last() else { continue };
            self.finding_spans += 1;
            let to = if finding.active { now } else { latest.last };
            let span = FindingSpan { number: self.finding_spans, from: latest.first, to };
            self.encoded
                .add_spans(|list| spans::write_finding_span(list, finding, &span, source, capture_start, &clock));
        }
    }

    /// Number of encoded bytes since the last [`Self::take_spans`].
    pub fn waiting_bytes(&self) -> usize {
        self.encoded.json.len()
    }

    /// Removes and returns the spans since the last call, as `TracesData`; `None` if there are none.
    pub fn take_spans(&mut self, analysis: &Analysis) -> Option<EncodedItems> {
        let EncodedItems { json, items } = std::mem::take(&mut self.encoded);
        if items == 0 {
            return None;
        }
        self.update_resource(analysis);
        // With a kilobyte of room for the envelope.
        let mut enveloped = Vec::with_capacity(json.len() + 1_024);
        Object::write(&mut enveloped, |object| {
            wrap_in_envelope(object, TRACES, &self.resource, |list| list.append_encoded_elements(&json));
        });
        Some(EncodedItems { json: enveloped, items })
    }

    /// Updates the engine's name and release from the analysis, and returns the resource with them.
    pub fn update_resource(&mut self, analysis: &Analysis) -> &Resource {
        self.resource.set_engine(analysis.ledger().engine());
        &self.resource
    }
}
