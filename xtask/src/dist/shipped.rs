//! Third-party components of the program: crates and linked libraries.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use cargo_metadata::{CargoOpt, DependencyKind, Metadata, MetadataCommand, Node, PackageId};

/// A third-party component.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Component {
    pub(crate) name: String,
    pub(crate) version: String,
    /// Package URL.
    pub(crate) purl: String,
    /// SPDX expression.
    pub(crate) licence: String,
    /// Licence and notice texts of the component: file name, text.
    pub(crate) texts: Vec<(String, String)>,
}

/// All crates compiled into the program for `target`, including the probe's kernel side, and the libraries that zig and rustc add; sorted
/// by name.
pub(crate) fn components(root: &Path, target: &str, zig_lib: &Path, rustc: &str) -> Result<Vec<Component>> {
    let metadata = MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .features(CargoOpt::SomeFeatures(vec!["probe-ebpf/kernel".into()]))
        .other_options(["--locked".into(), "--filter-platform".into(), target.into()])
        .exec()
        .context("cargo metadata")?;
    let mut all = Vec::new();
    for id in compiled(&metadata)? {
        let package = &metadata[&id];
        if metadata.workspace_members.contains(&id) {
            continue;
        }
        let dir = package.manifest_path.parent().context("a manifest lies in no folder")?;
        all.push(Component {
            name: package.name.to_string(),
            version: package.version.to_string(),
            purl: format!("pkg:cargo/{}@{}", package.name, package.version),
            // `A/B` is the deprecated notation for `A OR B`.
            licence: package.license.clone().unwrap_or_default().replace('/', " OR "),
            texts: texts(dir.as_std_path())?,
        });
    }
    all.extend(linked(target, zig_lib, rustc)?);
    all.sort();
    Ok(all)
}

/// Packages compiled into the program, without build and test dependencies.
fn compiled(metadata: &Metadata) -> Result<BTreeSet<PackageId>> {
    let resolve = metadata.resolve.as_ref().context("cargo metadata resolved nothing")?;
    let nodes: HashMap<&PackageId, &Node> = resolve.nodes.iter().map(|node| (&node.id, node)).collect();
    let mut left: Vec<&PackageId> = metadata
        .workspace_packages()
        .iter()
        .filter(|package| ["tui", "probe-ebpf"].contains(&package.name.as_str()))
        .map(|package| &package.id)
        .collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = left.pop() {
        if !seen.insert(id.clone()) {
            continue;
        }
        let node = nodes.get(id).with_context(|| format!("{id} is not resolved"))?;
        left.extend(
            node.deps
                .iter()
                .filter(|dep| dep.dep_kinds.iter().any(|kind| kind.kind == DependencyKind::Normal))
                .map(|dep| &dep.pkg),
        );
    }
    Ok(seen)
}

/// Licences and notices by file name. Of the two licences that zstd's C sources offer, only the one used here.
fn texts(dir: &Path) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    let all: &[&str] = &["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
    for (dir, tells) in [(dir.to_owned(), all), (dir.join("zstd"), &["LICENSE"])] {
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let upper = name.to_uppercase();
            if path.is_file() && tells.iter().any(|word| upper.starts_with(word)) {
                found.push((name, read(&path)?));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Linked libraries that are not in Cargo.lock.
fn linked(target: &str, zig_lib: &Path, rustc: &str) -> Result<Vec<Component>> {
    let component = |name: &str, version: &str, purl: String, licence: &str, files: &[PathBuf]| {
        let texts = files
            .iter()
            .map(|file| {
                Ok((
                    file.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                    read(file)?,
                ))
            })
            .collect::<Result<_>>()?;
        anyhow::Ok(Component {
            name: name.into(),
            version: version.into(),
            purl,
            licence: licence.into(),
            texts,
        })
    };
    let mut linked = vec![component(
        "rust-std",
        rustc,
        format!("pkg:github/rust-lang/rust@{rustc}"),
        "MIT OR Apache-2.0",
        &[],
    )?];
    if target.ends_with("-musl") {
        let musl = musl_version(zig_lib)?;
        linked.push(component(
            "musl",
            &musl,
            format!("pkg:generic/musl@{musl}"),
            "MIT",
            &[zig_lib.join("libc/musl/COPYRIGHT")],
        )?);
        linked.push(component(
            "llvm-libunwind",
            "of zig",
            "pkg:generic/llvm-libunwind".into(),
            "Apache-2.0 WITH LLVM-exception",
            &[zig_lib.join("libunwind/LICENSE.TXT")],
        )?);
    }
    Ok(linked)
}

/// Version from zig's copy of musl: `#define VERSION "1.2.5"`.
fn musl_version(zig_lib: &Path) -> Result<String> {
    let header = read(&zig_lib.join("libc/musl/src/internal/version.h"))?;
    let version = header.split('"').nth(1).context("musl's version.h names no version")?;
    Ok(version.to_owned())
}

fn read(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| format!("read {}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
