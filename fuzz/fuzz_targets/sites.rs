//! Any file as a library: places to probe, or a reason.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|image: &[u8]| probe_user::fuzzing::sites(image));
