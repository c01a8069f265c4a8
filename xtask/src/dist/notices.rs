//! Third-party notices: licence texts for people and a `CycloneDX` bill of materials for machines.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::shipped::Component;

/// Each licence text once, under the names of all components that use it.
pub(crate) fn licences(components: &[Component]) -> String {
    let mut text =
        String::from("tokengap is MIT OR Apache-2.0. It contains the work of others, under these licences.\n\n");
    for c in components {
        let _ = writeln!(text, "{} {}: {}", c.name, c.version, c.licence);
    }
    let mut texts: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for c in components {
        for (file, body) in &c.texts {
            texts
                .entry(body.trim())
                .or_default()
                .push(format!("{} {} ({file})", c.name, c.version));
        }
    }
    let mut texts: Vec<_> = texts.into_iter().map(|(body, owners)| (owners, body)).collect();
    texts.sort();
    for (owners, body) in texts {
        let _ = write!(text, "\n{}\n{}\n\n{body}\n", "=".repeat(100), owners.join("\n"));
    }
    text
}

/// `CycloneDX` 1.5. It has no random serial number, so that two builds of one source give the same bill.
pub(crate) fn bill(version: &str, target: &str, built_at: u64, components: &[Component]) -> Value {
    let own = format!("pkg:cargo/tokengap@{version}");
    let listed: Vec<Value> = components
        .iter()
        .map(|c| {
            json!({
                "type": "library",
                "bom-ref": c.purl,
                "name": c.name,
                "version": c.version,
                "purl": c.purl,
                "licenses": [{ "expression": c.licence }],
            })
        })
        .collect();
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": super::moment(built_at),
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "tokengap",
                "version": version,
                "purl": own,
                "licenses": [{ "expression": "MIT OR Apache-2.0" }],
                "properties": [{ "name": "target", "value": target }],
            },
        },
        "components": listed,
        "dependencies": [{
            "ref": own,
            "dependsOn": components.iter().map(|c| c.purl.as_str()).collect::<Vec<_>>(),
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn component(name: &str, text: &str) -> Component {
        Component {
            name: name.into(),
            version: "1.0.0".into(),
            purl: format!("pkg:cargo/{name}@1.0.0"),
            licence: "MIT".into(),
            texts: vec![("LICENSE".into(), text.into())],
        }
    }

    #[test]
    fn a_text_that_two_share_is_printed_once_under_both_names() {
        let text = licences(&[
            component("a", "one text\n"),
            component("b", "one text"),
            component("c", "another"),
        ]);
        assert_eq!(text.matches("one text").count(), 1);
        assert!(text.contains("a 1.0.0 (LICENSE)\nb 1.0.0 (LICENSE)\n\none text"));
        assert!(text.contains("c 1.0.0 (LICENSE)\n\nanother"));
    }

    #[test]
    fn the_bill_names_every_component_once_and_as_a_dependency() {
        let bill = bill(
            "0.1.0",
            "x86_64-unknown-linux-musl",
            0,
            &[component("a", ""), component("b", "")],
        );
        assert_eq!(bill["metadata"]["timestamp"], "1970-01-01T00:00:00Z");
        assert_eq!(bill["components"].as_array().map(Vec::len), Some(2));
        assert_eq!(
            bill["dependencies"][0]["dependsOn"][1],
            bill["components"][1]["bom-ref"]
        );
    }
}
