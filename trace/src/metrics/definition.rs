//! Definition of a metric: name, unit, labels and meaning.

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, from 0 at the start of the run.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Values counted in fixed buckets.
    Histogram,
}

/// Unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// A share, from 0 to 1.
    Ratio,
    /// A count of things, in braces as UCUM writes custom units: `{frame}`.
    Of(&'static str),
    /// No unit: the labels carry the information.
    Info,
}

impl Unit {
    /// Unit in OTLP (UCUM).
    pub fn ucum(self) -> &'static str {
        match self {
            Self::Seconds => "s",
            Self::Bytes => "By",
            Self::Ratio => "1",
            Self::Of(text) => text,
            Self::Info => "",
        }
    }

    /// Suffix of Prometheus names for this unit; empty for counts.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Seconds => "seconds",
            Self::Bytes => "bytes",
            Self::Ratio => "ratio",
            Self::Of(_) | Self::Info => "",
        }
    }
}

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    /// OpenTelemetry name: words separated by dots, without the unit.
    pub name: &'static str,
    /// Type of its values.
    pub kind: Kind,
    /// Unit of its values.
    pub unit: Unit,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// Help text: a sentence without its full stop.
    pub help: &'static str,
}

impl Definition {
    /// Prometheus name without the suffixes for unit and type.
    pub fn stem(&self) -> String {
        self.name.replace('.', "_")
    }

    /// Prometheus name, equal to the collectors' translation of [`Self::name`].
    pub fn prometheus(&self) -> String {
        let mut name = self.stem();
        let total = if self.kind == Kind::Counter { "total" } else { "" };
        for part in [self.unit.suffix(), total] {
            if !part.is_empty() {
                name.push('_');
                name.push_str(part);
            }
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::ALL;
    use super::*;

    #[test]
    fn metric_names_follow_the_conventions() {
        let mut known = BTreeSet::new();
        for metric in ALL {
            let name = metric.prometheus();
            assert!(
                name.starts_with("tokengap_")
                    && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'),
                "{name}"
            );
            assert!(known.insert(name.clone()), "{name} is there twice");
            assert!(!metric.help.ends_with('.') && !metric.help.is_empty(), "{name}");
            assert_eq!(name.ends_with("_total"), metric.kind == Kind::Counter, "{name}");
            let never = ["rid", "pid", "tid", "endpoint", "function"];
            assert!(metric.labels.iter().all(|label| !never.contains(label)), "{name}");
        }
    }

    #[test]
    fn the_documented_metrics_match_the_definitions() {
        let document = include_str!("../../../docs/reference/metrics.md");
        let (_, table) = document.split_once("| name | type | labels | |\n|---|---|---|---|\n").expect("a table");
        let line = |metric: &&Definition| {
            let kind = format!("{:?}", metric.kind).to_lowercase();
            let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
            format!("| `{}` | {kind} | {} | {} |", metric.prometheus(), labels.join(", "), metric.help)
        };
        let expected: Vec<String> = ALL.iter().map(line).collect();
        let found: Vec<&str> = table.lines().collect();
        assert_eq!(found, expected, "\n{}", expected.join("\n"));
    }
}
