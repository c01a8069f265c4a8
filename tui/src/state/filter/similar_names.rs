//! The name that a misspelt one resembles most.

/// The name that takes the fewest insertions, deletions and replacements of characters; `None` without names.
pub(crate) fn nearest_name<'n>(typed: &str, names: &[&'n str]) -> Option<&'n str> {
    let typed = typed.to_lowercase();
    names.iter().copied().min_by_key(|name| edit_distance(&typed, &name.to_lowercase()))
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
