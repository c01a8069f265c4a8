//! `tokengap splice`: moves live hops of a running engine behind the relay, and back.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use confine::{Account, Plan, Work};
use outputs::report::hostile::{EscapeForm, line as printable_line};
use probe_user::discover::RoleSpec;
use session::Signals;
use sources::account;
use sources::guard::Guard;
use sources::splice::{Located, MessageRate, Movable, Prepared, SETTLE, Splice};
use sources::tap::lower_decoding_priority;
use zmq_tap::relay::RelayOptions;
use zmq_tap::splice::{Folder, Restored, restore_sockets};

use crate::args::LiveArgs;
use crate::cmd::attach::find_processes;
use crate::cmd::guard::describe_restored;
use crate::confinement;
use crate::{app, output};

/// Move live ipc hops of a running engine behind the relay, without a restart, and back at the end.
///
/// Unlike attach, this interrupts the traffic: each sender must reconnect, which takes about 0.2 s. Refused above --max-rate, and
/// for an engine in another container. The sockets are restored on exit, on SIGTERM, and by a guard process if tokengap is killed.
/// Docs: docs/relay.md.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tokengap splice --pid 4711\n  tokengap splice --pid 4711 --hop 'scheduler->tokenizer' --yes --duration 1m --record run.tgap\n  tokengap splice --restore --pid 4711"
)]
pub(crate) struct Args {
    /// A process of the engine.
    #[arg(long, value_name = "PID", required_unless_present = "restore")]
    pid: Option<u32>,

    /// Move only the hop with this name, such as scheduler->detokenizer. Default: all hops that carry output over ipc.
    #[arg(long, value_name = "NAME")]
    hop: Option<String>,

    /// Do not ask for confirmation.
    #[arg(long)]
    yes: bool,

    /// Refuse to move if the senders exceed this number of messages per second.
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    max_rate: u64,

    /// Restore the sockets that a killed tokengap had moved, then exit. Repeating it changes nothing.
    #[arg(long, conflicts_with_all = ["hop", "yes"])]
    restore: bool,

    /// With --restore: a directory of sockets to search. Repeatable; by default the directory for temporary files. Only notes of
    /// tokengap's own user count, or, as root, of the user of --pid.
    #[arg(long, value_name = "DIR", requires = "restore")]
    folder: Vec<PathBuf>,

    #[command(flatten)]
    live: LiveArgs,
}

const RISK: &str = "\
Risk: a message is lost if its sender is still writing it when its connection ends. This requires a message larger than the
socket's buffer (about 200 KB), or a receiver that does not keep up. Senders reconnect in about 0.2 s; their messages wait
until then. If tokengap is killed, messages inside it are lost, and a guard puts the engine's sockets back.";

/// `tokengap splice`: moves the sockets of a running engine behind a relay, after a confirmation, and back at the end.
pub(crate) fn run_splice(args: &Args) -> anyhow::Result<ExitCode> {
    if args.restore {
        return restore_moved_sockets(args);
    }
    let endpoint = args.live.telemetry.endpoint_options()?;
    let pid = args.pid.context("no --pid was given")?;
    let watcher = find_processes(&[RoleSpec { pid, role: None }])?;
    let engine = watcher.topology().engine_of(pid);
    let engine =
        engine.with_context(|| format!("process {pid} belongs to no visible engine; tokengap attach lists them"))?;
    let located = Located::find(engine, args.hop.as_deref())?;
    // The guard must have the user that writes the notes.
    let account = if confinement::is_disabled() { account::own_account() } else { located.account };
    let no_cleanup = None;
    let guard = Guard::start(&located.folders(), Some(account), no_cleanup)?;
    // The confinement comes after the guard, the last program that is started, and before the first message is read. From here on, sockets
    // are reached with the rights of the engine's user.
    let mut needs = confinement::confinement_plan_without_results(Work::Move, &args.live);
    needs.keep |= confinement::probe_capabilities();
    confinement::confine_as_user(located.account, needs, &args.live)?;
    let Movable { planned, unmovable } = located.select_movable()?;
    for reason in unmovable {
        errln!("tokengap: not changed: {reason}");
    }
    let prepared = Prepared::new(engine, planned)?;
    let is_confirmed = show_planned_move_and_confirm(&prepared, args)?;
    if !is_confirmed {
        errln!("tokengap: nothing was changed");
        return Ok(ExitCode::SUCCESS);
    }
    let signals = Signals::install().context("cannot listen for signals")?;
    let splice = prepared.execute_move(&RelayOptions::default(), guard)?;
    std::thread::sleep(SETTLE);
    print_move_result(&splice);
    lower_decoding_priority();
    let report = app::run_to_report(splice, &args.live, endpoint, &signals)?;
    app::print_report(&report, args.live.outcome)
}

/// Shows the sockets to move and the risk, and asks for a confirmation unless `--yes` is given. Returns whether the move is confirmed.
/// Fails if the senders' rate does not permit it.
fn show_planned_move_and_confirm(prepared: &Prepared, args: &Args) -> anyhow::Result<bool> {
    err!("tokengap: sockets to move behind the relay:\n{}", prepared.describe());
    if let Err(why) = &prepared.witness {
        errln!("tokengap: cannot check whether the move loses frames: {why}");
    }
    check_rate_permits_move(prepared.rate, args.max_rate)?;
    errln!("{RISK}");
    Ok(args.yes || ask_for_confirmation()?)
}

/// Fails if the senders send more messages per second than the move may interrupt, or if their `rate` could not be measured.
fn check_rate_permits_move(rate: Option<MessageRate>, max_rate: u64) -> anyhow::Result<()> {
    let Some(rate) = rate else {
        bail!("cannot measure the senders' rate, so nothing was moved: run as root, or use tokengap attach");
    };
    ensure!(
        rate.per_second <= max_rate,
        "refused: {} messages per second exceed the limit of {} (--max-rate): nothing was changed; tokengap attach works at any rate",
        rate.per_second,
        max_rate
    );
    Ok(())
}

/// Prints how long the move interrupted the connections, and whether requests continued across it without a missing chunk.
fn print_move_result(splice: &Splice) {
    errln!("tokengap: moved; connections were interrupted for {} ms", splice.outage.as_millis());
    for doubt in &splice.doubts {
        errln!("tokengap: {doubt}");
    }
    // An error means that continuity could not be checked. The report shows it, so nothing is printed here.
    if let Ok(seen) = splice.seen() {
        if seen.broken.is_empty() {
            errln!(
                "tokengap: continuous: {} requests continued across the move without a missing chunk ({} messages unread)",
                seen.crossed,
                seen.unread
            );
        }
        for broken in seen.broken {
            errln!("tokengap: NOT continuous: {broken}");
        }
    }
}

/// Asks on the terminal whether to go on. Returns whether the answer was yes; fails without a terminal.
fn ask_for_confirmation() -> anyhow::Result<bool> {
    ensure!(
        std::io::stdin().is_terminal(),
        "cannot ask for confirmation without a terminal: use --yes to accept the risk"
    );
    err!("Go on? [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// The user whose rights move the sockets back: that of the engine, if its process is named. Fails if the engine has other files.
fn account_to_restore_with(args: &Args) -> anyhow::Result<Account> {
    let Some(pid) = args.pid else { return Ok(account::own_account()) };
    // In another container, the same path would be another file.
    account::require_same_mounts_and_root(pid)?;
    account::account_of_process(pid)
}

/// `tokengap splice --restore`: moves back the engine's sockets that a killed tokengap has left in another place. A note beside each socket
/// says where it belongs. Exit code 2 if one could not be moved back.
fn restore_moved_sockets(args: &Args) -> anyhow::Result<ExitCode> {
    let mut folders = args.folder.clone();
    // Engines create their sockets among the temporary files.
    if folders.is_empty() {
        folders.push(std::env::temp_dir());
    }
    confinement::change_account_and_confine(account_to_restore_with(args)?, Plan::new(Work::Move))?;
    let mut out = output::stdout(EscapeForm::Text);
    let mut found = FoundSockets::default();
    for path in &folders {
        restore_sockets_of_folder(path, &mut found, &mut out)?;
    }
    let notes_of_others = found.of_others;
    if notes_of_others > 0 {
        writeln!(out, "{notes_of_others} notes of other users were not examined: run this command as their owner")?;
    }
    if found.moved == 0 {
        let searched: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
        writeln!(out, "{}", printable_line(&format!("no moved socket found in {}", searched.join(", "))))?;
    }
    Ok(ExitCode::from(if found.is_any_left_moved { 2 } else { 0 }))
}

/// Sockets that the searched folders had.
#[derive(Default)]
struct FoundSockets {
    /// Number of those that a tokengap had moved.
    moved: usize,
    /// Whether one of them could not be moved back.
    is_any_left_moved: bool,
    /// Number of notes about sockets of other users.
    of_others: usize,
}

/// Moves the sockets of a folder back, adds them to `found_so_far`, and writes a line about each but those of other users.
fn restore_sockets_of_folder(path: &Path, found_so_far: &mut FoundSockets, out: &mut impl Write) -> anyhow::Result<()> {
    let shown_path = path;
    let folder =
        Folder::open(path, shown_path).with_context(|| format!("cannot open the folder {}", path.display()))?;
    for restored in restore_sockets(&folder)? {
        if matches!(restored, Restored::OfAnother(_)) {
            found_so_far.of_others += 1;
            continue;
        }
        found_so_far.moved += 1;
        found_so_far.is_any_left_moved |= matches!(restored, Restored::Refused(..) | Restored::Held(_));
        writeln!(out, "{}", printable_line(&describe_restored(&restored)))?;
    }
    Ok(())
}
