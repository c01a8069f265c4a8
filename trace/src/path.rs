//! Order of the token path, derived from the names of hops.

/// Maximum number of hops on a path. Ends the search if the names form a cycle.
const LONGEST: usize = 8;

/// Number of hops on the longest path to `role`, given both ends of each hop.
pub fn depth<S: AsRef<str>>(ends: &[(S, S)], role: &str) -> usize {
    let mut level = vec![role];
    for depth in 0..LONGEST.min(ends.len()) {
        let mut before: Vec<&str> = Vec::new();
        for (from, to) in ends.iter().map(|(from, to)| (from.as_ref(), to.as_ref())) {
            if from != to && level.contains(&to) && !before.contains(&from) {
                before.push(from);
            }
        }
        if before.is_empty() {
            return depth;
        }
        level = before;
    }
    LONGEST.min(ends.len())
}

/// Splits `from->to` into its two ends; a name of another form is returned as both.
pub fn ends(name: &str) -> (&str, &str) {
    name.split_once("->").unwrap_or((name, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_lead_from_the_scheduler_on_and_a_circle_ends() {
        // Control messages skip the detokenizer.
        let path = [
            "router->tokenizer",
            "scheduler->tokenizer",
            "detokenizer->router",
            "scheduler->detokenizer",
        ];
        let path = path.map(ends);
        assert_eq!(
            ["scheduler", "detokenizer", "router", "tokenizer"].map(|role| depth(&path, role)),
            [0, 1, 2, 3]
        );
        assert_eq!(depth(&[("a", "b"), ("b", "a")], "a"), 2);
        assert_eq!(ends("no arrow"), ("no arrow", "no arrow"));
    }
}
