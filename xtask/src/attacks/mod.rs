//! `cargo xtask attacks`: runs every script of the security review, `NAME.sh` beside this file, and expects each attack to fail.
//!
//! A script is called as `NAME.sh TOKENGAP WORKDIR`, as root, in mount and PID namespaces of its own: it sees no engine of another
//! script, and its processes end with it. `WORKDIR` is a fresh folder that every user can enter, `$ATTACKS_VENV` a Python environment
//! with the packages of `requirements.txt`. The last line of its standard output is the outcome: `held` or `SKIPPED: reason` with exit
//! status 0, `BROKEN: what happened` with 1. Everything else counts as broken, too. Other files in the folder are helpers of the scripts.

use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::script::{given_or_built_program, prepare_virtual_environment_python, project_root};

const FOLDER: &str = "xtask/src/attacks";
/// Scripts that run at the same time.
const WORKERS: usize = 2;
const TIME_LIMIT: Duration = Duration::from_mins(3);
/// Pause between two looks whether a script has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Lines of a broken attack's output that are printed.
const SHOWN_LINES: usize = 20;
/// Mode bit of a folder that every user can enter.
const OTHERS_CAN_ENTER: u32 = 0o001;

#[derive(clap::Args)]
pub(crate) struct AttackOptions {
    /// Attacks to run, without `.sh` [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// The tokengap program [default: a release build of this tree]
    #[arg(long, value_name = "FILE")]
    tokengap: Option<PathBuf>,
}

#[derive(Debug, PartialEq)]
enum AttackOutcome {
    Held,
    Skipped(String),
    Broken(String),
}

impl AttackOutcome {
    /// Outcome of a script that ended, by the last line of its output.
    fn of_ended_script(status: ExitStatus, stdout: &str) -> Self {
        let last_line = stdout.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        if !status.success() {
            return match last_line.strip_prefix("BROKEN: ") {
                Some(what) => Self::Broken(what.to_owned()),
                None => Self::Broken(format!("{status}: {last_line}")),
            };
        }
        if last_line == "held" {
            return Self::Held;
        }
        match last_line.strip_prefix("SKIPPED: ") {
            Some(reason) => Self::Skipped(reason.to_owned()),
            None => Self::Broken(format!("the last line is neither `held` nor `SKIPPED: reason`: {last_line}")),
        }
    }
}

impl fmt::Display for AttackOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held => write!(f, "held"),
            Self::Skipped(reason) => write!(f, "SKIPPED: {reason}"),
            Self::Broken(what) => write!(f, "BROKEN: {what}"),
        }
    }
}

#[derive(Default)]
struct AttackCounts {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl AttackCounts {
    /// Counts the outcome of one attack.
    fn count_outcome(&mut self, outcome: &AttackOutcome) {
        match outcome {
            AttackOutcome::Held => self.passed += 1,
            AttackOutcome::Skipped(_) => self.skipped += 1,
            AttackOutcome::Broken(_) => self.failed += 1,
        }
    }
}

/// `cargo xtask attacks`: runs the scripts, several at once, and prints their outcomes. Fails if an attack succeeds or does not complete.
pub(crate) fn run_attacks(options: &AttackOptions) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "attacks need root: they start processes of other users and containers"
    );
    let scripts = select_scripts(&options.names)?;
    let program = given_or_built_program(options.tokengap.as_deref())?;
    let python = prepare_virtual_environment_python(&project_root().join(FOLDER).join("requirements.txt"))?;
    // `python` is `bin/python` in the virtual environment.
    let venv = python.ancestors().nth(2).context("the virtual environment has no folder")?;
    require_others_can_enter(venv)?;
    let waiting = Mutex::new(scripts.iter());
    let counts = Mutex::new(AttackCounts::default());
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(script) = next_script(&waiting) {
                    let outcome = run_attack_script(script, &program, venv)
                        .unwrap_or_else(|error| AttackOutcome::Broken(format!("{error:#}")));
                    counts.lock().expect("no worker panics").count_outcome(&outcome);
                }
            });
        }
    });
    let AttackCounts { passed, failed, skipped } = counts.into_inner().expect("no worker panics");
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    ensure!(failed == 0, "{failed} attacks succeeded or did not complete");
    Ok(())
}

/// The next script that no worker has begun; `None` at the end.
fn next_script<'a>(waiting: &Mutex<impl Iterator<Item = &'a PathBuf>>) -> Option<&'a PathBuf> {
    waiting.lock().expect("no worker panics").next()
}

/// Scripts of the attacks with these names, sorted; of all attacks without names. Fails if a name has no script.
fn select_scripts(names: &[String]) -> Result<Vec<PathBuf>> {
    let folder = project_root().join(FOLDER);
    let mut scripts = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        if path.extension() == Some(OsStr::new("sh")) && is_selected(&path, names) {
            scripts.push(path);
        }
    }
    scripts.sort();
    for name in names {
        ensure!(
            scripts.iter().any(|path| is_named(path, name)),
            "no attack is called {name}: {FOLDER}/{name}.sh is missing"
        );
    }
    ensure!(!scripts.is_empty(), "{FOLDER} has no script");
    Ok(scripts)
}

/// Whether the script has one of the names. Without names, every script is selected.
fn is_selected(script: &Path, names: &[String]) -> bool {
    names.is_empty() || names.iter().any(|name| is_named(script, name))
}

fn is_named(script: &Path, name: &str) -> bool {
    script.file_stem() == Some(OsStr::new(name))
}

/// Fails unless every user can enter the folder: scripts use the virtual environment as users without rights.
fn require_others_can_enter(folder: &Path) -> Result<()> {
    for ancestor in folder.ancestors() {
        let mode =
            fs::metadata(ancestor).with_context(|| format!("cannot read {}", ancestor.display()))?.permissions().mode();
        ensure!(
            mode & OTHERS_CAN_ENTER != 0,
            "other users cannot enter {}: move the project, or allow it (chmod o+x)",
            ancestor.display()
        );
    }
    Ok(())
}

/// Runs one script and prints its outcome, with the end of its output if it is broken.
fn run_attack_script(script: &Path, program: &Path, venv: &Path) -> Result<AttackOutcome> {
    let name = script.file_stem().unwrap_or_default().display();
    let started = Instant::now();
    let folder = tempfile::Builder::new().prefix("attack-").tempdir()?;
    let work = folder.path().join("work");
    fs::create_dir(&work)?;
    // Scripts also start processes of users without rights, which must be able to enter both folders.
    for searched in [folder.path(), &work] {
        fs::set_permissions(searched, Permissions::from_mode(0o755))?;
    }
    let output = ScriptOutput { stdout: folder.path().join("stdout"), stderr: folder.path().join("stderr") };
    let mut command = isolated_script_command(script, program, &work);
    command.env("ATTACKS_VENV", venv);
    command.stdout(File::create(&output.stdout)?).stderr(File::create(&output.stderr)?);
    let mut child = command.spawn().context("cannot start unshare: install util-linux")?;
    let outcome = match wait_or_kill_after(&mut child, TIME_LIMIT)? {
        Some(status) => AttackOutcome::of_ended_script(status, &read_text(&output.stdout)?),
        None => AttackOutcome::Broken(format!("did not end within {} s", TIME_LIMIT.as_secs())),
    };
    let shown_output = if matches!(outcome, AttackOutcome::Broken(_)) { output.last_lines()? } else { String::new() };
    // One call, so that the lines of scripts that run at the same time are not mixed.
    println!("{name:<24} {:>5.1} s  {outcome}\n{shown_output}", started.elapsed().as_secs_f64());
    Ok(outcome)
}

/// Command that runs a script against `program` in the folder `work_folder`, in mount and PID namespaces of its own, so that all of its
/// processes end with it.
fn isolated_script_command(script: &Path, program: &Path, work_folder: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--", "bash"]);
    command.arg(script).arg(program).arg(work_folder).current_dir(work_folder).stdin(Stdio::null());
    command
}

/// Waits for the end of a process. Kills it after the limit, and then returns `None`.
fn wait_or_kill_after(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let until = Instant::now() + limit;
    while Instant::now() < until {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(POLL_INTERVAL);
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

/// Files with the output of one script.
struct ScriptOutput {
    stdout: PathBuf,
    stderr: PathBuf,
}

impl ScriptOutput {
    /// Last lines of both files, escaped.
    fn last_lines(&self) -> Result<String> {
        let mut shown = String::new();
        for (stream, path) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            let text = read_text(path)?;
            let lines: Vec<&str> = text.lines().collect();
            for line in &lines[lines.len().saturating_sub(SHOWN_LINES)..] {
                // Writing to a string cannot fail.
                let _ = writeln!(shown, "    {stream}: {}", line.escape_debug());
            }
        }
        Ok(shown)
    }
}

fn read_text(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn only_a_script_that_says_so_has_held() {
        let [success, failure] = [0, 1 << 8].map(ExitStatus::from_raw);
        assert_eq!(AttackOutcome::of_ended_script(success, "trying\nheld\n\n"), AttackOutcome::Held);
        assert_eq!(
            AttackOutcome::of_ended_script(success, "SKIPPED: no cc\n"),
            AttackOutcome::Skipped("no cc".to_owned())
        );
        assert_eq!(
            AttackOutcome::of_ended_script(failure, "BROKEN: raw ESC\n"),
            AttackOutcome::Broken("raw ESC".to_owned())
        );
        for (status, stdout) in
            [(success, ""), (success, "BROKEN: raw ESC"), (failure, "held"), (failure, "SKIPPED: no cc")]
        {
            assert!(matches!(AttackOutcome::of_ended_script(status, stdout), AttackOutcome::Broken(_)), "{stdout}");
        }
    }

    #[test]
    fn every_attack_has_a_script_of_that_name() -> Result<()> {
        assert!(select_scripts(&["no-such-attack".to_owned()]).is_err());
        for script in select_scripts(&[])? {
            let name = script.file_stem().and_then(OsStr::to_str).context("not UTF-8")?;
            assert_eq!(select_scripts(&[name.to_owned()])?, std::slice::from_ref(&script));
        }
        Ok(())
    }
}
