//! Arbitrary bytes as a recording: opening succeeds or returns an error, reading to the end does not panic, and records can be analysed.
#![no_main]

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;

use libfuzzer_sys::fuzz_target;
use rustix::fs::{MemfdFlags, memfd_create};
use trace::record::{ReadError, Record, Recording};
use trace::{Analysis, Config};

fuzz_target!(|bytes: &[u8]| {
    let mut file = File::from(memfd_create("recording", MemfdFlags::CLOEXEC).expect("a file in memory"));
    file.write_all(bytes).expect("written");
    let Ok(recording) = Recording::open(format!("/proc/self/fd/{}", file.as_raw_fd())) else { return };
    let mut analysis = Analysis::new(Config::default());
    let mut reader = recording.reader();
    for _ in 0..=recording.blocks().len() {
        let read = reader.next(&mut |record| match record {
            Record::Event(event) => analysis.apply(&event),
            Record::Tick(now) => analysis.tick(now),
            _ => {}
        });
        match read {
            Ok(true) | Err(ReadError::Damaged { .. }) => {}
            Ok(false) => return,
            Err(_) => return,
        }
    }
});
