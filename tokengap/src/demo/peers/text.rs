//! Text for token ids: words, so that messages have realistic sizes.

const WORDS: [&str; 24] = [
    " the",
    " of",
    " and",
    " to",
    " in",
    " is",
    " that",
    " for",
    " it",
    " as",
    " with",
    " was",
    " on",
    " are",
    " by",
    " this",
    " token",
    " stream",
    " schedule",
    " latency",
    " request",
    " between",
    " measured",
    " throughput",
];

/// Concatenates a word for each id.
pub(super) fn of(ids: &[u32]) -> String {
    ids.iter().map(|id| WORDS[*id as usize % WORDS.len()]).collect()
}
