//! `tokengap tap`: a transparent relay in the connection path.

use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use confine::Work;
use sources::tap::{Tap, TapHop, lower_decoding_priority};
use sources::{account, open_files};
use trace::path::Ends;
use zmq_tap::relay::{Endpoint, Pair, RelayOptions};

use session::Signals;

use crate::app;
use crate::args::{LiveArgs, TUNING};
use crate::confinement;

/// File descriptors for purposes other than connections: recordings, libraries, the terminal.
const OTHER_FILES: u64 = 64;

/// Relay ZMQ and HTTP connections byte for byte, and analyse the traffic.
///
/// Start it, then point the connecting side (the scheduler's PUSH socket) at --listen instead of the endpoint that the
/// receiver has bound. Both flags repeat, in pairs. A pair of http:// endpoints in front of the engine's HTTP port shows the
/// responses to clients, so lost tokens are confirmed instead of predicted.
#[derive(clap::Args)]
#[expect(clippy::doc_markdown, reason = "doc comments are the text of --help")]
#[command(
    after_help = "Example, the second pair for the clients:\n  tokengap tap --listen ipc:///tmp/tap.sock --upstream ipc:///tmp/tokenizer.sock \\\n    --listen http://127.0.0.1:8000 --upstream http://127.0.0.1:30000"
)]
pub(crate) struct Args {
    /// Endpoint to listen on: ipc://PATH, ipc://@ABSTRACT, tcp://ADDRESS:PORT or http://ADDRESS:PORT. Repeatable, one for each
    /// --upstream.
    #[arg(long, value_name = "EP", required = true)]
    listen: Vec<Endpoint>,

    /// Endpoint to forward to: the receiver's bound endpoint, or the HTTP server. Repeatable, one for each --listen.
    #[arg(long, value_name = "EP", required = true)]
    upstream: Vec<Endpoint>,

    /// Name of each pair in reports, for example scheduler->tokenizer. Pairs with the same name are workers of one hop; http://
    /// pairs have no name. By default derived from the messages. With several pairs and one http:// pair, the names show which
    /// pair leads to the tokenizer.
    #[arg(long, value_name = "NAME")]
    hop: Vec<String>,

    #[command(flatten)]
    live: LiveArgs,

    /// Maximum number of frames queued for the analysis. Beyond it, observations are dropped and counted; traffic is not affected.
    #[arg(long, value_name = "N", default_value_t = RelayOptions::default().queue_frames, help_heading = TUNING)]
    queue_frames: usize,

    /// Maximum bytes of frames queued for the analysis. Beyond it, observations are dropped and counted.
    #[arg(long, value_name = "BYTES", default_value_t = RelayOptions::default().budget_bytes, help_heading = TUNING)]
    queue_bytes: usize,

    /// Largest frame that is decoded; larger ones are relayed and counted as undecoded.
    #[arg(long, value_name = "BYTES", default_value_t = RelayOptions::default().max_frame_bytes, help_heading = TUNING)]
    max_frame: u64,

    /// Maximum bytes of all traffic in the relay, at least twice --queue-bytes. When receivers that do not keep up hold most of it, the relay
    /// reads in smaller pieces, down to 4 KiB. Each connection needs 8 KiB of it.
    #[arg(long, value_name = "BYTES", default_value_t = RelayOptions::default().max_buffered_bytes, help_heading = TUNING)]
    max_buffered: usize,

    /// Maximum number of connections over all pairs. Beyond it, new ones are closed immediately and counted.
    #[arg(long, value_name = "N", default_value_t = RelayOptions::default().max_connections, help_heading = TUNING)]
    max_connections: usize,
}

/// `tokengap tap`: relays hops until the end.
pub(crate) fn run_tap(args: &Args) -> anyhow::Result<ExitCode> {
    let endpoint = args.live.telemetry.endpoint_options()?;
    let hops = parse_hops(args)?;
    ensure!(
        args.queue_bytes <= args.max_buffered / 2,
        "--queue-bytes {} exceeds half of --max-buffered {}: raise --max-buffered, because the traffic needs the other half",
        args.queue_bytes,
        args.max_buffered
    );
    confine_relay(args)?;
    // Each connection has two sockets.
    open_files::raise_open_file_limit(args.max_connections as u64 * 2 + OTHER_FILES);
    let tap = Tap::start(hops, relay_options(args)).context("the tap did not start")?;
    // This thread decodes, and must not delay the relay.
    lower_decoding_priority();
    for (listen, upstream) in args.listen.iter().zip(&args.upstream) {
        errln!("tokengap: listening on {listen} -> {upstream}{}", note_on_upstream(upstream));
    }
    let signals = Signals::install().context("cannot listen for signals")?;
    let report = app::run_to_report(tap, &args.live, endpoint, &signals)?;
    let code = app::print_report(&report, args.live.outcome)?;
    if report.saw_nothing() {
        bail!("nothing passed through the relay; check that the sender connects to the endpoint of --listen");
    }
    Ok(code)
}

/// Confines the process to what the relay needs. That is no right of root, so root changes to the user of the endpoints.
fn confine_relay(args: &Args) -> anyhow::Result<()> {
    let account = if rustix::process::geteuid().is_root() {
        account::choose_relay_account(&args.listen, &args.upstream)?
    } else {
        account::own_account()
    };
    let mut plan = confinement::confinement_plan_without_results(Work::Network, &args.live);
    confinement::permit_relay_endpoints(&mut plan, &args.listen, &args.upstream);
    confinement::confine_as_user(account, plan, &args.live)
}

/// Limits of the relay, by the arguments.
fn relay_options(args: &Args) -> RelayOptions {
    RelayOptions {
        formats: engines::FORMATS,
        queue_frames: args.queue_frames,
        budget_bytes: args.queue_bytes,
        max_buffered_bytes: args.max_buffered,
        max_frame_bytes: args.max_frame,
        max_connections: args.max_connections,
        ..RelayOptions::default()
    }
}

/// Warning about an upstream whose socket file does not exist; empty for any other. A test connection would disturb the receiver.
fn note_on_upstream(upstream: &Endpoint) -> &'static str {
    let is_missing = matches!(upstream, Endpoint::Path(path) if !path.exists());
    if is_missing { " (does not exist yet: clients are disconnected and must retry)" } else { "" }
}

/// Number of the worker that the pair at `pair_index` leads to. Pairs with the same name are workers of one hop, numbered in the order of
/// the command line. `None` for the only pair of a name.
fn worker_number(pair_names: &[Option<&String>], pair_index: usize) -> Option<u16> {
    let name = pair_names[pair_index]?;
    let pairs_of_hop = pair_names.iter().filter(|other| **other == Some(name)).count();
    if pairs_of_hop == 1 {
        return None;
    }
    let pairs_before = pair_names[..pair_index].iter().filter(|other| **other == Some(name)).count();
    Some(pairs_before as u16)
}

/// Name of each pair, if names are given. A pair with HTTP is no hop, so it has none.
fn names_of_pairs(args: &Args) -> Vec<Option<&String>> {
    let mut given_names = args.hop.iter();
    let mut names = Vec::new();
    for listen in &args.listen {
        names.push(if listen.is_opaque() { None } else { given_names.next() });
    }
    names
}

/// Whether a hop of this name leads to a process that generates tokens, so that requests cross it.
fn leads_to_scheduler(ends: Ends<&str>) -> bool {
    let mut roles = engines::DISCOVERED.iter().flat_map(|engine| engine.roles());
    // A name without an arrow stands at both ends.
    ends.from != ends.to && roles.any(|role| role.is_source() && role.word() == ends.to)
}

/// The hops of the arguments: each --listen with its --upstream, and with its name if --hop is given. Fails if the numbers of these
/// arguments do not fit to each other.
fn parse_hops(args: &Args) -> anyhow::Result<Vec<TapHop>> {
    check_numbers_of_hop_arguments(args)?;
    let names = names_of_pairs(args);
    let mut hops = Vec::new();
    for (index, (listen, upstream)) in args.listen.iter().zip(&args.upstream).enumerate() {
        let pair = Pair { listen: listen.clone(), upstream: upstream.clone() };
        let ends = names[index].map(|name| Ends::from(name.as_str()));
        hops.push(TapHop {
            ends: ends.map(|ends| ends.to_owned()),
            worker: worker_number(&names, index),
            carries_requests: ends.is_some_and(leads_to_scheduler),
            // Searched in any hop: one without a name may carry requests, and so may one that is named after the other direction.
            finds_requests: true,
            ..TapHop::new(pair)
        });
    }
    Ok(hops)
}

/// Fails if the numbers of --listen, --upstream and --hop do not fit to each other.
fn check_numbers_of_hop_arguments(args: &Args) -> anyhow::Result<()> {
    let listens = args.listen.len();
    let upstreams = args.upstream.len();
    if listens != upstreams {
        bail!("{listens} --listen but {upstreams} --upstream: give one --upstream for each --listen");
    }
    let zmq_pairs = args.listen.iter().filter(|listen| !listen.is_opaque()).count();
    let names = args.hop.len();
    if names > 0 && names != zmq_pairs {
        bail!("{names} --hop for {zmq_pairs} pairs that are not http://: name all of them or none");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_shows_whether_requests_cross_the_hop() {
        let names = ["tokenizer->scheduler", "api-server->engine-core", "scheduler->tokenizer", "scheduler", "a->b"];
        let carry_requests = names.map(|name| leads_to_scheduler(Ends::from(name)));
        assert_eq!(carry_requests, [true, true, false, false, false]);
    }
}
