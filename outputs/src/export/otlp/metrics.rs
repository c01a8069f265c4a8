//! Metrics: all families with their points, cumulative since the start of the run.

use super::envelope::{METRICS, Resource, RunEngine, put_text, wrap_in_envelope};
use crate::export::json::{Array, Object};
use crate::metrics::{Family, MetricKind, Point, Value};

/// `AGGREGATION_TEMPORALITY_CUMULATIVE`.
const CUMULATIVE: u64 = 2;

/// Encodes `MetricsData`; also returns the number of points. `times` are the start and end in nanoseconds since the Unix epoch.
pub fn metrics_data(families: &[Family], resource: &Resource, times: [u64; 2]) -> (Vec<u8>, u64) {
    let mut out = Vec::new();
    Object::write(&mut out, |o| {
        wrap_in_envelope(o, METRICS, resource, |list| {
            for family in families {
                list.object(|o| write_family(o, family, resource, times));
            }
        });
    });
    (out, families.iter().map(|family| family.points.len() as u64).sum())
}

/// Writes a metric with its points. `start_ns` and `end_ns` count from the Unix epoch.
fn write_family(o: &mut Object<'_>, family: &Family, resource: &Resource, [start_ns, end_ns]: [u64; 2]) {
    let definition = family.definition;
    o.put("name", definition.name).put("description", definition.help).put("unit", definition.unit.ucum());
    // As in the endpoint's metrics: receivers that drop attributes of resources keep the engines apart.
    let engine = if definition.is_of_process() { None } else { resource.run_engine.as_ref() };
    let data = match definition.kind {
        MetricKind::Counter => "sum",
        MetricKind::Gauge => "gauge",
        MetricKind::Histogram => "histogram",
    };
    o.object(data, |o| {
        o.array("dataPoints", |list| {
            for point in &family.points {
                list.object(|o| {
                    o.array("attributes", |a| write_labels(a, definition.labels, point, engine));
                    // A gauge is a state, which did not begin with the run.
                    if definition.kind != MetricKind::Gauge {
                        o.int_text("startTimeUnixNano", start_ns);
                    }
                    o.int_text("timeUnixNano", end_ns);
                    write_value(o, &point.value);
                });
            }
        });
        if definition.kind != MetricKind::Gauge {
            o.put("aggregationTemporality", CUMULATIVE);
        }
        if definition.kind == MetricKind::Counter {
            o.put("isMonotonic", true);
        }
    });
}

/// Writes the labels of a point as attributes, with those of its engine.
fn write_labels(a: &mut Array<'_>, names: &[&str], point: &Point, engine: Option<&RunEngine>) {
    for (name, value) in names.iter().zip(&point.labels) {
        put_text(a, name, value);
    }
    if let Some(engine) = engine {
        put_text(a, "engine", &engine.name);
        if let Some(port) = engine.port {
            put_text(a, "port", &port.to_string());
        }
    }
}

/// Writes the value of a point. Counts are numbers, not strings as usual in OTLP/JSON. Readers must accept both, and collectors built on the Rust schema crate
/// silently drop points whose count is a string (seen with rotel 0.0.1a15).
fn write_value(o: &mut Object<'_>, value: &Value) {
    match value {
        Value::Int(n) => {
            o.put("asInt", *n);
        }
        Value::Float(x) => {
            o.put("asDouble", *x);
        }
        Value::Histogram(histogram) => {
            let counts: Vec<u64> = histogram.classes().collect();
            let bounds: Vec<f64> = histogram.at_most.iter().map(|bucket| bucket.bound).collect();
            o.put("count", histogram.count).put("sum", histogram.sum);
            o.put("bucketCounts", &counts).put("explicitBounds", &bounds);
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
        let (json, points) = metrics_data(&families, &resource, [1, 2]);
        let json: Json = serde_json::from_slice(&json).expect("JSON");
        assert_eq!(points, 2);
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
