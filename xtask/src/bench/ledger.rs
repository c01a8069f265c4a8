//! The ledger compared with a lower bound for the same chunks: a hash map of counters by request id. In CPU time of this thread, in
//! alternating turns.

use std::hint::black_box;

use anyhow::ensure;
use hashbrown::HashMap;
use hot::traffic::{CHUNKS_PER_S, Traffic};
use rustix::time::{ClockId, clock_gettime};
use trace::event::{Chunk, Event, Frame, Hop, IdColumn, Kind, Sees, Taken, What};
use trace::{Analysis, Config, FrameId, HopId, MonoNs};

use super::aims;

pub(super) const SECOND: u64 = 1_000_000_000;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Requests alive at once
    #[arg(long, default_value_t = 4_096)]
    rids: usize,
    /// Requests in a frame
    #[arg(long, default_value_t = 256)]
    frame: usize,
    /// Tokens of a request, after which another takes its place
    #[arg(long, default_value_t = 200)]
    tokens: u32,
    /// Turns each peer takes; the medians are compared
    #[arg(long, default_value_t = 15)]
    rounds: usize,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(
        args.frame > 0 && args.rids >= args.frame,
        "--rids must be at least --frame, and --frame at least 1"
    );
    let mut traffic = Traffic::new(args.rids, args.frame, args.tokens);
    let mut sends = Peer::new(false);
    let mut takes = Peer::new(true);
    let mut floor: HashMap<Box<str>, [u64; 4]> = HashMap::new();
    let mut spent: [Vec<f64>; 3] = Default::default();
    for _ in 0..=args.rounds {
        traffic.advance();
        let chunks: usize = traffic.frames.iter().map(Vec::len).sum();
        let frames = traffic.borrow();
        let turns = [
            timed(|| sends.turn(&frames)),
            timed(|| takes.turn(&frames)),
            timed(|| count(&mut floor, &frames)),
        ];
        for (peer, ns) in spent.iter_mut().zip(turns) {
            peer.push(ns as f64 / chunks as f64);
        }
    }
    let seen = takes.analysis.ledger().totals();
    ensure!(
        seen.wire_loss.1 == 0 && seen.chunks.taken == seen.chunks.sent,
        "the ledger misread the bench's own traffic"
    );
    let [sends, takes, floor] = spent.map(median);
    println!(
        "{} chunks over {} live rids, frames of {}",
        seen.chunks.sent, args.rids, args.frame
    );
    println!(
        "{:34} {:>9} {:>7} {:>14} {:>13}",
        "", "ns/chunk", "ratio", "share at 132k", "max chunks/s"
    );
    let share = |ns: f64| 100.0 * ns * CHUNKS_PER_S as f64 / SECOND as f64;
    for (name, ns) in [
        ("hash map of counters", floor),
        ("ledger: sends", sends),
        ("ledger: sends and takes", takes),
    ] {
        println!(
            "{name:34} {ns:9.1} {:7.1} {:12.2} % {:13.0}",
            ns / floor,
            share(ns),
            1e9 / ns
        );
    }
    aims::came("ledger.rate", 1e3 / takes, &[("a hash map of counters", 1e3 / floor)])?;
    aims::came(
        "ledger.share",
        share(takes),
        &[("a hash map of counters", share(floor))],
    )
}

/// An analysis with the clock and numbering of its frames.
struct Peer {
    analysis: Analysis,
    takes: bool,
    seq: u64,
    at: u64,
}

impl Peer {
    fn new(takes: bool) -> Self {
        let mut analysis = Analysis::new(Config::default());
        let sees = Sees {
            sent: true,
            taken: takes,
            ..Sees::default()
        };
        let name = "scheduler->tokenizer";
        let hop = Hop {
            id: HopId(0),
            name,
            endpoint: "",
            worker: None,
            origin: true,
            last: true,
            sees,
        };
        analysis.apply(&Event {
            at: MonoNs(0),
            what: What::Hop(hop),
        });
        Self {
            analysis,
            takes,
            seq: 0,
            at: SECOND,
        }
    }

    /// One second of traffic: each frame is received 1 ms after it is sent, with a tick every 100 ms.
    fn turn(&mut self, frames: &[Vec<Chunk<'_>>]) {
        let step = SECOND / frames.len() as u64;
        for (number, chunks) in frames.iter().enumerate() {
            let id = FrameId {
                hop: HopId(0),
                lane: 0,
                seq: self.seq,
            };
            let frame = Frame {
                id,
                bytes: 25_000,
                kind: Kind::TokenIds,
                ids: IdColumn::Delta,
                chunks,
            };
            self.analysis.apply(&Event {
                at: MonoNs(self.at),
                what: What::Sent(frame),
            });
            if self.takes {
                let what = What::Taken(Taken {
                    id,
                    wakeup: Some(self.seq),
                    by: None,
                    frame: None,
                });
                self.analysis.apply(&Event {
                    at: MonoNs(self.at + SECOND / 1_000),
                    what,
                });
            }
            self.seq += 1;
            self.at += step;
            if number % (frames.len() / 10).max(1) == 0 {
                self.analysis.tick(MonoNs(self.at));
            }
        }
    }
}

/// The lower bound: find the request, add its counts, remove it when it finishes.
fn count(map: &mut HashMap<Box<str>, [u64; 4]>, frames: &[Vec<Chunk<'_>>]) {
    for chunk in frames.iter().flatten() {
        let counters = match map.get_mut(chunk.rid) {
            Some(counters) => counters,
            None => map.entry(chunk.rid.into()).or_default(),
        };
        counters[0] += 1;
        counters[1] += u64::from(chunk.listed.unwrap_or(0));
        counters[2] = u64::from(chunk.completion_tokens.unwrap_or(0));
        if chunk.finish.is_some() {
            black_box(map.remove(chunk.rid));
        }
    }
}

/// CPU time of `work` on this thread, in nanoseconds.
pub(super) fn timed(work: impl FnOnce()) -> u64 {
    let now = || {
        let t = clock_gettime(ClockId::ThreadCPUTime);
        t.tv_sec as u64 * SECOND + t.tv_nsec as u64
    };
    let start = now();
    work();
    now() - start
}

/// Median without the first turn, which fills the tables.
fn median(mut turns: Vec<f64>) -> f64 {
    turns.remove(0);
    turns.sort_by(f64::total_cmp);
    turns[turns.len() / 2]
}
