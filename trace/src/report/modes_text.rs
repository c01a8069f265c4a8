//! Cost of each mode as text: one line per hop, and one for clients.

use super::hostile::plain;
use super::{ModeLine, Report};
use crate::words::{bytes, count};

/// Lines on modes; none if no ids crossed.
pub(super) fn lines(report: &Report) -> Vec<String> {
    let modes = &report.modes;
    let hops = modes.hops.iter().map(hop);
    hops.chain(modes.client.as_ref().map(client)).collect()
}

fn hop(line: &ModeLine) -> String {
    let per_token = line
        .bytes_per_token
        .map_or_else(String::new, |n| format!("{n:.0} bytes a token, "));
    let other = if line.ids_repeated > 0 {
        let less = line.bytes_if_incremental_estimate.map(bytes);
        less.map(|less| format!("; new ids only: about {less} in total"))
    } else {
        let more = line.bytes_if_cumulative_estimate.map(bytes);
        more.map(|more| format!("; all ids so far: about {more} in total"))
    };
    format!(
        "{}: {per_token}{} of {} ids are repeats{}",
        plain(&line.name),
        count(line.ids_repeated),
        count(line.ids),
        other.unwrap_or_default()
    )
}

fn client(line: &ModeLine) -> String {
    let repeated = match line.ids_repeated {
        0 => format!("no repeats; all ids so far: {}", count(line.ids_if_cumulative)),
        n => format!(
            "{} of them repeats (about {})",
            count(n),
            bytes(line.bytes_repeated_estimate)
        ),
    };
    format!(
        "client: {} ids for {} tokens, {repeated}",
        count(line.ids),
        count(line.tokens)
    )
}
