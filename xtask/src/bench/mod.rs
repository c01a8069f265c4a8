//! `cargo xtask bench`: comparative measurements. Benchmarks of the libraries are bench targets of their crates. `run.py` runs them and the
//! whole-program benchmarks in order, and writes the table.

mod count;

use std::process::Command;

use clap::ValueEnum;

use crate::script::{project_root, run_to_success};

#[derive(clap::Args)]
pub(crate) struct Bench {
    /// Benchmarks to run [default: all]
    names: Vec<Name>,
    /// Fewer repetitions and smaller loads, without benchmarks that need an engine
    #[arg(long)]
    quick: bool,
    /// Write the results table into docs/internals/PERFORMANCE.md
    #[arg(long, conflicts_with_all = ["quick", "names"])]
    write: bool,
    /// Write the instruction counts to the baseline instead of comparing them
    #[arg(long, conflicts_with_all = ["quick", "write"])]
    bless: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    /// Instructions of the hot paths, compared with the baseline
    Count,
    /// Decoding of a frame by tokengap, CPython's pickle, msgspec and Rust crates
    Decode,
    /// The ledger compared with a hash map of counters; the ledger's growth with requests, hops and connections
    Ledger,
    /// Memory of the ledger with 100,000 live and a million finished requests
    Memory,
    /// Recordings, compared with zstd of the raw frames
    Record,
    /// The relay compared with a direct connection, `zmq_proxy`, the `zeromq` crate and socat
    Relay,
    /// `attach` with a screen on 4,096 requests, at increasing rates until observations are missed
    Attach,
    /// A context switch of an unrelated process while `attach` watches no engine, one or eight
    Switch,
    /// Exports, compared with Python's `json.dump` of the same trace
    Export,
    /// The import of a large log, compared with `grep -c`
    Import,
    /// The screen with 10,000 requests: drawing, key response, cost at rest and under load
    Screen,
    /// Cost of the probe for its target: traps only, lengths, content, bpftrace
    Probe,
    /// Cost of observing responses, for the writing process and for unrelated processes
    Egress,
    /// Bytes that one pod sends and writes: metrics scrape, OTLP, /recording, recording
    Volume,
}

/// `cargo xtask bench`: runs the chosen benchmarks. The instruction counts are compared here, all others run in a script.
pub(crate) fn run_benchmarks(bench: &Bench) -> anyhow::Result<()> {
    let is_none_named = bench.names.is_empty();
    let runs_all = is_none_named && !bench.quick;
    if runs_all || bench.names.contains(&Name::Count) {
        count::compare_counts_or_make_baseline(bench.bless)?;
    }
    let is_only_count_named = !is_none_named && bench.names.iter().all(|name| *name == Name::Count);
    // `--bless` is only about the instruction counts.
    if bench.bless || is_only_count_named {
        return Ok(());
    }
    let mut python = Command::new("python3");
    python.arg("-B").arg(project_root().join("xtask/src/bench/run.py"));
    python.args(bench.quick.then_some("--quick"));
    python.args(bench.write.then_some("--write"));
    for name in bench.names.iter().filter(|name| **name != Name::Count) {
        python.args(name.to_possible_value().map(|value| value.get_name().to_owned()));
    }
    run_to_success(&mut python)
}
