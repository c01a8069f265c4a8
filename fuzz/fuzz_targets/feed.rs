//! Data from a hostile source or watcher: messages and states are accepted or rejected, and accepted ones can be analysed. Connections are
//! read in pieces of any size.
#![no_main]

use feed::{Body, Message};
use libfuzzer_sys::fuzz_target;
use trace::MonoNs;
use trace::report::ReportInput;

fn message(bytes: &[u8]) {
    let Ok(Body::Start(_, Ok(mut analysis))) = Message::read(bytes).map(|message| message.body) else { return };
    analysis.tick(MonoNs(1 << 40));
    analysis.report(&ReportInput::of("watch")).to_json();
}

fuzz_target!(|input: &[u8]| {
    let [how, piece, bytes @ ..] = input else { return };
    match how % 4 {
        0 => message(bytes),
        1 => message(&feed::fuzzing::start(bytes.to_vec())),
        how => feed::fuzzing::connection(bytes, usize::from(*piece) + 1, how == 2),
    }
});
