//! Disk failure: the recording stops with a reason, the run continues, and written data is kept.

use std::fs;
use std::time::{Duration, Instant};

use recording::{PendingSummary, RecordError, RecordOptions, Recorder};

use super::{Folder, closing, feed, header, open, options, traffic};

/// Waits until the writer thread stops, and returns the reason.
fn wait_until_stopped(recorder: &Recorder) -> String {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(reason) = recorder.status().stopped {
            return reason;
        }
        assert!(Instant::now() < end, "the recording did not stop");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_recording_stops_with_a_reason_when_its_folder_is_removed() {
    let folder = Folder::new();
    fs::create_dir(folder.file("mount")).expect("a folder");
    let file = folder.file("mount/run.tgap");
    let inputs = traffic(200, 20, 9);
    let mut recorder = Recorder::create(&file, &header(), options(400)).expect("a new file");
    feed(&mut recorder, &inputs);
    fs::remove_dir_all(folder.file("mount")).expect("removed");
    feed(&mut recorder, &inputs);
    let reason = wait_until_stopped(&recorder);
    assert!(reason.starts_with("recording stopped: ") && reason.contains("run.tgap was removed"), "{reason}");
    feed(&mut recorder, &inputs);
    let summary = recorder.finish(&closing()).expect("the run ends normally");
    assert_eq!(summary.stopped, Some(reason));
}

#[test]
fn finishing_a_removed_recording_is_an_error() {
    let (_folder, file) = Folder::with_run();
    let recorder = Recorder::create(&file, &header(), options(400)).expect("a new file");
    fs::remove_file(&file).expect("removed");
    let result = recorder.finish(&closing());
    assert!(matches!(result, Err(RecordError::Removed(path)) if path == file));
}

#[test]
fn a_moved_recording_continues() {
    let (folder, file) = Folder::with_run();
    let inputs = traffic(200, 20, 9);
    let mut recorder = Recorder::create(&file, &header(), options(400)).expect("a new file");
    feed(&mut recorder, &inputs);
    fs::rename(&file, folder.file("moved.tgap")).expect("moved");
    feed(&mut recorder, &inputs);
    let summary = recorder.finish(&closing()).expect("finished");
    assert_eq!(summary.stopped, None);
    let recording = open(folder.file("moved.tgap"));
    assert_eq!(recording.records(), 2 * inputs.len() as u64);
    assert!(recording.missing().is_none());
}

#[test]
fn the_current_file_is_closed_if_the_next_one_cannot_be_created() {
    let (folder, file) = Folder::with_run();
    let rotating = RecordOptions { max_bytes: Some(20_000), rotate: Some(3), ..options(400) };
    fs::write(folder.file("run.1.tgap"), "previous content").expect("a file");
    let mut recorder = Recorder::create(&file, &header(), rotating).expect("a new file");
    feed(&mut recorder, &traffic(2_000, 20, 9));
    let reason = wait_until_stopped(&recorder);
    assert!(reason.contains("run.1.tgap already exists"), "{reason}");
    recorder.finish(&closing()).expect("the run ends normally");
    let content = fs::read(folder.file("run.1.tgap")).expect("still there");
    assert_eq!(content, b"previous content");
    let recording = open(&file);
    let missing = recording.missing().expect("it ended early");
    assert!(recording.is_indexed() && recording.records() > 0);
    assert!(missing.stopped && !missing.continued && !missing.unfinished, "{missing:?}");
}

#[test]
fn the_ring_continues_after_a_failed_dump() {
    let folder = Folder::new();
    let inputs = traffic(500, 20, 9);
    let mut ring = Recorder::create_ring(&folder.file("ring"), 4 << 20, &header(), options(10_000)).expect("a ring");
    feed(&mut ring, &inputs);
    let failed = ring.copy_ring_to(&folder.file("missing/dump.tgap"), &closing()).and_then(PendingSummary::wait);
    let error = failed.expect_err("no such folder").to_string();
    assert!(error.starts_with("cannot create "), "{error}");
    let dumped =
        ring.copy_ring_to(&folder.file("dump.tgap"), &closing()).and_then(PendingSummary::wait).expect("a dump");
    assert_eq!(dumped.records, inputs.len() as u64);
    ring.finish(&closing()).expect("finished");
}
