//! `cargo xtask fixtures`: records the decoder's test messages from the real engine.

use std::path::PathBuf;
use std::process::Command;

use anyhow::ensure;

use crate::e2e::setup::{prepare, python};
use crate::script::{root, succeed};

/// Releases recorded with every case; the flag selects msgpack.
const ALL: [(&str, bool); 5] =
    [("0.4.4", false), ("0.5.9", false), ("0.5.13", false), ("0.5.23", false), ("0.5.23", true)];
/// Releases recorded with every case except the large ones.
const SMALL: [(&str, bool); 5] =
    [("0.4.0", false), ("0.5.3", false), ("0.5.10", false), ("0.5.15", false), ("0.5.15", true)];
/// One release for every other layout of `BatchTokenIDOutput`, and one before and after each change in the meaning of its ids.
#[rustfmt::skip]
const CORE: [(&str, bool); 30] = [
    ("0.4.0.post2", false), ("0.4.1.post3", false), ("0.4.1.post7", false), ("0.4.2", false), ("0.4.3", false),
    ("0.4.6.post3", false), ("0.4.6.post4", false), ("0.4.10.post2", false), ("0.5.0rc0", false), ("0.5.0rc2", false),
    ("0.5.2", false), ("0.5.3.post3", false), ("0.5.4", false), ("0.5.4.post3", false), ("0.5.5", false),
    ("0.5.6", false), ("0.5.7", false), ("0.5.8", false), ("0.5.10rc0", false), ("0.5.11", false),
    ("0.5.12", false), ("0.5.14", false), ("0.5.16", false), ("0.5.17", false), ("0.5.19", false), ("0.5.21", false),
    ("0.5.16", true), ("0.5.17", true), ("0.5.19", true), ("0.5.21", true),
];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Record into this folder instead of the project's
    #[arg(long)]
    out: Option<PathBuf>,
    /// Record every case of these releases in every supported codec, instead of the project's selection
    releases: Vec<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let out = args.out.clone().unwrap_or_else(|| root().join("zmq-tap/fixtures/messages"));
    let mut recordings: Vec<(&str, bool, &str)> = Vec::new();
    if args.releases.is_empty() {
        for (extent, releases) in [("all", &ALL[..]), ("small", &SMALL), ("core", &CORE)] {
            recordings.extend(releases.iter().map(|(release, msgpack)| (*release, *msgpack, extent)));
        }
    } else {
        ensure!(
            args.out.is_some(),
            "a selection of releases needs --out, so that the project's fixtures are not mixed"
        );
        for release in &args.releases {
            recordings.push((release, false, "all"));
            recordings.push((release, true, "all"));
        }
    }
    prepare(&recordings.iter().map(|(release, ..)| *release).collect::<Vec<_>>())?;
    for (release, msgpack, extent) in recordings {
        let folder = out.join(if msgpack { format!("{release}-msgpack") } else { release.to_owned() });
        eprintln!("recording {}", folder.display());
        let mut record = Command::new(python());
        record.arg(root().join("zmq-tap/fixtures/record.py")).arg(release).arg(&folder).arg(extent);
        record.env("PYTHONPATH", root()).env("PYTHONDONTWRITEBYTECODE", "1").current_dir(root());
        if msgpack {
            record.env("SGLANG_USE_PICKLE_IPC", "0");
        }
        succeed(&mut record)?;
    }
    Ok(())
}
