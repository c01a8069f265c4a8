//! A small run for tests, which feeds events into a real analysis.

use trace::engine::Mode;
use trace::event::{Capabilities, Chunk, Delivery, Engine, Event, Finish, Frame, Hop, Received, What};
use trace::ledger::{DEFAULT_CHUNK_HISTORY, Limits};
use trace::{Analysis, FrameId, HopId, MonoNs};

use crate::state::pinned::PinnedHistories;

pub(crate) const MS: u64 = 1_000_000;

pub(crate) struct Scene {
    pub(crate) analysis: Analysis,
    pub(crate) pinned: PinnedHistories,
    seq: Vec<u64>,
}

impl Scene {
    /// A 0.5.9 engine in incremental mode whose scheduler sends directly to the tokenizer; sends, receives and deliveries are observable.
    pub(crate) fn delivering() -> Self {
        Self::delivering_with_history(DEFAULT_CHUNK_HISTORY)
    }

    /// Like [`Self::delivering`]; the ledger keeps this many events of chunks.
    pub(crate) fn delivering_with_history(chunk_history: usize) -> Self {
        let capabilities = Capabilities::SENT | Capabilities::RECEIVED | Capabilities::DELIVERED;
        Self::with_history(&[("scheduler->tokenizer", capabilities)], chunk_history)
    }

    /// Capabilities of a tap: sends and forwards, through a detokenizer.
    pub(crate) fn tapped() -> Self {
        Self::tapped_with_history(DEFAULT_CHUNK_HISTORY)
    }

    /// Like [`Self::tapped`]; the ledger keeps this many events of chunks.
    pub(crate) fn tapped_with_history(chunk_history: usize) -> Self {
        let capabilities = Capabilities::SENT | Capabilities::FORWARDED;
        let hops = [("scheduler->detokenizer", capabilities), ("detokenizer->tokenizer", capabilities)];
        Self::with_history(&hops, chunk_history)
    }

    /// Creates hops in the order of the path: the first is the origin, the last goes to the tokenizer.
    pub(crate) fn new(hops: &[(&str, Capabilities)]) -> Self {
        Self::with_history(hops, DEFAULT_CHUNK_HISTORY)
    }

    /// Creates hops like [`Self::new`]; the ledger keeps this many events of chunks.
    pub(crate) fn with_history(hops: &[(&str, Capabilities)], chunk_history: usize) -> Self {
        Self::with_config(hops, trace::Config { chunk_history, ..trace::Config::default() })
    }

    /// Creates hops like [`Self::new`], with other limits of memory.
    pub(crate) fn with_limits(hops: &[(&str, Capabilities)], limits: Limits) -> Self {
        Self::with_config(
            hops,
            trace::Config { limits, chunk_history: DEFAULT_CHUNK_HISTORY, ..trace::Config::default() },
        )
    }

    fn with_config(hops: &[(&str, Capabilities)], config: trace::Config) -> Self {
        let analysis = Analysis::new(trace::Config { engines: engines::FACTS, ..config });
        let mut scene = Self { analysis, pinned: PinnedHistories::default(), seq: vec![0; hops.len()] };
        for (id, &(name, capabilities)) in hops.iter().enumerate() {
            let hop = Hop {
                endpoint: "ipc:///tmp/t",
                origin: id == 0,
                last: name.ends_with("->tokenizer"),
                ..Hop::new(HopId(id as u16), name, capabilities)
            };
            scene.emit(0, What::Hop(hop));
        }
        let engine = Engine { version: Some("0.5.9"), mode: Some(Mode::Incremental), ..Engine::default() };
        scene.emit(0, What::Engine(engine));
        scene
    }

    pub(crate) fn emit(&mut self, at: u64, what: What<'_>) {
        let event = Event { at: MonoNs(at), what };
        self.analysis.apply(&event);
    }

    /// Sends the next frame on the first hop, with (rid, listed, `completion_tokens`) for each chunk.
    pub(crate) fn send(&mut self, at: u64, chunks: &[(&str, u32, u32)]) {
        self.send_on(0, at, chunks, None);
    }

    /// Number of frames sent on this hop.
    pub(crate) fn sent_frames(&self, hop: usize) -> u64 {
        self.seq[hop]
    }

    /// Sends the last chunks of requests.
    pub(crate) fn finish(&mut self, at: u64, chunks: &[(&str, u32, u32)], why: Finish) {
        self.send_on(0, at, chunks, Some(why));
    }

    pub(crate) fn send_on(&mut self, hop: u16, at: u64, chunks: &[(&str, u32, u32)], finish: Option<Finish>) {
        let chunks: Vec<Chunk<'_>> = chunks
            .iter()
            .map(|&(rid, listed, completion)| Chunk {
                listed: Some(listed),
                completion_tokens: Some(completion),
                prompt_tokens: Some(512),
                cached_tokens: Some(0),
                finish,
                ..Chunk::new(rid)
            })
            .collect();
        let seq = self.seq[hop as usize];
        self.seq[hop as usize] += 1;
        let id = FrameId::new(HopId(hop), 0, seq);
        self.emit(at, What::Sent(Frame::token_ids(id, 900, &chunks)));
    }

    /// Receives frame `seq` on the first hop.
    pub(crate) fn receive(&mut self, at: u64, seq: u64, wakeup: u64) {
        let id = FrameId::new(HopId(0), 0, seq);
        self.emit(at, What::Received(Received::in_wakeup(id, wakeup)));
    }

    pub(crate) fn deliver(&mut self, at: u64, rid: &str, tokens: u32, completion: u32) {
        let mode = Mode::Incremental;
        let delivery = Delivery { mode, ..Delivery::new(rid, tokens, Some(completion)) };
        self.emit(at, What::Delivered(delivery));
    }

    pub(crate) fn tick(&mut self, at: u64) {
        self.analysis.tick(MonoNs(at));
    }
}
