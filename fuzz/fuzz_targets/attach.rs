//! Arbitrary ring buffer records through the interpreter of `attach` into the analysis: the ledger's sums balance.
#![no_main]

use engines::sglang::discover::role::{SCHEDULER, TOKENIZER};
use libfuzzer_sys::fuzz_target;
use probe_user::fuzzing;
use sources::attach::Interpreter;
use sources::translate::Clients;
use trace::{Analysis, Config};

fuzz_target!(|bytes: &[u8]| {
    let clients = Clients { is_observed: true, ..Clients::default() };
    let mut interpreter = Interpreter::observing_from_first_message(&[(1, SCHEDULER), (2, TOKENIZER)], clients);
    interpreter.prepare_comparison();
    let mut analysis = Analysis::new(Config { engines: engines::FACTS, ..Config::default() });
    // Each record follows two bytes that hold its length.
    let mut rest = bytes;
    while let Some((length, tail)) = rest.split_first_chunk() {
        let (raw, later) = tail.split_at(usize::from(u16::from_le_bytes(*length)).min(tail.len()));
        rest = later;
        if let Some(observation) = fuzzing::parse_observation(raw) {
            interpreter.interpret_observation(&observation, &mut |event| analysis.apply(event));
        }
    }
    analysis.ledger().check_balance().expect("balanced sums");
});
