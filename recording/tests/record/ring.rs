//! Hindsight ring: fixed size, complete newest blocks, dump to a recording.

use std::fs;

use recording::{PendingSummary, RecordError, RecordOptions, Recorder, Recording};

use super::{Folder, closing, feed, header, open, options, traffic};

const SIZE: u64 = 4 << 20;

/// Records of a file, and the index of the first within the run.
fn records(recording: &Recording) -> (u64, Vec<String>) {
    let mut records = Vec::new();
    let mut reader = recording.reader();
    while let Some(record) = reader.next().expect("intact blocks") {
        records.push(format!("{record:?}"));
    }
    (recording.blocks()[0].first_record, records)
}

#[test]
fn the_newest_blocks_are_complete_and_can_be_dumped_during_the_run() {
    let folder = Folder::new();
    let (file, dumped) = (folder.file("ring"), folder.file("dump.tgap"));
    let mut ring = Recorder::create_ring(&file, SIZE, &header(), options(100_000)).expect("a ring");
    assert_eq!(fs::metadata(&file).expect("a file").len(), SIZE);
    // Poorly compressible data, so that the ring wraps several times.
    let inputs = traffic(6_000, 200, 2);
    feed(&mut ring, &inputs);
    let summary = ring.copy_ring_to(&dumped, &closing()).and_then(PendingSummary::wait).expect("a dump");
    assert!(ring.status().bytes > 2 * SIZE, "it wrapped: {} bytes", ring.status().bytes);
    assert_eq!(fs::metadata(&file).expect("a file").len(), SIZE);
    // Reads the file while the ring is open, as after a crash.
    let live = open(&file);
    let dump = open(&dumped);
    assert!(dump.is_indexed() && dump.closing() == Some(&closing()));
    let ((from, mut dump_records), (live_from, live_records)) = (records(&dump), records(&live));
    assert!(dump_records.pop().is_some_and(|last| last.starts_with("Closing")));
    assert_eq!((from, dump_records.len()), (live_from, live_records.len()));
    assert_eq!(dump_records, live_records);
    assert_eq!(summary.records + from, inputs.len() as u64);
    assert!(from > 0 && dump.missing().is_some_and(|m| m.records_before == from && m.records_between == 0));
    let bytes: u64 = live.blocks().iter().map(|b| b.bytes).sum();
    assert!(bytes > SIZE / 2, "{bytes} of {SIZE} bytes hold blocks");
    // The current hops come first, then the records from that point on.
    let expected = inputs[from as usize..].iter().map(|input| format!("{input:?}"));
    assert!(dump_records[0].contains("Hop(Hop"));
    assert!(dump_records[1..].iter().eq(expected.collect::<Vec<_>>().iter()));
    ring.finish(&closing()).expect("finished");
}

#[test]
fn the_ring_of_a_killed_run_is_not_overwritten() {
    let folder = Folder::new();
    let file = folder.file("ring");
    drop(Recorder::create_ring(&file, SIZE, &header(), options(100_000)).expect("a ring"));
    let refused = Recorder::create_ring(&file, SIZE, &header(), options(100_000));
    assert!(matches!(refused, Err(RecordError::Exists { .. })));
    let force = RecordOptions { force: true, ..options(100_000) };
    let mut ring = Recorder::create_ring(&file, SIZE, &header(), force).expect("replaced");
    assert!(matches!(
        ring.copy_ring_to(&folder.file("none.tgap"), &closing()).and_then(PendingSummary::wait),
        Err(RecordError::Empty)
    ));
    assert!(!folder.file("none.tgap").exists());
    let small = Recorder::create_ring(&folder.file("small"), 1 << 10, &header(), options(100));
    assert!(matches!(small, Err(RecordError::TooSmall { .. })));
}
