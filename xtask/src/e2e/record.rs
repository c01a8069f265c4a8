//! Recordings of a real engine: the replayed report equals the live one, every export format works, and with `--readers` third-party tools
//! read the exports.

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
use super::table::Table;
use super::tap::Relay;
use super::{Options, attach, summary};
use crate::validate::Readers;

/// All rows of the table for recordings.
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
        recorder.tell(program, &live, checks)?;
        recorder.hand_on(options, program, "tap, recorded")?;
        Ok(summary(&outcome))
    });
    let mut losing = Setting {
        http: true,
        ..Setting::new(engine)
    };
    super::served::backlog(&mut losing);
    for (name, setting) in [("attach, recorded", &setting), ("egress, backlog, recorded", &losing)] {
        if let Some(why) = attach::kernel::refusal() {
            table.skip(options, engine, name, &why);
            continue;
        }
        table.row(options, engine, name, |checks, dir| {
            let recorder = Recording::new(program, dir)?;
            let outcome = attach::watched(home, &recorder.program, setting, dir)?;
            let live = outcome.report.clone().context("attach made no report")?;
            recorder.same(program, &live, checks)?;
            recorder.tell(program, &live, checks)?;
            recorder.hand_on(options, program, name)?;
            Ok(summary(&outcome))
        });
    }
}

/// Replays a recording and compares its report with the live one.
pub(crate) fn same(file: &Path, program: &Path, live: &Value, checks: &mut Checks) -> Result<()> {
    let mut replay = Command::new(program);
    replay.arg("replay").arg(file).args(["--json", "--slowest", "100000"]);
    let output = replay.output().context("starting the replay")?;
    ensure!(
        output.status.success(),
        "the replay failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut replayed: Value = serde_json::from_slice(&output.stdout).context("the replay's report is no JSON")?;
    let mut live = live.clone();
    for report in [&mut live, &mut replayed] {
        // Ignore the resource use of the reporting process.
        if let Some(own) = report.get_mut("self").and_then(Value::as_object_mut) {
            own.remove("cpu_ns");
            own.remove("rss_bytes");
        }
    }
    // The reports were asked for different numbers of slowest requests.
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

/// A program that runs tokengap with a recording.
struct Recording {
    /// Wrapper that runs tokengap with recording enabled.
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

    /// Replays the recording and compares the reports.
    fn same(&self, program: &Path, live: &Value, checks: &mut Checks) -> Result<()> {
        same(&self.file, program, live, checks)
    }

    /// Exports every format and compares its counts with the live report.
    fn tell(&self, program: &Path, live: &Value, checks: &mut Checks) -> Result<()> {
        let told = |args: &[&str]| -> Result<String> {
            let output = Command::new(program)
                .args(&args[..1])
                .arg(&self.file)
                .args(&args[1..])
                .output()?;
            ensure!(
                output.status.success(),
                "{args:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            String::from_utf8(output.stdout).with_context(|| format!("{args:?} is no UTF-8"))
        };
        let report: Value = serde_json::from_str(&told(&["report", "--format", "json"])?)?;
        for part in ["requests", "tokens", "chunks", "hops", "findings"] {
            checks.equal(&format!("the report's {part}"), &live[part], &report[part]);
        }
        let verdict = told(&["report"])?.lines().next().unwrap_or_default().to_owned();
        for format in ["markdown", "html"] {
            let page = told(&["report", "--format", format])?;
            let says = page.contains(verdict.split(':').next().unwrap_or_default());
            checks.equal(&format!("the verdict is in {format}"), &true, &says);
        }
        let itself = self.file.to_str().context("the folder has a name in UTF-8")?;
        let diff: Value = serde_json::from_str(&told(&["diff", itself, "--format", "json"])?)?;
        let changed = |measure: &&Value| {
            ["worse", "better"]
                .iter()
                .any(|verdict| measure["verdict"] == **verdict)
        };
        let changed = diff["measures"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(changed)
            .count();
        checks.equal("measures that differ from themselves", &0, &changed);
        told(&["diff", itself])?;
        told(&["diff", itself, "--format", "markdown"])?;

        let requests = live["requests"]["seen"].as_u64();
        let rows = |format: &str| -> Result<u64> { Ok(told(&["export", "--format", format])?.lines().count() as u64) };
        checks.equal("rows of csv", &requests, &rows("csv")?.checked_sub(1));
        let trace: Vec<Value> = serde_json::from_str(&told(&["export", "--format", "perfetto"])?)?;
        checks.equal(
            "a trace for Perfetto has slices",
            &true,
            &trace.iter().any(|event| event["ph"] == "X" || event["ph"] == "b"),
        );
        for format in ["otlp", "events"] {
            let mut lines = 0;
            for line in told(&["export", "--format", format])?.lines() {
                serde_json::from_str::<Value>(line).with_context(|| format!("line {lines} of {format}"))?;
                lines += 1;
            }
            checks.equal(&format!("{format} has lines"), &true, &(lines > 0));
        }
        Ok(())
    }

    /// Passes the recording on as the options ask: to third-party readers, and to the folder of kept recordings.
    fn hand_on(&self, options: &Options, program: &Path, row: &str) -> Result<()> {
        if options.readers {
            let folder = tempfile::tempdir()?;
            Readers::prepare()?.read(program, &self.file, folder.path())?;
        }
        if let Some(keep) = &options.keep {
            fs::create_dir_all(keep)?;
            let to = keep.join(format!("{row}.tgap"));
            fs::copy(&self.file, &to).with_context(|| format!("keeping {}", to.display()))?;
        }
        Ok(())
    }
}
