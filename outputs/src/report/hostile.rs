//! Escapes strings that other processes choose: request ids, class names, paths and endpoints may hold anything.
//!
//! A renderer makes each string one line with [`escape_and_cut_line`] or [`line`]. All output passes an [`EscapingWriter`] in addition, so
//! that a forgotten string cannot control a terminal.

use std::borrow::Cow;
use std::io::{self, Write};

/// Longer names are truncated visibly.
const MAX_CHARS: usize = 200;

/// Replaces control characters and characters that reverse or hide text, and cuts long text. The result is one line.
pub fn escape_and_cut_line(text: &str) -> String {
    let mut out: String =
        text.chars().take(MAX_CHARS).map(|c| if is_unprintable(c) { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(MAX_CHARS).is_some() {
        // Shows that the text was longer.
        out.push('\u{2026}');
    }
    out
}

/// Replaces unprintable characters, and writes line breaks as `\n`. The result is one line of any length.
pub fn line(text: &str) -> String {
    lines(&text.replace('\n', "\\n"))
}

/// Whether `c` controls a terminal, reverses text or is invisible.
pub fn is_unprintable(c: char) -> bool {
    let is_invisible = matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    c.is_control() || is_invisible || matches!(c, '\u{2028}' | '\u{2029}' | '\u{e0000}'..='\u{e007f}')
}

/// Replaces unprintable characters except line ends, in text of any length.
pub fn lines(text: &str) -> String {
    text.chars().map(|c| if is_unprintable(c) && c != '\n' { '\u{fffd}' } else { c }).collect()
}

/// Indents the lines after the first, so that a line break inside a message cannot pass for another message.
pub fn indent_following_lines(text: &str) -> Cow<'_, str> {
    // A line end at the end of the text begins no other line.
    let body = text.strip_suffix('\n').unwrap_or(text);
    let is_indented = body.lines().skip(1).all(|line| line.is_empty() || line.starts_with(' '));
    if is_indented {
        return text.into();
    }
    let end = &text[body.len()..];
    (body.replace('\n', "\n    ") + end).into()
}

/// How an [`EscapingWriter`] escapes a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EscapeForm {
    /// Text, CSV, Markdown and HTML: replaced by U+FFFD.
    Text,
    /// JSON, where such characters occur only in strings: `\u` and four digits, which a reader decodes to the same string.
    Json,
}

/// Whether a terminal acts on `c`, or it changes the direction or the lines of text. Renderers also replace invisible characters, but put
/// some into Markdown themselves.
fn is_active(c: char) -> bool {
    let is_control = c.is_control() && !matches!(c, '\n' | '\t');
    is_control || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether all bytes are printable ASCII, tabs and line feeds, as nearly all output is.
fn is_plain_text(bytes: &[u8]) -> bool {
    // Counts over all bytes instead of stopping early, so that the compiler can vectorise the loop.
    bytes.iter().filter(|byte| matches!(byte, b'\t' | b'\n' | b' '..=b'~')).count() == bytes.len()
}

/// Escapes the active characters of finished output, which control a terminal or reorder text. Returns the text itself if it has none.
pub fn escape_output(text: &str, form: EscapeForm) -> Cow<'_, str> {
    if is_plain_text(text.as_bytes()) || !text.chars().any(is_active) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if !is_active(c) {
            out.push(c);
            continue;
        }
        match form {
            EscapeForm::Text => out.push('\u{fffd}'),
            EscapeForm::Json => append!(out, "\\u{:04x}", u32::from(c)),
        }
    }
    out.into()
}

/// Escapes everything that is written.
#[derive(Debug)]
pub struct EscapingWriter<W> {
    out: W,
    form: EscapeForm,
    /// Beginning of a character that the next write completes.
    partial: Vec<u8>,
}

impl<W: Write> EscapingWriter<W> {
    /// Escapes what is written to `out`.
    pub fn new(out: W, form: EscapeForm) -> Self {
        Self { out, form, partial: Vec::new() }
    }

    /// Decodes UTF-8 with U+FFFD in place of invalid bytes. If the bytes end within a character, keeps its start for the next write.
    fn decode_whole_characters(&mut self, bytes: &[u8]) -> String {
        let mut text = String::with_capacity(bytes.len());
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            let is_last = chunks.peek().is_none();
            // Only at the end may the next write complete the character.
            if is_last && is_start_of_character(chunk.invalid()) {
                self.partial = chunk.invalid().to_vec();
            } else if !chunk.invalid().is_empty() {
                text.push('\u{fffd}');
            }
        }
        text
    }
}

impl<W: Write> Write for EscapingWriter<W> {
    /// Escapes the bytes and writes them. If they end within a character, keeps its start for the next write.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Nothing is to be escaped.
        if self.partial.is_empty() && is_plain_text(bytes) {
            return self.out.write(bytes);
        }
        // The character that the last write cut continues here.
        let mut whole = std::mem::take(&mut self.partial);
        whole.extend_from_slice(bytes);
        let text = self.decode_whole_characters(&whole);
        self.out.write_all(escape_output(&text, self.form).as_bytes())?;
        // The start of a character in `partial` counts as written, too.
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Whether more bytes can complete these to a character.
fn is_start_of_character(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

/// Escapes text or a cell of a Markdown page: no markup, no link, no mention of a user. Text of any length stays whole.
pub(crate) fn escape_markdown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().map(|c| if is_unprintable(c) { '\u{fffd}' } else { c }).peekable();
    let mut in_word = false;
    while let Some(c) = chars.next() {
        match c {
            // Inside a word it is not markup.
            '_' if in_word && chars.peek().is_some_and(|next| next.is_alphanumeric()) => out.push(c),
            '<' => out.push_str("&lt;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' | '&' | '#' | '$' => out.extend(['\\', c]),
            // Chats notify users mentioned by name. A word joiner breaks the mention without changing the look.
            '@' => out.push_str("@\u{2060}"),
            c => out.push(c),
        }
        in_word = c.is_alphanumeric();
    }
    // A bare URL becomes a link.
    out.replace("://", ":\u{2060}//")
}

/// Escapes a sentence, in which backticks in pairs enclose code.
pub(crate) fn escape_markdown_sentence(text: &str) -> String {
    let parts: Vec<&str> = text.split('`').collect();
    let has_pairs_only = parts.len() % 2 == 1;
    if !has_pairs_only {
        return escape_markdown(text);
    }
    // The parts between two backticks have odd indexes.
    let escaped = parts.iter().enumerate();
    escaped
        .map(|(index, part)| if index % 2 == 1 { format_markdown_code(part) } else { escape_markdown(part) })
        .collect()
}

/// Escapes code in a Markdown cell, shown verbatim.
pub(crate) fn format_markdown_code(text: &str) -> String {
    let text = escape_and_cut_line(text).replace('|', "\\|");
    let longest_backticks = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    // Code ends at a fence of the same length only.
    let fence = "`".repeat(longest_backticks + 1);
    // Markdown does not show one blank at both ends.
    let pad = if text.starts_with('`') || text.ends_with('`') || text.is_empty() { " " } else { "" };
    format!("{fence}{pad}{text}{pad}{fence}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn code_in_a_sentence_stays_code() {
        assert_eq!(escape_markdown_sentence("run `py-spy dump` on *it*"), "run `py-spy dump` on \\*it\\*");
        assert_eq!(escape_markdown_sentence("one ` alone"), escape_markdown("one ` alone"));
    }

    #[test]
    fn hostile_input_is_escaped() {
        assert_eq!(escape_markdown("a|b<i> @here [x](y)"), "a\\|b&lt;i> @\u{2060}here \\[x\\](y)");
        assert_eq!(escape_markdown(&"advice ".repeat(100)), "advice ".repeat(100), "nothing is cut");
        assert_eq!(escape_markdown("CAP_BPF _x_ a__b"), "CAP_BPF \\_x\\_ a\\_\\_b");
        assert_eq!(format_markdown_code("``a`"), "``` ``a` ```");
        assert_eq!(escape_and_cut_line("a\nb\u{7}"), "a\u{fffd}b\u{fffd}");
        assert_eq!(escape_and_cut_line(&"x".repeat(1000)).chars().count(), MAX_CHARS + 1);
    }

    fn written(parts: &[&[u8]], form: EscapeForm) -> Vec<u8> {
        let mut out = Vec::new();
        let mut writer = EscapingWriter::new(&mut out, form);
        for part in parts {
            writer.write_all(part).expect("a vector");
        }
        out
    }

    #[test]
    fn active_characters_are_escaped_wherever_a_write_ends() {
        let hostile = "a\u{1b}[31m\u{9b}31m\u{7}\u{7f}\r\u{202e}x\n\ty\u{2060}";
        for end in 0..hostile.len() {
            let (start, rest) = hostile.as_bytes().split_at(end);
            let text = written(&[start, rest], EscapeForm::Text);
            assert_eq!(
                String::from_utf8(text).expect("UTF-8"),
                "a\u{fffd}[31m\u{fffd}31m\u{fffd}\u{fffd}\u{fffd}\u{fffd}x\n\ty\u{2060}"
            );
        }
        assert_eq!(written(&[b"a\xff\x9bb"], EscapeForm::Text), "a\u{fffd}\u{fffd}b".as_bytes());
    }

    #[test]
    fn a_message_cannot_contain_the_start_of_another() {
        assert_eq!(line("a\ntokengap: b\u{1b}"), "a\\ntokengap: b\u{fffd}");
        assert_eq!(indent_following_lines("a\ntokengap: b\nc\n"), "a\n    tokengap: b\n    c\n");
        assert_eq!(indent_following_lines("found 2 engines:\n  1\n"), "found 2 engines:\n  1\n");
        assert_eq!(indent_following_lines("a\n"), "a\n");
    }

    proptest! {
        #[test]
        fn escaped_json_is_the_same_value(text: String, end in 0_usize..64) {
            let json = serde_json::to_vec(&text).expect("JSON");
            let (start, rest) = json.split_at(end.min(json.len()));
            let escaped = String::from_utf8(written(&[start, rest], EscapeForm::Json)).expect("UTF-8");
            prop_assert!(!escaped.chars().any(is_active));
            prop_assert_eq!(serde_json::from_str::<String>(&escaped).expect("JSON"), text);
        }

        #[test]
        fn escaped_text_is_inactive(parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..8), 0..8)) {
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let escaped = String::from_utf8(written(&parts, EscapeForm::Text)).expect("UTF-8");
            prop_assert!(!escaped.chars().any(is_active));
        }

        #[test]
        fn code_spans_cannot_be_closed_by_their_content(text in "[`|a ]{0,12}") {
            let code = format_markdown_code(&text);
            let fence = code.len() - code.trim_start_matches('`').len();
            let inside = &code[fence..code.len() - fence];
            prop_assert!(inside.split(|c| c != '`').all(|run| run.len() != fence));
        }
    }
}
