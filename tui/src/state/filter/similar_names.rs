//! The name that a misspelt one resembles most.

/// The name that is most similar to the typed one; `None` without names. A part of a name may be far from it in characters, so names that begin with what was typed
/// come first, then those that contain it. Of equal ones, that with the smallest edit distance is taken.
pub(crate) fn nearest_name<'n>(typed: &str, names: &[&'n str]) -> Option<&'n str> {
    let typed = typed.to_lowercase();
    names.iter().copied().min_by_key(|name| {
        let name = name.to_lowercase();
        // `false` sorts first.
        (!name.starts_with(&typed), !name.contains(&typed), edit_distance(&typed, &name))
    })
}

/// Number of insertions, deletions and replacements of characters that turn `a` into `b`.
fn edit_distance(a: &str, b: &str) -> usize {
    // Levenshtein distance, with one row of its table: `costs[n]` is the distance from the first `n` characters of `a` to the start of `b`.
    let mut costs: Vec<usize> = (0..=a.chars().count()).collect();
    for (row, of_b) in b.chars().enumerate() {
        // Distance of both beginnings without their last characters, from the row before.
        let mut diagonal = costs[0];
        costs[0] = row + 1;
        for (column, of_a) in a.chars().enumerate() {
            let replaced = diagonal + usize::from(of_a != of_b);
            diagonal = costs[column + 1];
            let inserted = diagonal + 1;
            let deleted = costs[column] + 1;
            costs[column + 1] = replaced.min(inserted).min(deleted);
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
