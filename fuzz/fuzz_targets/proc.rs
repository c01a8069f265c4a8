//! What a hostile process can make the kernel's tables say.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| probe_user::fuzzing::tables(text));
