//! `tokengap prober`: hidden command, started by `attach`.

use std::process::ExitCode;

use anyhow::Context;
use probe_user::ProbeOptions;
use probe_user::prober::{self, ProberSettings};
use rustix::stdio::stdin;

use super::ignore_ending_signals;
use crate::cmd::locator::inner_servers;
use crate::confinement;

/// Attaches eBPF programs for the process at the other end of its standard input.
#[derive(clap::Args)]
#[command(hide = true)]
pub(crate) struct Args {
    #[arg(long)]
    ring: u32,

    #[arg(long)]
    no_wakeups: bool,

    #[arg(long)]
    tls: bool,
}

impl Args {
    /// Arguments with which a prober has these options.
    pub(crate) fn arguments_for(options: &ProbeOptions) -> Vec<String> {
        let mut arguments = vec![format!("--ring={}", options.ring_bytes)];
        if !options.polls {
            arguments.push("--no-wakeups".to_owned());
        }
        if options.tls {
            arguments.push("--tls".to_owned());
        }
        arguments
    }

    fn probe_options(&self) -> ProbeOptions {
        ProbeOptions { ring_bytes: self.ring, polls: !self.no_wakeups, tls: self.tls, ..ProbeOptions::default() }
    }
}

/// The process that loads the eBPF programs, and attaches probes at the request of a confined tokengap.
pub(crate) fn run_prober(args: &Args) -> anyhow::Result<ExitCode> {
    // Once confined, this process may start no other.
    let locator = confinement::start_locator()?;
    confinement::confine_prober();
    // This process ends when tokengap does. tokengap receives these signals, too, and needs this process to complete its report.
    ignore_ending_signals()?;
    let settings = ProberSettings { options: args.probe_options(), servers: inner_servers(), locator };
    prober::serve_probe_requests(stdin(), settings, confinement::refuse_programs)
        .context("cannot serve requests for probes")?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn the_prober_gets_the_options_of_attach() {
        let default = ProbeOptions::default();
        for options in [default, ProbeOptions { ring_bytes: 1 << 20, polls: false, tls: true, ..default }] {
            let line = std::iter::once("prober".to_owned()).chain(Args::arguments_for(&options));
            let parsed = Line::parse_from(line).args.probe_options();
            assert_eq!(format!("{parsed:?}"), format!("{options:?}"));
        }
    }
}
