//! Stacks of one interval, counted by function.

use std::collections::{HashMap, HashSet};

/// Maximum length of a name. Longer names are invalid or too long to display.
const LONGEST: usize = 120;

/// A Python function.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// Qualified name from CPython 3.11 on, otherwise the plain name.
    pub function: String,
    /// File path relative to its package root: `sglang/srt/managers/tokenizer_manager.py`.
    pub file: String,
}

impl Site {
    /// Placeholder for a running interpreter thread outside of any Python function.
    pub(super) fn native() -> Self {
        Self {
            function: String::from("(native)"),
            file: String::new(),
        }
    }

    /// Creates a site. The names come from the target, so control characters are removed.
    pub(super) fn new(function: &str, file: &str) -> Self {
        let plain = |text: &str| text.chars().filter(|c| !c.is_control()).take(LONGEST).collect();
        Self {
            function: plain(function),
            file: plain(file),
        }
    }
}

/// Number of stacks of a running thread that contain a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// At any depth.
    pub total: u32,
    /// As the innermost function.
    pub own: u32,
    /// As the innermost function of a thread that held the GIL.
    pub gil: u32,
}

/// Samples of a thread over one interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadStacks {
    /// Thread id in the current pid namespace.
    pub tid: u32,
    /// Number of times its stack was read.
    pub taken: u32,
    /// Functions while the thread was running or runnable, sorted by `own` and then `total`, highest first. Empty if it always slept.
    pub functions: Vec<(Site, Hits)>,
}

/// Running counts of a thread's functions.
#[derive(Debug, Default)]
pub(super) struct Tally {
    taken: u32,
    functions: HashMap<Site, Hits>,
}

impl Tally {
    /// Counts one stack, innermost function first; `None` if the thread slept.
    pub(super) fn enter(&mut self, stack: Option<Vec<Site>>, holds_gil: bool) {
        self.taken += 1;
        let Some(mut stack) = stack else { return };
        if stack.is_empty() {
            stack.push(Site::native());
        }
        if let Some(innermost) = stack.first() {
            let hits = self.functions.entry(innermost.clone()).or_default();
            hits.own += 1;
            hits.gil += u32::from(holds_gil);
        }
        // A recursive function counts once per stack.
        let once: HashSet<Site> = stack.into_iter().collect();
        for site in once {
            self.functions.entry(site).or_default().total += 1;
        }
    }

    /// Returns the counts of at most `most` functions, preferring those that are innermost most often.
    pub(super) fn finish(self, tid: u32, most: usize) -> ThreadStacks {
        let mut functions: Vec<(Site, Hits)> = self.functions.into_iter().collect();
        functions.sort_by(|(a, x), (b, y)| (y.own, y.total, a).cmp(&(x.own, x.total, b)));
        functions.truncate(most);
        ThreadStacks {
            tid,
            taken: self.taken,
            functions,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(names: &[&str]) -> Vec<Site> {
        names.iter().map(|name| Site::new(name, "t.py")).collect()
    }

    #[test]
    fn own_is_the_innermost_and_recursion_counts_once() {
        let mut tally = Tally::default();
        tally.enter(Some(stack(&["f", "f", "main"])), true);
        tally.enter(Some(stack(&["main"])), false);
        tally.enter(None, false);
        tally.enter(Some(Vec::new()), false);
        let told = tally.finish(7, 8);
        assert_eq!((told.tid, told.taken), (7, 4));
        let of = |name: &str| {
            told.functions
                .iter()
                .find(|(site, _)| site.function == name)
                .map(|f| f.1)
        };
        let hits = |total, own, gil| Some(Hits { total, own, gil });
        assert_eq!((of("f"), of("main")), (hits(1, 1, 1), hits(2, 1, 0)));
        assert_eq!(of("(native)"), hits(1, 1, 0));
    }

    #[test]
    fn names_are_bounded_and_cannot_speak_to_a_terminal() {
        let site = Site::new("f\u{1b}[31m", &"x".repeat(1_000));
        assert_eq!((site.function.as_str(), site.file.len()), ("f[31m", LONGEST));
        let mut tally = Tally::default();
        for n in 0..100 {
            tally.enter(Some(stack(&[&format!("f{n}")])), false);
        }
        assert_eq!(tally.finish(7, 8).functions.len(), 8);
    }
}
