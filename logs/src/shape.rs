//! Shape of a line, to show an unrecognised line without its prompts and outputs.

/// Maximum number of words shown.
const WORDS: usize = 12;
/// Maximum number of characters shown per word.
const LETTERS: usize = 40;

const LEVELS: [&str; 7] = ["TRACE", "DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL"];

/// Removes all words that are not clearly technical from the line. Timestamps, numbers, levels, `[tags]`, keys and rids remain.
pub(super) fn shape(line: &str) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut words = line.split_whitespace();
    for word in words.by_ref().take(WORDS) {
        out.push(shown(word).unwrap_or_else(|| String::from("…")));
    }
    if words.next().is_some() {
        out.push(String::from("…"));
    }
    out.dedup_by(|a, b| *a == "…" && *b == "…");
    out.join(" ")
}

fn shown(word: &str) -> Option<String> {
    let cut = |text: &str| text.chars().take(LETTERS).collect::<String>();
    if let Some((key, value)) = word.split_once('=') {
        let technical =
            !key.is_empty() && key.len() <= 24 && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        let open = key == "rid" && value.bytes().all(|b| b.is_ascii_hexdigit() || matches!(b, b'-' | b'.' | b','));
        let value = if open || is_number(value) { cut(value) } else { String::from("…") };
        return technical.then(|| format!("{key}={value}"));
    }
    let bare = word.trim_matches(['[', ']', ':', '(', ')', ',']);
    (LEVELS.contains(&bare) || is_number(bare)).then(|| cut(word))
}

/// Whether the word has only digits and the separators of timestamps, counts and measurements.
fn is_number(word: &str) -> bool {
    let digits = word.bytes().filter(u8::is_ascii_digit).count();
    let between =
        |b: u8| b.is_ascii_digit() || matches!(b, b'-' | b':' | b'.' | b',' | b'T' | b'Z' | b'+' | b'/' | b'%');
    digits > 0 && word.bytes().all(between)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn possible_prompts_are_omitted() {
        let line = "[2026-01-18 07:55:00] INFO rid=5b920f43-bd1e user=alice took 12.5 ms for tell me a secret 42";
        assert_eq!(shape(line), "[2026-01-18 07:55:00] INFO rid=5b920f43-bd1e user=… … 12.5 …");
        assert_eq!(shape("{\"prompt\":\"my=secret\"}"), "…");
        assert_eq!(shape("prompt=secret rid=i_am_no_rid"), "prompt=… rid=…");
        assert_eq!(shape(""), "");
    }

    proptest::proptest! {
        #[test]
        fn no_alphabetic_word_survives(words in "[a-z ]{0,200}") {
            proptest::prop_assert!(!shape(&words).contains(|c: char| c.is_ascii_lowercase()));
        }
    }
}
