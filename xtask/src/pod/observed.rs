//! Features that a report proves to have worked, judged by its numbers rather than its claims.

use probe_user::Feature;
use serde_json::Value;

/// A letter and a word for each feature, in the order of the table's columns.
pub(crate) const LETTERS: [(char, &str); 7] = [
    ('f', "frames"),
    ('h', "handled"),
    ('s', "thread states"),
    ('w', "wakeups"),
    ('q', "kernel queues"),
    ('d', "deliveries"),
    ('p', "Python stacks"),
];

/// The letters of what worked, a dash for what did not; all dashes where there is no report.
pub(crate) fn works(report: Option<&Value>) -> String {
    let Some(report) = report else {
        return "-".repeat(LETTERS.len());
    };
    let hops = report["hops"].as_array().map_or(&[][..], Vec::as_slice);
    let threads = report["cpu"].as_array().map_or(&[][..], Vec::as_slice);
    let stacks = report["hot"].as_array().map_or(&[][..], Vec::as_slice);
    let some = |values: &[Value], name: &str| values.iter().any(|value| !value[name].is_null());
    let told = |feature: Feature| {
        let lines = report["self"]["degraded"].as_array().map_or(&[][..], Vec::as_slice);
        lines
            .iter()
            .any(|line| line.as_str().is_some_and(|line| line.contains(feature.without())))
    };
    LETTERS
        .iter()
        .map(|(letter, _)| {
            let works = match letter {
                'f' => hops.iter().any(|hop| hop["frames_taken"].as_u64() > Some(0)),
                'h' => some(hops, "handling_ns"),
                // Its numbers replace those of /proc and look the same.
                's' => !threads.is_empty() && !told(Feature::Scheduler),
                'w' => some(threads, "away_from_poll"),
                'q' => some(hops, "kernel_bytes_max"),
                'd' => !report["answers"]["seen"].is_null() && !told(Feature::Egress),
                _ => stacks.iter().any(|process| process["stacks"].as_u64() > Some(0)),
            };
            if works { *letter } else { '-' }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nothing_works_where_nothing_was_reported() {
        assert_eq!(works(None), "-------");
    }

    #[test]
    fn numbers_count_and_nulls_do_not() {
        let report = json!({
            "hops": [{"frames_taken": 3, "handling_ns": {"p50": 1}, "kernel_bytes_max": null}],
            "cpu": [{"away_from_poll": null}],
            "answers": null,
            "hot": null,
            "self": {"degraded": [Feature::Scheduler.without()]},
        });
        assert_eq!(works(Some(&report)), "fh-----");
    }
}
