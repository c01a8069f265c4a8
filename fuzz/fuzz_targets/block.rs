//! Arbitrary columns after the valid header of a block: decoding yields records or an error, and the records can be
//! analysed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use outputs::report::Report;
use recording::{BlockReader, Record, fuzzing};
use trace::{Analysis, Config, ReportInput};

fuzz_target!(|input: &[u8]| {
    let [records, more_records, chunks, more_chunks, columns @ ..] = input else { return };
    let count = |low: &u8, high: &u8| u16::from_le_bytes([*low, *high]);
    let (records, chunks) = (count(records, more_records), count(chunks, more_chunks));
    let block = fuzzing::block(columns, records, chunks);
    let mut analysis = Analysis::new(Config::default());
    // Corrupt input must return an error, not panic.
    let _ = BlockReader::default().read_block(&block, &mut |record| match record {
        Record::Event(event) => analysis.apply(&event),
        Record::Tick(now) => analysis.tick(now),
        _ => {}
    });
    Report::of(&analysis, &ReportInput::for_source("replay")).to_json();
});
