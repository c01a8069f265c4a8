use outputs::export::{Export, Format, Opening, Options};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row, RowAccessor};
use trace::clock::Anchor;
use trace::event::{Chunk, Event, Finish, Frame, What};
use trace::{Config, FrameId, HopId, MonoNs, ReportInput};

use super::{export, export_bytes, run};

fn rows(options: Options) -> Vec<Row> {
    let (bytes, _) = export_bytes(Format::Parquet, options);
    let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).expect("a Parquet file");
    let rows = reader.get_row_iter(None).expect("rows");
    rows.collect::<Result<_, _>>().expect("rows")
}

/// The text of a field in CSV.
fn text(field: &Field) -> String {
    match field {
        Field::Null => String::new(),
        Field::Str(text) => text.clone(),
        Field::Long(number) => number.to_string(),
        Field::Bool(flag) => flag.to_string(),
        other => panic!("no column has this type: {other:?}"),
    }
}

#[test]
fn values_equal_those_of_csv_with_the_recording_in_front() {
    let (csv, _) = export(Format::Csv, Options::default());
    let mut csv = ::csv::Reader::from_reader(csv.as_bytes());
    let names: Vec<String> = csv.headers().expect("a header").iter().map(str::to_owned).collect();
    let rows = rows(Options { recording: Some("run.tgap".into()), ..Options::default() });
    let mut empty = 0;
    for (row, record) in rows.iter().zip(csv.records().map(|record| record.expect("a row"))) {
        let mut columns = row.get_column_iter();
        let recording = columns.next().map(|(name, value)| (&**name, text(value)));
        assert_eq!(recording, Some(("recording", "run.tgap".into())));
        let start = columns.next().expect("a column");
        assert_eq!(start.0, "capture_start");
        assert!(matches!(start.1, Field::TimestampMicros(at) if *at == (run::WALL / 1_000) as i64), "{start:?}");
        assert_eq!(row.len(), 2 + names.len());
        for ((name, value), (expected_name, expected)) in columns.zip(names.iter().zip(&record)) {
            assert_eq!(name, expected_name);
            empty += usize::from(expected.is_empty());
            if let Field::TimestampMicros(at) = value {
                let expected: jiff::Timestamp = expected.parse().expect("a time");
                assert_eq!(*at, expected.as_microsecond());
            } else {
                // CSV is text that a terminal may show; Parquet keeps the value.
                assert_eq!(text(value).replace('\n', "\u{fffd}"), expected, "{name}");
            }
        }
    }
    assert!(rows.len() == 12 && empty > 0, "{} rows, {empty} empty cells", rows.len());
}

#[test]
fn no_matching_request_makes_a_file_without_rows() {
    let rows = rows(Options { rids: vec!["unknown".into()], ..Options::default() });
    assert!(rows.is_empty());
}

/// More requests than one row group holds.
#[test]
fn rows_continue_in_further_groups() {
    const REQUESTS: usize = 70_000;
    let opening = Opening::new("tap", "0.1.0", Anchor::default());
    let mut out = Vec::new();
    let mut export = Export::new(Format::Parquet, Options::default(), Config::default(), &opening, &mut out).unwrap();
    let rids: Vec<String> = (0..REQUESTS).map(|n| format!("rid-{n}")).collect();
    for (seq, rids) in rids.chunks(1_000).enumerate() {
        let chunks: Vec<Chunk<'_>> = rids.iter().map(|rid| finished(rid)).collect();
        let id = FrameId { hop: HopId(0), lane: 0, seq: seq as u64 };
        let frame = Frame::token_ids(id, 100, &chunks);
        let at = MonoNs((seq as u64 + 1) * run::MS);
        export.event(&Event { at, what: What::Sent(frame) }).unwrap();
    }
    export.finish(&ReportInput::for_source("tap")).unwrap();
    let reader = SerializedFileReader::new(bytes::Bytes::from(out)).expect("a Parquet file");
    assert_eq!(reader.num_row_groups(), 3);
    let mut found: Vec<String> = (reader.get_row_iter(None).expect("rows"))
        .map(|row| row.expect("a row").get_string(2).expect("a rid").clone())
        .collect();
    found.sort_unstable();
    found.dedup();
    assert_eq!(found.len(), REQUESTS);
}

fn finished(rid: &str) -> Chunk<'_> {
    Chunk { finish: Some(Finish::Stop), ..Chunk::counted(rid, 1, 1) }
}
