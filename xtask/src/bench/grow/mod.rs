//! Growth of each cost: decoding by requests in the frame; the ledger by live requests, hops and connections; the relay by frames and
//! connections; and the ledger's memory. Prints a table each; `--plot` draws them.

mod costs;
mod memory;
mod plot;
mod relay;

use std::fs;
use std::path::PathBuf;

use anyhow::Context;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Turns of each point; the least is taken
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Requests alive in the measurement of memory
    #[arg(long, default_value_t = 100_000)]
    live: usize,
    /// Requests that end in it
    #[arg(long, default_value_t = 1_000_000)]
    finished: u64,
    /// Draws the curves into an SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Be the process whose memory is read
    #[arg(long, hide = true)]
    hold: bool,
}

/// Maximum turns of the relay's curves: each turn starts three processes.
const RELAYED: u32 = 3;

/// Cost of an operation as one quantity grows.
struct Curve {
    title: &'static str,
    grows: &'static str,
    cost: &'static str,
    /// (quantity, nanoseconds).
    points: Vec<(u32, f64)>,
}

/// The relay's curves, which unlike the others need libzmq and a C compiler.
fn relayed(rounds: u32) -> Vec<Curve> {
    relay::curves(rounds.min(RELAYED)).unwrap_or_else(|why| {
        println!("SKIPPED, the relay: {why:#}");
        Vec::new()
    })
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if args.hold {
        return memory::hold(args.live, args.finished);
    }
    let curves = [
        costs::decode(args.rounds)?,
        costs::requests(args.rounds),
        costs::hops(args.rounds),
        costs::connections(args.rounds),
    ];
    let curves: Vec<Curve> = curves.into_iter().chain(relayed(args.rounds)).collect();
    for curve in &curves {
        println!("\n{}\n{:>12}  {:>16}", curve.title, curve.grows, curve.cost);
        for (many, ns) in &curve.points {
            println!("{many:12}  {ns:16.1}");
        }
    }
    println!();
    memory::run(args.live, args.finished)?;
    if let Some(file) = &args.plot {
        fs::write(file, plot::svg(&curves)).with_context(|| file.display().to_string())?;
        println!("drawn in {}", file.display());
    }
    Ok(())
}
