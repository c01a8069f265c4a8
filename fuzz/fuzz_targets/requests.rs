//! Arbitrary messages as requests to the processes that attach probes and open files for a taken-over `attach`, and as their replies.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|message: &[u8]| probe_user::fuzzing::requests(message));
