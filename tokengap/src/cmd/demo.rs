//! `tokengap demo`: a simulated engine over real ZMQ sockets.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use confine::Work;
use sources::demo::{Demo, Scenario};

use crate::app;
use crate::args::LiveArgs;
use crate::confinement;

/// Watch a simulated engine with a known fault: no root, no GPU, no SGLang.
///
/// A simulated scheduler and tokenizer communicate over real ZMQ sockets through the real relay. They count their own losses;
/// the report shows that count beside tokengap's.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Scenario to simulate.
    #[arg(long, value_parser = scenario_parser(), default_value = Scenario::Race.as_str())]
    scenario: Scenario,

    /// Seed of the random traffic. The same seed produces the same requests.
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Play only this phase of a scenario with several phases, for a comparison. In `regression`, phase 1 is before the change.
    #[arg(long, value_name = "N")]
    phase: Option<usize>,

    /// Number of workers, in scenarios with workers: detokenizers, tokenizer workers or schedulers.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    workers: Option<u8>,

    #[command(flatten)]
    live: LiveArgs,
}

/// Parser of `--scenario`: the names of all scenarios.
fn scenario_parser() -> impl TypedValueParser<Value = Scenario> {
    let values = Scenario::ALL.iter().map(|scenario| PossibleValue::new(scenario.as_str()).help(scenario.about()));
    PossibleValuesParser::new(values).map(|name| {
        let named = Scenario::ALL.iter().copied().find(|scenario| scenario.as_str() == name);
        named.expect("only names of scenarios are accepted")
    })
}

/// Default duration without a terminal, where no key can end the demo.
const HEADLESS_DURATION: Duration = Duration::from_secs(10);

/// `tokengap demo`: watches a simulated engine, for a limited time if there is no screen.
pub(crate) fn run_demo(args: &Args) -> anyhow::Result<ExitCode> {
    let endpoint = args.live.telemetry.endpoint_options()?;
    let mut plan = confinement::confinement_plan_of_run(Work::Network, &args.live);
    // The demo creates its socket folder in one of these.
    plan.write.extend([std::env::temp_dir(), PathBuf::from("/tmp"), PathBuf::from(".")]);
    confinement::apply_plan(&plan);
    let mut live = args.live.clone();
    // Without a screen, nobody could end it.
    if live.outcome.is_headless() {
        live.duration = live.duration.or(Some(HEADLESS_DURATION));
    }
    let demo = Demo::start(args.scenario, args.seed, args.workers, args.phase)?;
    app::run_and_print_report(demo, &live, endpoint)
}
