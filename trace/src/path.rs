//! The order of the token path, from names of hops alone.

/// How many hops lead to `role`, given each hop's two ends. A circle of names ends the count at their number.
pub fn depth<S: AsRef<str>>(ends: &[(S, S)], role: &str) -> usize {
    let mut role = role;
    for depth in 0..ends.len() {
        let into = |(from, to): &&(S, S)| to.as_ref() == role && from.as_ref() != to.as_ref();
        match ends.iter().find(into) {
            Some((from, _)) => role = from.as_ref(),
            None => return depth,
        }
    }
    ends.len()
}

/// `from->to` into its two ends; a name of another form stands at both.
pub fn ends(name: &str) -> (&str, &str) {
    name.split_once("->").unwrap_or((name, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_lead_from_the_scheduler_on_and_a_circle_ends() {
        let path = ["router->tokenizer", "detokenizer->router", "scheduler->detokenizer"].map(ends);
        assert_eq!(
            ["scheduler", "detokenizer", "router", "tokenizer"].map(|role| depth(&path, role)),
            [0, 1, 2, 3]
        );
        assert_eq!(depth(&[("a", "b"), ("b", "a")], "a"), 2);
        assert_eq!(ends("no arrow"), ("no arrow", "no arrow"));
    }
}
