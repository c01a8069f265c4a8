//! How a response names its request.

/// Id of the response to a request, and the index of its choice. `chatcmpl-X-HEX` is choice 0 of `chatcmpl-X`. `cmpl-X-PROMPT-HEX` is
/// choice `PROMPT` of `cmpl-X`. `1_cmpl-X-0-HEX` is sample 1 of prompt 0, and so choice 1 of `cmpl-X`. `HEX` is random, from 0.14.0 on.
/// `None` for a sample of a further prompt, whose choice is not known.
pub(super) fn response_id_and_choice(rid: &str) -> Option<(&str, u32)> {
    let SampledRid { sample, id } = split_sample(rid);
    let without_suffix = match id.rsplit_once('-') {
        Some((start, end)) if is_random_suffix(end) => start,
        _ => id,
    };
    // Ids of chats, and all ids of the Rust frontend, have no index of the prompt.
    let Some((id, prompt)) = split_prompt(without_suffix) else { return Some((without_suffix, sample.unwrap_or(0))) };
    match sample {
        // Choices are numbered over all prompts, and the number of samples of the prompts before is not known.
        Some(_) if prompt > 0 => None,
        Some(sample) => Some((id, sample)),
        None => Some((id, prompt)),
    }
}

/// A request id without the index of its sample.
struct SampledRid<'r> {
    sample: Option<u32>,
    id: &'r str,
}

/// Splits `1_cmpl-X` into the index of the sample and the rest.
fn split_sample(rid: &str) -> SampledRid<'_> {
    if let Some((digits, id)) = rid.split_once('_')
        && let Ok(sample) = digits.parse()
    {
        return SampledRid { sample: Some(sample), id };
    }
    SampledRid { sample: None, id: rid }
}

/// Splits `cmpl-X-1` into `cmpl-X` and the index of the prompt; `None` for an id without an index.
fn split_prompt(id: &str) -> Option<(&str, u32)> {
    let has_index = id.strip_prefix("cmpl-")?.contains('-');
    if !has_index {
        return None;
    }
    let (response_id, prompt) = id.rsplit_once('-')?;
    Some((response_id, prompt.parse().ok()?))
}

/// Whether this is the random suffix that releases from 0.14.0 on append: 8 hexadecimal digits.
fn is_random_suffix(end: &str) -> bool {
    end.len() == 8 && end.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_of_request_ids() {
        for (rid, expected) in [
            ("chatcmpl-8135776a25397c1d-924710c0", Some(("chatcmpl-8135776a25397c1d", 0))),
            ("cmpl-afe432b644745c15-0-924710c0", Some(("cmpl-afe432b644745c15", 0))),
            ("cmpl-afe432b644745c15-3-924710c0", Some(("cmpl-afe432b644745c15", 3))),
            ("1_cmpl-afe432b644745c15-0-924710c0", Some(("cmpl-afe432b644745c15", 1))),
            ("1_cmpl-afe432b644745c15-2-924710c0", None),
            ("2_chatcmpl-my-id-924710c0", Some(("chatcmpl-my-id", 2))),
            // Before 0.14.0.
            ("chatcmpl-135ce64396a95056b5465a640f1a797f", Some(("chatcmpl-135ce64396a95056b5465a640f1a797f", 0))),
            ("cmpl-b2d55049941c54c981967b2207c4d4e5-0", Some(("cmpl-b2d55049941c54c981967b2207c4d4e5", 0))),
            // The Rust frontend.
            ("cmpl-12345678-924710c0", Some(("cmpl-12345678", 0))),
            ("", Some(("", 0))),
        ] {
            assert_eq!(response_id_and_choice(rid), expected, "{rid}");
        }
    }
}
