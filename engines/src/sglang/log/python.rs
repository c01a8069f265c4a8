//! Objects as Python's `repr` writes them. Strings are skipped whole, so that a prompt cannot imitate a field.

/// Fields of `Class(name=value, ..)`, each with its value as Python wrote it. Ends at the closing bracket, or where the line is cut.
#[derive(Clone, Debug)]
pub(super) struct Fields<'l> {
    rest: &'l str,
}

impl<'l> Fields<'l> {
    /// Fields of the object at the start of the text; `None` if there is none.
    pub(super) fn of_object_at_start(text: &'l str) -> Option<Self> {
        let (class, rest) = text.split_once('(')?;
        is_name(class).then_some(Self { rest })
    }

    /// Text after the object; `None` before its end was reached, or if the line is cut.
    pub(super) fn text_after_object(&self) -> Option<&'l str> {
        self.rest.strip_prefix(')')
    }
}

impl<'l> Iterator for Fields<'l> {
    type Item = (&'l str, &'l str);

    /// The next field's name and its value. `None` at the end of the object, and at anything but `name=value`.
    fn next(&mut self) -> Option<Self::Item> {
        let (name, rest) = self.rest.split_once('=').filter(|(name, _)| is_name(name))?;
        let (value, after) = rest.split_at(length_of_first_value(rest)?);
        self.rest = after.strip_prefix(", ").unwrap_or(after);
        Some((name, value))
    }
}

/// Strings in a value, which is one string or a list of strings, without their quotes. Ends where a string is cut.
pub(super) fn unquoted_strings_in(value: &str) -> impl Iterator<Item = &str> {
    let mut rest = value;
    std::iter::from_fn(move || {
        let begin = rest.find(['\'', '"'])?;
        let length = length_of_first_string(&rest.as_bytes()[begin..])?;
        // Without the quotes, which are part of the length.
        let string = &rest[begin + 1..begin + length - 1];
        rest = &rest[begin + length..];
        Some(string)
    })
}

/// Whether the text can be the name of a class or a field.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Length of the value at the start of the text, up to the comma or bracket after it; `None` if it is cut.
fn length_of_first_value(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut depth = 0_u32;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            // Commas and brackets within a string do not count.
            b'\'' | b'"' => {
                let last_quote = at + length_of_first_string(&bytes[at..])? - 1;
                at = last_quote;
            }
            b'(' | b'[' | b'{' => depth += 1,
            b',' | b')' | b']' | b'}' if depth == 0 => return Some(at),
            b')' | b']' | b'}' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    None
}

/// Length of the string at the start of the text, with its quotes; `None` if it is cut.
fn length_of_first_string(text: &[u8]) -> Option<usize> {
    let quote = *text.first()?;
    let mut at = 1;
    loop {
        at += text.get(at..)?.iter().position(|&byte| byte == quote || byte == b'\\')?;
        if text[at] == quote {
            return Some(at + 1);
        }
        // A backslash, and the character that it escapes.
        at += 2;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fields_are_read_around_strings_and_brackets() {
        let text = r#"Req(a=1, text='it\'s (, b=9', c="x', rid='evil'" ... 'y', d=[1, {'k': (2,)}], e=None), out={}"#;
        let mut fields = Fields::of_object_at_start(text).unwrap();
        let found: Vec<_> = fields.by_ref().collect();
        assert_eq!(
            found,
            [
                ("a", "1"),
                ("text", r"'it\'s (, b=9'"),
                ("c", r#""x', rid='evil'" ... 'y'"#),
                ("d", "[1, {'k': (2,)}]"),
                ("e", "None")
            ]
        );
        assert_eq!(fields.text_after_object(), Some(", out={}"));
        assert_eq!(Fields::of_object_at_start("no object").map(|_| ()), None);
        let mut cut = Fields::of_object_at_start("Req(a=1, text='cut off").unwrap();
        assert_eq!((cut.by_ref().count(), cut.text_after_object()), (1, None));
    }

    #[test]
    fn strings_of_lists_are_read() {
        assert_eq!(unquoted_strings_in(r"['a', 'b,c',None]").collect::<Vec<_>>(), ["a", "b,c"]);
        assert_eq!(unquoted_strings_in("'a'").collect::<Vec<_>>(), ["a"]);
        assert_eq!(unquoted_strings_in("None").count() + unquoted_strings_in("'cut").count(), 0);
    }

    proptest! {
        #[test]
        fn reading_any_object_never_panics(text: String, inside in "[a-z='\",\\\\()\\[\\]é ]{0,60}") {
            for text in [text, format!("A({inside}")] {
                if let Some(mut fields) = Fields::of_object_at_start(&text) {
                    for (_, value) in fields.by_ref() {
                        let _ = unquoted_strings_in(value).count();
                    }
                    let _ = fields.text_after_object();
                }
            }
        }
    }
}
