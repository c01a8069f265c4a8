//! Arbitrary ring buffer records: parsed slices lie within the input, and the matcher accepts any observation.
#![no_main]

use libfuzzer_sys::fuzz_target;
use probe_user::matcher::Limits;
use probe_user::{Matcher, Observation, fuzzing};

fuzz_target!(|bytes: &[u8]| {
    let mut matcher = Matcher::new(Limits { in_flight: 64, depth: 16 });
    // Each record follows a byte that holds half its length.
    let mut rest = bytes;
    while let Some((length, tail)) = rest.split_first() {
        let (raw, later) = tail.split_at((usize::from(*length) * 2).min(tail.len()));
        rest = later;
        match fuzzing::parse_observation(raw) {
            Some(Observation::Sent(message)) => {
                matcher.sent(&message);
            }
            Some(Observation::Unsent(call)) => {
                matcher.unsent(&call);
            }
            Some(Observation::Received(message)) => {
                let _ = matcher.received(&message);
            }
            Some(Observation::Processed(call)) => {
                matcher.processed(&call);
            }
            // Has no message to match.
            _ => {}
        }
    }
});
