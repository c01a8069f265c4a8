//! Evidence of findings, for people: labels, and numbers with their units.

use serde_json::Number;

use super::brief::is_identifier;

/// Number of a piece of evidence, in the unit that its name implies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EvidenceNumber {
    /// Nanoseconds.
    Duration(u64),
    /// Bytes.
    Bytes(u64),
    /// A process, a port: no quantity.
    Identifier(u64),
    /// A count.
    Count(u64),
    /// A share from 0 to 1.
    Share(f64),
    /// Another number, with its unit.
    Other {
        /// The number.
        number: f64,
        /// Its unit, with a space in front.
        unit: &'static str,
    },
}

/// Numbers with decimals that are no shares, with their units.
const OTHER_UNITS: [(&str, &str); 4] = [
    ("imbalance", " times an even share"),
    ("ratio", " times"),
    ("process_cpus", " CPUs"),
    ("tokens_per_event", " tokens"),
];

/// Labels of evidence whose name alone is not plain.
const SPECIAL_LABELS: [(&str, &str); 11] = [
    ("on_cpu", "on a CPU"),
    ("run_wait", "waiting for a CPU"),
    ("io_on_cpu", "io thread on a CPU"),
    ("io_run_wait", "io thread waiting for a CPU"),
    ("busiest_thread_waiting", "busiest thread waiting for a CPU"),
    ("concurrent", "late while another one was"),
    ("requests_hop", "hop of the requests"),
    ("requests_late_longest_ns", "longest wait of these requests"),
    ("silence_at_ns", "longest silence began after the start by"),
    ("backlog_frames_before", "frames before it grew"),
    ("ttft_share_of_all", "share in all times to first token"),
];

impl EvidenceNumber {
    /// The number of the evidence with this name, whose unit the name implies.
    pub fn of_evidence(name: &str, number: &Number) -> Self {
        match number.as_u64() {
            Some(ns) if name.ends_with("_ns") => Self::Duration(ns),
            Some(bytes) if name.split('_').any(|word| word == "bytes") => Self::Bytes(bytes),
            Some(id) if is_identifier(name) => Self::Identifier(id),
            Some(count) => Self::Count(count),
            None => Self::of_decimal(name, number.as_f64().unwrap_or(0.0)),
        }
    }

    /// A number with decimals. Without a known unit, it is a share if it lies between 0 and 1.
    fn of_decimal(name: &str, number: f64) -> Self {
        let named_unit = OTHER_UNITS.iter().find(|(known, _)| *known == name);
        match named_unit {
            Some((_, unit)) => Self::Other { number, unit },
            None if (0.0..=1.0).contains(&number) => Self::Share(number),
            None => Self::Other { number, unit: "" },
        }
    }
}

/// Label of the evidence with this name: `longest wait` of `longest_wait_ns`.
pub fn evidence_label(name: &str) -> String {
    let special_label = SPECIAL_LABELS.iter().find(|(known, _)| *known == name);
    match special_label {
        Some((_, label)) => String::from(*label),
        None => name.strip_suffix("_ns").unwrap_or(name).replace('_', " "),
    }
}
