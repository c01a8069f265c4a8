//! Recording files: permissions, replacement, and rotation.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use trace::MonoNs;
use trace::event::What;
use trace::record::{Record, RecordError, RecordOptions, Recorder, Recording};

use super::traffic::traffic;
use super::{Folder, Said, closing, compare, header, options, record};

#[test]
fn a_recording_is_its_owners_alone_and_replaces_nothing_unasked() {
    let folder = Folder::new();
    let file = folder.file("run.tgap");
    fs::write(&file, "something of value").expect("a file");
    let refused = Recorder::create(&file, &header(), options(100));
    assert!(matches!(refused, Err(RecordError::Exists { .. })));
    assert_eq!(fs::read(&file).expect("still there"), b"something of value");
    let force = RecordOptions {
        force: true,
        ..options(100)
    };
    let said = traffic(3, 2, 5);
    record(&file, &said, force);
    assert_eq!(compare(&file, &said), said.len());
    let mode = fs::metadata(&file).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(
        fs::read_dir(&folder.0).expect("a folder").count(),
        1,
        "nothing is left beside it"
    );
}

#[test]
fn a_link_or_a_device_is_never_written_through() {
    let folder = Folder::new();
    let link = folder.file("run.tgap");
    std::os::unix::fs::symlink(folder.file("elsewhere"), &link).expect("a link");
    for force in [false, true] {
        let options = RecordOptions { force, ..options(100) };
        let refused = Recorder::create(&link, &header(), options);
        assert!(matches!(refused, Err(RecordError::NotAFile { .. })));
    }
    assert!(!folder.file("elsewhere").exists());
}

#[test]
fn it_stops_at_its_largest_size_and_says_so() {
    let folder = Folder::new();
    let file = folder.file("run.tgap");
    let small = RecordOptions {
        max_bytes: Some(20_000),
        ..options(400)
    };
    let summary = record(&file, &traffic(2_000, 20, 9), small);
    let why = summary.stopped.expect("it stopped");
    assert!(why.contains("largest size of 20000 bytes"), "{why}");
    assert!(fs::metadata(&file).expect("a file").len() <= 20_000);
    let recording = Recording::open(&file).expect("a recording");
    assert!(recording.is_indexed() && recording.missing().is_some_and(|m| m.stopped));
    assert_eq!(recording.records(), summary.records);
}

#[test]
fn each_of_several_files_opens_alone() {
    let folder = Folder::new();
    let file = folder.file("run.tgap");
    let rotating = RecordOptions {
        max_bytes: Some(20_000),
        rotate: Some(3),
        ..options(400)
    };
    let said = traffic(2_000, 20, 9);
    let summary = record(&file, &said, rotating);
    assert_eq!((summary.files.len(), summary.stopped, summary.dropped), (3, None, 0));
    assert_eq!(
        fs::read_dir(&folder.0).expect("a folder").count(),
        3,
        "older ones are removed"
    );
    let mut next = None;
    for (place, part) in summary.files.iter().enumerate() {
        let recording = Recording::open(part).expect("a recording");
        let first = recording.blocks()[0].first_record;
        assert!(next.is_none_or(|next| next == first), "files follow each other");
        next = Some(first + recording.records());
        let mut hops = 0;
        let mut reader = recording.reader();
        let first =
            reader.next(&mut |r| hops += usize::from(matches!(r, Record::Event(e) if matches!(e.what, What::Hop(_)))));
        assert!(first.expect("a whole block") && hops == 1, "what stands is said again");
        let missing = recording.missing().expect("the first of the run");
        assert_eq!((missing.continued, missing.unfinished), (place < 2, false));
        assert_eq!(recording.closing().is_some(), place == 2);
        assert!(recording.bytes() <= 20_000 && part.to_string_lossy().ends_with(".tgap"));
    }
    assert_eq!(next, Some(said.len() as u64));
}

#[test]
fn a_reader_can_begin_with_any_block() {
    let folder = Folder::new();
    let file = folder.file("run.tgap");
    let said = traffic(200, 20, 9);
    record(&file, &said, options(2_000));
    let recording = Recording::open(&file).expect("a recording");
    let (from, to) = recording.span().expect("not empty");
    assert_eq!((from, to > MonoNs(2_000_000_000)), (MonoNs(0), true));
    for (block, info) in recording.blocks().iter().enumerate().skip(1) {
        assert_eq!(recording.block_at(info.from), block);
        let mut records = Vec::new();
        recording
            .reader_at(block)
            .next(&mut |r| records.push(format!("{r:?}")))
            .expect("a whole block");
        assert!(records[0].contains("Hop(Hop"));
        let first = info.first_record as usize;
        let expected = said[first..first + info.records as usize]
            .iter()
            .map(|said| match said {
                Said::Event(event) => format!("{:?}", Record::Event(*event)),
                Said::Tick(at) => format!("{:?}", Record::Tick(MonoNs(*at))),
            });
        assert!(records[1..].iter().eq(expected.collect::<Vec<_>>().iter()));
    }
}

#[test]
fn what_the_system_refuses_is_said() {
    let folder = Folder::new();
    let error =
        Recorder::create(&folder.file("no/such/folder/run.tgap"), &header(), options(100)).expect_err("no folder");
    assert!(error.to_string().starts_with("cannot create "), "{error}");
}

#[test]
fn without_tokens_asked_for_no_id_is_in_the_file() {
    use trace::event::{Chunk, Event, Frame, IdColumn, Kind};
    use trace::record::{Header, Payload};
    use trace::{FrameId, HopId};
    let folder = Folder::new();
    let file = folder.file("run.tgap");
    let lengths = Header {
        payload: Payload::Lengths,
        ..header()
    };
    let mut recorder = Recorder::create(&file, &lengths, options(100)).expect("a new file");
    let chunk = Chunk {
        rid: "a",
        listed: Some(2),
        completion_tokens: Some(2),
        prompt_tokens: None,
        cached_tokens: None,
        finish: None,
        retractions: None,
        worker: None,
        ids: &[9_906, 1_917],
    };
    let id = FrameId {
        hop: HopId(0),
        lane: 0,
        seq: 0,
    };
    let frame = |chunks| {
        What::Sent(Frame {
            id,
            bytes: 9,
            kind: Kind::TokenIds,
            ids: IdColumn::Delta,
            chunks,
        })
    };
    let (at, with, without) = (MonoNs(1), [chunk], [Chunk { ids: &[], ..chunk }]);
    recorder.event(&Event { at, what: frame(&with) });
    recorder.finish(&closing()).expect("finished");
    let recording = Recording::open(&file).expect("a recording");
    let mut seen = false;
    recording
        .reader()
        .next(&mut |record| {
            let what = frame(&without);
            assert_eq!(record, Record::Event(Event { at, what }));
            seen = true;
        })
        .expect("a whole block");
    assert!(seen);
}
