//! Any bytes as the response of `/recording`: the sections are the same however the bytes arrive, and their blocks can be analysed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use outputs::report::Report;
use recording::{BlockReader, Record, StreamError, StreamSection, StreamSplitter};
use trace::{Analysis, Config, ReportInput};

/// Sections of bytes that arrive in pieces of `length`, and the error that ends them.
fn split(bytes: &[u8], length: usize) -> (Vec<StreamSection>, Option<StreamError>) {
    let mut splitter = StreamSplitter::default();
    let mut sections = Vec::new();
    for piece in bytes.chunks(length) {
        splitter.add_received_bytes(piece);
        loop {
            match splitter.next_section() {
                Ok(Some(section)) => sections.push(section),
                Ok(None) => break,
                Err(error) => return (sections, Some(error)),
            }
        }
    }
    (sections, None)
}

fuzz_target!(|input: &[u8]| {
    let Some((&length, bytes)) = input.split_first() else { return };
    let whole = split(bytes, bytes.len().max(1));
    assert_eq!(whole, split(bytes, usize::from(length) + 1));
    let mut reader = BlockReader::default();
    let mut analysis = Analysis::new(Config::default());
    for section in &whole.0 {
        if let StreamSection::Block(block) = section {
            // Corrupt input must return an error, not panic.
            let _ = reader.read_block(block, &mut |record| match record {
                Record::Event(event) => analysis.apply(&event),
                Record::Tick(now) => analysis.tick(now),
                _ => {}
            });
        }
    }
    Report::of(&analysis, &ReportInput::for_source("replay")).to_json();
});
