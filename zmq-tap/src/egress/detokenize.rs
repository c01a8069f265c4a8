//! Text of token ids, for engines whose messages carry no text.

use std::fmt;

/// A tokenizer that turns ids into text, step by step.
pub trait Detokenize: fmt::Debug + Send + Sync {
    /// State of a request whose prompt contains text.
    fn begin(&self) -> TokenStream;

    /// Appends to `text` what the next token adds to the output; nothing for a special token, and while a character is incomplete. Returns
    /// false if that is unknown.
    fn step(&self, stream: &mut TokenStream, id: u32, text: &mut String) -> bool;
}

/// Tokens of one request that the text of the next one depends on.
#[derive(Clone, Debug, Default)]
pub struct TokenStream {
    /// The tokens.
    pub ids: Vec<u32>,
    /// Text of those before `next`.
    pub prefix: String,
    /// Number of them whose text is complete.
    pub next: usize,
}
