//! Runs the commands that are Python scripts in this folder. Rust parses their options and prepares the environment.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

/// `python3 SCRIPT`, in the project's folder. Installs `requirements.txt` next to the script into a virtual environment, once.
pub(crate) fn python(script: &str) -> Result<Command> {
    let root = root()?;
    let script = root.join("xtask/src").join(script);
    let requirements = script.with_file_name("requirements.txt");
    let mut command =
        Command::new(if requirements.exists() { environment(&root, &requirements)? } else { "python3".into() });
    // Scripts import the engine harness.
    command.arg(script).env("PYTHONPATH", &root).current_dir(root);
    Ok(command)
}

/// Runs a script with these arguments.
pub(crate) fn run<A: AsRef<std::ffi::OsStr>>(script: &str, arguments: impl IntoIterator<Item = A>) -> Result<()> {
    succeed(python(script)?.args(arguments))
}

/// Runs a command in a new PID namespace, which ends all of its processes.
pub(crate) fn in_pid_namespace(command: &Command) -> Result<()> {
    let mut unshare = Command::new("unshare");
    unshare
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(command.get_program())
        .args(command.get_args());
    unshare.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    succeed(unshare.current_dir(root()?))
}

/// Python of a virtual environment with the required packages.
fn environment(root: &Path, requirements: &Path) -> Result<PathBuf> {
    let name = requirements.parent().and_then(Path::file_name).unwrap_or_default();
    let folder = root.join(format!(".venv-{}", name.display()));
    let (python, made_from) = (folder.join("bin/python"), folder.join("requirements.txt"));
    let wanted = fs::read_to_string(requirements).with_context(|| format!("read {}", requirements.display()))?;
    if fs::read_to_string(&made_from).is_ok_and(|made| made == wanted) {
        return Ok(python);
    }
    succeed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))
        .context("cannot create a virtual environment: install python3-venv")?;
    succeed(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(requirements))?;
    fs::write(made_from, wanted)?;
    Ok(python)
}

/// The program to test: the given one, or a release build of this tree.
pub(crate) fn tokengap(given: Option<&Path>) -> Result<PathBuf> {
    match given {
        Some(binary) => fs::canonicalize(binary).with_context(|| format!("cannot find {}", binary.display())),
        None => build(),
    }
}

/// Builds the same packages as `cargo run`. Building only one would select other features of its dependencies and rebuild all of them.
fn build() -> Result<PathBuf> {
    succeed(Command::new("cargo").args(["build", "--quiet", "--release", "--bin", "tokengap"]))?;
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into());
    fs::canonicalize(Path::new(&target).join("release/tokengap")).context("the build has no tokengap")
}

/// Runs a command and expects success.
pub(crate) fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("start {}", command.get_program().display()))?;
    ensure!(status.success(), "{} failed ({status}): {command:?}", command.get_program().display());
    Ok(())
}

/// Standard output of a command.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let out = command.output().with_context(|| format!("start {}", command.get_program().display()))?;
    if !out.status.success() {
        bail!("{} failed ({}): {}", command.get_program().display(), out.status, String::from_utf8_lossy(&out.stderr));
    }
    Ok(String::from_utf8(out.stdout)?)
}

/// Root folder of the project.
pub(crate) fn root() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    Ok(root.context("xtask has no parent folder")?.to_owned())
}
