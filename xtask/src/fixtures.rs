//! `cargo xtask fixtures`: records test messages and log lines from the real engine, or compares a sample with what was recorded.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::e2e::setup::{harness_module_command, harness_python, prepare_sglang};
use crate::script::{self, project_root, run_to_success};

/// Cases, and the folders recorded with them; msgpack has a folder of its own. `small` leaves out the large cases. `core` covers every
/// other layout of `BatchTokenIDOutput`, and one release before and after each change in the meaning of its ids.
const RECORDINGS: [(&str, &str); 3] = [
    (ALL_CASES, "0.4.4 0.5.9 0.5.13 0.5.23 0.5.23-msgpack"),
    ("small", "0.4.0 0.5.3 0.5.10 0.5.15 0.5.15-msgpack"),
    (
        "core",
        "0.4.0.post2 0.4.1.post3 0.4.1.post7 0.4.2 0.4.3 0.4.6.post3 0.4.6.post4 0.4.10.post2 0.5.0rc0 0.5.0rc2 0.5.2 0.5.3.post3 \
         0.5.4 0.5.4.post3 0.5.5 0.5.6 0.5.7 0.5.8 0.5.10rc0 0.5.11 0.5.12 0.5.14 0.5.16 0.5.17 0.5.19 0.5.21 0.5.16-msgpack \
         0.5.17-msgpack 0.5.19-msgpack 0.5.21-msgpack",
    ),
];

/// Releases whose log lines are recorded.
const LOGS: [&str; 3] = ["0.4.6.post4", "0.5.9", "0.5.23"];
/// Extent of a recording that has every case, as in [`RECORDINGS`].
const ALL_CASES: &str = "all";
/// Release that is recorded again by `--check`, because the end-to-end tests need it too.
const SAMPLE: &str = "0.5.23";
const MESSAGES_FOLDER: &str = "zmq-tap/fixtures/messages";
const LOGS_FOLDER: &str = "engines/tests/logs";

#[derive(clap::Args)]
pub(crate) struct FixtureOptions {
    /// Record one release again and compare it with the project's files, byte by byte
    #[arg(long, conflicts_with_all = ["out", "releases"])]
    check: bool,
    /// Record into this folder instead of the project's
    #[arg(long)]
    out: Option<PathBuf>,
    /// Record every case of these releases in every supported codec, instead of the project's selection
    releases: Vec<String>,
}

/// `cargo xtask fixtures`: records messages of engines. Without releases, it records the project's selection, and also log lines unless
/// `--out` names another folder. With releases, it records all their messages into the folder `--out`. With `--check`, it only compares a
/// sample with the project's files.
pub(crate) fn record_fixtures(args: &FixtureOptions) -> Result<()> {
    if args.check {
        return compare_sample_with_recorded();
    }
    let out = args.out.clone().unwrap_or_else(|| project_root().join(MESSAGES_FOLDER));
    ensure!(
        args.out.is_some() || args.releases.is_empty(),
        "a selection of releases needs --out, so that the project's fixtures are not mixed"
    );
    for release in &args.releases {
        record_messages(release, ALL_CASES, &out)?;
        record_messages(&format!("{release}-msgpack"), ALL_CASES, &out)?;
    }
    let is_own_selection = args.releases.is_empty();
    if is_own_selection {
        for (extent, names) in RECORDINGS {
            for name in names.split(' ') {
                record_messages(name, extent, &out)?;
            }
        }
    }
    let is_for_project = args.out.is_none();
    if is_for_project { record_and_seal_project_logs() } else { Ok(()) }
}

/// Records the log lines of the project. Then enters them and its messages in the manifest of recorded files, so that later
/// changes by other commands are noticed.
fn record_and_seal_project_logs() -> Result<()> {
    let mut sealed = vec![String::from("--seal"), MESSAGES_FOLDER.to_owned()];
    for release in LOGS {
        record_logs(release, &project_root().join(LOGS_FOLDER))?;
        sealed.push(format!("{LOGS_FOLDER}/sglang-{release}"));
    }
    script::run_script("recorded.py", sealed)
}

/// Records the messages of a release, or with the suffix `-msgpack` its msgpack messages, into the folder of that name in `out_folder`.
/// `extent` says which cases are recorded: `all`, or `small` and `core` as in [`RECORDINGS`].
fn record_messages(release_name: &str, extent: &str, out_folder: &Path) -> Result<()> {
    let release = release_name.trim_end_matches("-msgpack");
    let folder = out_folder.join(release_name);
    prepare_sglang(&[release])?;
    eprintln!("recording {}", folder.display());
    let mut record = Command::new(harness_python());
    record.arg(project_root().join("zmq-tap/fixtures/record.py")).arg(release).arg(&folder).arg(extent);
    record.env("PYTHONPATH", project_root()).env("PYTHONDONTWRITEBYTECODE", "1").current_dir(project_root());
    // The name has the suffix of msgpack.
    if release_name != release {
        record.env("SGLANG_USE_PICKLE_IPC", "0");
    }
    run_to_success(&mut record)
}

/// Records the log lines of a release.
fn record_logs(release: &str, out_folder: &Path) -> Result<()> {
    prepare_sglang(&[release])?;
    let folder = out_folder.join(format!("sglang-{release}"));
    eprintln!("recording {}", folder.display());
    // The release appends to a file of request metrics, which must not hold those of an earlier recording.
    if folder.is_dir() {
        fs::remove_dir_all(&folder)?;
    }
    run_to_success(
        harness_module_command("testbed.loglines").arg(release).arg(&folder).env("PYTHONDONTWRITEBYTECODE", "1"),
    )
}

/// Records one release again, and fails unless it is what the project contains, byte by byte.
fn compare_sample_with_recorded() -> Result<()> {
    let again = tempfile::tempdir()?;
    let messages = again.path().join("messages");
    let logs = again.path().join("logs");
    let msgpack = format!("{SAMPLE}-msgpack");
    for name in [SAMPLE, &msgpack] {
        record_messages(name, ALL_CASES, &messages)?;
        require_equal_folders(&messages.join(name), &project_root().join(MESSAGES_FOLDER).join(name))?;
    }
    record_logs(SAMPLE, &logs)?;
    let name = format!("sglang-{SAMPLE}");
    require_equal_folders(&logs.join(&name), &project_root().join(LOGS_FOLDER).join(&name))
}

/// Fails, and names the files, unless both folders have the same files with the same bytes.
fn require_equal_folders(again: &Path, recorded: &Path) -> Result<()> {
    run_to_success(Command::new("diff").args(["--recursive", "--brief"]).arg(again).arg(recorded))
        .with_context(|| format!("{} is not what SGLang {SAMPLE} writes", recorded.display()))?;
    println!("{}: equal byte by byte", recorded.display());
    Ok(())
}
