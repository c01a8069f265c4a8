//! `--limit NAME=N`: a bound of the ledger's memory other than its default.

use std::fmt::Write as _;

use trace::ledger::{BOUNDS, Bound, Limits};

/// A bound with its value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    bound: &'static Bound,
    most: usize,
}

#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct LimitArgs {
    #[arg(long = "limit", value_name = "NAME=N", value_parser = limit, help = SHORT, long_help = long())]
    limits: Vec<Limit>,
}

const SHORT: &str = "Another bound of memory than its default; repeatable. --help names them";

impl LimitArgs {
    /// Applies the given bounds to `limits`.
    pub(crate) fn on(&self, mut limits: Limits) -> Limits {
        for limit in &self.limits {
            limit.bound.set(&mut limits, limit.most);
        }
        limits
    }
}

fn long() -> String {
    let mut text = "A bound of memory other than its default; repeatable. Reaching one gives up older knowledge for newer, and is \
                    told in the report's `limits` and `self.degraded`. The names and defaults:\n"
        .to_owned();
    for bound in BOUNDS {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n  {}={}  {}",
            bound.name,
            bound.get(Limits::default()),
            bound.about
        );
    }
    text
}

fn limit(text: &str) -> Result<Limit, String> {
    let (name, most) = text.split_once('=').ok_or("write it like lost_ranges=1000000")?;
    let bound = Bound::named(name).ok_or_else(|| match name {
        "live_rids" => "that one is --max-live".to_owned(),
        "finished_kept" => "that one is --max-finished".to_owned(),
        _ => {
            let names: Vec<_> = BOUNDS.iter().map(|bound| bound.name).collect();
            format!("there is no {name:?}; known are {}", names.join(", "))
        }
    })?;
    let most = crate::cli::at_least_one(most)?;
    Ok(Limit { bound, most })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_named_as_in_the_report() {
        let given = LimitArgs {
            limits: vec![
                limit("lossy_kept=3").expect("known"),
                limit("token_ids=5").expect("known"),
            ],
        };
        let limits = given.on(Limits::default());
        assert_eq!((limits.lossy_kept, limits.token_ids), (3, 5));
        assert_eq!(limits.lost_ranges, Limits::default().lost_ranges);
        for (wrong, why) in [
            ("hops", "like"),
            ("hops=0", "at least 1"),
            ("hop=3", "known are rid_bytes, hops"),
            ("live_rids=3", "--max-live"),
        ] {
            assert!(limit(wrong).expect_err("refused").contains(why), "{wrong}");
        }
    }
}
