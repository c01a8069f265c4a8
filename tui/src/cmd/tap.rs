//! `tokengap tap`: the explicit transparent relay.

use std::process::ExitCode;

use anyhow::{Context, bail};
use zmq_tap::relay::{Endpoint, Options, Pair, step_aside};
use zmq_tap::tap::{Tap, TapHop};

use crate::app;
use crate::cli::LiveArgs;
use crate::source::TapSource;

/// Relay ZMQ connections byte for byte and watch what passes.
///
/// Start it, then let the connecting side (the scheduler's PUSH) connect to --listen instead of the endpoint that the
/// receiving side has bound. Both flags repeat, in pairs.
#[derive(clap::Args)]
#[expect(clippy::doc_markdown, reason = "the endpoints are help for a terminal")]
#[command(after_help = "Example:\n  tokengap tap --listen ipc:///tmp/tap.sock --upstream ipc:///tmp/tokenizer.sock")]
pub(crate) struct Args {
    /// Where to listen: ipc://PATH, ipc://@ABSTRACT or tcp://ADDRESS:PORT. Repeatable, one for each --upstream.
    #[arg(long, value_name = "EP", required = true)]
    listen: Vec<Endpoint>,

    /// Where the bytes go: the endpoint that the receiver has bound. Repeatable, one for each --listen.
    #[arg(long, value_name = "EP", required = true)]
    upstream: Vec<Endpoint>,

    /// What each pair is called in reports, for example scheduler->tokenizer; pairs of one name are workers of one line. By
    /// default taken from what passes.
    #[arg(long, value_name = "NAME")]
    hop: Vec<String>,

    /// Frames waiting to be read by the analysis; beyond it observations are dropped and counted, the traffic goes on.
    #[arg(long, value_name = "N", default_value_t = Options::default().queue_frames)]
    queue_frames: usize,

    /// Bytes of frames waiting to be read by the analysis, likewise.
    #[arg(long, value_name = "BYTES", default_value_t = Options::default().budget_bytes)]
    queue_bytes: usize,

    /// Largest frame that is looked into; larger ones pass and are counted as undecoded.
    #[arg(long, value_name = "BYTES", default_value_t = Options::default().max_frame_bytes)]
    max_frame: u64,

    #[command(flatten)]
    live: LiveArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let hops = hops(args)?;
    let options = Options {
        queue_frames: args.queue_frames,
        budget_bytes: args.queue_bytes,
        max_frame_bytes: args.max_frame,
        ..Options::default()
    };
    let tap = Tap::start(hops, options).context("the tap did not start")?;
    // The relay's thread goes before this one, which decodes.
    if let Err(error) = step_aside() {
        tracing::info!("cannot lower the priority of decoding: {error}");
    }
    app::run(TapSource::new(tap), &args.live)
}

fn hops(args: &Args) -> anyhow::Result<Vec<TapHop>> {
    let (listens, upstreams, names) = (args.listen.len(), args.upstream.len(), args.hop.len());
    if listens != upstreams {
        bail!(
            "{listens} --listen but {upstreams} --upstream: they come in pairs, give one --upstream for each --listen"
        );
    }
    if names != 0 && names != listens {
        bail!("{names} --hop for {listens} pairs: name all of them or none");
    }
    let names = |i: usize| args.hop.get(i).cloned();
    // Pairs of one name are the workers of one line.
    let place = |i: usize| {
        let same = (0..listens).filter(|&other| names(other).is_some() && names(other) == names(i));
        let (count, before) = same.fold((0, 0_u16), |(all, before), other| {
            (all + 1, before + u16::from(other < i))
        });
        (count > 1).then_some(before)
    };
    let pairs = args.listen.iter().cloned().zip(args.upstream.iter().cloned());
    Ok(pairs
        .enumerate()
        .map(|(i, (listen, upstream))| TapHop {
            name: names(i),
            worker: place(i),
            ..TapHop::new(Pair { listen, upstream })
        })
        .collect())
}
