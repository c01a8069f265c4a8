//! The relay's curves, measured as in `bench relay`: libzmq peers over ipc at full speed, with the relay counting frames.

use std::path::Path;

use anyhow::Context;

use super::super::relay::{FIXTURE, compile, counting_us, frame};
use super::Curve;

/// Frame sizes in KiB over one connection.
const FRAMES: [u32; 7] = [1, 4, 16, 64, 256, 1_024, 4_096];
const CONNECTIONS: [u32; 6] = [1, 4, 16, 64, 256, 1_024];
/// Frame size in KiB on the curve of connections.
const SIZE: u32 = 16;

pub(super) fn curves(rounds: u32) -> anyhow::Result<Vec<Curve>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("the workspace")?;
    let folder = tempfile::tempdir()?;
    let (peer, message) = (compile(folder.path())?, folder.path().join("frame.pkl"));
    let cost = |kib: u32, connections| {
        frame(&root.join(FIXTURE), u64::from(kib) << 10, &message)?;
        counting_us(&peer, &message, connections, rounds)
    };
    let (mut frames, mut connections) = (Vec::new(), Vec::new());
    for kib in FRAMES {
        frames.push((kib, cost(kib, 1)? * 1e3 / f64::from(kib)));
    }
    for many in CONNECTIONS {
        connections.push((many, cost(SIZE, many)? * 1e3));
    }
    Ok(vec![
        Curve {
            title: "the relay, frames counted",
            grows: "KiB of a frame",
            cost: "ns a KiB",
            points: frames,
        },
        Curve {
            title: "the relay, frames of 16 KiB",
            grows: "connections",
            cost: "ns a frame",
            points: connections,
        },
    ])
}
