//! CSV with one row per request. An empty field means "not observed", never 0. Times are since the start of the capture.

use std::borrow::Cow;
use std::io;

use super::row::{Cell, cells, columns};
use super::{Closed, ExportContext, Exporter};
use crate::report::Report;

pub(super) struct Csv<'w> {
    out: csv::Writer<Box<dyn io::Write + 'w>>,
}

impl<'w> Csv<'w> {
    pub(super) fn new(out: Box<dyn io::Write + 'w>) -> io::Result<Self> {
        let mut out = csv::WriterBuilder::new().buffer_capacity(64 * 1024).from_writer(out);
        out.write_record(columns().map(|(name, _)| name)).map_err(plain)?;
        Ok(Self { out })
    }
}

impl Exporter for Csv<'_> {
    fn closed(&mut self, request: &Closed<'_>, context: &ExportContext<'_>) -> io::Result<()> {
        let mut number = itoa::Buffer::new();
        for cell in cells(request, context) {
            match cell {
                None => self.out.write_field(""),
                Some(Cell::Text(text)) => self.out.write_field(&*safe(&text)),
                Some(Cell::Number(value)) => self.out.write_field(number.format(value)),
                Some(Cell::Flag(flag)) => self.out.write_field(if flag { "true" } else { "false" }),
                Some(Cell::Moment(wall_ns)) => self.out.write_field(date(wall_ns)),
            }
            .map_err(plain)?;
        }
        self.out.write_record(None::<&[u8]>).map_err(plain)
    }

    fn finish(&mut self, _: &Report, _: &ExportContext<'_>) -> io::Result<()> {
        self.out.flush()
    }
}

/// Unwraps the I/O error of a failed writer.
fn plain(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}

/// Prefixes text that a spreadsheet would interpret as a formula with an apostrophe.
fn safe(text: &str) -> Cow<'_, str> {
    if text.starts_with(['=', '+', '-', '@', '\t', '\r']) {
        Cow::Owned(format!("'{text}"))
    } else {
        Cow::Borrowed(text)
    }
}

/// RFC 3339 in UTC.
fn date(wall_ns: u64) -> String {
    jiff::Timestamp::from_nanosecond(i128::from(wall_ns)).map_or_else(|_| String::new(), |t| format!("{t:.9}"))
}

#[cfg(test)]
mod tests {
    use super::safe;

    #[test]
    fn rids_are_not_interpreted_as_formulas() {
        for rid in ["=HYPERLINK(\"http://x\")", "@SUM(A1)", "+1", "-1", "\t=1"] {
            assert_eq!(safe(rid), format!("'{rid}"));
        }
        assert_eq!(safe("chatcmpl-1"), "chatcmpl-1");
    }
}
