//! Blocks without a file and a snapshot of the analysis: a late joiner that continues from both has the source's state.

use proptest::prelude::*;
use trace::event::What;
use trace::record::{BlockPacker, BlockReader, BlockWriter, Payload, Record, Recording};
use trace::report::ReportInput;
use trace::{Analysis, Config, MonoNs};

use super::Said;
use super::traffic::traffic;

fn enter(analysis: &mut Analysis, said: &Said) {
    match said {
        Said::Event(event) => analysis.apply(event),
        Said::Tick(at) => analysis.tick(MonoNs(*at)),
    }
}

fn write(blocks: &mut BlockWriter, said: &Said) {
    match said {
        Said::Event(event) => blocks.event(event),
        Said::Tick(at) => blocks.tick(MonoNs(*at)),
    }
}

fn enter_record(analysis: &mut Analysis, record: &Record<'_>) {
    match record {
        Record::Event(event) => analysis.apply(event),
        Record::Tick(now) => analysis.tick(*now),
        _ => {}
    }
}

fn image(of: &Analysis) -> Analysis {
    let bytes = rmp_serde::to_vec_named(of).expect("an image");
    let image: Analysis = rmp_serde::from_slice(&bytes).expect("the same");
    assert!(image.is_sound());
    image
}

fn report(of: &Analysis) -> String {
    of.report(&ReportInput::of("model")).to_json()
}

/// Compares the source with a subscriber that joins after `join` records, with `block` records per block.
fn late(said: &[Said], join: usize, block: usize) -> (Analysis, Analysis) {
    let mut source = Analysis::new(Config::default());
    said[..join].iter().for_each(|s| enter(&mut source, s));
    let mut watcher = image(&source);
    let (mut blocks, mut packer) = (BlockWriter::new(Payload::Lengths), BlockPacker::new().expect("room"));
    let mut reader = BlockReader::default();
    reader.go_on(blocks.next_record());
    for part in said[join..].chunks(block) {
        for said in part {
            enter(&mut source, said);
            write(&mut blocks, said);
        }
        let closed = blocks.close().expect("records");
        let packed = packer.pack(&closed).expect("packed");
        reader
            .read(packed, &mut |record| enter_record(&mut watcher, &record))
            .expect("a whole block");
    }
    assert_eq!((reader.lost(), reader.unknown()), (0, 0));
    (source, watcher)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn who_joins_late_comes_to_the_same_report(join in 0.0_f64..1.0, block in 1_usize..400) {
        let said = traffic(300, 40, 23);
        let (source, watcher) = late(&said, (join * said.len() as f64) as usize, block);
        prop_assert_eq!(report(&source), report(&watcher));
        prop_assert!(source.ledger().totals().requests.finished > 100);
    }
}

/// Recordings of real engines with deliveries, CPU samples and losses. A snapshot at twenty points must reach the same final state.
#[test]
fn an_image_of_a_real_run_goes_on_as_the_run_does() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/recordings");
    let mut runs = 0;
    for file in std::fs::read_dir(folder)
        .expect("fixtures")
        .map(|f| f.expect("a file").path())
    {
        if file.extension().is_none_or(|e| e != "tgap") {
            continue;
        }
        runs += 1;
        let recording = Recording::open(&file).expect("a recording");
        let records: u64 = recording.blocks().iter().map(|b| u64::from(b.records)).sum();
        let (mut source, mut at) = (Analysis::new(recording.header().config), 0_u64);
        let mut reader = recording.reader();
        let mut going_on: Vec<Analysis> = Vec::new();
        while reader
            .next(&mut |record| {
                enter_record(&mut source, &record);
                for a in &mut going_on {
                    enter_record(a, &record);
                }
                at += 1;
                if at % (records / 20).max(1) == 0 {
                    going_on.push(image(&source));
                }
            })
            .expect("whole")
        {}
        assert!(going_on.len() >= 20, "{}", file.display());
        for analysis in &going_on {
            assert_eq!(report(analysis), report(&source), "{}", file.display());
        }
    }
    assert!(runs >= 4);
}

#[test]
fn a_block_that_did_not_come_is_a_loss_of_ours_and_never_of_tokens() {
    let said = traffic(200, 40, 23);
    let (mut blocks, mut packer) = (BlockWriter::new(Payload::Lengths), BlockPacker::new().expect("room"));
    let (mut reader, mut watcher) = (BlockReader::default(), Analysis::new(Config::default()));
    let (mut told, mut hops) = (Vec::new(), 0);
    for (place, part) in said.chunks(100).enumerate() {
        for s in part {
            write(&mut blocks, s);
        }
        let closed = blocks.close().expect("records");
        if place == 2 || place == 3 {
            continue;
        }
        let packed = packer.pack(&closed).expect("packed").to_vec();
        for _ in 0..2 {
            // The second read yields nothing: the block is already known.
            reader
                .read(&packed, &mut |record| {
                    enter_record(&mut watcher, &record);
                    if let Record::Event(event) = record {
                        hops += usize::from(place == 4 && matches!(event.what, What::Hop(_)));
                        if let What::Lost(lost) = event.what {
                            told.push((place, lost.count));
                        }
                    }
                })
                .expect("a whole block");
        }
        let mut damaged = packed;
        let last = damaged.len() - 1;
        damaged[last] ^= 1;
        assert!(reader.read(&damaged, &mut |_| panic!("nothing of it")).is_err());
    }
    assert_eq!((told, reader.lost()), (vec![(4, 200)], 200));
    assert!(hops > 0, "what stands is said again");
    let report = watcher.report(&ReportInput::of("model"));
    assert_eq!(report.own.events_missed, 200);
    assert_eq!(report.chunks.tokens_lost.unwrap_or(0), 0);
}
