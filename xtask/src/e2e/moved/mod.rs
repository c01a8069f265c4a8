//! `tokengap run` and `tokengap splice` on the real engine: every message arrives once and in order, even if tokengap is killed.

mod run;
mod splice;

use std::path::Path;

use super::Options;
use super::attach::kernel;
use super::plan::Engine;
use super::setup::Home;
use super::table::Table;

/// All rows of the table for moved sockets. One release is enough, because only libzmq handles these bytes.
pub(super) fn rows(table: &mut Table, options: &Options, home: &Home, program: &Path, engines: &[Engine]) {
    let Some(engine) = engines.last().filter(|_| !options.quick) else {
        return;
    };
    table.row(options, engine, "run", |checks, dir| {
        run::whole(home, program, engine, dir, checks)
    });
    table.row(options, engine, "run, past", |checks, dir| {
        run::past(home, program, dir, checks)
    });
    table.row(options, engine, "run, killed", |checks, dir| {
        run::killed(home, program, engine, dir, checks)
    });
    for (name, needs_probe) in [("splice", true), ("splice, killed", false)] {
        if needs_probe && let Some(why) = kernel::refusal() {
            table.skip(options, engine, name, &why);
            continue;
        }
        table.row(options, engine, name, |checks, dir| {
            if needs_probe {
                splice::again_and_again(home, program, engine, dir, checks)
            } else {
                splice::killed(home, program, engine, dir, checks)
            }
        });
    }
}
