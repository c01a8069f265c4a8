//! Doctor's diagnosis in a container, compared with what attach achieved in the same container.

use anyhow::{Result, ensure};
use probe_user::Feature;
use serde_json::Value;

/// Working features according to the diagnosis, in the letters of [`super::observed::works`].
pub(crate) fn works(diagnosis: &Value) -> String {
    let rows = list(&diagnosis["features"]);
    super::observed::LETTERS
        .iter()
        .zip(Feature::ALL)
        .map(|((letter, _), feature)| {
            let row = rows.iter().find(|row| row["name"] == feature.name());
            let works = row.is_some_and(|row| row["state"] == "works");
            if works { *letter } else { '-' }
        })
        .collect()
}

/// Attach reports every reason that has a remedy in the same words.
pub(crate) fn same_words(diagnosis: &Value, attach: &str) -> Result<()> {
    for row in list(&diagnosis["features"]) {
        if !Feature::ALL.iter().any(|feature| row["name"] == feature.name()) {
            continue;
        }
        for reason in list(&row["reasons"]) {
            let (Some(why), Some(fix)) = (reason["why"].as_str(), reason["fix"].as_str()) else {
                continue;
            };
            ensure!(
                attach.contains(why) && attach.contains(fix),
                "doctor says {why:?} and {fix:?}, attach said {attach}"
            );
        }
    }
    Ok(())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_works_has_its_letter_and_words_are_compared() {
        let diagnosis = json!({"features": [
            {"name": "frames", "state": "works", "reasons": []},
            {"name": "handled", "state": "degraded", "reasons": [{"why": "a", "fix": "b"}]},
            {"name": "Python stacks", "state": "works", "reasons": []},
            {"name": "tap", "state": "missing", "reasons": [{"why": "c", "fix": "d"}]},
        ]});
        assert_eq!(works(&diagnosis), "f-----p");
        assert!(same_words(&diagnosis, "a; b").is_ok());
        assert!(same_words(&diagnosis, "a").is_err());
    }
}
