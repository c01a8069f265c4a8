//! Envelope of spans and metrics: resource, instrumentation scope and attributes. In OTLP/JSON, 64-bit integers are strings.

use trace::engine::EngineState;

use crate::export::json::{Array, Object};

/// Semantic conventions that define the `gen_ai.*` attributes.
const CONVENTIONS: &str = "https://opentelemetry.io/schemas/1.37.0";

/// Name and port of an engine, among those of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RunEngine {
    pub(super) name: String,
    /// Port of its HTTP server, if known.
    pub(super) port: Option<u16>,
}

/// The observed service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// `service.name`; `None` is the name of the observed engine.
    pub service: Option<String>,
    /// Name of the observed engine.
    pub engine: String,
    /// `service.version`, if known.
    pub version: Option<String>,
    /// `tokengap.source`: `demo`, `tap`, `attach`, ...
    pub source: String,
    /// `tokengap.engine` and `server.port`, if the source names engines.
    pub(super) run_engine: Option<RunEngine>,
    /// Further attributes. The last of several with one name wins; none overrides the fields above.
    pub more: Vec<(String, String)>,
    /// Version of tokengap.
    pub tokengap: String,
}

impl Resource {
    /// Resource for a service of which only the source of the observations is known. `tokengap_version` is the version that observes it.
    pub fn for_source(source: &str, tokengap_version: &str) -> Self {
        Self {
            service: None,
            engine: String::new(),
            version: None,
            source: source.to_owned(),
            run_engine: None,
            more: Vec::new(),
            tokengap: tokengap_version.to_owned(),
        }
    }

    /// Sets the name of the engine and its release, if known.
    pub(super) fn set_engine(&mut self, engine: &EngineState) {
        self.version = engine.version.as_deref().map(str::to_owned);
        engine.facts().name().clone_into(&mut self.engine);
    }

    /// Writes the attributes of the resource: tokengap's, then the user's with other names.
    fn write_attributes(&self, object: &mut Object<'_>) {
        object.put_array("attributes", |list| {
            put_text(list, "service.name", self.service.as_deref().unwrap_or(&self.engine));
            if let Some(version) = &self.version {
                put_text(list, "service.version", version);
            }
            put_text(list, "tokengap.source", &self.source);
            if let Some(engine) = &self.run_engine {
                put_text(list, "tokengap.engine", &engine.name);
                put_int_if_known(list, "server.port", engine.port);
            }
            // The user's attributes.
            for (index, (name, value)) in self.more.iter().enumerate() {
                // Attributes must be unique, and the last value of a name counts.
                let is_replaced = self.more[index + 1..].iter().any(|(later, _)| later == name);
                if !is_replaced && !self.has_own_attribute(name) {
                    put_text(list, name, value);
                }
            }
        });
    }

    /// Whether tokengap itself sets the attribute with this name.
    fn has_own_attribute(&self, name: &str) -> bool {
        match name {
            "service.name" | "tokengap.source" => true,
            "service.version" => self.version.is_some(),
            "tokengap.engine" | "server.port" => self.run_engine.is_some(),
            _ => false,
        }
    }
}

/// Names of the lists in a message, each within an element of the one before.
#[derive(Clone, Copy)]
pub(super) struct ListNames {
    resources: &'static str,
    scopes: &'static str,
    items: &'static str,
}

/// Lists of `TracesData`.
pub(super) const TRACES: ListNames = ListNames { resources: "resourceSpans", scopes: "scopeSpans", items: "spans" };
/// Lists of `MetricsData`.
pub(super) const METRICS: ListNames =
    ListNames { resources: "resourceMetrics", scopes: "scopeMetrics", items: "metrics" };

/// Writes the envelope of a message: a list with one resource, in it a list with one scope, and in that the items that `add_items` adds.
/// `names` has the names of these three lists, which depend on the kind of the items.
pub(super) fn wrap_in_envelope(
    object: &mut Object<'_>,
    names: ListNames,
    resource: &Resource,
    add_items: impl FnOnce(&mut Array<'_>),
) {
    object.put_array(names.resources, |list| {
        list.add_object(|object| {
            object.put_object("resource", |object| resource.write_attributes(object));
            object.put_array(names.scopes, |list| {
                list.add_object(|object| {
                    object.put_object("scope", |object| {
                        object.put("name", "tokengap").put("version", &resource.tokengap);
                    });
                    object.put_array(names.items, add_items).put("schemaUrl", CONVENTIONS);
                });
            });
        });
    });
}

/// Appends an attribute; `add_value` adds its typed value.
pub(super) fn put_attribute(list: &mut Array<'_>, key: &str, add_value: impl FnOnce(&mut Object<'_>)) {
    list.add_object(|object| {
        object.put("key", key).put_object("value", add_value);
    });
}

/// Appends an attribute with a text.
pub(super) fn put_text(list: &mut Array<'_>, key: &str, value: &str) {
    put_attribute(list, key, |value_object| {
        value_object.put("stringValue", value);
    });
}

/// Appends an attribute with a number, if it is known.
pub(super) fn put_int_if_known(list: &mut Array<'_>, key: &str, value: Option<impl Into<u64>>) {
    if let Some(value) = value {
        put_attribute(list, key, |value_object| {
            value_object.put_int_text("intValue", value.into());
        });
    }
}

/// Appends an attribute with a truth value.
pub(super) fn put_flag(list: &mut Array<'_>, key: &str, value: bool) {
    put_attribute(list, key, |value_object| {
        value_object.put("boolValue", value);
    });
}
