//! Stacks of one interval, counted by function.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

/// Maximum length of a name. Longer names are invalid or too long to display.
const MAX_NAME_LENGTH: usize = 120;

/// Maximum number of functions per thread and interval. Those that are innermost least often are omitted.
const MAX_FUNCTIONS: usize = 256;

/// A Python function.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Function {
    /// Qualified name from CPython 3.11 on, otherwise the plain name.
    pub function: String,
    /// File path relative to its package root: `package/server/manager.py`.
    pub file: String,
}

impl Function {
    /// Placeholder for a running interpreter thread outside of any Python function.
    pub(super) fn native() -> Self {
        Self { function: String::from("(native)"), file: String::new() }
    }

    /// Creates a function. The names come from the target, so control characters are removed.
    pub fn new(function: &str, file: &str) -> Self {
        Self { function: displayable_name(function), file: displayable_name(file) }
    }
}

/// The text without control characters, cut to [`MAX_NAME_LENGTH`] characters.
fn displayable_name(text: &str) -> String {
    text.chars().filter(|character| !character.is_control()).take(MAX_NAME_LENGTH).collect()
}

/// Number of stacks of a running thread that contain a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hits {
    /// At any depth.
    pub total: u32,
    /// As the innermost function.
    pub own: u32,
    /// As the innermost function of a thread that held the GIL.
    pub gil: u32,
}

/// Samples of a thread over one interval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadStacks {
    /// Thread id in the current pid namespace.
    pub tid: u32,
    /// Number of times its stack was read.
    pub samples: u32,
    /// Functions while the thread was running or runnable, sorted by `own` and then `total`, highest first. Empty if it always slept.
    pub functions: Vec<(Function, Hits)>,
}

/// Running counts of a thread's functions.
#[derive(Debug, Default)]
pub(super) struct StackTally {
    samples: u32,
    functions: HashMap<Function, Hits>,
}

impl StackTally {
    /// Counts one stack, which has the innermost function first. `None` stands for a thread that slept, which counts as a sample only.
    pub(super) fn count_stack(&mut self, stack: Option<Vec<Function>>, holds_gil: bool) {
        self.samples += 1;
        let Some(mut stack) = stack else { return };
        // A running thread without Python functions executes native code.
        if stack.is_empty() {
            stack.push(Function::native());
        }
        if let Some(innermost) = stack.first() {
            let hits = self.functions.entry(innermost.clone()).or_default();
            hits.own += 1;
            hits.gil += u32::from(holds_gil);
        }
        // A recursive function counts once per stack.
        let unique_functions: HashSet<Function> = stack.into_iter().collect();
        for function in unique_functions {
            self.functions.entry(function).or_default().total += 1;
        }
    }

    /// Returns the counts of at most [`MAX_FUNCTIONS`] functions, those that were innermost most often.
    pub(super) fn into_stacks(self, tid: u32) -> ThreadStacks {
        let mut functions: Vec<(Function, Hits)> = self.functions.into_iter().collect();
        functions.sort_by(|(function, hits), (other, other_hits)| {
            // Equal counts are ordered by function, because the map has no order.
            let most_first = (other_hits.own, other_hits.total).cmp(&(hits.own, hits.total));
            most_first.then_with(|| function.cmp(other))
        });
        functions.truncate(MAX_FUNCTIONS);
        ThreadStacks { tid, samples: self.samples, functions }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(names: &[&str]) -> Vec<Function> {
        names.iter().map(|name| Function::new(name, "t.py")).collect()
    }

    #[test]
    fn self_time_is_the_innermost_frame_and_recursion_counts_once() {
        let mut tally = StackTally::default();
        tally.count_stack(Some(stack(&["f", "f", "main"])), true);
        tally.count_stack(Some(stack(&["main"])), false);
        tally.count_stack(None, false);
        tally.count_stack(Some(Vec::new()), false);
        let stacks = tally.into_stacks(7);
        assert_eq!((stacks.tid, stacks.samples), (7, 4));
        let of = |name: &str| stacks.functions.iter().find(|(function, _)| function.function == name).map(|f| f.1);
        let hits = |total, own, gil| Some(Hits { total, own, gil });
        assert_eq!((of("f"), of("main")), (hits(1, 1, 1), hits(2, 1, 0)));
        assert_eq!(of("(native)"), hits(1, 1, 0));
    }

    #[test]
    fn names_are_bounded_and_free_of_control_characters() {
        let function = Function::new("f\u{1b}[31m", &"x".repeat(1_000));
        assert_eq!((function.function.as_str(), function.file.len()), ("f[31m", MAX_NAME_LENGTH));
        let mut tally = StackTally::default();
        for n in 0..300 {
            tally.count_stack(Some(stack(&[&format!("f{n}")])), false);
        }
        assert_eq!(tally.into_stacks(7).functions.len(), MAX_FUNCTIONS);
    }
}
