//! Arbitrary ring buffer records: parsed slices lie within the input, and the matcher accepts any observation.
#![no_main]

use libfuzzer_sys::fuzz_target;
use probe_user::matcher::MatcherLimits;
use probe_user::{Matcher, Observation, fuzzing};

fuzz_target!(|bytes: &[u8]| {
    let mut matcher = Matcher::new(MatcherLimits { max_in_flight: 64, search_depth: 16 });
    // Each record follows a byte that holds half its length.
    let mut rest = bytes;
    while let Some((length, tail)) = rest.split_first() {
        let (raw, later) = tail.split_at((usize::from(*length) * 2).min(tail.len()));
        rest = later;
        match fuzzing::parse_observation(raw) {
            Some(Observation::Sent(message)) => {
                matcher.record_send(&message);
            }
            Some(Observation::Unsent(call)) => {
                matcher.record_refused_send(&call);
            }
            Some(Observation::Received(message)) => {
                let _ = matcher.match_receipt(&message);
            }
            Some(Observation::Processed(call)) => {
                matcher.processed_frame(&call);
            }
            // Has no message to match.
            _ => {}
        }
    }
});
