//! Lost tokens in a recording. Counts show their positions; their values need recorded token ids.

use outputs::report::Losses;
use outputs::report::Report;
use recording::{RecordedPayload, Recorder, analyse};
use trace::event::{Capabilities, Chunk, Delivery, Event, Frame, Hop, What};
use trace::ledger::LostRange;
use trace::{Analysis, FrameId, HopId, MonoNs, ReportInput};

use super::{Folder, header, open, options};

const RID: &str = "9f1c2a77d1f84f0b8a53c6b0f2de4417";

/// A live run of six chunks with two tokens each; only the third and the last are delivered.
fn live(recorder: &mut Recorder, with_ids: bool) -> Analysis {
    let mut analysis = Analysis::new(header().config);
    let mut apply = |at: u64, what: What<'_>| {
        let at = MonoNs(at);
        analysis.apply(&Event { at, what });
        recorder.record_event(&Event { at, what });
    };
    let hop = HopId(0);
    apply(
        0,
        What::Hop(Hop {
            endpoint: "ipc:///tmp/tokens",
            ..Hop::only(hop, "scheduler->tokenizer", Capabilities::SENT | Capabilities::DELIVERED)
        }),
    );
    for n in 0..6_u32 {
        let ids = [i64::from(n) * 2 + 151_001, i64::from(n) * 2 + 151_002];
        let chunk = Chunk { ids: if with_ids { &ids } else { &[] }, ..Chunk::counted(RID, 2, n * 2 + 2) };
        let seq = u64::from(n);
        let id = FrameId { hop, lane: 0, seq };
        apply(seq * 10 + 1, What::Sent(Frame::token_ids(id, 900, &[chunk])));
    }
    for to in [6, 12] {
        let delivery = Delivery::new(RID, 2, Some(to));
        apply(100 + u64::from(to), What::Delivered(delivery));
    }
    analysis
}

/// Losses reported by the live run and by a replay of its recording.
fn live_and_replayed(payload: RecordedPayload) -> (Losses, Losses) {
    let (_folder, file) = Folder::with_run();
    let header = recording::RecordingHeader { payload, ..header() };
    let mut recorder = Recorder::create(&file, &header, options(3_000)).expect("a new file");
    let analysis = live(&mut recorder, payload == RecordedPayload::Tokens);
    let input = ReportInput::for_source("model");
    recorder.finish(&input).expect("finished");
    let recording = open(&file);
    let (replayed, replayed_input) = analyse(&recording, crate::engine::ENGINES, &mut |_, _| {}).expect("readable");
    (Report::of(&analysis, &input).losses, Report::of(&replayed, &replayed_input).losses)
}

fn ranges(losses: &Losses) -> Vec<LostRange> {
    let list = losses.confirmed.as_ref().expect("deliveries are observed");
    list.lines.iter().flat_map(|line| line.ranges.clone()).collect()
}

#[test]
fn positions_are_always_recorded_and_ids_only_on_request() {
    let range = |tokens, chunks, ids: &[i64]| LostRange { tokens, chunks: Some(chunks), ids: ids.to_vec() };
    let (live, replayed) = live_and_replayed(RecordedPayload::Tokens);
    let ids: Vec<i64> = (151_001..=151_010).collect();
    assert_eq!(ranges(&live), [range([1, 4], [1, 2], &ids[..4]), range([7, 10], [4, 5], &ids[6..])]);
    assert_eq!(replayed, live);
    let (live, replayed) = live_and_replayed(RecordedPayload::Lengths);
    assert_eq!(ranges(&live), [range([1, 4], [1, 2], &[]), range([7, 10], [4, 5], &[])]);
    assert_eq!(replayed, live);
}
