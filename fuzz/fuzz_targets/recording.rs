//! Arbitrary bytes as a recording: opening succeeds or returns an error, reading to the end does not panic, and records can be analysed.
#![no_main]

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;

use libfuzzer_sys::fuzz_target;
use recording::{ReadError, Record, Recording};
use rustix::fs::{MemfdFlags, memfd_create};
use trace::{Analysis, Config};

fuzz_target!(|bytes: &[u8]| {
    let mut file = File::from(memfd_create("recording", MemfdFlags::CLOEXEC).expect("a file in memory"));
    file.write_all(bytes).expect("written");
    let Ok(recording) = Recording::open(format!("/proc/self/fd/{}", file.as_raw_fd())) else { return };
    let mut analysis = Analysis::new(Config::default());
    let mut reader = recording.reader();
    loop {
        match reader.next() {
            Ok(Some(Record::Event(event))) => analysis.apply(&event),
            Ok(Some(Record::Tick(now))) => analysis.tick(now),
            Ok(Some(_)) | Err(ReadError::Damaged { .. }) => {}
            Ok(None) | Err(_) => return,
        }
    }
});
