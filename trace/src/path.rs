//! Names of hops, and the order of the token path that follows from them. Only this module builds and parses names.

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

const ARROW: &str = "->";

/// Name of an end that is not known.
pub const UNKNOWN: &str = "?";

/// Name of the hop between two roles: `from->to`.
pub fn name(from: &str, to: &str) -> String {
    format!("{from}{ARROW}{to}")
}

/// Splits `from->to` into its two ends; a name of another form is returned as both.
pub fn ends(name: &str) -> (&str, &str) {
    name.split_once(ARROW).unwrap_or((name, name))
}

/// Name of the opposite direction.
pub fn reversed(forward: &str) -> String {
    match forward.split_once(ARROW) {
        Some((from, to)) => name(to, from),
        None => format!("{forward} (back)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_counts_from_the_scheduler_and_terminates_on_cycles() {
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

    #[test]
    fn hop_names_are_split_and_reversed() {
        assert_eq!(ends(&name("scheduler", UNKNOWN)), ("scheduler", "?"));
        assert_eq!(reversed("scheduler->tokenizer"), "tokenizer->scheduler");
        assert_eq!(reversed("no arrow"), "no arrow (back)");
    }
}
