//! Metrics: all families with their points, cumulative since the start of the run.

use super::EncodedItems;
use super::envelope::{METRICS, Resource, RunEngine, put_text, wrap_in_envelope};
use crate::export::json::{Array, Object};
use crate::metrics::{Definition, Family, MetricKind, Point, Value};

/// `AGGREGATION_TEMPORALITY_CUMULATIVE`.
const CUMULATIVE: u64 = 2;

/// Time over which metrics are cumulative, in nanoseconds since the Unix epoch.
#[derive(Clone, Copy, Debug)]
pub struct MetricsWindow {
    /// Start of the run.
    pub start_unix_ns: u64,
    /// Time of the values.
    pub end_unix_ns: u64,
}

/// Encodes the families as `MetricsData` of OTLP. Returns it with the number of points.
pub fn encode_metrics(families: &[Family], resource: &Resource, window: MetricsWindow) -> EncodedItems {
    let mut json = Vec::new();
    Object::write(&mut json, |object| {
        wrap_in_envelope(object, METRICS, resource, |list| {
            for family in families {
                list.add_object(|object| write_metric_family(object, family, resource, window));
            }
        });
    });
    EncodedItems { json, items: families.iter().map(|family| family.points.len() as u64).sum() }
}

/// Writes a metric with its points.
fn write_metric_family(object: &mut Object<'_>, family: &Family, resource: &Resource, window: MetricsWindow) {
    let definition = family.definition;
    object.put("name", definition.name).put("description", definition.help).put("unit", definition.unit.ucum_unit());
    // Each point names its engine, because some receivers drop the attributes of the resource. Metrics of this process belong to no engine.
    let engine = if definition.is_of_process() { None } else { resource.run_engine.as_ref() };
    let data_field = match definition.kind {
        MetricKind::Counter => "sum",
        MetricKind::Gauge => "gauge",
        MetricKind::Histogram => "histogram",
    };
    object.put_object(data_field, |object| {
        object.put_array("dataPoints", |list| {
            for point in &family.points {
                list.add_object(|object| write_point(object, definition, point, engine, window));
            }
        });
        if definition.kind != MetricKind::Gauge {
            object.put("aggregationTemporality", CUMULATIVE);
        }
        if definition.kind == MetricKind::Counter {
            object.put("isMonotonic", true);
        }
    });
}

/// Writes a point of a metric: its labels, its time and its value.
fn write_point(
    object: &mut Object<'_>,
    definition: &Definition,
    point: &Point,
    engine: Option<&RunEngine>,
    window: MetricsWindow,
) {
    object.put_array("attributes", |list| write_label_attributes(list, definition.labels, point, engine));
    // A gauge is a state, which did not begin with the run.
    if definition.kind != MetricKind::Gauge {
        object.put_int_text("startTimeUnixNano", window.start_unix_ns);
    }
    object.put_int_text("timeUnixNano", window.end_unix_ns);
    write_point_value(object, &point.value);
}

/// Writes the labels of a point as attributes, and the name and port of its engine if one is given.
fn write_label_attributes(list: &mut Array<'_>, label_names: &[&str], point: &Point, engine: Option<&RunEngine>) {
    for (name, value) in label_names.iter().zip(&point.labels) {
        put_text(list, name, value);
    }
    if let Some(engine) = engine {
        put_text(list, "engine", &engine.name);
        if let Some(port) = engine.port {
            put_text(list, "port", &port.to_string());
        }
    }
}

/// Writes the value of a point. Counts are numbers, although OTLP/JSON usually writes them as strings. Readers must accept both. But
/// collectors built on the Rust schema crate silently drop points whose count is a string (seen with rotel 0.0.1a15).
fn write_point_value(object: &mut Object<'_>, value: &Value) {
    match value {
        Value::Int(count) => {
            object.put("asInt", *count);
        }
        Value::Float(number) => {
            object.put("asDouble", *number);
        }
        Value::Histogram(histogram) => {
            let counts: Vec<u64> = histogram.counts_by_bucket().collect();
            let bounds: Vec<f64> = histogram.at_most.iter().map(|bucket| bucket.bound).collect();
            object.put("count", histogram.count).put("sum", histogram.sum);
            object.put("bucketCounts", &counts).put("explicitBounds", &bounds);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value as Json;

    use super::*;
    use crate::metrics::ALL;

    fn family(name: &str) -> Family {
        let definition = ALL.iter().find(|definition| definition.name == name).expect("a metric");
        Family { definition, points: vec![Point { labels: Vec::new(), value: Value::Int(1) }] }
    }

    fn attribute<'a>(list: &'a Json, key: &str) -> Option<&'a str> {
        let found = list.as_array()?.iter().find(|attribute| attribute["key"] == key)?;
        found["value"]["stringValue"].as_str().or_else(|| found["value"]["intValue"].as_str())
    }

    #[test]
    fn the_engine_is_named_by_the_resource_and_by_points_that_are_not_of_the_process() {
        let mut resource = Resource::for_source("attach", "1.0.0");
        resource.more = vec![("tokengap.engine".to_owned(), "another".to_owned())];
        resource.run_engine = Some(RunEngine { name: "sglang:30000".to_owned(), port: Some(30_000) });
        let families = [family("tokengap.requests.aborted"), family("tokengap.self.resident_memory")];
        let window = MetricsWindow { start_unix_ns: 1, end_unix_ns: 2 };
        let points = encode_metrics(&families, &resource, window);
        let json: Json = serde_json::from_slice(&points.json).expect("JSON");
        assert_eq!(points.items, 2);
        let resource = &json["resourceMetrics"][0];
        let attributes = &resource["resource"]["attributes"];
        assert_eq!(attribute(attributes, "tokengap.engine"), Some("sglang:30000"));
        assert_eq!(attribute(attributes, "server.port"), Some("30000"));
        let metrics = &resource["scopeMetrics"][0]["metrics"];
        let of_run = &metrics[0]["sum"]["dataPoints"][0]["attributes"];
        assert_eq!((attribute(of_run, "engine"), attribute(of_run, "port")), (Some("sglang:30000"), Some("30000")));
        assert_eq!(attribute(&metrics[1]["gauge"]["dataPoints"][0]["attributes"], "engine"), None);
    }
}
