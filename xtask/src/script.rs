//! Runs the commands that are Python scripts in this folder. Rust parses their options and prepares the environment.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

/// The command `python3 SCRIPT` in the project's folder. If a `requirements.txt` is next to the script, its Python is that of a virtual
/// environment with these packages. The first call makes that environment, and fails if it cannot.
pub(crate) fn python_script_command(script: &str) -> Result<Command> {
    let script = project_root().join("xtask/src").join(script);
    let requirements = script.with_file_name("requirements.txt");
    let python = if requirements.exists() {
        prepare_virtual_environment_python(&requirements)?
    } else {
        PathBuf::from("python3")
    };
    let mut command = Command::new(python);
    // Scripts import the engine harness.
    command.arg(script).env("PYTHONPATH", project_root()).current_dir(project_root());
    Ok(command)
}

/// Runs a Python script with these arguments to its end. Fails unless it succeeds.
pub(crate) fn run_script<A: AsRef<std::ffi::OsStr>>(
    script: &str,
    arguments: impl IntoIterator<Item = A>,
) -> Result<()> {
    run_to_success(python_script_command(script)?.args(arguments))
}

/// Runs a command with the variables that are set for it in a new PID namespace, so that all of its processes end with it. Fails unless the
/// command succeeds.
pub(crate) fn run_in_pid_namespace(command: &Command) -> Result<()> {
    let mut unshare = Command::new("unshare");
    unshare
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(command.get_program())
        .args(command.get_args());
    // A variable without a value is one that the command removes. No command here does that.
    unshare.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    run_to_success(unshare.current_dir(project_root()))
}

/// Python of a virtual environment with these packages, which is named after the folder of `requirements`. Makes it if it is missing or
/// outdated. Fails if that is not possible.
pub(crate) fn prepare_virtual_environment_python(requirements: &Path) -> Result<PathBuf> {
    let name = requirements.parent().and_then(Path::file_name).unwrap_or_default();
    let folder = project_root().join(format!(".venv-{}", name.display()));
    let python = folder.join("bin/python");
    install_once(requirements, &folder, || {
        let base_python = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
        run_to_success(Command::new(base_python).args(["-m", "venv", "--clear"]).arg(&folder))
            .context("cannot create a virtual environment: install python3-venv")?;
        run_to_success(
            Command::new(&python).args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(requirements),
        )
    })?;
    Ok(python)
}

/// Calls `install` unless it was called before with the same `requirements`. Afterwards, a copy of them in `folder` shows that it was done.
pub(crate) fn install_once(requirements: &Path, folder: &Path, install: impl FnOnce() -> Result<()>) -> Result<()> {
    let copy = folder.join("requirements.txt");
    let wanted = fs::read_to_string(requirements).with_context(|| format!("read {}", requirements.display()))?;
    // Commands that run at once wait here for the first of them. Without a bound, because that may download for minutes.
    let lock_file = folder.with_added_extension("lock");
    if let Some(parent) = folder.parent() {
        fs::create_dir_all(parent)?;
    }
    let lock = fs::File::create(&lock_file).with_context(|| format!("create {}", lock_file.display()))?;
    lock.lock().with_context(|| format!("lock {}", lock_file.display()))?;
    let is_installed = fs::read_to_string(&copy).is_ok_and(|installed| installed == wanted);
    if is_installed {
        return Ok(());
    }
    eprintln!("installing {} into {}", requirements.display(), folder.display());
    install()?;
    Ok(fs::write(copy, wanted)?)
}

/// The program to test: the given one, or a release build of this tree. Fails if the file does not exist, or if the build fails.
pub(crate) fn given_or_built_program(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(binary) = given {
        return fs::canonicalize(binary).with_context(|| format!("cannot find {}", binary.display()));
    }
    build_program(&["--release"])?;
    fs::canonicalize(target_folder().join("release/tokengap")).context("the build has no tokengap")
}

/// Builds the program with the `fault-injection` feature, unoptimised to save time, and moves it away from the regular program's path.
/// Returns its new path. Fails if the build fails.
pub(crate) fn build_tokengap_with_faults() -> Result<PathBuf> {
    // The test is not run. It makes cargo select the features of a test build for the dependencies, which are compiled already.
    build_program(&["--workspace", "--features", "tokengap/full,tokengap/fault-injection", "--test", "refused"])?;
    let kept_folder = target_folder().join("faults");
    fs::create_dir_all(&kept_folder)?;
    let program = target_folder().join("debug/tokengap");
    let kept = kept_folder.join("tokengap");
    fs::rename(&program, &kept).with_context(|| format!("moving {}", program.display()))?;
    Ok(kept)
}

/// Builds the program with these further options. Fails if the build fails.
fn build_program(options: &[&str]) -> Result<()> {
    // Without `--package`, the dependencies have the same features as in `cargo run`, and are not compiled again.
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(project_root()).args(["build", "--quiet", "--bin", "tokengap"]).args(options);
    run_to_success(&mut build)
}

fn target_folder() -> PathBuf {
    project_root().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Runs a command to its end. Fails unless it succeeds.
pub(crate) fn run_to_success(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("start {}", command.get_program().display()))?;
    ensure!(status.success(), "{} failed ({status}): {command:?}", command.get_program().display());
    Ok(())
}

/// Runs a command to its end, and returns its standard output. Fails unless it succeeds.
pub(crate) fn command_output(command: &mut Command) -> Result<String> {
    let out = command.output().with_context(|| format!("start {}", command.get_program().display()))?;
    if !out.status.success() {
        bail!("{} failed ({}): {}", command.get_program().display(), out.status, String::from_utf8_lossy(&out.stderr));
    }
    Ok(String::from_utf8(out.stdout)?)
}

/// Root folder of the project.
pub(crate) fn project_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the project")
}

/// Replaces the text between the two marks of `part` in a file of `docs`. Fails if the file lacks one of the marks.
pub(crate) fn replace_document_part(file: &str, part: &str, text: &str) -> Result<()> {
    let path = project_root().join("docs").join(file);
    let document = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let begin_mark = format!("<!-- {part}: written by the command -->\n");
    let end_mark = format!("<!-- {part}: end -->");
    let missing_mark = || format!("cannot find the marks of {part} in {}", path.display());
    let from = document.find(&begin_mark).with_context(missing_mark)? + begin_mark.len();
    let to = document[from..].find(&end_mark).with_context(missing_mark)? + from;
    let written = format!("{}{}\n{}", &document[..from], text.trim_end(), &document[to..]);
    fs::write(&path, written).with_context(|| format!("writing {}", path.display()))
}
