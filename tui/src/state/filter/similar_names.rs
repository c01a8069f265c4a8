//! The name that a misspelt one resembles most.

/// The name that is most similar to the typed one; `None` without names. Names that begin with what was typed come first, then those that
/// contain it, because the rest of a long name counts as many differences. Of equal ones, that with the smallest edit distance is taken.
pub(crate) fn nearest_name<'n>(typed: &str, names: &[&'n str]) -> Option<&'n str> {
    let typed = typed.to_lowercase();
    names.iter().copied().min_by_key(|name| {
        let name = name.to_lowercase();
        // `false` sorts first.
        (!name.starts_with(&typed), !name.contains(&typed), edit_distance(&typed, &name))
    })
}

/// Levenshtein distance: the number of characters to insert, delete or replace that turns `first` into `second`.
fn edit_distance(first: &str, second: &str) -> usize {
    // One row of the usual table: `costs[n]` is the distance from the first `n` characters of `first` to the characters of `second` so far.
    let mut costs: Vec<usize> = (0..=first.chars().count()).collect();
    for (row, second_char) in second.chars().enumerate() {
        // Value of the row before, one column further left, which is overwritten already.
        let mut above_left = costs[0];
        costs[0] = row + 1;
        for (column, first_char) in first.chars().enumerate() {
            let above = costs[column + 1];
            let left = costs[column];
            let replaced = above_left + usize::from(first_char != second_char);
            let inserted = above + 1;
            let deleted = left + 1;
            costs[column + 1] = replaced.min(inserted).min(deleted);
            above_left = above;
        }
    }
    costs[costs.len() - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_the_typed_part_is_nearer_than_one_of_similar_length() {
        let kinds = ["queued", "dropped-chunks-predicted", "dropped-chunks", "merged-chunks", "wire-loss"];
        for (typed, expected) in [
            ("dropped", "dropped-chunks"),
            ("Merged", "merged-chunks"),
            ("predicted", "dropped-chunks-predicted"),
            ("loss", "wire-loss"),
            ("queud", "queued"),
        ] {
            assert_eq!(nearest_name(typed, &kinds), Some(expected), "{typed}");
        }
        assert_eq!(nearest_name("dropped", &[]), None);
    }
}
