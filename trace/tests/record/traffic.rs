//! Simulated engine output: frames of overlapping requests, each received shortly after its send.

use trace::event::{Capabilities, Chunk, Event, Finish, Frame, Hop, Received, What};
use trace::record::Record;
use trace::{FrameId, HopId, MonoNs};

const MS: u64 = 1_000_000;

fn rid(n: u64) -> &'static str {
    let text = format!("{:016x}{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15), n.wrapping_mul(0xd134_2543_de82_ef95));
    Box::leak(text.into_boxed_str())
}

fn event(at: u64, what: What<'static>) -> Record<'static> {
    Record::Event(Event { at: MonoNs(at), what })
}

/// `frames` frames of `requests` requests with `tokens` tokens each, one frame every 10 ms, with a tick after every tenth.
pub(crate) fn traffic(frames: u64, requests: u64, tokens: u32) -> Vec<Record<'static>> {
    let capabilities = Capabilities::SENT | Capabilities::RECEIVED;
    let mut inputs = vec![event(
        0,
        What::Hop(Hop { endpoint: "ipc:///tmp/tokens", ..Hop::only(HopId(0), "scheduler->tokenizer", capabilities) }),
    )];
    let mut slots: Vec<(&'static str, u32)> = (0..requests).map(|n| (rid(n), n as u32 % tokens)).collect();
    let mut started = requests;
    for seq in 0..frames {
        let at = (seq + 1) * 10 * MS + seq * 7_919 % 1_000;
        let mut chunks = Vec::new();
        for slot in &mut slots {
            slot.1 += 1;
            let finish = slot.1 >= tokens;
            chunks.push(Chunk {
                listed: Some(1),
                completion_tokens: Some(slot.1),
                prompt_tokens: Some(1_024),
                cached_tokens: Some(0),
                finish: finish.then_some(Finish::Stop),
                retractions: Some(0),
                ..Chunk::new(slot.0)
            });
            if finish {
                *slot = (rid(started), 0);
                started += 1;
            }
        }
        let id = FrameId::new(HopId(0), 0, seq);
        let received = Received::in_wakeup(id, seq);
        inputs.push(event(at, What::Sent(Frame::token_ids(id, 24_000 + seq % 7, chunks.leak()))));
        inputs.push(event(at + MS + seq * 104_729 % 500_000, What::Received(received)));
        if seq % 10 == 9 {
            inputs.push(Record::Tick(MonoNs(at + 2 * MS)));
        }
    }
    inputs
}
