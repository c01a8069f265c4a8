//! `cargo xtask dist`: release artifacts in `target/shipped`. They depend on neither the machine nor the time of packing, only on
//! `SOURCE_DATE_EPOCH`.

mod archive;
mod build;
mod deb;
mod notices;
mod shipped;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use self::build::Toolchain;
use crate::toolchain::{output, succeed};

/// Size target of the static program in bytes.
const AIM_BYTES: u64 = 12 << 20;
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Build the static program and pack it: archive, Debian package, bill of materials, checksums
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Build for this target instead of this machine's musl; may be given several times. Other targets than this machine's
    /// come with their own program and with documents that this machine's program writes.
    #[arg(long = "target", value_name = "TRIPLE")]
    targets: Vec<String>,
    /// Compile for this target without linking or packing: targets other than Linux have the commands that read recordings.
    #[arg(long, value_name = "TRIPLE", conflicts_with = "targets")]
    check: Option<String>,
    /// Put everything here.
    #[arg(long, value_name = "DIR", default_value = "target/shipped")]
    out: PathBuf,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let root = root()?;
    let tools = Toolchain::ready(&root)?;
    if let Some(target) = &options.check {
        let std = tools.check(target)?;
        println!("{target}: compiles, with {std}; not linked, not run");
        return Ok(());
    }
    let here = format!("{}-unknown-linux-musl", tools.machine());
    let targets = if options.targets.is_empty() {
        vec![here.clone()]
    } else {
        options.targets.clone()
    };
    let out = root.join(&options.out);
    fs::create_dir_all(&out)?;
    let built_at = built_at(&root)?;
    let mut files = Vec::new();
    // Only a program for this machine can run to generate its documents.
    let (writer, _) = tools.build(&here)?;
    for target in &targets {
        let (program, std) = tools.build(target)?;
        let bytes = program.metadata()?.len();
        println!("{target}: {:.1} MiB, with {std}", bytes as f64 / f64::from(1 << 20));
        if bytes > AIM_BYTES {
            println!("{target}: larger than the {} MiB aimed at", AIM_BYTES >> 20);
        }
        let components = shipped::components(&root, target, &tools.zig_lib()?, tools.release())?;
        let dir = out.join(format!("tokengap-{VERSION}-{target}"));
        stage(&root, &dir, &program, &writer)?;
        fs::write(dir.join("THIRD-PARTY-LICENSES.txt"), notices::licences(&components))?;
        let bill = serde_json::to_string_pretty(&notices::bill(VERSION, target, built_at, &components))?;
        fs::write(dir.join("tokengap.cdx.json"), &bill)?;
        let archive = named(&dir, ".tar.gz")?;
        archive::pack(&dir, &archive, built_at)?;
        files.push(archive);
        let beside = named(&dir, ".cdx.json")?;
        fs::write(&beside, bill)?;
        files.push(beside);
        if output(Command::new("dpkg-deb").arg("--version")).is_ok() {
            files.push(deb::pack(&dir, VERSION, target, built_at, &out)?);
        } else {
            println!("SKIPPED: the Debian package: there is no dpkg-deb");
        }
    }
    let names = files.iter().filter_map(|file| file.file_name());
    let sums = output(Command::new("sha256sum").current_dir(&out).args(names))?;
    fs::write(out.join("SHA256SUMS"), &sums)?;
    print!("{sums}");
    Ok(())
}

/// Path of this machine's program from the last `cargo xtask dist`.
pub(crate) fn program() -> Result<PathBuf> {
    let machine = std::env::consts::ARCH;
    Ok(root()?.join(format!(
        "target/shipped/tokengap-{VERSION}-{machine}-unknown-linux-musl/tokengap"
    )))
}

/// Root folder of the project.
pub(crate) fn root() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    Ok(root.context("xtask has no parent folder")?.to_owned())
}

/// Fills the release folder: the program, its documentation and its deployment files.
fn stage(root: &Path, dir: &Path, program: &Path, writer: &Path) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir)?;
    }
    fs::create_dir_all(dir)?;
    fs::copy(program, dir.join("tokengap"))?;
    for name in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        fs::copy(root.join(name), dir.join(name)).with_context(|| format!("copy {name}"))?;
    }
    copy_all(&root.join("deploy"), &dir.join("deploy"))?;
    for (what, to) in [
        ("man", "man"),
        ("bash", "completions"),
        ("zsh", "completions"),
        ("fish", "completions"),
    ] {
        succeed(
            Command::new(writer)
                .args(["generate", what, "--output"])
                .arg(dir.join(to)),
        )?;
    }
    Ok(())
}

fn copy_all(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("list {}", from.display()))? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_all(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

/// Appends `suffix` to a folder name, whose dots are part of the version and not an extension.
fn named(dir: &Path, suffix: &str) -> Result<PathBuf> {
    let name = dir.file_name().context("a release without a name")?;
    let mut name = name.to_owned();
    name.push(suffix);
    Ok(dir.with_file_name(name))
}

/// `SOURCE_DATE_EPOCH`, or else the time of the last commit.
fn built_at(root: &Path) -> Result<u64> {
    let said = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(said) => said,
        Err(_) => output(
            Command::new("git")
                .current_dir(root)
                .args(["log", "-1", "--format=%ct"]),
        )
        .context("the time of the last commit is unknown: set SOURCE_DATE_EPOCH")?,
    };
    let said = said.trim();
    let at = said
        .parse()
        .with_context(|| format!("SOURCE_DATE_EPOCH={said} is no number of seconds"))?;
    ensure!(
        at < 1 << 33,
        "SOURCE_DATE_EPOCH={said} is further off than a tar archive can say"
    );
    Ok(at)
}

/// Seconds since 1970 as RFC 3339.
fn moment(seconds: u64) -> String {
    jiff::Timestamp::from_second(seconds as i64).map_or_else(|_| String::new(), |at| at.to_string())
}
