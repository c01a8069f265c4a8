//! Token ids in their wire encoding.

use super::arena::{Node, kinds};
use super::doc::Doc;
use super::words::WORD_BYTES;

/// Number of ids in one entry of an id column; `None` when it contains anything but 64-bit integers.
pub(super) fn count_ids(doc: Doc<'_>, node: Node) -> Option<u32> {
    if let Node::Ints { len, .. } | Node::Words { words: len, .. } = node {
        return Some(u32::from(len));
    }
    if let Node::List(list) = node {
        let first_run = doc.arena.list_runs[list as usize];
        // The kinds of all items are known, so none has to be read.
        let has_only_ints = first_run.kinds & !kinds::INT == 0;
        if has_only_ints {
            return Some(first_run.total);
        }
    }
    if let Some(words) = doc.array_words_range(node) {
        return Some(((words.end - words.start) / WORD_BYTES) as u32);
    }
    let mut count = 0;
    for item in doc.list_items(node)? {
        // Anything but an integer ends the count with `None`.
        doc.int_value(item)?;
        count += 1;
    }
    Some(count)
}

/// Appends the token ids of one entry of an id column, which [`count_ids`] has validated, to `ids`.
pub(super) fn append_ids(ids: &mut Vec<i64>, doc: Doc<'_>, node: Node) {
    match doc.array_words(node) {
        Some(words) => ids.extend(words.as_chunks().0.iter().map(|word| i64::from_le_bytes(*word))),
        None => ids.extend(doc.list_items(node).into_iter().flatten().filter_map(|item| doc.int_value(item))),
    }
}
