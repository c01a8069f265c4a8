//! Disk failure: the recording stops with a reason, the run continues, and written data is kept.

use std::fs;
use std::time::{Duration, Instant};

use trace::record::{Hindsight, RecordError, RecordOptions, Recorder, Recording};

use super::traffic::traffic;
use super::{Folder, Said, closing, header, options};

fn feed(recorder: &mut Recorder, said: &[Said]) {
    for said in said {
        match said {
            Said::Event(event) => recorder.event(event),
            Said::Tick(at) => recorder.tick(trace::MonoNs(*at)),
        }
    }
}

/// Waits until the writer thread stops, and returns the reason.
fn stopped(recorder: &Recorder) -> String {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(why) = recorder.status().stopped {
            return why;
        }
        assert!(Instant::now() < end, "it does not stop");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_recording_whose_folder_is_removed_stops_and_says_so() {
    let folder = Folder::new();
    fs::create_dir(folder.file("mount")).expect("a folder");
    let file = folder.file("mount/run.tgap");
    let said = traffic(200, 20, 9);
    let mut recorder = Recorder::create(&file, &header(), options(400)).expect("a new file");
    feed(&mut recorder, &said);
    fs::remove_dir_all(folder.file("mount")).expect("removed");
    feed(&mut recorder, &said);
    let why = stopped(&recorder);
    assert!(
        why.starts_with("recording stopped: ") && why.contains("run.tgap was removed"),
        "{why}"
    );
    feed(&mut recorder, &said);
    let summary = recorder.finish(&closing()).expect("the run ends as always");
    assert_eq!(summary.stopped, Some(why));
}

#[test]
fn nobody_is_told_of_a_recording_that_is_not_there() {
    let folder = Folder::new();
    let file = folder.file("run.tgap");
    let recorder = Recorder::create(&file, &header(), options(400)).expect("a new file");
    fs::remove_file(&file).expect("removed");
    let ended = recorder.finish(&closing());
    assert!(matches!(ended, Err(RecordError::Removed { path }) if path == file));
}

#[test]
fn a_recording_that_is_moved_goes_on() {
    let folder = Folder::new();
    let said = traffic(200, 20, 9);
    let mut recorder = Recorder::create(&folder.file("run.tgap"), &header(), options(400)).expect("a new file");
    feed(&mut recorder, &said);
    fs::rename(folder.file("run.tgap"), folder.file("kept.tgap")).expect("moved");
    feed(&mut recorder, &said);
    let summary = recorder.finish(&closing()).expect("finished");
    assert_eq!(summary.stopped, None);
    let recording = Recording::open(folder.file("kept.tgap")).expect("a recording");
    assert_eq!(recording.records(), 2 * said.len() as u64);
    assert!(recording.missing().is_none());
}

#[test]
fn when_the_next_file_cannot_be_made_the_last_one_ends_whole() {
    let folder = Folder::new();
    let rotating = RecordOptions {
        max_bytes: Some(20_000),
        rotate: Some(3),
        ..options(400)
    };
    fs::write(folder.file("run.1.tgap"), "something of value").expect("a file");
    let mut recorder = Recorder::create(&folder.file("run.tgap"), &header(), rotating).expect("a new file");
    feed(&mut recorder, &traffic(2_000, 20, 9));
    let why = stopped(&recorder);
    assert!(why.contains("run.1.tgap exists already"), "{why}");
    recorder.finish(&closing()).expect("the run ends as always");
    let kept = fs::read(folder.file("run.1.tgap")).expect("still there");
    assert_eq!(kept, b"something of value");
    let recording = Recording::open(folder.file("run.tgap")).expect("a recording");
    let missing = recording.missing().expect("it ended early");
    assert!(recording.is_indexed() && recording.records() > 0);
    assert!(
        missing.stopped && !missing.continued && !missing.unfinished,
        "{missing:?}"
    );
}

#[test]
fn a_dump_into_a_folder_that_is_gone_fails_and_the_ring_goes_on() {
    let folder = Folder::new();
    let said = traffic(500, 20, 9);
    let mut ring = Hindsight::create(&folder.file("ring"), 4 << 20, &header(), options(10_000)).expect("a ring");
    for said in &said {
        match said {
            Said::Event(event) => ring.event(event),
            Said::Tick(at) => ring.tick(trace::MonoNs(*at)),
        }
    }
    let nowhere = ring.dump(&folder.file("gone/dump.tgap"), &closing(), false);
    assert!(
        matches!(nowhere, Err(RecordError::Io { what: "create", .. })),
        "{nowhere:?}"
    );
    let dumped = ring.dump(&folder.file("dump.tgap"), &closing(), false).expect("a dump");
    assert_eq!(dumped.records, said.len() as u64);
    ring.finish().expect("finished");
}
