//! Any run of events, made by the strategies of the recording's own tests: what is written is read, and a replay's report is
//! the live one.
#![no_main]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use proptest::strategy::{BoxedStrategy, Strategy as _, ValueTree as _};
use proptest::test_runner::{Config as Cases, RngAlgorithm, TestRng, TestRunner};
use trace::record::{Closing, Header, Record, RecordOptions, Recorder, Recording};
use trace::report::ReportInput;
use trace::{Analysis, Config, Event, MonoNs};

#[path = "../../trace/tests/record/events.rs"]
mod events;

/// What is recorded.
#[derive(Clone, Copy, Debug)]
enum Said {
    Event(Event<'static>),
    Tick(u64),
}

/// In memory where there is such a folder: a finished recording is synced, and a disk takes longer for that than all the rest.
static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    folder.join(format!("tokengap-roundtrip-{}.tgap", std::process::id()))
});

thread_local! {
    /// Made once: there are many parts to it.
    static SAID: BoxedStrategy<Vec<Said>> = events::said().boxed();
}

fn enter(analysis: &mut Analysis, said: &Said) {
    match said {
        Said::Event(event) => analysis.apply(event),
        Said::Tick(at) => analysis.tick(MonoNs(*at)),
    }
}

fuzz_target!(|bytes: &[u8]| {
    // The input is only a seed: strategies try again until they like a number, and would not end on an input that does.
    let seed = bytes.chunks(32).fold([0_u8; 32], |mut seed, part| {
        seed.iter_mut().zip(part).for_each(|(mixed, byte)| *mixed = mixed.rotate_left(3) ^ byte);
        seed
    });
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(Cases::default(), rng);
    let Ok(tree) = SAID.with(|said| said.new_tree(&mut runner)) else { return };
    let said = tree.current();

    let header = Header {
        payload: trace::record::Payload::Tokens,
        ..Header::of("model", Config::default())
    };
    let options = RecordOptions { block_bytes: 200, ..RecordOptions::offline() };
    std::fs::remove_file(&*FILE).ok();
    let mut recorder = Recorder::create(&FILE, &header, options).expect("a new file");
    let mut live = Analysis::new(Config::default());
    for said in &said {
        match said {
            Said::Event(event) => recorder.event(event),
            Said::Tick(at) => recorder.tick(MonoNs(*at)),
        }
        enter(&mut live, said);
    }
    recorder.finish(&Closing::default()).expect("a file that can be finished");

    let recording = Recording::open(&*FILE).expect("a recording");
    std::fs::remove_file(&*FILE).expect("it is there");
    let (mut reader, mut again, mut at) = (recording.reader(), Analysis::new(Config::default()), 0);
    let mut next = |record: Record<'_>| {
        match (record, said.get(at)) {
            (Record::Event(event), Some(Said::Event(expected))) => {
                assert_eq!(event, *expected);
                again.apply(&event);
            }
            (Record::Tick(now), Some(Said::Tick(expected))) => {
                assert_eq!(now.0, *expected);
                again.tick(now);
            }
            (Record::Closing(_), None) => return,
            other => panic!("{other:?} at {at}"),
        }
        at += 1;
    };
    while reader.next(&mut next).expect("a whole block") {}
    assert_eq!(at, said.len());
    let input = ReportInput::of("model");
    let (live, again) = (live.report(&input), again.report(&input));
    // Equal reports print alike, which takes long; a number that is none equals nothing.
    if live != again {
        assert_eq!(live.to_json(), again.to_json());
    }
});
