//! Escapes strings from the wire: request ids, class names and endpoints may hold anything a client sent.

/// Longer names are truncated visibly.
const LONGEST: usize = 200;

/// Removes control characters and characters that reverse or hide text. The result is one line.
pub fn plain(text: &str) -> String {
    let mut out: String = text.chars().take(LONGEST).map(|c| if is_unprintable(c) { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(LONGEST).is_some() {
        out.push('\u{2026}');
    }
    out
}

fn is_unprintable(c: char) -> bool {
    let is_invisible = matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    c.is_control() || is_invisible || matches!(c, '\u{2028}' | '\u{2029}' | '\u{e0000}'..='\u{e007f}')
}

/// Same for text of several lines, of any length.
pub fn lines(text: &str) -> String {
    text.chars().map(|c| if is_unprintable(c) && c != '\n' { '\u{fffd}' } else { c }).collect()
}

/// Escapes text or a cell of a Markdown page: no markup, no link, no mention of a user.
pub(crate) fn markdown(text: &str) -> String {
    let text = plain(text);
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    let mut in_word = false;
    while let Some(c) = letters.next() {
        match c {
            // Inside a word it is not markup.
            '_' if in_word && letters.peek().is_some_and(|next| next.is_alphanumeric()) => out.push(c),
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

/// Escapes code in a Markdown cell, shown verbatim.
pub(crate) fn markdown_code(text: &str) -> String {
    let text = plain(text).replace('|', "\\|");
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    let pad = if text.starts_with('`') || text.ends_with('`') || text.is_empty() { " " } else { "" };
    format!("{fence}{pad}{text}{pad}{fence}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hostile_input_is_escaped() {
        assert_eq!(markdown("a|b<i> @here [x](y)"), "a\\|b&lt;i> @\u{2060}here \\[x\\](y)");
        assert_eq!(markdown("CAP_BPF _x_ a__b"), "CAP_BPF \\_x\\_ a\\_\\_b");
        assert_eq!(markdown_code("``a`"), "``` ``a` ```");
        assert_eq!(plain("a\nb\u{7}"), "a\u{fffd}b\u{fffd}");
        assert_eq!(plain(&"x".repeat(1000)).chars().count(), LONGEST + 1);
    }

    proptest! {
        #[test]
        fn code_spans_cannot_be_closed_by_their_content(text in "[`|a ]{0,12}") {
            let code = markdown_code(&text);
            let fence = code.len() - code.trim_start_matches('`').len();
            let inside = &code[fence..code.len() - fence];
            prop_assert!(inside.split(|c| c != '`').all(|run| run.len() != fence));
        }
    }
}
