//! Access to the recorded messages.

use std::path::{Path, PathBuf};

/// Root folder of the recorded messages. `TOKENGAP_FIXTURES` selects another one, for example with newly generated messages.
pub(crate) fn root() -> PathBuf {
    std::env::var_os("TOKENGAP_FIXTURES")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../zmq-tap/fixtures/messages"), PathBuf::from)
}

/// Every recorded message below [`root`], sorted by path.
pub(crate) fn messages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|why| panic!("{}: {why}", folder.display())) {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|kind| kind == "pkl" || kind == "msgpack") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
