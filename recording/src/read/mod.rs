//! Reading of recordings and rings: complete, truncated or damaged.

mod open;
mod reader;
mod scan;

pub use open::{BlockInfo, MissingParts, Recording};
pub use reader::RecordReader;

use serde_json::Value;
use trace::engine::Engines;
use trace::{Analysis, Config, ReportInput, words};

use super::Record;
use super::error::ReadError;

/// Offset in a file of the end of the block that was read last.
type BlockEndBytes = u64;
/// Size of a file.
type FileBytes = u64;

/// Replays a whole recording. Returns the analysis and the other input of its report. The report equals that of the live run, because
/// events and ticks are the same and in the same order. Calls `report_progress` at each block with its end in the file and the file's
/// size.
pub fn analyse(
    recording: &Recording,
    engines: Engines,
    report_progress: &mut dyn FnMut(BlockEndBytes, FileBytes),
) -> Result<(Analysis, ReportInput), ReadError> {
    let mut analysis = Analysis::new(Config { engines, ..recording.header().config });
    let mut input = read_records(recording, &mut |record| apply_record(&mut analysis, record), report_progress)?;
    // If the end of the run was not recorded, the clocks at its start are the best known.
    input.wall.get_or_insert(recording.header().anchor);
    Ok((analysis, input))
}

/// Passes a record to the analysis.
fn apply_record(analysis: &mut Analysis, record: &Record<'_>) {
    match record {
        Record::Event(event) => analysis.apply(event),
        Record::Tick(now) => analysis.tick(*now),
        // Neither changes the analysis.
        Record::Anchor(_) | Record::Closing(_) => {}
    }
}

/// Reads a whole recording and calls `visit_record` for each record. Damaged blocks are skipped; missing parts are listed in the returned
/// input's `degraded`. Calls `report_progress` at each block with its end in the file and the file's size.
pub fn read_records(
    recording: &Recording,
    visit_record: &mut dyn FnMut(&Record<'_>),
    report_progress: &mut dyn FnMut(BlockEndBytes, FileBytes),
) -> Result<ReportInput, ReadError> {
    let mut input = recording.input();
    if let Some(missing) = recording.missing() {
        input.degraded.push(Value::from(format!("recording: {missing}")));
    }
    let mut reader = recording.reader();
    let mut reported_offset = reader.offset();
    loop {
        match reader.next() {
            Ok(Some(record)) => visit_record(&record),
            Ok(None) => break,
            // The next call goes on behind the damaged block.
            Err(error @ ReadError::Damaged { .. }) => {
                input.degraded.push(Value::from(format!("recording: {error}")));
            }
            Err(error) => return Err(error),
        }
        // The offset changes only when the next block begins, and one block has many records.
        if reported_offset != reader.offset() {
            reported_offset = reader.offset();
            report_progress(reported_offset, recording.bytes());
        }
    }
    if reader.unknown_records() > 0 {
        let records = words::plural(reader.unknown_records(), "record");
        input.degraded.push(Value::from(format!(
            "recording: {records} of kinds unknown to this version were skipped; a newer tokengap reads them"
        )));
    }
    Ok(input)
}
