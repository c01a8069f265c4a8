//! Log of a worker. From release 1.6 on, only this log maps SGLang's request ids to those of the frontend.

/// Parses `Submitted SGLang Request ID: RID, Context: ID` with any text around it. Returns the frontend's id, then SGLang's.
pub(super) fn submitted(line: &str) -> Option<(&str, &str)> {
    let (_, ids) = line.split_once("Submitted SGLang Request ID: ")?;
    let (rid, rest) = ids.split_once(", Context: ")?;
    let id = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    let context = rest.find(|c| !id(c)).map_or(rest, |end| &rest[..end]);
    (!rid.is_empty() && rid.chars().all(id) && !context.is_empty()).then_some((context, rid))
}

#[cfg(test)]
mod tests {
    use super::submitted;

    #[test]
    fn the_log_line_parses_as_text_and_as_json() {
        let plain =
            "2026-05-07T08:00:00.1Z  INFO decode_handler.generate: Submitted SGLang Request ID: 8f3a, Context: 1b-2c";
        let json = r#"{"level":"INFO","message":"Submitted SGLang Request ID: 8f3a, Context: 1b-2c","file":"x"}"#;
        for line in [plain, json] {
            assert_eq!(submitted(line), Some(("1b-2c", "8f3a")), "{line}");
        }
        for line in [
            "",
            "Submitted SGLang Request ID: , Context: a",
            "Submitted SGLang Request ID: a b, Context: c",
        ] {
            assert_eq!(submitted(line), None, "{line}");
        }
    }
}
