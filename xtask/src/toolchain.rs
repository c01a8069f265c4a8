//! Source of the standard library, which builds for other targets need beside the compiler.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

/// The standard library's source: `RUST_SRC`, rustup's component, or Debian's package of the same release unpacked into
/// `.tools` (nothing is installed).
pub(crate) fn library(sysroot: &Path, dir: &Path, release: &str) -> Result<PathBuf> {
    let unpacked = dir
        .join("rust-src/usr/src")
        .join(format!("rustc-{release}"))
        .join("library");
    let component = sysroot.join("lib/rustlib/src/rust/library");
    let named = std::env::var_os("RUST_SRC").map(PathBuf::from);
    let complete = |library: &PathBuf| library.join("Cargo.lock").is_file();
    if let Some(found) = named.into_iter().chain([component, unpacked.clone()]).find(complete) {
        return Ok(found);
    }
    let hint = format!("no source of rustc {release}: run `rustup component add rust-src`, or set RUST_SRC");
    eprintln!("fetching Debian's rust-src {release} into {}", dir.display());
    debian_source(dir, release).with_context(|| hint.clone())?;
    ensure!(complete(&unpacked), hint);
    Ok(unpacked)
}

/// Downloads with a separate apt state, from the mirror that this machine uses.
fn debian_source(dir: &Path, release: &str) -> Result<()> {
    let apt = dir.join("apt");
    for sub in ["parts", "lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(apt.join(sub))?;
    }
    let policy = output(Command::new("apt-cache").args(["policy", "base-files"]))?;
    let mirror = policy
        .split_whitespace()
        .find(|word| word.contains("://"))
        .context("apt names no mirror")?;
    fs::write(
        apt.join("parts/backports.sources"),
        format!(
            "Types: deb\nURIs: {mirror}\nSuites: trixie-backports\nComponents: main\n\
             Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
        ),
    )?;
    let options: Vec<String> = [
        "Dir::Etc::sourcelist=/dev/null".to_owned(),
        format!("Dir::Etc::sourceparts={}", apt.join("parts").display()),
        format!("Dir::State::lists={}", apt.join("lists").display()),
        format!("Dir::Cache={}", apt.join("cache").display()),
        "APT::Sandbox::User=root".to_owned(),
    ]
    .into_iter()
    .flat_map(|option| ["-o".to_owned(), option])
    .collect();
    succeed(Command::new("apt-get").args(["update", "-qq"]).args(&options))?;
    let offered = output(Command::new("apt-cache").args(["madison", "rust-src"]).args(&options))?;
    let version = offered
        .split_whitespace()
        .find(|word| word.starts_with(&format!("{release}+dfsg")))
        .with_context(|| format!("Debian offers no rust-src {release}"))?;
    let package = format!("rust-src={version}");
    succeed(
        Command::new("apt-get")
            .current_dir(&apt)
            .args(["download", "-qq", &package])
            .args(&options),
    )?;
    let archive = fs::read_dir(&apt)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.extension().is_some_and(|ext| ext == "deb"))
        .context("apt-get download left no package")?;
    succeed(Command::new("dpkg").arg("-x").arg(&archive).arg(dir.join("rust-src")))?;
    fs::remove_file(archive)?;
    Ok(())
}

/// Runs a command and expects success.
pub(crate) fn succeed(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("start {}", command.get_program().display()))?;
    ensure!(
        status.success(),
        "{} failed ({status}): {command:?}",
        command.get_program().display()
    );
    Ok(())
}

/// Standard output of a command.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let out = command
        .output()
        .with_context(|| format!("start {}", command.get_program().display()))?;
    if !out.status.success() {
        bail!(
            "{} failed ({}): {}",
            command.get_program().display(),
            out.status,
            String::from_utf8_lossy(&out.stderr)
        );
    }
    Ok(String::from_utf8(out.stdout)?)
}
