//! One growth curve each, in CPU time of this thread. Takes the minimum of the turns, because interference can only add time.

use std::hint::black_box;
use std::path::Path;

use anyhow::Context;
use hot::traffic::{HOP, Traffic, frame};
use trace::event::{Chunk, Event, Hop, Taken, What};
use trace::{Analysis, Config, HopId, MonoNs};
use zmq_tap::wire::{Decoder, Limits};

use super::super::ledger::{SECOND, timed};
use super::super::relay;
use super::Curve;

const SIZES: [u32; 9] = [1, 4, 16, 64, 256, 1_024, 4_096, 16_384, 65_536];
/// Chunks in a frame of the ledger's curves, and tokens of a request.
const FRAME: usize = 256;
const TOKENS: u32 = 200;
/// Live requests on curves where another quantity grows.
const ALIVE: usize = 4_096;

/// Decoding cost by requests in the frame.
pub(super) fn decode(rounds: u32) -> anyhow::Result<Curve> {
    /// Minimum number of requests decoded in a turn.
    const WORK: u32 = 1 << 18;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("the workspace")?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("frame.pkl");
    let mut points = Vec::new();
    for size in SIZES {
        // About a hundred bytes per request, plus the column names.
        relay::frame(&root.join(relay::FIXTURE), u64::from(size) * 100, &file)?;
        let message = std::fs::read(&file)?;
        let mut decoder = Decoder::new(Limits::default());
        let requests = u32::try_from(decoder.decode(&message)?.len())?;
        let messages = WORK.div_ceil(requests);
        let least = least(rounds, || {
            for _ in 0..messages {
                black_box(decoder.decode(black_box(&message)).map(|batch| batch.len()).ok());
            }
        });
        points.push((requests, least as f64 / f64::from(requests * messages)));
    }
    Ok(Curve {
        title: "decoding a pickle of SGLang 0.5.9",
        grows: "requests",
        cost: "ns a request",
        points,
    })
}

/// Ledger cost by live requests.
pub(super) fn requests(rounds: u32) -> Curve {
    let points = SIZES.map(|alive| (alive, ledger(rounds, alive as usize, 1, 1)));
    Curve {
        title: "the ledger, sends and takes",
        grows: "live requests",
        cost: "ns a chunk",
        points: points.to_vec(),
    }
}

/// Ledger cost by hops that each chunk passes.
pub(super) fn hops(rounds: u32) -> Curve {
    let points = [1, 2, 3, 4, 8].map(|hops| (u32::from(hops), ledger(rounds, ALIVE, hops, 1) / f64::from(hops)));
    Curve {
        title: "the ledger, hops in a row",
        grows: "hops",
        cost: "ns a chunk and hop",
        points: points.to_vec(),
    }
}

/// Ledger cost by connections over which one hop's frames are spread in rotation.
pub(super) fn connections(rounds: u32) -> Curve {
    let points = [1, 4, 16, 64, 256, 1_024].map(|lanes| (lanes, ledger(rounds, ALIVE, 1, lanes)));
    Curve {
        title: "the ledger, connections of a hop",
        grows: "connections",
        cost: "ns a chunk",
        points: points.to_vec(),
    }
}

/// Nanoseconds per chunk over one second of traffic.
fn ledger(rounds: u32, alive: usize, hops: u16, lanes: u32) -> f64 {
    let mut traffic = Traffic::new(alive, alive.min(FRAME), TOKENS);
    let mut analysis = Analysis::new(Config::default());
    for hop in 0..hops {
        let hop = Hop {
            id: HopId(hop),
            name: NAMES[if hop + 1 == hops {
                NAMES.len() - 1
            } else {
                usize::from(hop)
            }],
            origin: hop == 0,
            last: hop + 1 == hops,
            ..HOP
        };
        analysis.apply(&Event {
            at: MonoNs(0),
            what: What::Hop(hop),
        });
    }
    let (mut seq, mut at) = (0, SECOND);
    let mut least = f64::INFINITY;
    // The first round fills the tables.
    for round in 0..=rounds {
        traffic.advance();
        let frames = traffic.borrow();
        let chunks: usize = frames.iter().map(Vec::len).sum();
        let ns = timed(|| {
            for chunks in &frames {
                pass(&mut analysis, chunks, (seq, at), hops, lanes);
                seq += 1;
                at += SECOND / frames.len() as u64;
                if seq.is_multiple_of((frames.len() as u64 / 10).max(1)) {
                    analysis.tick(MonoNs(at));
                }
            }
        });
        if round > 0 {
            least = least.min(ns as f64 / chunks as f64);
        }
    }
    least
}

/// Hop names of SGLang followed by a chain of further processes.
const NAMES: [&str; 9] = [
    "scheduler->detokenizer",
    "detokenizer->router",
    "router->tokenizer-router",
    "tokenizer-router->a",
    "a->b",
    "b->c",
    "c->d",
    "d->e",
    "scheduler->tokenizer",
];

/// Sends a frame over every hop and receives it a little later.
fn pass(analysis: &mut Analysis, chunks: &[Chunk<'_>], (seq, at): (u64, u64), hops: u16, lanes: u32) {
    const LATER: u64 = 100_000;
    for hop in 0..hops {
        let mut sent = frame(seq / u64::from(lanes), chunks);
        sent.id.hop = HopId(hop);
        sent.id.lane = (seq % u64::from(lanes)) as u32;
        let taken = Taken {
            id: sent.id,
            wakeup: Some(seq),
            by: None,
            frame: None,
        };
        let at = at + u64::from(2 * hop) * LATER;
        for (at, what) in [(at, What::Sent(sent)), (at + LATER, What::Taken(taken))] {
            analysis.apply(&Event { at: MonoNs(at), what });
        }
    }
}

fn least(rounds: u32, mut work: impl FnMut()) -> u64 {
    // The first turn warms the caches.
    work();
    (0..rounds).map(|_| timed(&mut work)).min().unwrap_or(u64::MAX)
}
