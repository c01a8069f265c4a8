//! `cargo xtask`: development tasks of the project, one file per command.

mod attacks;
mod bench;
mod dist;
mod e2e;
mod faults;
mod fixtures;
mod fuzz;
mod healthy;
mod script;
mod scripted;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Development tasks: build, test, measure, release")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Attack the program with every script of the security review, and expect each attack to fail
    Attacks(attacks::AttackOptions),
    /// Measure performance relative to peers in the same run
    Bench(bench::Bench),
    /// Build the static program and pack it: archive, Debian package, checksums
    Dist(dist::DistOptions),
    /// Run every command shown in the documentation
    Docs(scripted::Docs),
    /// Run the real engine through the tap and under attach, and compare the report with the engine's own counts
    E2e(e2e::E2eOptions),
    /// Prepare the harness of the real engine: virtual environment and unpacked releases
    Engine(e2e::EngineOptions),
    /// Inject faults around tokengap, and check that traffic is unaffected
    Faults(faults::FaultOptions),
    /// Fuzz every parser, starting from real messages
    Fuzz(fuzz::FuzzOptions),
    /// Read healthy responses of the engines' own serving code, and check that none is accused
    Healthy(healthy::HealthyOptions),
    /// Install the release in every documented way, in a minimal Debian and in clean Python environments, and run it there
    Install(scripted::Install),
    /// Record the decoder's test messages from the real engine
    Fixtures(fixtures::FixtureOptions),
    /// Copy bytes between endpoints without analysis, as a baseline
    #[command(hide = true)]
    PlainRelay(e2e::plain_relay::PlainRelayOptions),
    /// Boot other kernels in QEMU, run tokengap in each, and write the table of docs/reference/coverage.md
    Kernels(scripted::Kernels),
    /// Print the ids of all BPF programs, links and maps
    #[command(hide = true)]
    KernelObjects,
    /// Update the tables of message layouts
    Schemas(scripted::Schemas),
    /// Build the kernel side of the probe, or check that the objects in the repository match its source
    Ebpf(scripted::Ebpf),
    /// Open the HTML report in headless Chromium: light, dark, narrow, on paper
    Pages(scripted::Pages),
    /// Run the release binary in an empty root and in containers, at every privilege level
    Pod(scripted::Released),
    /// Capture the screens of docs/screens.md from the demo, in tmux
    Screens(scripted::Screens),
    /// Use all features at once for a long time, and check resource use and counts
    Soak(scripted::Soak),
    /// Compare the report with the data of a real Prometheus and a real OpenTelemetry collector
    Telemetry(scripted::Tested),
    /// Run the systemd unit next to a real engine, under a separate systemd instance
    Unit(scripted::Released),
    /// Read the exports with third-party tools
    Validate(scripted::Validate),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Attacks(options) => attacks::run_attacks(&options),
        Command::Bench(options) => bench::run_benchmarks(&options),
        Command::Dist(options) => dist::build_release(&options),
        Command::Docs(options) => scripted::run_documented_commands(&options),
        Command::E2e(options) => e2e::run_end_to_end(&options),
        Command::Engine(options) => e2e::prepare_harness(&options),
        Command::Faults(options) => faults::inject_faults(&options),
        Command::Fixtures(options) => fixtures::record_fixtures(&options),
        Command::Fuzz(options) => fuzz::fuzz_parsers(&options),
        Command::Healthy(options) => healthy::judge_healthy_responses(&options),
        Command::Install(options) => scripted::install_release(&options),
        Command::KernelObjects => faults::kernel::print_kernel_objects(),
        Command::Kernels(options) => scripted::boot_kernels(&options),
        Command::PlainRelay(options) => e2e::plain_relay::relay_until_killed(&options),
        Command::Schemas(options) => scripted::update_schemas(&options),
        Command::Ebpf(options) => scripted::build_ebpf(&options),
        Command::Pages(options) => scripted::check_pages(&options),
        Command::Pod(options) => scripted::run_in_pod(&options),
        Command::Screens(options) => scripted::take_screens(&options),
        Command::Soak(options) => scripted::run_soak(&options),
        Command::Telemetry(options) => scripted::check_telemetry(&options),
        Command::Unit(options) => scripted::run_systemd_unit(&options),
        Command::Validate(options) => scripted::validate_exports(&options),
    }
}

/// Checks that a command line that starts with `cargo xtask` is valid.
pub(crate) fn check_command_line<'a>(words: impl Iterator<Item = &'a str>) -> Result<(), clap::Error> {
    Cli::try_parse_from(words).map(drop)
}
