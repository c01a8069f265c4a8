//! Truncated or damaged files: intact parts are read as written, damage is reported, and no data is invented.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use recording::{BlockInfo, OpenError, ReadError, Record, Recording};
use trace::event::What;

use super::{Folder, events, open, options, record, traffic};

/// Reads all readable events and checks that each was written, in order. Returns their number and that of damaged blocks.
fn read(path: &Path, inputs: &[Record<'_>]) -> Result<(usize, usize, Option<String>), OpenError> {
    let recording = Recording::open(path)?;
    let mut reader = recording.reader();
    let (mut at, mut read, mut damaged) = (0, 0, 0);
    loop {
        let record = match reader.next() {
            Ok(Some(record)) => record,
            Ok(None) => break,
            Err(ReadError::Damaged { .. }) => {
                damaged += 1;
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let is_written = |input: &Record<'_>| record == *input;
        match record {
            Record::Closing(closing) => assert_eq!(*closing, super::closing()),
            Record::Event(event) if !inputs[at..].iter().any(is_written) => {
                // After a damaged block come an event for the missed records and the current hops and engine.
                assert!(matches!(event.what, What::Missed(_) | What::Hop(_) | What::Engine(_)), "{event:?}");
            }
            _ => {
                at += 1 + inputs[at..].iter().position(is_written).expect("a written record");
                read += 1;
            }
        }
    }
    Ok((read, damaged, recording.missing().map(|m| m.to_string())))
}

#[test]
fn a_file_truncated_at_any_byte_opens_up_to_its_last_complete_block() {
    let (folder, file) = Folder::with_run();
    let inputs = traffic(40, 6, 9);
    record(&file, &inputs, options(300));
    let bytes = fs::read(&file).expect("a file");
    let recording = open(&file);
    assert!(recording.is_indexed() && recording.missing().is_none() && recording.blocks().len() > 4);
    let (first, last) = (recording.blocks()[0].offset, recording.blocks().last().expect("blocks"));
    let truncated = folder.file("truncated.tgap");
    for length in 0..bytes.len() as u64 {
        fs::write(&truncated, &bytes[..length as usize]).expect("a shorter file");
        let intact = recording.blocks().partition_point(|b| b.offset + b.bytes <= length);
        let intact = &recording.blocks()[..intact];
        let complete: u32 = intact.iter().map(|b| b.records).sum();
        match read(&truncated, &inputs) {
            Ok((read, damaged, missing)) => {
                assert_eq!((read, damaged), (complete as usize, 0), "truncated at {length}");
                let missing = missing.unwrap_or_default();
                assert!(
                    !missing.is_empty() || length + 20 > bytes.len() as u64 || complete as usize == inputs.len(),
                    "truncated at {length}"
                );
                let is_in = |block: &BlockInfo| (1..block.bytes).contains(&length.saturating_sub(block.offset));
                let reason = "its last block is truncated";
                assert!(!recording.blocks().iter().any(is_in) || missing.contains(reason), "{length}: {missing}");
                let is_unclosed = length <= last.offset + last.bytes;
                assert!(!is_unclosed || missing.contains("it was not closed"), "{length}: {missing}");
                let truncated = open(&truncated);
                assert!(!truncated.is_indexed() && truncated.blocks() == intact, "truncated at {length}");
            }
            Err(OpenError::NotARecording { .. }) => assert_eq!(length, 0),
            Err(OpenError::NoHeader { .. }) => assert!(length < first),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn any_changed_byte_is_detected_or_harmless() {
    let (folder, file) = Folder::with_run();
    let inputs = traffic(24, 5, 7);
    record(&file, &inputs, options(300));
    let bytes = fs::read(&file).expect("a file");
    let changed = folder.file("changed.tgap");
    for index in 0..bytes.len() {
        let mut corrupted = bytes.clone();
        corrupted[index] ^= 1 << (index % 8);
        fs::write(&changed, &corrupted).expect("a changed file");
        if let Ok((read, damaged, missing)) = read(&changed, &inputs) {
            assert!(
                read == inputs.len() || damaged > 0 || missing.is_some(),
                "byte {index}: {read} of {}",
                inputs.len()
            );
        }
    }
}

#[test]
fn other_files_are_rejected() {
    let folder = Folder::new();
    let file = folder.file("report.json");
    fs::write(&file, "{\"schema\": \"tokengap.report/2\"}").expect("a file");
    assert!(matches!(Recording::open(&file), Err(OpenError::NotARecording { .. })));
    assert!(matches!(Recording::open(folder.0.path()), Err(OpenError::NotARecording { .. })));
    assert!(matches!(Recording::open(folder.file("none")), Err(OpenError::Io { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_bytes_cause_no_panic(
        inputs in events::inputs(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let (_folder, file) = Folder::with_run();
        record(&file, &inputs, options(400));
        let mut bytes = fs::read(&file).expect("a file");
        for (index, value) in changes {
            let index = index.index(bytes.len());
            bytes[index] = value;
        }
        fs::write(&file, &bytes).expect("a changed file");
        if let Ok(recording) = Recording::open(&file) {
            let mut reader = recording.reader();
            while !matches!(reader.next(), Ok(None) | Err(ReadError::Io { .. })) {}
        }
    }
}
