//! Blocks and streams without a file: a client has the source's state, and missing blocks cause no losses.

use outputs::report::Report;
use proptest::prelude::*;
use recording::{
    BlockPacker, BlockReader, BlockWriter, Record, RecordedPayload, RecordingHeader, StreamPacker, StreamSection,
    StreamSplitter,
};
use trace::event::What;
use trace::{Analysis, Config, ReportInput};

use super::traffic;

fn write(blocks: &mut BlockWriter, input: &Record<'_>) {
    match input {
        Record::Event(event) => blocks.record_event(event),
        Record::Tick(at) => blocks.record_tick(*at),
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

fn report(analysis: &Analysis) -> String {
    Report::of(analysis, &ReportInput::for_source("model")).to_json()
}

/// Bytes of a stream whose blocks have `block` records, with its end.
fn stream(inputs: &[Record<'_>], block: usize) -> Vec<u8> {
    let mut blocks = BlockWriter::new(RecordedPayload::Lengths);
    let mut packer = StreamPacker::new(RecordingHeader::for_source("model", Config::default())).expect("a packer");
    let mut bytes = packer.preamble_and_header().expect("a start");
    for part in inputs.chunks(block) {
        for input in part {
            write(&mut blocks, input);
        }
        bytes.extend_from_slice(packer.pack_block(&blocks.close_block().expect("records")).expect("packed"));
        bytes.extend(packer.pack_status(&ReportInput::for_source("model")).expect("JSON"));
    }
    bytes.extend(packer.pack_end(&ReportInput { slowest: 7, ..ReportInput::for_source("model") }).expect("JSON"));
    bytes
}

/// Analysis and sections of a stream that arrives in pieces of `length` bytes.
fn received(bytes: &[u8], length: usize) -> (Analysis, Vec<StreamSection>) {
    let mut splitter = StreamSplitter::default();
    let mut reader = BlockReader::default();
    let mut analysis = Analysis::new(crate::engine::config());
    let mut sections = Vec::new();
    for piece in bytes.chunks(length) {
        splitter.add_received_bytes(piece);
        while let Some(section) = splitter.next_section().expect("an intact stream") {
            if let StreamSection::Block(block) = &section {
                reader.read_block(block, &mut |record| apply(&mut analysis, &record)).expect("an intact block");
            }
            sections.push(section);
        }
    }
    assert_eq!((reader.records_before(), reader.lost(), reader.unknown()), (Some(0), 0, 0));
    (analysis, sections)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_stream_has_the_same_report_however_its_bytes_arrive(length in 1_usize..5_000, block in 20_usize..400) {
        let inputs = traffic(300, 40, 23);
        let mut source = Analysis::new(crate::engine::config());
        for input in &inputs {
            apply(&mut source, input);
        }
        let (client, sections) = received(&stream(&inputs, block), length);
        prop_assert_eq!(report(&source), report(&client));
        let is_whole = matches!((sections.first(), sections.last()), (
            Some(StreamSection::Header { .. }),
            Some(StreamSection::End(closing)),
        ) if closing.slowest == 7);
        prop_assert!(is_whole && source.ledger().totals().requests.finished > 100);
    }

    #[test]
    fn a_damaged_stream_is_an_error_or_a_shorter_stream(at in 0.0_f64..1.0, bit in 0_u8..8) {
        let mut bytes = stream(&traffic(60, 40, 23), 50);
        let at = (at * bytes.len() as f64) as usize;
        bytes[at] ^= 1 << bit;
        let mut splitter = StreamSplitter::default();
        splitter.add_received_bytes(&bytes);
        let mut reader = BlockReader::default();
        while let Ok(Some(section)) = splitter.next_section() {
            if let StreamSection::Block(block) = section {
                // Corrupt input must return an error, not panic.
                let _ = reader.read_block(&block, &mut |_| {});
            }
        }
    }
}

#[test]
fn what_is_no_recording_is_refused() {
    let read = |bytes: &[u8]| {
        let mut splitter = StreamSplitter::default();
        splitter.add_received_bytes(bytes);
        splitter.next_section().expect_err("no recording").to_string()
    };
    assert!(read(b"<html>").contains("sends no tokengap recording"));
    let mut other = stream(&traffic(60, 40, 23), 50);
    other[8] = 9;
    assert!(read(&other).contains("format 9."), "{}", read(&other));
}

#[test]
fn a_missing_block_counts_as_missed_observations_not_as_lost_tokens() {
    let inputs = traffic(200, 40, 23);
    let (mut blocks, mut packer) = (BlockWriter::new(RecordedPayload::Lengths), BlockPacker::new().expect("a packer"));
    let (mut reader, mut subscriber) = (BlockReader::default(), Analysis::new(crate::engine::config()));
    let (mut reported, mut hops) = (Vec::new(), 0);
    for (number, part) in inputs.chunks(100).enumerate() {
        for input in part {
            write(&mut blocks, input);
        }
        let closed = blocks.close_block().expect("records");
        if number == 2 || number == 3 {
            continue;
        }
        let packed = packer.pack_standalone_block(&closed).expect("packed").to_vec();
        for _ in 0..2 {
            // The second read yields nothing: the block is already known.
            reader
                .read_block(&packed, &mut |record| {
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
        assert!(reader.read_block(&damaged, &mut |_| panic!("a damaged block has no records")).is_err());
    }
    assert_eq!((reported, reader.lost()), (vec![(4, 200)], 200));
    assert!(hops > 0, "the hops are repeated");
    let report = Report::of(&subscriber, &ReportInput::for_source("model"));
    assert_eq!(report.own.events_missed, 200);
    assert_eq!(report.chunks.tokens_lost.unwrap_or(0), 0);
}

#[test]
fn an_undecodable_block_counts_as_missed_observations() {
    let mut sections = received(&stream(&traffic(60, 40, 23), 50), 1_000).1;
    sections.retain(|section| matches!(section, StreamSection::Block(_)));
    let StreamSection::Block(block) = &mut sections[1] else { panic!("a block") };
    // Valid checksums around columns that are cut off.
    block.truncate(88 + 20);
    block[12..16].copy_from_slice(&20_u32.to_le_bytes());
    let payload_crc = crc32fast::hash(&block[88..]);
    block[20..24].copy_from_slice(&payload_crc.to_le_bytes());
    let header_crc = crc32fast::hash(&block[8..88]);
    block[4..8].copy_from_slice(&header_crc.to_le_bytes());
    let mut reader = BlockReader::default();
    let mut missed = 0;
    let mut refused = 0;
    for section in &sections {
        let StreamSection::Block(block) = section else { continue };
        let read = reader.read_block(block, &mut |record| {
            if let Record::Event(event) = record
                && let What::Missed(event) = event.what
            {
                missed += event.count;
            }
        });
        refused += u32::from(read.is_err());
    }
    assert_eq!((refused, missed, reader.lost()), (1, 50, 50));
}
