//! Lines of text of limited width.

use std::fmt::Write as _;

/// Maximum line width.
const WIDTH: usize = 100;

/// Writes a row with its name in the first column.
pub(super) fn row(out: &mut String, name: &str, text: &str) {
    wrap(out, text, &format!("{name:<14}"), &" ".repeat(14));
}

/// Breaks at spaces; a longer word stays whole.
pub(crate) fn wrap(out: &mut String, text: &str, first: &str, rest: &str) {
    let mut column = first.chars().count();
    out.push_str(first);
    let mut begun = false;
    let mut words = text.split_whitespace().peekable();
    while let Some(word) = words.next() {
        // A number stays on the line of its unit.
        let unit = words.next_if(|next| matches!(*next, "ns" | "us" | "ms" | "s" | "%"));
        let length = word.chars().count() + unit.map_or(0, |u| u.len() + 1);
        if begun && column + 1 + length > WIDTH {
            let _ = write!(out, "\n{rest}");
            column = rest.chars().count();
            begun = false;
        }
        if begun {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        if let Some(unit) = unit {
            out.push(' ');
            out.push_str(unit);
        }
        column += length;
        begun = true;
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_wrap_at_spaces_and_keep_their_indent() {
        let mut out = String::new();
        wrap(&mut out, &"word ".repeat(40), "name  ", "      ");
        assert!(out.lines().count() > 1 && out.lines().all(|l| l.len() <= WIDTH));
        assert!(out.lines().skip(1).all(|l| l.starts_with("      word")));
    }
}
