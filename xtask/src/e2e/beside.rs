//! Runs rows of the table concurrently, each in its own process and, where permitted, in its own PID namespace, so that attach finds only
//! that row's engine.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Options;
use super::table::{Place, Row, Table};
use super::tap::Relay;

/// Runs `places` in up to `options.jobs` processes and adds each to the table as it ends, unless it has to run again.
pub(super) fn run(table: &mut Table, options: &Options, relay: &Relay, places: Vec<Place>) {
    let jobs = options.jobs.clamp(1, places.len().max(1));
    let left = Mutex::new(places.into_iter());
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        let (sender, rows) = mpsc::channel();
        for _ in 0..jobs {
            let sender = sender.clone();
            scope.spawn(move || {
                while let Some(place) = next() {
                    let started = Instant::now();
                    let row =
                        one(options, relay, &place).unwrap_or_else(|error| broken(place, started.elapsed(), &error));
                    if sender.send(row).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for row in rows {
            table.ran_beside(row);
        }
    });
}

fn one(options: &Options, relay: &Relay, place: &Place) -> Result<Row> {
    let this = std::env::current_exe()?;
    let mut command = if rustix::process::geteuid().is_root() {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        command.arg(this);
        command
    } else {
        Command::new(this)
    };
    command.args(["e2e", "--row", &place.full()]);
    for release in &options.releases {
        command.args(["--release", release]);
    }
    command.args(options.quick.then_some("--quick"));
    match relay {
        Relay::Tokengap(program) => command.args([Path::new("--tokengap"), program]),
        Relay::Plain | Relay::Absent => command.arg("--plain"),
    };
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let row = said.lines().last().and_then(|line| serde_json::from_str(line).ok());
    row.with_context(|| {
        let stderr = String::from_utf8_lossy(&output.stderr);
        format!(
            "{command:?} ended with {} and gave no row: {}",
            output.status,
            stderr.trim_end()
        )
    })
}

/// Row for a process that failed without a result.
fn broken(place: Place, took: Duration, error: &anyhow::Error) -> Row {
    Row {
        place,
        took,
        made: 0,
        mismatches: Vec::new(),
        told: Err(format!("{error:#}")),
        scores: Vec::new(),
    }
}
