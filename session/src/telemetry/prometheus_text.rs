//! Metrics as text: `OpenMetrics` 1.0, or the older Prometheus text format if the client does not accept it.

use std::borrow::Cow;
use std::fmt;

use outputs::metrics::{Definition, Family, MetricKind, Point, Unit, Value};
use outputs::report::hostile::{self, EscapeForm};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit as Base};

use crate::about::EngineIdentity;

/// Metrics of a run.
#[derive(Debug)]
pub(super) struct RunFamilies {
    /// Labels of its engine: name, and port if known.
    engine_labels: Vec<(&'static str, String)>,
    families: Vec<Family>,
}

impl RunFamilies {
    /// Metrics of the run of this engine. They have no labels if the source does not name engines.
    pub(super) fn of_run(engine: Option<EngineIdentity>, families: Vec<Family>) -> Self {
        let engine = engine.unwrap_or_default();
        let mut engine_labels = Vec::new();
        if !engine.name.is_empty() {
            engine_labels.push(("engine", engine.name));
        }
        if let Some(port) = engine.port {
            engine_labels.push(("port", port.to_string()));
        }
        Self { engine_labels, families }
    }
}

/// Body of a response, and its format.
pub(super) struct MetricsText {
    pub(super) content_type: &'static str,
    pub(super) body: String,
}

/// Encodes the metrics of `runs`. The format is `OpenMetrics` if the client's `Accept` header contains it, and the older text format
/// otherwise.
pub(super) fn encode_metrics(runs: Vec<RunFamilies>, accept_header: &str) -> Result<MetricsText, fmt::Error> {
    // The names are collected here, because the collector below takes ownership of the runs.
    let families = runs.iter().flat_map(|run| &run.families);
    let counter_families = families.filter(|family| family.definition.kind == MetricKind::Counter);
    let counters: Vec<String> = counter_families.map(|family| family.definition.prometheus_name()).collect();
    let mut registry = Registry::default();
    registry.register_collector(Box::new(MetricCollector { runs }));
    let mut body = String::new();
    text::encode(&mut body, &registry)?;
    if accept_header.contains("application/openmetrics-text") {
        return Ok(MetricsText { content_type: "application/openmetrics-text; version=1.0.0; charset=utf-8", body });
    }
    let body = to_older_text_format(&body, &counters);
    Ok(MetricsText { content_type: "text/plain; version=0.0.4; charset=utf-8", body })
}

/// Converts `OpenMetrics` to the older format, which marks neither units nor the end. `counter_names` are the full names of all counters,
/// which the comments of the older format also contain.
fn to_older_text_format(openmetrics_body: &str, counter_names: &[String]) -> String {
    let mut out = String::with_capacity(openmetrics_body.len());
    for line in openmetrics_body.lines() {
        if line.starts_with("# UNIT") || line.starts_with("# EOF") {
            continue;
        }
        // A comment is `# HELP NAME TEXT` or `# TYPE NAME KIND`.
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        if let ["#", comment_kind, name, rest] = words[..] {
            // In OpenMetrics, the comments of a counter name it without its suffix.
            let counter = counter_names.iter().find(|counter| counter.strip_suffix("_total") == Some(name));
            let name = counter.map_or(name, String::as_str);
            out.extend(["# ", comment_kind, " ", name, " ", rest]);
        } else {
            out.push_str(line);
        }
        out.push('\n');
    }
    out
}

/// Collected values, in the form the encoder requires.
#[derive(Debug)]
struct MetricCollector {
    runs: Vec<RunFamilies>,
}

impl MetricCollector {
    /// Definitions of all metrics, each once.
    fn distinct_definitions(&self) -> Vec<&'static Definition> {
        let mut distinct_definitions: Vec<&'static Definition> = Vec::new();
        for family in self.runs.iter().flat_map(|run| &run.families) {
            if distinct_definitions.iter().all(|known| known.name != family.definition.name) {
                distinct_definitions.push(family.definition);
            }
        }
        distinct_definitions
    }
}

/// Encodes the values that a metric has in this run.
fn encode_metric_of_run(
    metric: &mut MetricEncoder<'_>,
    definition: &Definition,
    run: &RunFamilies,
) -> Result<(), fmt::Error> {
    // A metric of the tokengap process belongs to no engine.
    let engine_labels = if definition.is_of_process() { &[] } else { run.engine_labels.as_slice() };
    let families = run.families.iter().filter(|family| family.definition.name == definition.name);
    for point in families.flat_map(|family| &family.points) {
        let labels = escaped_labels_of_point(definition, point, engine_labels);
        // The encoder needs another call for a value without labels.
        if labels.is_empty() {
            encode_value(metric, definition.kind, point)?;
        } else {
            encode_value(&mut metric.encode_family(&labels)?, definition.kind, point)?;
        }
    }
    Ok(())
}

/// Names and values of the labels of one value: those of its metric, then those of its engine. Other processes chose the texts, so they are
/// escaped here: the encoder escapes quotes and line breaks only.
fn escaped_labels_of_point<'p>(
    definition: &Definition,
    point: &'p Point,
    engine_labels: &'p [(&'static str, String)],
) -> Vec<(&'static str, Cow<'p, str>)> {
    let mut labels = Vec::new();
    for (name, value) in definition.labels.iter().zip(&point.labels) {
        labels.push((*name, hostile::escape_output(value, EscapeForm::Text)));
    }
    for (name, value) in engine_labels {
        labels.push((*name, hostile::escape_output(value, EscapeForm::Text)));
    }
    labels
}

/// The encoder's name of a kind.
fn metric_type(kind: MetricKind) -> MetricType {
    match kind {
        MetricKind::Counter => MetricType::Counter,
        MetricKind::Gauge => MetricType::Gauge,
        MetricKind::Histogram => MetricType::Histogram,
    }
}

impl Collector for MetricCollector {
    /// Encodes each metric with its values in all runs.
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        // The format demands that all values of a metric stand together, so the loop over the metrics is outside that over the runs.
        for definition in self.distinct_definitions() {
            let kind = metric_type(definition.kind);
            // The encoder itself appends these two units to the name.
            let appended_unit = match definition.unit {
                Unit::Seconds => Some(Base::Seconds),
                Unit::Bytes => Some(Base::Bytes),
                Unit::Ratio | Unit::Info | Unit::Of(_) => None,
            };
            // It cannot append the suffix of a ratio or an info, so the name must contain that. Other units have no suffix.
            let is_unit_in_name = matches!(definition.unit, Unit::Ratio | Unit::Info);
            let name = if is_unit_in_name { definition.prometheus_name() } else { definition.stem() };
            let mut metric = encoder.encode_descriptor(&name, definition.help, appended_unit.as_ref(), kind)?;
            for run in &self.runs {
                encode_metric_of_run(&mut metric, definition, run)?;
            }
        }
        Ok(())
    }
}

/// Encodes one value of a metric as its kind, with the labels that `metric` already has.
fn encode_value(metric: &mut MetricEncoder<'_>, kind: MetricKind, point: &Point) -> Result<(), fmt::Error> {
    // The last `None` means that the value has no exemplar. The encoder needs the type of an exemplar's labels all the same, which is
    // `NoLabelSet`.
    match (kind, &point.value) {
        (MetricKind::Counter, Value::Int(value)) => metric.encode_counter::<NoLabelSet, _, f64>(value, None),
        (MetricKind::Counter, Value::Float(value)) => metric.encode_counter::<NoLabelSet, _, f64>(value, None),
        (_, Value::Int(value)) => metric.encode_gauge(value),
        (_, Value::Float(value)) => metric.encode_gauge(value),
        (_, Value::Histogram(histogram)) => {
            let bounds = histogram.at_most.iter().map(|bucket| bucket.bound).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(histogram.counts_by_bucket()).collect();
            metric.encode_histogram::<NoLabelSet>(histogram.sum, histogram.count, &buckets, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use outputs::metrics::{ALL, Bucket, Histogram};

    use super::*;

    fn of(name: &str) -> &'static Definition {
        ALL.iter().find(|d| d.name == name).expect("a metric of that name")
    }

    fn family(name: &str, labels: &[&str], value: Value) -> Family {
        Family {
            definition: of(name),
            points: vec![Point { labels: labels.iter().map(|&label| label.to_owned()).collect(), value }],
        }
    }

    fn sample_runs() -> Vec<RunFamilies> {
        vec![RunFamilies::of_run(None, sample_families())]
    }

    fn sample_families() -> Vec<Family> {
        let at_most = vec![Bucket { bound: 0.25, values: 1 }, Bucket { bound: 0.5, values: 2 }];
        let gap = Histogram { count: 3, sum: 1.5, at_most };
        vec![
            family("tokengap.requests.aborted", &[], Value::Int(7)),
            family("tokengap.consumer.cpu", &["tokenizer", "on_cpu"], Value::Float(0.25)),
            family("tokengap.hop.payload", &["a\"b\\\n->c"], Value::Int(9)),
            family("tokengap.gap", &[], Value::Histogram(gap)),
        ]
    }

    #[test]
    fn open_metrics_text_has_units_and_eof() {
        let MetricsText { content_type, body } =
            encode_metrics(sample_runs(), "application/openmetrics-text;version=1.0.0,text/plain;q=0.5").expect("text");
        assert!(content_type.starts_with("application/openmetrics-text"));
        for line in [
            "# TYPE tokengap_requests_aborted counter",
            "tokengap_requests_aborted_total 7",
            "tokengap_consumer_cpu_ratio{role=\"tokenizer\",state=\"on_cpu\"} 0.25",
            "# UNIT tokengap_hop_payload_bytes bytes",
            "tokengap_hop_payload_bytes_total{hop=\"a\\\"b\\\\\\n->c\"} 9",
            "tokengap_gap_seconds_bucket{le=\"0.25\"} 1",
            "tokengap_gap_seconds_bucket{le=\"0.5\"} 2",
            "tokengap_gap_seconds_bucket{le=\"+Inf\"} 3",
            "tokengap_gap_seconds_sum 1.5",
        ] {
            assert!(body.lines().any(|l| l == line), "{line}\n{body}");
        }
        assert!(body.ends_with("# EOF\n"));
    }

    #[test]
    fn metrics_of_engines_have_their_name_and_port() {
        let run = |name: &str, port, families| {
            let engine = EngineIdentity { name: name.to_owned(), port, ..EngineIdentity::default() };
            RunFamilies::of_run(Some(engine), families)
        };
        let of_process = vec![family("tokengap.self.cpu", &[], Value::Float(0.5))];
        let one_family = vec![family("tokengap.requests.aborted", &[], Value::Int(1))];
        let runs = vec![
            run("vllm:pid-7", None, [one_family, of_process].concat()),
            run("sglang:30000", Some(30_000), sample_families()),
        ];
        let MetricsText { body, .. } = encode_metrics(runs, "*/*").expect("text");
        for line in [
            "tokengap_requests_aborted_total{engine=\"vllm:pid-7\"} 1",
            "tokengap_requests_aborted_total{engine=\"sglang:30000\",port=\"30000\"} 7",
            "tokengap_consumer_cpu_ratio{role=\"tokenizer\",state=\"on_cpu\",engine=\"sglang:30000\",port=\"30000\"} 0.25",
            "tokengap_gap_seconds_bucket{le=\"0.5\",engine=\"sglang:30000\",port=\"30000\"} 2",
            "tokengap_self_cpu_seconds_total 0.5",
        ] {
            assert!(body.lines().any(|l| l == line), "{line}\n{body}");
        }
        assert_eq!(body.matches("# TYPE tokengap_requests_aborted_total ").count(), 1, "{body}");
    }

    #[test]
    fn prometheus_text_has_full_counter_names_and_no_units() {
        let MetricsText { content_type, body } = encode_metrics(sample_runs(), "*/*").expect("text");
        assert_eq!(content_type, "text/plain; version=0.0.4; charset=utf-8");
        assert!(body.contains("# TYPE tokengap_requests_aborted_total counter\n"), "{body}");
        assert!(body.contains("# TYPE tokengap_gap_seconds histogram\n"), "{body}");
        assert!(!body.contains("# UNIT") && !body.contains("# EOF"), "{body}");
    }
}
