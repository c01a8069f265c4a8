//! Ends of hops, their names, and the order of the token path that follows from them. Only this module builds and parses names.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Maximum number of hops on a path. Ends the search if the hops form a cycle.
const MAX_DEPTH: usize = 8;

/// Role of an end that is not known.
pub const UNKNOWN: &str = "?";

const ARROW: &str = "->";

/// Roles of the processes at both ends of a hop. It is displayed as the hop's name, `from->to`. A hop with a name of another form has that
/// name at both ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ends<S> {
    /// Role of the sender.
    pub from: S,
    /// Role of the receiver.
    pub to: S,
}

impl<S> Ends<S> {
    /// Ends of a hop between these roles.
    pub const fn new(from: S, to: S) -> Self {
        Self { from, to }
    }
}

impl<S: AsRef<str>> Ends<S> {
    /// The ends as borrowed text.
    pub fn as_str(&self) -> Ends<&str> {
        Ends::new(self.from.as_ref(), self.to.as_ref())
    }

    /// The ends as owned text.
    pub fn to_owned(&self) -> Ends<Box<str>> {
        Ends::new(self.from.as_ref().into(), self.to.as_ref().into())
    }

    /// Ends of the opposite direction.
    pub fn reversed(&self) -> Ends<Box<str>> {
        let Ends { from, to } = self.as_str();
        if from == to {
            // Both directions would have the same name.
            return Ends::from(&*format!("{from} (back)")).to_owned();
        }
        Ends::new(to, from).to_owned()
    }
}

/// Parses the name of a hop.
impl<'a> From<&'a str> for Ends<&'a str> {
    fn from(name: &'a str) -> Self {
        let (from, to) = name.split_once(ARROW).unwrap_or((name, name));
        Self { from, to }
    }
}

impl<S: AsRef<str>> fmt::Display for Ends<S> {
    /// Writes the name of the hop: `from->to`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ends { from, to } = self.as_str();
        f.write_str(from)?;
        // A hop whose name has another form has that name at both ends, so it is written once.
        if from == to && from != UNKNOWN {
            return Ok(());
        }
        f.write_str(ARROW)?;
        f.write_str(to)
    }
}

/// Number of hops on the longest path from any role to `role`. A hop connects a sender to a receiver.
pub fn max_hops_before_role<S: AsRef<str>>(hops: &[Ends<S>], role: &str) -> usize {
    // A path over hops that form a circle has no end, so its length is limited.
    let max_depth = MAX_DEPTH.min(hops.len());
    // Goes backwards from `role`. After each step, these are the roles that are one hop further away.
    let mut roles = vec![role];
    for depth in 0..max_depth {
        let mut senders: Vec<&str> = Vec::new();
        for Ends { from, to } in hops.iter().map(Ends::as_str) {
            // A hop with the same role at both ends leads nowhere.
            if from != to && roles.contains(&to) && !senders.contains(&from) {
                senders.push(from);
            }
        }
        if senders.is_empty() {
            return depth;
        }
        roles = senders;
    }
    max_depth
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_counts_from_the_scheduler_and_terminates_on_cycles() {
        // Control messages skip the detokenizer.
        let path = ["router->tokenizer", "scheduler->tokenizer", "detokenizer->router", "scheduler->detokenizer"];
        let path = path.map(Ends::from);
        assert_eq!(
            ["scheduler", "detokenizer", "router", "tokenizer"].map(|role| max_hops_before_role(&path, role)),
            [0, 1, 2, 3]
        );
        assert_eq!(max_hops_before_role(&["a->b", "b->a"].map(Ends::from), "a"), 2);
    }

    #[test]
    fn names_are_parsed_displayed_and_reversed() {
        let cases = [
            ("scheduler->tokenizer", "tokenizer->scheduler"),
            ("scheduler->?", "?->scheduler"),
            ("no arrow", "no arrow (back)"),
        ];
        for (name, reversed) in cases {
            let ends = Ends::from(name);
            assert_eq!((ends.to_string(), ends.reversed().to_string()), (name.into(), reversed.into()));
        }
        assert_eq!(Ends::from("?->?").to_string(), "?->?");
    }
}
