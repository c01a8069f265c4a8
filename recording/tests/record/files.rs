//! Recording files: permissions, replacement, and rotation.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use recording::{Record, RecordError, RecordOptions, Recorder};
use trace::MonoNs;
use trace::event::What;

use super::{Folder, closing, compare, header, open, options, record, traffic};

#[test]
fn a_recording_is_private_and_overwrites_only_with_force() {
    let (folder, file) = Folder::with_run();
    fs::write(&file, "previous content").expect("a file");
    let refused = Recorder::create(&file, &header(), options(100));
    assert!(matches!(refused, Err(RecordError::Exists { .. })));
    assert_eq!(fs::read(&file).expect("still there"), b"previous content");
    let force = RecordOptions { force: true, ..options(100) };
    let inputs = traffic(3, 2, 5);
    record(&file, &inputs, force);
    assert_eq!(compare(&file, &inputs), inputs.len());
    let mode = fs::metadata(&file).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(fs::read_dir(folder.0.path()).expect("a folder").count(), 1, "no temporary file remains");
}

#[test]
fn a_symlink_is_never_followed() {
    let (folder, link) = Folder::with_run();
    std::os::unix::fs::symlink(folder.file("elsewhere"), &link).expect("a link");
    for force in [false, true] {
        let options = RecordOptions { force, ..options(100) };
        let refused = Recorder::create(&link, &header(), options);
        assert!(matches!(refused, Err(RecordError::NotAFile { .. })));
    }
    assert!(!folder.file("elsewhere").exists());
}

#[test]
fn a_recording_stops_at_the_size_limit_with_a_reason() {
    let (_folder, file) = Folder::with_run();
    let small = RecordOptions { max_bytes: Some(20_000), ..options(400) };
    let summary = record(&file, &traffic(2_000, 20, 9), small);
    let reason = summary.stopped.expect("it stopped");
    assert!(reason.contains("size limit of 20000 bytes"), "{reason}");
    assert!(fs::metadata(&file).expect("a file").len() <= 20_000);
    let recording = open(&file);
    assert!(recording.is_indexed() && recording.missing().is_some_and(|m| m.stopped));
    assert_eq!(recording.records(), summary.records);
}

#[test]
fn each_rotated_file_opens_on_its_own() {
    let (folder, file) = Folder::with_run();
    let rotating = RecordOptions { max_bytes: Some(20_000), rotate: Some(3), ..options(400) };
    let inputs = traffic(2_000, 20, 9);
    let summary = record(&file, &inputs, rotating);
    assert_eq!((summary.files.len(), summary.stopped, summary.dropped), (3, None, 0));
    assert_eq!(fs::read_dir(folder.0.path()).expect("a folder").count(), 3, "older ones are removed");
    let mut next = None;
    for (index, part) in summary.files.iter().enumerate() {
        let recording = open(part);
        let first = recording.blocks()[0].first_record;
        assert!(next.is_none_or(|next| next == first), "files are contiguous");
        next = Some(first + recording.records());
        let mut reader = recording.reader();
        let record = reader.next().expect("an intact block");
        let hop = matches!(record, Some(Record::Event(event)) if matches!(event.what, What::Hop(_)));
        assert!(hop, "the hops are repeated");
        let missing = recording.missing().expect("older files were removed");
        assert_eq!((missing.continued, missing.unfinished), (index < 2, false));
        assert_eq!(recording.closing().is_some(), index == 2);
        assert!(recording.bytes() <= 20_000 && part.to_string_lossy().ends_with(".tgap"));
    }
    assert_eq!(next, Some(inputs.len() as u64));
}

#[test]
fn a_reader_can_start_at_any_block() {
    let (_folder, file) = Folder::with_run();
    let inputs = traffic(200, 20, 9);
    record(&file, &inputs, options(2_000));
    let recording = open(&file);
    let (from, to) = recording.span().expect("not empty");
    assert_eq!((from, to > MonoNs(2_000_000_000)), (MonoNs(0), true));
    for (block, info) in recording.blocks().iter().enumerate().skip(1) {
        let (mut reader, mut records) = (recording.reader_at(block), Vec::new());
        while records.len() <= info.records as usize
            && let Some(record) = reader.next().expect("an intact block")
        {
            records.push(format!("{record:?}"));
        }
        assert!(records[0].contains("Hop(Hop"));
        let first = info.first_record as usize;
        let expected = inputs[first..first + info.records as usize].iter().map(|input| format!("{input:?}"));
        assert!(records[1..].iter().eq(expected.collect::<Vec<_>>().iter()));
    }
}

#[test]
fn token_ids_are_recorded_only_on_request() {
    use recording::{RecordedPayload, RecordingHeader};
    use trace::event::{Chunk, Event, Frame};
    use trace::{FrameId, HopId};
    let (_folder, file) = Folder::with_run();
    let lengths = RecordingHeader { payload: RecordedPayload::Lengths, ..header() };
    let mut recorder = Recorder::create(&file, &lengths, options(100)).expect("a new file");
    let chunk = Chunk { listed: Some(2), completion_tokens: Some(2), ids: &[9_906, 1_917], ..Chunk::new("a") };
    let id = FrameId::new(HopId(0), 0, 0);
    let frame = |chunks| What::Sent(Frame::token_ids(id, 9, chunks));
    let (at, with_ids, without_ids) = (MonoNs(1), [chunk], [Chunk { ids: &[], ..chunk }]);
    recorder.record_event(&Event::new(at, frame(&with_ids)));
    recorder.finish(&closing()).expect("finished");
    let recording = open(&file);
    let what = frame(&without_ids);
    let mut reader = recording.reader();
    let record = reader.next().expect("an intact block");
    assert_eq!(record, Some(Record::Event(Event { at, what })));
}
