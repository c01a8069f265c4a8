//! `cargo xtask`: development tasks of the project, one file per command.

mod bench;
mod dist;
mod docs;
mod document;
mod e2e;
mod ebpf;
mod faults;
mod fixtures;
mod fuzz;
mod pages;
mod pod;
mod schemas;
mod screens;
mod script;
mod soak;
mod telemetry;
mod toolchain;
mod unit;
mod validate;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks of the project: build, test, measure, release")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure: ratios, the peers taking turns
    Bench(bench::Bench),
    /// Build the static program and pack it: archive, Debian package, checksums
    Dist(dist::Options),
    /// Run every command that the documents show
    Docs(docs::Options),
    /// Run the real engine through the tap and under attach, and compare the report with what the engine says
    E2e(e2e::Options),
    /// Make the real engine's harness ready: its venv and unpacked releases
    Engine(e2e::EngineOptions),
    /// Do to tokengap what may go wrong around it, and see that the traffic does not suffer
    Faults(faults::Options),
    /// Fuzz every parser from real messages on
    Fuzz(fuzz::Options),
    /// Record the decoder's test messages from the real engine
    Fixtures(fixtures::Args),
    /// Copy bytes between endpoints and nothing else, for comparisons
    #[command(hide = true)]
    PlainRelay(e2e::plain_relay::Options),
    /// Print the ids of all BPF programs, links and maps
    #[command(hide = true)]
    KernelObjects,
    /// Bring the table of SGLang's message layouts up to date
    Schemas(schemas::Args),
    /// Build the probe's kernel side, or check that the objects kept are what its source builds
    Ebpf(ebpf::Args),
    /// Open the HTML report in headless Chromium: light, dark, narrow, on paper
    Pages(pages::Options),
    /// Run the released program in an empty root and in containers, at every level of privilege
    Pod(pod::Options),
    /// Take the pictures of docs/reference/gallery.md from the demo, in tmux
    Screens(screens::Options),
    /// Load tokengap with everything at once for long, and see that nothing grows and all adds up
    Soak(soak::Options),
    /// Let a real Prometheus and a real collector hold what the report says
    Telemetry(telemetry::Options),
    /// Start the systemd unit as a service beside a real engine, under a systemd of its own
    Unit(unit::Options),
    /// Let the tools that traces are for read what tokengap exports
    Validate(validate::Options),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Bench(what) => bench::run(&what),
        Command::Dist(options) => dist::run(&options),
        Command::Docs(options) => docs::run(&options),
        Command::E2e(options) => e2e::run(&options),
        Command::Engine(options) => e2e::prepare(&options),
        Command::Faults(options) => faults::run(&options),
        Command::Fixtures(args) => fixtures::run(&args),
        Command::Fuzz(options) => fuzz::run(&options),
        Command::KernelObjects => e2e::kernel::list(),
        Command::PlainRelay(options) => e2e::plain_relay::run(&options),
        Command::Schemas(args) => schemas::run(&args),
        Command::Ebpf(args) => ebpf::run(&args),
        Command::Pages(options) => pages::run(&options),
        Command::Pod(options) => pod::run(&options),
        Command::Screens(options) => screens::run(&options),
        Command::Soak(options) => soak::run(&options),
        Command::Telemetry(options) => telemetry::run(&options),
        Command::Unit(options) => unit::run(&options),
        Command::Validate(options) => validate::run(&options),
    }
}

/// Whether a command line that starts with `cargo xtask` names an existing command.
pub(crate) fn understood<'a>(words: impl Iterator<Item = &'a str>) -> Result<(), clap::Error> {
    Cli::try_parse_from(words).map(drop)
}
