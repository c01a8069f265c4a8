//! Arbitrary text as the kernel's process tables, parts of which a hostile process controls.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| probe_user::fuzzing::tables(text));
