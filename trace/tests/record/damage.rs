//! Truncated or damaged files: intact parts are read as written, damage is reported, and no data is invented.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use trace::event::What;
use trace::record::{OpenError, ReadError, Record, Recording};

use super::traffic::traffic;
use super::{Folder, Said, events, options, record};

/// Reads all readable events and checks that each was written, in order. Returns their number and that of damaged blocks.
fn read(path: &Path, said: &[Said]) -> Result<(usize, usize, Option<String>), OpenError> {
    let recording = Recording::open(path)?;
    let mut reader = recording.reader();
    let (mut at, mut read, mut damaged) = (0, 0, 0);
    loop {
        let more = reader.next(&mut |record| {
            let is = |said: &Said| match (record, said) {
                (Record::Event(event), Said::Event(e)) => event == *e,
                (Record::Tick(now), Said::Tick(t)) => now.0 == *t,
                _ => false,
            };
            match record {
                Record::Closing(closing) => assert_eq!(*closing, super::closing()),
                Record::Event(event) if !said[at..].iter().any(is) => {
                    // After a damaged block come a loss event and the standing data.
                    assert!(
                        matches!(event.what, What::Lost(_) | What::Hop(_) | What::Engine(_)),
                        "{event:?}"
                    );
                }
                _ => {
                    at += 1 + said[at..].iter().position(is).expect("what was said");
                    read += 1;
                }
            }
        });
        match more {
            Ok(true) => {}
            Ok(false) => break,
            Err(ReadError::Damaged { .. }) => damaged += 1,
            Err(error) => panic!("{error}"),
        }
    }
    Ok((read, damaged, recording.missing().map(|m| m.to_string())))
}

#[test]
fn cut_at_any_byte_it_opens_up_to_its_last_whole_block() {
    let folder = Folder::new();
    let said = traffic(40, 6, 9);
    let file = folder.file("run.tgap");
    record(&file, &said, options(300));
    let bytes = fs::read(&file).expect("a file");
    let recording = Recording::open(&file).expect("a recording");
    assert!(recording.is_indexed() && recording.missing().is_none() && recording.blocks().len() > 4);
    let first = recording.blocks()[0].offset;
    let cut = folder.file("cut.tgap");
    for length in 0..bytes.len() as u64 {
        fs::write(&cut, &bytes[..length as usize]).expect("a shorter file");
        let blocks = recording.blocks().iter().take_while(|b| b.offset + b.bytes <= length);
        let whole: u32 = blocks.map(|b| b.records).sum();
        match read(&cut, &said) {
            Ok((read, damaged, missing)) => {
                assert_eq!((read, damaged), (whole as usize, 0), "cut at {length}");
                assert!(
                    missing.is_some() || length + 20 > bytes.len() as u64 || whole as usize == said.len(),
                    "cut at {length}"
                );
            }
            Err(OpenError::NotARecording { .. }) => assert_eq!(length, 0),
            Err(OpenError::NoHeader { .. }) => assert!(length < first),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn any_byte_changed_is_noticed_or_changes_nothing() {
    let folder = Folder::new();
    let said = traffic(24, 5, 7);
    let file = folder.file("run.tgap");
    record(&file, &said, options(300));
    let bytes = fs::read(&file).expect("a file");
    let changed = folder.file("changed.tgap");
    for place in 0..bytes.len() {
        let mut other = bytes.clone();
        other[place] ^= 1 << (place % 8);
        fs::write(&changed, &other).expect("a changed file");
        if let Ok((read, damaged, missing)) = read(&changed, &said) {
            assert!(
                read == said.len() || damaged > 0 || missing.is_some(),
                "byte {place}: {read} of {}",
                said.len()
            );
        }
    }
}

#[test]
fn a_recording_that_was_not_closed_says_so() {
    let folder = Folder::new();
    let file = folder.file("run.tgap");
    record(&file, &traffic(40, 6, 9), options(300));
    let bytes = fs::read(&file).expect("a file");
    let blocks = Recording::open(&file).expect("a recording").blocks().to_vec();
    let last = blocks.last().expect("blocks");
    fs::write(&file, &bytes[..(last.offset + last.bytes) as usize - 10]).expect("a shorter file");
    let recording = Recording::open(&file).expect("a recording");
    let missing = recording.missing().expect("something is missing").to_string();
    assert!(
        missing.contains("its last block was cut") && missing.contains("it was not closed"),
        "{missing}"
    );
    assert!(!recording.is_indexed() && recording.blocks() == &blocks[..blocks.len() - 1]);
}

#[test]
fn other_files_are_no_recordings() {
    let folder = Folder::new();
    let file = folder.file("report.json");
    fs::write(&file, "{\"schema\": \"tokengap.report/1\"}").expect("a file");
    assert!(matches!(Recording::open(&file), Err(OpenError::NotARecording { .. })));
    assert!(matches!(
        Recording::open(&folder.0),
        Err(OpenError::NotARecording { .. })
    ));
    assert!(matches!(
        Recording::open(folder.file("none")),
        Err(OpenError::Io { .. })
    ));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_file_with_any_bytes_behind_a_true_header_does_no_harm(
        said in events::said(),
        places in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let folder = Folder::new();
        let file = folder.file("run.tgap");
        record(&file, &said, options(400));
        let mut bytes = fs::read(&file).expect("a file");
        for (place, value) in places {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        fs::write(&file, &bytes).expect("a changed file");
        if let Ok(recording) = Recording::open(&file) {
            let mut reader = recording.reader();
            while !matches!(reader.next(&mut |_| {}), Ok(false) | Err(ReadError::Io { .. })) {}
        }
    }
}
