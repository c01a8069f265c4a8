//! A recording of a real engine, and what is said of it afterwards: its replay's report is the live run's, number by number.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::check::Checks;
use super::plan::Engine;
use super::session::{Session, Setting};
use super::setup::Home;
use super::tap::Relay;
use super::{Options, Table, attach, summary};

/// All rows of the table that are about recordings.
pub(super) fn rows(table: &mut Table, options: &Options, home: &Home, program: &Path, engines: &[Engine]) {
    let Some(engine) = engines.last() else { return };
    let setting = Setting {
        detokenizer: true,
        ..Setting::new(engine)
    };
    table.row(options, engine, "tap, recorded", |checks, dir| {
        let recorder = Recording::new(program, dir)?;
        let mut session = Session::start(home, &setting, &Relay::Tokengap(recorder.program.clone()), dir)?;
        session.go()?;
        let outcome = session.finish()?;
        let live = outcome.report.clone().context("the tap made no report")?;
        recorder.same(program, &live, checks)?;
        Ok(summary(&outcome))
    });
    let name = "attach, recorded";
    if let Some(why) = attach::kernel::refusal() {
        table.skip(options, engine, name, &why);
        return;
    }
    table.row(options, engine, name, |checks, dir| {
        let recorder = Recording::new(program, dir)?;
        let outcome = attach::watched(home, &recorder.program, &setting, dir)?;
        let live = outcome.report.clone().context("attach made no report")?;
        recorder.same(program, &live, checks)?;
        Ok(summary(&outcome))
    });
}

/// tokengap with a recording.
struct Recording {
    /// Runs tokengap as it is asked to, and records.
    program: PathBuf,
    file: PathBuf,
}

impl Recording {
    fn new(program: &Path, dir: &Path) -> Result<Self> {
        let (script, file) = (dir.join("tokengap-recorded"), dir.join("run.tgap"));
        let text = format!(
            "#!/bin/sh\nexec '{}' \"$@\" --record '{}'\n",
            program.display(),
            file.display()
        );
        fs::write(&script, text)?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o700))?;
        Ok(Self { program: script, file })
    }

    /// Replays it and compares.
    fn same(&self, program: &Path, live: &Value, checks: &mut Checks) -> Result<()> {
        let mut replay = Command::new(program);
        replay
            .arg("replay")
            .arg(&self.file)
            .args(["--json", "--slowest", "100000"]);
        let output = replay.output().context("starting the replay")?;
        ensure!(
            output.status.success(),
            "the replay failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let mut replayed: Value = serde_json::from_slice(&output.stdout).context("the replay's report is no JSON")?;
        let mut live = live.clone();
        for report in [&mut live, &mut replayed] {
            // Of the process that made the report.
            if let Some(own) = report.get_mut("self").and_then(Value::as_object_mut) {
                own.remove("cpu_ns");
                own.remove("rss_bytes");
            }
        }
        // The lists of slowest requests are as long as each was asked for.
        if let (Some(some), Some(all)) = (live["slowest"].as_array(), replayed["slowest"].as_array_mut()) {
            all.truncate(some.len());
        }
        let frames = live["hops"].as_array().into_iter().flatten();
        let frames: u64 = frames.filter_map(|hop| hop["frames_sent"].as_u64()).sum();
        ensure!(frames > 0, "the live run saw no frame");
        for (part, value) in live.as_object().context("the report is no object")? {
            checks.equal(&format!("the replay's {part}"), value, &replayed[part]);
        }
        Ok(())
    }
}
