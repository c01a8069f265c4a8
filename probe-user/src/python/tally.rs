//! Stacks of one interval, counted by function.

use std::collections::{HashMap, HashSet};

/// Longer names than this are garbage, or no use on a screen.
const LONGEST: usize = 120;

/// A function.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// Its name, with its class's from CPython 3.11 on.
    pub function: String,
    /// Its file, from its package on: `sglang/srt/managers/tokenizer_manager.py`.
    pub file: String,
}

impl Site {
    /// A thread of the interpreter that runs, but no Python function.
    pub(super) fn native() -> Self {
        Self {
            function: String::from("(native)"),
            file: String::new(),
        }
    }

    /// The names come from the target: what a terminal would obey is taken out.
    pub(super) fn new(function: &str, file: &str) -> Self {
        let plain = |text: &str| text.chars().filter(|c| !c.is_control()).take(LONGEST).collect();
        Self {
            function: plain(function),
            file: plain(file),
        }
    }
}

/// In how many stacks of a running thread a function was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Anywhere.
    pub total: u32,
    /// As the innermost one.
    pub own: u32,
    /// As the innermost one of a thread that held the GIL.
    pub gil: u32,
}

/// A thread over one interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadStacks {
    /// Its id, as our view of `/proc` counts.
    pub tid: u32,
    /// How often its stack was read.
    pub taken: u32,
    /// Functions while it ran or wanted to, those in most stacks first; empty when it slept all along.
    pub functions: Vec<(Site, Hits)>,
}

/// A thread's functions as they are counted.
#[derive(Debug, Default)]
pub(super) struct Tally {
    taken: u32,
    functions: HashMap<Site, Hits>,
}

impl Tally {
    /// Enters one stack, innermost function first; `None` when the thread slept.
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
        // A function that calls itself is in a stack once.
        let once: HashSet<Site> = stack.into_iter().collect();
        for site in once {
            self.functions.entry(site).or_default().total += 1;
        }
    }

    /// What was counted, with `most` functions at most: those in fewest stacks are left out, innermost ones last of all.
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
