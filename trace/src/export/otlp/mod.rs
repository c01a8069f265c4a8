//! OTLP/JSON: traces as a file with one `TracesData` per line, and traces and metrics of a live run for a collector.
//!
//! As the OTLP/JSON encoding requires, ids are hex, 64-bit integers are strings, and enums are integers.

mod envelope;
mod live;
mod metrics;
mod spans;

use std::io;

pub use envelope::Resource;
pub use live::LiveSpans;
pub use metrics::metrics_data;

use super::json::Stream;
use super::{Closed, ExportContext, Exporter, Opening};
use crate::report::Report;

/// Export of a recording as lines of `TracesData`: one trace per request, and the capture at the end.
pub(super) struct Otlp<'w> {
    out: Stream<'w>,
    resource: Resource,
}

impl<'w> Otlp<'w> {
    pub(super) fn new(out: Box<dyn io::Write + 'w>, opening: &Opening) -> Self {
        Self { out: Stream::lines(out), resource: Resource::of(opening.source(), opening.tokengap()) }
    }

    fn learn(&mut self, context: &ExportContext<'_>) {
        self.resource.learn(context.ledger.engine());
    }
}

impl Exporter for Otlp<'_> {
    fn closed(&mut self, request: &Closed<'_>, context: &ExportContext<'_>) -> io::Result<()> {
        if !context.options.wants(request.summary) {
            return Ok(());
        }
        self.learn(context);
        let Self { out, resource } = self;
        out.object(|o| {
            envelope::traces(o, resource, |list| {
                spans::request(list, request, context);
            });
        });
        out.written()
    }

    fn finish(&mut self, report: &Report, context: &ExportContext<'_>) -> io::Result<()> {
        self.learn(context);
        let Self { out, resource } = self;
        out.object(|o| {
            envelope::traces(o, resource, |list| {
                spans::capture(list, &resource.source, report, context.clock);
            });
        });
        self.out.finish()
    }
}
