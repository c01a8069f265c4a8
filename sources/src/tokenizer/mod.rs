//! The engine's own tokenizer, which gives the text of token ids where messages carry no text.

#[cfg(feature = "tokenizers")]
mod decoder;

use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::{Context, anyhow};
use foreign::ExpectedFile;
use probe_user::process_files::open_user_named_regular;
use responses::Detokenize;

/// Maximum size of a `tokenizer.json`. The largest known ones have 30 MB.
const MAX_JSON_BYTES: usize = 128 << 20;

type TokenizerResult = Result<Arc<dyn Detokenize>, String>;

/// The thread that reads a tokenizer, which takes up to a second.
pub(crate) type TokenizerThread = JoinHandle<TokenizerResult>;

/// Reads the tokenizer in this file.
pub fn read_tokenizer(path: &Path) -> anyhow::Result<Arc<dyn Detokenize>> {
    let failed = || format!("cannot read the tokenizer {}", path.display());
    let file = open_user_named_regular(path, ExpectedFile::ANY).with_context(failed)?;
    let json = file.read(MAX_JSON_BYTES).with_context(failed)?;
    parse_json(&json).map_err(|why| anyhow!(why)).with_context(failed)
}

/// Begins to read a `tokenizer.json` on a thread of its own; `None` if no thread can be started, which is logged.
pub(crate) fn start_reading_tokenizer(json: Vec<u8>) -> Option<TokenizerThread> {
    let thread = thread::Builder::new().name("tokenizer".to_owned()).spawn(move || parse_json(&json));
    thread.inspect_err(|error| tracing::warn!("cannot start a thread that reads the tokenizer: {error}")).ok()
}

#[cfg(feature = "tokenizers")]
fn parse_json(json: &[u8]) -> TokenizerResult {
    Ok(Arc::new(decoder::parse_tokenizer(json)?))
}

#[cfg(not(feature = "tokenizers"))]
fn parse_json(_json: &[u8]) -> TokenizerResult {
    Err(trace::words::missing_feature_error("tokenizers"))
}
