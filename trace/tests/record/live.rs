//! Blocks without a file and a snapshot of the analysis: a late joiner that continues from both has the source's state.

use proptest::prelude::*;
use trace::event::What;
use trace::record::{BlockPacker, BlockReader, BlockWriter, Payload, Record};
use trace::report::ReportInput;
use trace::{Analysis, Config};

use super::{open, traffic};

fn write(blocks: &mut BlockWriter, input: &Record<'_>) {
    match input {
        Record::Event(event) => blocks.event(event),
        Record::Tick(at) => blocks.tick(*at),
        other => panic!("{other:?} is no input"),
    }
}

pub(super) fn apply(analysis: &mut Analysis, record: &Record<'_>) {
    match record {
        Record::Event(event) => analysis.apply(event),
        Record::Tick(now) => analysis.tick(*now),
        _ => {}
    }
}

fn snapshot(analysis: &Analysis) -> Analysis {
    let bytes = rmp_serde::to_vec_named(analysis).expect("a snapshot");
    let snapshot: Analysis = rmp_serde::from_slice(&bytes).expect("a valid snapshot");
    assert!(snapshot.is_sound());
    snapshot.with_engines(crate::engine::ENGINES)
}

fn report(analysis: &Analysis) -> String {
    analysis.report(&ReportInput::of("model")).to_json()
}

/// Compares the source with a subscriber that joins after `join` records, with `block` records per block.
fn join_late(inputs: &[Record<'_>], join: usize, block: usize) -> (Analysis, Analysis) {
    let mut source = Analysis::new(crate::engine::config());
    inputs[..join].iter().for_each(|input| apply(&mut source, input));
    let mut subscriber = snapshot(&source);
    let (mut blocks, mut packer) = (BlockWriter::new(Payload::Lengths), BlockPacker::new().expect("a packer"));
    let mut reader = BlockReader::default();
    reader.go_on(blocks.next_record());
    for part in inputs[join..].chunks(block) {
        for input in part {
            apply(&mut source, input);
            write(&mut blocks, input);
        }
        let closed = blocks.close().expect("records");
        let packed = packer.pack(&closed).expect("packed");
        reader.read(packed, &mut |record| apply(&mut subscriber, &record)).expect("an intact block");
    }
    assert_eq!((reader.lost(), reader.unknown()), (0, 0));
    (source, subscriber)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_late_subscriber_reaches_the_same_report(join in 0.0_f64..1.0, block in 1_usize..400) {
        let inputs = traffic(300, 40, 23);
        let (source, subscriber) = join_late(&inputs, (join * inputs.len() as f64) as usize, block);
        prop_assert_eq!(report(&source), report(&subscriber));
        prop_assert!(source.ledger().totals().requests.finished > 100);
    }
}

/// Recordings of real engines with deliveries, CPU samples and losses. A snapshot at twenty points must reach the same final state.
#[test]
fn a_snapshot_of_a_real_run_continues_like_the_run() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/recordings");
    let mut runs = 0;
    for file in std::fs::read_dir(folder).expect("fixtures").map(|f| f.expect("a file").path()) {
        if file.extension().is_none_or(|e| e != "tgap") {
            continue;
        }
        runs += 1;
        let recording = open(&file);
        let (mut records, mut reader) = (0_u64, recording.reader());
        while reader.next().expect("an intact block").is_some() {
            records += 1;
        }
        let config = Config { engines: crate::engine::ENGINES, ..recording.header().config };
        let (mut source, mut at) = (Analysis::new(config), 0_u64);
        let mut reader = recording.reader();
        let mut snapshots: Vec<Analysis> = Vec::new();
        while let Some(record) = reader.next().expect("an intact block") {
            apply(&mut source, &record);
            for analysis in &mut snapshots {
                apply(analysis, &record);
            }
            at += 1;
            if at % (records / 20).max(1) == 0 {
                snapshots.push(snapshot(&source));
            }
        }
        assert!(snapshots.len() >= 20, "{}", file.display());
        for analysis in &snapshots {
            assert_eq!(report(analysis), report(&source), "{}", file.display());
        }
    }
    assert!(runs >= 4);
}

#[test]
fn a_missing_block_counts_as_missed_observations_not_as_lost_tokens() {
    let inputs = traffic(200, 40, 23);
    let (mut blocks, mut packer) = (BlockWriter::new(Payload::Lengths), BlockPacker::new().expect("a packer"));
    let (mut reader, mut subscriber) = (BlockReader::default(), Analysis::new(crate::engine::config()));
    let (mut reported, mut hops) = (Vec::new(), 0);
    for (number, part) in inputs.chunks(100).enumerate() {
        for input in part {
            write(&mut blocks, input);
        }
        let closed = blocks.close().expect("records");
        if number == 2 || number == 3 {
            continue;
        }
        let packed = packer.pack(&closed).expect("packed").to_vec();
        for _ in 0..2 {
            // The second read yields nothing: the block is already known.
            reader
                .read(&packed, &mut |record| {
                    apply(&mut subscriber, &record);
                    if let Record::Event(event) = record {
                        hops += usize::from(number == 4 && matches!(event.what, What::Hop(_)));
                        if let What::Missed(missed) = event.what {
                            reported.push((number, missed.count));
                        }
                    }
                })
                .expect("an intact block");
        }
        let mut damaged = packed;
        let last = damaged.len() - 1;
        damaged[last] ^= 1;
        assert!(reader.read(&damaged, &mut |_| panic!("a damaged block has no records")).is_err());
    }
    assert_eq!((reported, reader.lost()), (vec![(4, 200)], 200));
    assert!(hops > 0, "the hops are repeated");
    let report = subscriber.report(&ReportInput::of("model"));
    assert_eq!(report.own.events_missed, 200);
    assert_eq!(report.chunks.tokens_lost.unwrap_or(0), 0);
}
