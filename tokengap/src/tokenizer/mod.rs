//! The engine's own tokenizer, which gives the text of token ids where messages carry no text.

#[cfg(feature = "tokenizers")]
mod decoder;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use anyhow::{Context, anyhow};
use zmq_tap::egress::Detokenize;

type Read = Result<Arc<dyn Detokenize>, String>;

/// A tokenizer that is being read. Reading takes up to a second.
#[derive(Debug)]
pub(crate) struct Reading(Receiver<Read>);

/// Reads the tokenizer in this file.
pub(crate) fn read(path: &Path) -> anyhow::Result<Arc<dyn Detokenize>> {
    let json = std::fs::read(path).map_err(anyhow::Error::from);
    json.and_then(|json| parse(&json).map_err(|why| anyhow!(why)))
        .with_context(|| format!("cannot read the tokenizer {}", path.display()))
}

impl Reading {
    /// Begins to read a `tokenizer.json` on a thread of its own.
    pub(crate) fn begin(json: Vec<u8>) -> Self {
        let (sender, receiver) = channel();
        let thread = thread::Builder::new().name("tokenizer".to_owned());
        let started = thread.spawn(move || sender.send(parse(&json)));
        if let Err(error) = started {
            tracing::warn!("cannot start a thread that reads the tokenizer: {error}");
        }
        Self(receiver)
    }

    /// The tokenizer, once it is read. A thread that ended without a result gives none.
    pub(crate) fn take(&self) -> Option<Read> {
        self.0.try_recv().ok()
    }
}

#[cfg(feature = "tokenizers")]
fn parse(json: &[u8]) -> Read {
    decoder::parse(json)
}

#[cfg(not(feature = "tokenizers"))]
fn parse(_json: &[u8]) -> Read {
    Err(crate::advice::missing("tokenizers"))
}
