//! Export of a recording as lines of `TracesData`: one trace per request, and the capture at the end.

use std::io;

use super::envelope::{self, Resource};
use super::spans;
use crate::event::Event;
use crate::export::json::Stream;
use crate::export::{Closed, Exporter, Look, Opening};
use crate::report::Report;

pub(in crate::export) struct Otlp<'w> {
    out: Stream<'w>,
    resource: Resource,
}

impl<'w> Otlp<'w> {
    pub(in crate::export) fn new(out: Box<dyn io::Write + 'w>, opening: &Opening) -> Self {
        Self {
            out: Stream::lines(out),
            resource: Resource::of(opening.source(), opening.tokengap()),
        }
    }

    fn learn(&mut self, look: &Look<'_>) {
        self.resource.version = look.ledger.engine().version.as_deref().map(str::to_owned);
    }
}

impl Exporter for Otlp<'_> {
    fn event(&mut self, _: &Event<'_>, _: &Look<'_>) -> io::Result<()> {
        Ok(())
    }

    fn closed(&mut self, request: &Closed<'_>, look: &Look<'_>) -> io::Result<()> {
        if !look.options.wants(request.summary) {
            return Ok(());
        }
        self.learn(look);
        let Self { out, resource } = self;
        out.object(|o| {
            envelope::traces(o, resource, |list| {
                spans::request(list, request, look);
            });
        })
    }

    fn finish(&mut self, report: &Report, look: &Look<'_>) -> io::Result<()> {
        self.learn(look);
        let Self { out, resource } = self;
        out.object(|o| {
            envelope::traces(o, resource, |list| {
                spans::capture(list, &resource.source, report, look.clock);
            });
        })?;
        self.out.finish()
    }
}
