//! Shape of a line, to show an unrecognised line without its prompts and outputs.

/// Maximum number of words shown.
const MAX_WORDS: usize = 12;
/// Maximum number of characters shown per word.
const MAX_LETTERS: usize = 40;

/// Maximum length of a key that is shown; a longer word may be a prompt.
const MAX_KEY_BYTES: usize = 24;

/// Levels of loggers, which hold no prompt.
const LEVELS: [&str; 7] = ["TRACE", "DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL"];

/// Shape of a line: its first words, where `…` stands for those that are not clearly technical. Timestamps, numbers, levels, keys and rids
/// remain.
pub(super) fn describe_line_shape(line: &str) -> String {
    let mut shown: Vec<String> = Vec::new();
    let mut words = line.split_whitespace();
    for word in words.by_ref().take(MAX_WORDS) {
        shown.push(prompt_free_part_of_word(word).unwrap_or_else(|| String::from("…")));
    }
    if words.next().is_some() {
        shown.push(String::from("…"));
    }
    // One ellipsis stands for any number of words.
    shown.dedup_by(|word, previous| *word == "…" && *previous == "…");
    shown.join(" ")
}

/// Returns the part of a word that cannot be text of a prompt. A level or a number is shown whole. For `key=value`, the value is shown only
/// if it is a rid or a number. `None` if nothing of the word may be shown.
fn prompt_free_part_of_word(word: &str) -> Option<String> {
    if let Some((key, value)) = word.split_once('=') {
        return prompt_free_key_value(key, value);
    }
    let bare = word.trim_matches(['[', ']', ':', '(', ')', ',']);
    let is_technical = LEVELS.contains(&bare) || is_number(bare);
    if is_technical { Some(shorten_word(word)) } else { None }
}

/// Returns `key=value`, without a value that may be text of a prompt. `None` if not even the key may be shown.
fn prompt_free_key_value(key: &str, value: &str) -> Option<String> {
    let is_key = (1..=MAX_KEY_BYTES).contains(&key.len()) && key.bytes().all(is_key_byte);
    if !is_key {
        return None;
    }
    // A rid is shown, because it helps to find the line and holds no prompt.
    let is_rid = key == "rid" && value.bytes().all(is_rid_byte);
    let value = if is_rid || is_number(value) { shorten_word(value) } else { String::from("…") };
    Some(format!("{key}={value}"))
}

/// The first characters of a word.
fn shorten_word(text: &str) -> String {
    text.chars().take(MAX_LETTERS).collect()
}

/// Whether the byte occurs in rids, of which several may be listed.
fn is_rid_byte(byte: u8) -> bool {
    byte.is_ascii_hexdigit() || matches!(byte, b'-' | b'.' | b',')
}

/// Whether the byte occurs in keys.
fn is_key_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Whether the byte occurs in numbers, timestamps and measurements.
fn is_number_byte(byte: u8) -> bool {
    byte.is_ascii_digit() || matches!(byte, b'-' | b':' | b'.' | b',' | b'T' | b'Z' | b'+' | b'/' | b'%')
}

/// Whether the word has only digits and the separators of timestamps, counts and measurements.
fn is_number(word: &str) -> bool {
    let digits = word.bytes().filter(u8::is_ascii_digit).count();
    digits > 0 && word.bytes().all(is_number_byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn possible_prompts_are_omitted() {
        let line = "[2026-01-18 07:55:00] INFO rid=5b920f43-bd1e user=alice took 12.5 ms for tell me a secret 42";
        assert_eq!(describe_line_shape(line), "[2026-01-18 07:55:00] INFO rid=5b920f43-bd1e user=… … 12.5 …");
        assert_eq!(describe_line_shape("{\"prompt\":\"my=secret\"}"), "…");
        assert_eq!(describe_line_shape("prompt=secret rid=i_am_no_rid"), "prompt=… rid=…");
        assert_eq!(describe_line_shape(""), "");
    }

    proptest::proptest! {
        #[test]
        fn no_alphabetic_word_survives(words in "[a-z ]{0,200}") {
            proptest::prop_assert!(!describe_line_shape(&words).contains(|c: char| c.is_ascii_lowercase()));
        }
    }
}
