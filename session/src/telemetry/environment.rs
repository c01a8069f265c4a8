//! OpenTelemetry's standard environment variables.

use std::time::Duration;

use anyhow::{Context, bail};
use percent_encoding::percent_decode_str;

/// Push settings from the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Environment {
    /// `OTEL_EXPORTER_OTLP_HEADERS`.
    pub(super) headers: Vec<(String, String)>,
    /// `OTEL_RESOURCE_ATTRIBUTES`.
    pub(super) attributes: Vec<(String, String)>,
    /// `OTEL_SERVICE_NAME`; overrides a `service.name` among the attributes.
    pub(super) service: Option<String>,
    /// `OTEL_EXPORTER_OTLP_TIMEOUT`: maximum time per request.
    pub(super) timeout: Option<Duration>,
}

impl Environment {
    /// Reads the settings of OpenTelemetry: attributes and name of the service, headers and timeout of a push. `get` returns the value of
    /// an environment variable. Fails if one cannot be parsed.
    pub(super) fn read(get: impl Fn(&str) -> Option<String>) -> anyhow::Result<Self> {
        // A variable that is set but blank counts as unset.
        let variable = |name: &str| get(name).filter(|value| !value.trim().is_empty());
        let attributes = parse_list_variable("OTEL_RESOURCE_ATTRIBUTES", variable)?;
        // Of several attributes with the name, the last one counts. The variable takes precedence over them.
        let service_attribute = attributes.iter().rev().find(|(name, _)| name == "service.name");
        let service = variable("OTEL_SERVICE_NAME").or_else(|| service_attribute.map(|(_, value)| value.clone()));
        let timeout = match variable("OTEL_EXPORTER_OTLP_TIMEOUT") {
            Some(value) => Some(parse_timeout(&value)?),
            None => None,
        };
        let headers = parse_list_variable("OTEL_EXPORTER_OTLP_HEADERS", variable)?;
        Ok(Self { headers, attributes, service, timeout })
    }
}

/// Parses a time limit in milliseconds, at least 1.
fn parse_timeout(milliseconds: &str) -> anyhow::Result<Duration> {
    match milliseconds.trim().parse() {
        Ok(0) | Err(_) => {
            bail!("OTEL_EXPORTER_OTLP_TIMEOUT is {milliseconds:?}: expected milliseconds, for example 10000")
        }
        Ok(ms) => Ok(Duration::from_millis(ms)),
    }
}

/// Parses the environment variable `name`, which has a list of pairs. The list is empty if the variable is not set.
fn parse_list_variable(
    name: &str,
    get_variable: impl Fn(&str) -> Option<String>,
) -> anyhow::Result<Vec<(String, String)>> {
    match get_variable(name) {
        Some(list) => parse_percent_encoded_pairs(&list).with_context(|| name.to_owned()),
        None => Ok(Vec::new()),
    }
}

/// Parses `name=value,name=value`, percent-encoded.
fn parse_percent_encoded_pairs(text: &str) -> anyhow::Result<Vec<(String, String)>> {
    let mut pairs = Vec::new();
    for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let named_value = entry.split_once('=').filter(|(name, _)| !name.trim().is_empty());
        let (name, value) = named_value.with_context(|| format!("{entry:?} is not of the form name=value"))?;
        let name = percent_decode_str(name.trim()).decode_utf8()?;
        let value = percent_decode_str(value.trim()).decode_utf8()?;
        pairs.push((name.into_owned(), value.into_owned()));
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(variables: &[(&str, &str)]) -> anyhow::Result<Environment> {
        Environment::read(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn environment_variables_of_the_specification_are_honoured() {
        let read = read(&[
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc, x-scope = 1 "),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=llm,k8s.pod.name=a%2Cb"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "250"),
            ("OTEL_SERVICE_NAME", ""),
        ])
        .expect("it is well formed");
        assert_eq!(read.headers[0], ("authorization".into(), "Bearer abc".into()));
        assert_eq!(read.headers[1], ("x-scope".into(), "1".into()));
        assert_eq!(read.attributes[1], ("k8s.pod.name".into(), "a,b".into()));
        assert_eq!(read.service.as_deref(), Some("llm"));
        assert_eq!(read.timeout, Some(Duration::from_millis(250)));
    }

    #[test]
    fn otel_service_name_overrides_the_attribute_and_errors_name_the_variable() {
        let both = [("OTEL_SERVICE_NAME", "a"), ("OTEL_RESOURCE_ATTRIBUTES", "service.name=b")];
        assert_eq!(read(&both).expect("well formed").service.as_deref(), Some("a"));
        for (name, value) in [("OTEL_RESOURCE_ATTRIBUTES", "alone"), ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")] {
            let refused = read(&[(name, value)]).expect_err("nonsense");
            assert!(format!("{refused:#}").contains(name), "{refused:#}");
        }
    }

    proptest! {
        #[test]
        fn any_text_parses_or_fails_naming_the_variable(text: String) {
            for name in ["OTEL_RESOURCE_ATTRIBUTES", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TIMEOUT"] {
                if let Err(why) = read(&[(name, &text)]) {
                    let message = format!("{why:#}");
                    prop_assert!(message.contains(name), "{}", message);
                }
            }
        }
    }
}
