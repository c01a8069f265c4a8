//! Debian package, built by dpkg-deb from the release folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::archive::gzip;
use crate::toolchain::succeed;

/// Installation paths of the release folder's files. Man pages and the changelog are compressed.
const PLACES: [(&str, &str); 8] = [
    ("tokengap", "usr/bin/tokengap"),
    ("deploy/kubectl-tokengap", "usr/bin/kubectl-tokengap"),
    ("man", "usr/share/man/man1"),
    (
        "completions/tokengap.bash",
        "usr/share/bash-completion/completions/tokengap",
    ),
    ("completions/_tokengap", "usr/share/zsh/vendor-completions/_tokengap"),
    (
        "completions/tokengap.fish",
        "usr/share/fish/vendor_completions.d/tokengap.fish",
    ),
    ("CHANGELOG.md", "usr/share/doc/tokengap/CHANGELOG.md.gz"),
    ("deploy/systemd", "usr/lib/systemd/system"),
];

/// Packs `release`, the release folder of one target, into `out`.
pub(crate) fn pack(release: &Path, version: &str, target: &str, built_at: u64, out: &Path) -> Result<PathBuf> {
    let architecture = match target.split('-').next() {
        Some("x86_64") => "amd64",
        Some("aarch64") => "arm64",
        _ => bail!("Debian's name for the machine of {target} is not known here"),
    };
    let staged = tempfile::tempdir()?;
    let root = staged.path();
    for (from, to) in PLACES {
        let (from, to) = (release.join(from), root.join(to));
        // The tree need not contain a systemd unit.
        if from.is_dir() {
            for entry in fs::read_dir(&from)? {
                install(&entry?.path(), &to)?;
            }
        } else if from.is_file() {
            put(&from, &to)?;
        }
    }
    copyright(release, &root.join("usr/share/doc/tokengap/copyright"))?;
    let control = root.join("DEBIAN");
    fs::create_dir(&control)?;
    let size = size(root)? / 1024;
    fs::write(
        control.join("control"),
        format!(
            "Package: tokengap\nVersion: {version}\nArchitecture: {architecture}\nSection: utils\nPriority: optional\n\
             Installed-Size: {size}\nMaintainer: the tokengap authors <tokengap@localhost>\n\
             Description: where an LLM server's tokens wait, and which never arrive\n \
             Attaches to a running SGLang engine, or relays its traffic, and follows every\n \
             request's tokens from the scheduler to the client. One static program.\n"
        ),
    )?;
    let package = out.join(format!("tokengap_{version}_{architecture}.deb"));
    succeed(
        Command::new("dpkg-deb")
            // dpkg-deb clamps every timestamp to this value.
            .env("SOURCE_DATE_EPOCH", built_at.to_string())
            .args(["--root-owner-group", "-Zxz", "--build"])
            .args([root, &package])
            .stdout(std::process::Stdio::null()),
    )?;
    Ok(package)
}

fn install(file: &Path, dir: &Path) -> Result<()> {
    let name = file.file_name().context("a file without a name")?.to_string_lossy();
    let manual = file.extension().is_some_and(|ext| ext == "1");
    let name = if manual {
        format!("{name}.gz")
    } else {
        name.into_owned()
    };
    put(file, &dir.join(name))
}

fn put(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("a place without a folder")?)?;
    if to.extension().is_some_and(|ext| ext == "gz") {
        fs::write(to, gzip(&fs::read(from)?)?)?;
    } else {
        fs::copy(from, to)?;
    }
    Ok(())
}

/// Writes one file with all licences, as Debian expects.
fn copyright(release: &Path, to: &Path) -> Result<()> {
    let mut text = String::new();
    for name in ["LICENSE-MIT", "LICENSE-APACHE", "THIRD-PARTY-LICENSES.txt"] {
        text.push_str(&fs::read_to_string(release.join(name))?);
        text.push('\n');
    }
    fs::write(to, text)?;
    Ok(())
}

fn size(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        bytes += if meta.is_dir() {
            size(&entry.path())?
        } else {
            meta.len()
        };
    }
    Ok(bytes)
}
