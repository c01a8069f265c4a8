//! Text of token ids by the crate `tokenizers`, as vLLM's servers make it.

use responses::{Detokenize, TokenStream};
use tokenizers::tokenizer::step_decode_stream;
use tokenizers::{DecoderWrapper, Tokenizer};

/// Maximum number of ids tried as the text before an output.
const MAX_TRIED_IDS: u32 = 4_096;

/// Special tokens, such as the end of a text, have no text.
const SKIPS_SPECIAL_TOKENS: bool = true;

/// A tokenizer, decoding as vLLM's servers do: step by step, without special tokens.
#[derive(Debug)]
pub(super) struct Detokenizer {
    tokenizer: Tokenizer,
    /// State after a word. Some tokenizers remove a space at the start of a text, and an output continues its prompt.
    after_word: TokenStream,
    /// Text of each token that has whole characters, by id, if the text of a token does not depend on those before it. Empty for the other
    /// tokens. Saves most of the time.
    text_by_id: Vec<Box<str>>,
}

/// Reads a `tokenizer.json`.
pub(super) fn parse_tokenizer(json: &[u8]) -> Result<Detokenizer, String> {
    let tokenizer = Tokenizer::from_bytes(json).map_err(|error| format!("not a tokenizer.json: {error}"))?;
    let after_word = find_stream_after_word(&tokenizer).ok_or("none of its first tokens is a word")?;
    // In a vocabulary of bytes, most tokens have the same text anywhere, so it is decoded once.
    let is_of_bytes = matches!(tokenizer.get_decoder(), Some(DecoderWrapper::ByteLevel(_)));
    let text_by_id = if is_of_bytes { decode_texts_by_id(&tokenizer) } else { Vec::new() };
    Ok(Detokenizer { tokenizer, after_word, text_by_id })
}

/// Text of each token by its id. Empty for a part of a character, which has no text of its own.
fn decode_texts_by_id(tokenizer: &Tokenizer) -> Vec<Box<str>> {
    let has_added_tokens = true;
    let mut text_by_id = Vec::new();
    for id in 0..tokenizer.get_vocab_size(has_added_tokens) as u32 {
        let text = tokenizer.decode(&[id], SKIPS_SPECIAL_TOKENS).unwrap_or_default();
        let has_whole_characters = !text.contains(char::REPLACEMENT_CHARACTER);
        text_by_id.push(if has_whole_characters { text.into_boxed_str() } else { Box::default() });
    }
    text_by_id
}

/// State of decoding after the first token that is a word of lowercase letters, in which every output begins: some tokenizers remove a
/// space at the start of a text. `None` if none of the first tokens is such a word.
fn find_stream_after_word(tokenizer: &Tokenizer) -> Option<TokenStream> {
    for id in 0..MAX_TRIED_IDS {
        let text = tokenizer.decode(&[id], SKIPS_SPECIAL_TOKENS).unwrap_or_default();
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase()) {
            // The text of its only token is complete.
            let complete_tokens = 1;
            return Some(TokenStream { ids: vec![id], prefix: text, next: complete_tokens });
        }
    }
    None
}

/// Sets the state that the library would have after a token with this complete text: it is the only one that the next depends on.
#[inline]
fn reset_stream_to_token(stream: &mut TokenStream, id: u32, text: &str) {
    let TokenStream { ids, prefix, next } = stream;
    ids.clear();
    ids.push(id);
    prefix.clear();
    prefix.push_str(text);
    let complete_tokens = 1;
    *next = complete_tokens;
}

impl Detokenize for Detokenizer {
    fn begin(&self) -> TokenStream {
        self.after_word.clone()
    }

    /// Appends the text that the token `id` adds to the stream. Returns false if the tokenizer refuses it.
    fn step(&self, stream: &mut TokenStream, id: u32, text: &mut String) -> bool {
        let known_text = self.text_by_id.get(id as usize).filter(|known| !known.is_empty());
        // The text of the first `next` tokens was returned already. Further ones end within a character, which this token may complete.
        let is_at_character_start = stream.ids.len() == stream.next;
        if is_at_character_start && let Some(known_text) = known_text {
            text.push_str(known_text);
            reset_stream_to_token(stream, id, known_text);
            return true;
        }
        let TokenStream { ids, prefix, next } = stream;
        match step_decode_stream(&self.tokenizer, vec![id], SKIPS_SPECIAL_TOKENS, ids, prefix, next) {
            Ok(new) => {
                text.push_str(&new.unwrap_or_default());
                true
            }
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A vocabulary of words and bytes. `\u{120}` is a space, and `\u{e2}` and the two after it are the bytes of a dash.
    fn byte_level() -> Detokenizer {
        let json = r#"{"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": null, "post_processor": null,
            "added_tokens": [{"id": 0, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "vocab": {"<end>": 0, "word": 1, "\u0120other": 2, "\u00e2": 3, "\u0122": 4, "\u0136": 5}, "merges": []}}"#;
        parse_tokenizer(json.as_bytes()).expect("a tokenizer")
    }

    fn steps(tokenizer: &Detokenizer, ids: &[u32]) -> Vec<String> {
        let mut stream = tokenizer.begin();
        let step = |id: &u32| {
            let mut text = String::new();
            assert!(tokenizer.step(&mut stream, *id, &mut text));
            text
        };
        ids.iter().map(step).collect()
    }

    #[test]
    fn special_tokens_and_incomplete_characters_have_no_text() {
        let found = steps(&byte_level(), &[2, 1, 3, 4, 5, 0, 1]);
        assert_eq!(found, [" other", "word", "", "", "\u{2014}", "", "word"]);
    }

    #[test]
    fn the_first_space_of_an_output_is_kept() {
        let json = r#"{"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": null, "post_processor": null,
            "added_tokens": [], "decoder": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": true},
            "model": {"type": "BPE", "vocab": {"\u2581word": 0, "\u2581other": 1}, "merges": []}}"#;
        let tokenizer = parse_tokenizer(json.as_bytes()).expect("a tokenizer");
        assert_eq!(steps(&tokenizer, &[1, 0]), [" other", " word"]);
    }

    #[test]
    fn other_files_are_refused() {
        assert!(parse_tokenizer(b"{}").unwrap_err().starts_with("not a tokenizer.json: "));
        assert!(parse_tokenizer(b"\x80").is_err());
    }

    proptest::proptest! {
        #[test]
        fn the_text_of_whole_tokens_is_the_one_that_the_library_gives(ids in proptest::collection::vec(0_u32..6, 0..30)) {
            let slow = Detokenizer { text_by_id: Vec::new(), ..byte_level() };
            proptest::prop_assert_eq!(steps(&byte_level(), &ids), steps(&slow, &ids));
        }

        #[test]
        fn unknown_ids_and_any_bytes_do_no_harm(ids in proptest::collection::vec(proptest::prelude::any::<u32>(), 0..20)) {
            let tokenizer = byte_level();
            let mut stream = tokenizer.begin();
            for id in ids {
                tokenizer.step(&mut stream, id % 8, &mut String::new());
                tokenizer.step(&mut stream, id, &mut String::new());
            }
            proptest::prop_assert!(stream.ids.len() < 64);
        }
    }
}
