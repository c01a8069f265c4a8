//! `--limit NAME=N`: overrides a limit on the ledger's memory.

use std::fmt::Write as _;

use trace::ledger::{BOUNDS, Bound, Limits};

/// A limit with its value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    bound: &'static Bound,
    value: usize,
}

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct LimitArgs {
    /// Maximum number of live requests followed. Beyond it, the oldest are evicted and counted.
    #[arg(long, value_name = "N", default_value_t = Limits::default().live_rids, value_parser = super::parse_at_least_one, help_heading = super::TUNING)]
    max_live: usize,

    /// Maximum number of finished requests kept in detail. Older ones remain in the totals.
    #[arg(long, value_name = "N", default_value_t = Limits::default().finished_kept, help_heading = super::TUNING)]
    max_finished: usize,

    #[arg(long = "limit", value_name = "NAME=N", value_parser = parse_limit, help_heading = super::TUNING, help = SHORT_HELP, long_help = limits_help())]
    limits: Vec<Limit>,
}

const SHORT_HELP: &str = "Set a memory limit; repeatable. --help lists them";

impl LimitArgs {
    /// The defaults with the limits that were given.
    pub(crate) fn limits(&self) -> Limits {
        let mut limits = Limits { live_rids: self.max_live, finished_kept: self.max_finished, ..Limits::default() };
        for limit in &self.limits {
            limit.bound.set(&mut limits, limit.value);
        }
        limits
    }
}

/// Help of `--limit`: each limit with its default.
fn limits_help() -> String {
    let mut text = "Set a memory limit; repeatable. At a limit, the oldest entries are evicted and the report's `limits` and `self.degraded` show it. Names and defaults:\n"
        .to_owned();
    for bound in BOUNDS {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n  {}={}  {}", bound.name, bound.get(Limits::default()), bound.about);
    }
    text
}

/// Parses `NAME=N`: the name of a limit, and its value, which is at least 1.
fn parse_limit(text: &str) -> Result<Limit, String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=N, for example lost_ranges=1000000")?;
    let bound = Bound::with_name(name).ok_or_else(|| unknown_limit_message(name))?;
    let value = super::parse_at_least_one(value)?;
    Ok(Limit { bound, value })
}

/// Why `--limit` does not accept this name, and what to use instead.
fn unknown_limit_message(name: &str) -> String {
    match name {
        // Two limits have flags of their own.
        "live_rids" => "use --max-live for it".to_owned(),
        "finished_kept" => "use --max-finished for it".to_owned(),
        _ => {
            let names: Vec<_> = BOUNDS.iter().map(|bound| bound.name).collect();
            format!("unknown limit {name:?}; the limits are {}", names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_use_the_names_of_the_report() {
        let given = ["lossy_requests=3", "token_ids=5"].map(|text| parse_limit(text).expect("known"));
        let limits = LimitArgs { max_live: 6, max_finished: 7, limits: given.into() }.limits();
        assert_eq!((limits.lossy_requests, limits.token_ids), (3, 5));
        assert_eq!((limits.live_rids, limits.finished_kept), (6, 7));
        assert_eq!(limits.lost_ranges, Limits::default().lost_ranges);
        for (wrong, why) in [
            ("hops", "for example"),
            ("hops=0", "at least 1"),
            ("hop=3", "the limits are rid_bytes, hops"),
            ("live_rids=3", "--max-live"),
        ] {
            assert!(parse_limit(wrong).expect_err("refused").contains(why), "{wrong}");
        }
    }
}
