//! `cargo xtask fixtures`: records the decoder's test messages from the real engine.

use std::path::PathBuf;
use std::process::Command;

use anyhow::ensure;

use crate::e2e::setup::{prepare, python};
use crate::script::{root, succeed};

/// Cases, and the folders recorded with them; msgpack has a folder of its own. `small` leaves out the large cases. `core` covers every other
/// layout of `BatchTokenIDOutput`, and one release before and after each change in the meaning of its ids.
const RECORDINGS: [(&str, &str); 3] = [
    ("all", "0.4.4 0.5.9 0.5.13 0.5.23 0.5.23-msgpack"),
    ("small", "0.4.0 0.5.3 0.5.10 0.5.15 0.5.15-msgpack"),
    (
        "core",
        "0.4.0.post2 0.4.1.post3 0.4.1.post7 0.4.2 0.4.3 0.4.6.post3 0.4.6.post4 0.4.10.post2 0.5.0rc0 0.5.0rc2 0.5.2 0.5.3.post3 \
         0.5.4 0.5.4.post3 0.5.5 0.5.6 0.5.7 0.5.8 0.5.10rc0 0.5.11 0.5.12 0.5.14 0.5.16 0.5.17 0.5.19 0.5.21 0.5.16-msgpack \
         0.5.17-msgpack 0.5.19-msgpack 0.5.21-msgpack",
    ),
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
    ensure!(
        args.out.is_some() || args.releases.is_empty(),
        "a selection of releases needs --out, so that the project's fixtures are not mixed"
    );
    let mut recordings = Vec::new();
    for release in &args.releases {
        recordings.extend([(release.clone(), "all"), (format!("{release}-msgpack"), "all")]);
    }
    for (extent, names) in RECORDINGS.iter().filter(|_| args.releases.is_empty()) {
        recordings.extend(names.split(' ').map(|name| (name.to_owned(), *extent)));
    }
    for (name, extent) in recordings {
        let (release, folder) = (name.trim_end_matches("-msgpack"), out.join(&name));
        prepare(&[release])?;
        eprintln!("recording {}", folder.display());
        let mut record = Command::new(python());
        record.arg(root().join("zmq-tap/fixtures/record.py")).arg(release).arg(&folder).arg(extent);
        record.env("PYTHONPATH", root()).env("PYTHONDONTWRITEBYTECODE", "1").current_dir(root());
        if name != release {
            record.env("SGLANG_USE_PICKLE_IPC", "0");
        }
        succeed(&mut record)?;
    }
    Ok(())
}
