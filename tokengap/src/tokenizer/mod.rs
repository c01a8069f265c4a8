//! The engine's own tokenizer, which gives the text of token ids where messages carry no text.

#[cfg(feature = "tokenizers")]
mod decoder;

use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::{Context, anyhow};
use foreign::ExpectedFile;
use probe_user::process_files::open_named_regular;
use responses::Detokenize;

/// Maximum size of a `tokenizer.json`. The largest known ones have 30 MB.
const LARGEST: usize = 128 << 20;

type Read = Result<Arc<dyn Detokenize>, String>;

/// The thread that reads a tokenizer, which takes up to a second.
pub(crate) type Reading = JoinHandle<Read>;

/// Reads the tokenizer in this file.
pub(crate) fn read(path: &Path) -> anyhow::Result<Arc<dyn Detokenize>> {
    let json = open_named_regular(path, ExpectedFile::ANY).and_then(|file| file.read(LARGEST));
    json.map_err(anyhow::Error::from)
        .and_then(|json| parse(&json).map_err(|why| anyhow!(why)))
        .with_context(|| format!("cannot read the tokenizer {}", path.display()))
}

/// Begins to read a `tokenizer.json` on a thread of its own.
pub(crate) fn begin(json: Vec<u8>) -> Option<Reading> {
    let thread = thread::Builder::new().name("tokenizer".to_owned()).spawn(move || parse(&json));
    let warn = |error: &_| tracing::warn!("cannot start a thread that reads the tokenizer: {error}");
    thread.inspect_err(warn).ok()
}

#[cfg(feature = "tokenizers")]
fn parse(json: &[u8]) -> Read {
    Ok(Arc::new(decoder::parse(json)?))
}

#[cfg(not(feature = "tokenizers"))]
fn parse(_json: &[u8]) -> Read {
    Err(crate::advice::missing("tokenizers"))
}
