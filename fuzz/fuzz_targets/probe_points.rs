//! Arbitrary bytes as a shared library: the search for probe points returns them or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|image: &[u8]| probe_user::fuzzing::probe_points(image));
