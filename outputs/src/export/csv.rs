//! CSV with one row per request. An empty field means "not observed", never 0. Times are since the start of the capture.

use std::borrow::Cow;
use std::io;

use super::request_row::{Cell, cells_of_request, request_columns};
use super::{ExportContext, ExportedRequest, Exporter};
use crate::report::Report;
use crate::report::hostile::is_unprintable;

pub(super) struct Csv<'w> {
    out: csv::Writer<Box<dyn io::Write + 'w>>,
}

impl<'w> Csv<'w> {
    /// Starts the output with the header row, which has the names of the columns.
    pub(super) fn new(out: Box<dyn io::Write + 'w>) -> io::Result<Self> {
        let mut out = csv::WriterBuilder::new().buffer_capacity(64 * 1024).from_writer(out);
        out.write_record(request_columns().map(|(name, _kind)| name)).map_err(io_error_of)?;
        Ok(Self { out })
    }
}

impl Exporter for Csv<'_> {
    /// Writes the row of a request. The cell of a value that was not observed is empty.
    fn write_request(&mut self, request: &ExportedRequest<'_>, context: &ExportContext<'_>) -> io::Result<()> {
        let mut digits = itoa::Buffer::new();
        for cell in cells_of_request(request, context) {
            let written = match cell {
                None => self.out.write_field(""),
                Some(Cell::Text(text)) => self.out.write_field(&*spreadsheet_safe_text(&text)),
                Some(Cell::Number(value)) => self.out.write_field(digits.format(value)),
                Some(Cell::Flag(flag)) => self.out.write_field(if flag { "true" } else { "false" }),
                Some(Cell::Moment(wall_ns)) => self.out.write_field(format_date(wall_ns)),
            };
            written.map_err(io_error_of)?;
        }
        // Ends the record that has the fields above. It adds no field of its own.
        self.out.write_record(None::<&[u8]>).map_err(io_error_of)
    }

    /// Writes out the rows in the buffer. CSV has no end of its own.
    fn write_end(&mut self, _: &Report, _: &ExportContext<'_>) -> io::Result<()> {
        self.out.flush()
    }
}

/// The I/O error inside an error of the CSV writer. Any other error becomes the text of a new I/O error.
fn io_error_of(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}

/// Characters that begin a formula, in ASCII, full-width and small forms.
const FORMULA_STARTS: [char; 12] = ['=', '+', '-', '@', '＝', '＋', '－', '＠', '﹢', '﹣', '﹫', '﹦'];

/// Makes text safe for a cell of a spreadsheet. Replaces line breaks and other unprintable characters by U+FFFD, since some spreadsheets
/// split a cell at them. Puts an apostrophe before a formula, even one behind white space, so that it is shown as text.
fn spreadsheet_safe_text(text: &str) -> Cow<'_, str> {
    let visible = text.trim_start_matches(|c: char| c.is_whitespace() || is_unprintable(c));
    // Some spreadsheets also take text behind a leading tab or line break for a formula.
    let is_formula = visible.starts_with(FORMULA_STARTS) || text.starts_with(['\t', '\r', '\n']);
    if !is_formula && !text.contains(is_unprintable) {
        return text.into();
    }
    let printable: String = text.chars().map(|c| if is_unprintable(c) { '\u{fffd}' } else { c }).collect();
    if is_formula { format!("'{printable}").into() } else { printable.into() }
}

/// The time as RFC 3339 in UTC; empty if it is out of range.
fn format_date(wall_ns: u64) -> String {
    jiff::Timestamp::from_nanosecond(i128::from(wall_ns)).map_or_else(|_| String::new(), |time| format!("{time:.9}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// White space, control characters and invisible ones.
    const SKIPPED: &str = "[\\s\\p{Cc}\\u{200b}-\\u{200f}\\u{202a}-\\u{202e}\\u{2060}\\u{feff}]{0,3}";

    #[test]
    fn rids_are_not_interpreted_as_formulas() {
        for rid in ["=HYPERLINK(\"http://x\")", "@SUM(A1)", "+1", "-1", " =1", "\u{a0}=1", "\u{3000}＝1", "﹢1"] {
            assert_eq!(spreadsheet_safe_text(rid), format!("'{rid}"));
        }
        for rid in ["\t=1", "\r1", "\n1", "\u{200b}=1", "\u{0}=1"] {
            assert_eq!(spreadsheet_safe_text(rid), format!("'\u{fffd}{}", rid.chars().skip(1).collect::<String>()));
        }
        for rid in ["chatcmpl-1", "a=1", "'=1", "", "cmpl 1-2"] {
            assert_eq!(spreadsheet_safe_text(rid), rid);
        }
    }

    proptest! {
        #[test]
        fn no_cell_of_text_is_a_formula(space in SKIPPED, start in 0..FORMULA_STARTS.len(), rest: String) {
            let text = format!("{space}{}{rest}", FORMULA_STARTS[start]);
            let cell = spreadsheet_safe_text(&text);
            prop_assert!(cell.starts_with('\''));
            prop_assert!(!cell.contains(is_unprintable));
        }

        #[test]
        fn ordinary_text_is_unchanged(text in "[a-zA-Z0-9_.:/][ -~]{0,20}") {
            prop_assert_eq!(spreadsheet_safe_text(&text), text.as_str());
        }
    }
}
