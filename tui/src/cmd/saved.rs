//! What a run has left behind, by its content and not by its name.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use trace::report::{Report, SCHEMA};

/// Larger files are no reports: the largest that can be made has some ten megabytes.
const LARGEST_JSON: u64 = 256 << 20;

/// The report that `file` is; `-` is standard input.
pub(crate) fn report(file: &Path) -> anyhow::Result<Report> {
    let name = file.display();
    let text = if file == Path::new("-") {
        read(std::io::stdin().lock())
    } else {
        File::open(file).map_err(anyhow::Error::from).and_then(read)
    };
    let text = text.with_context(|| format!("cannot read {name}"))?;
    let begin = text.iter().position(|b| !b.is_ascii_whitespace());
    match begin.map(|at| text[at]) {
        Some(b'{') => parse(&text).with_context(|| format!("{name} is no report of tokengap")),
        Some(_) => bail!("{name} is no report of tokengap: it does not begin like JSON; give a file that --json wrote"),
        None => bail!("{name} is empty: the run that should have written it may have failed"),
    }
}

fn read(from: impl Read) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(LARGEST_JSON + 1).read_to_end(&mut bytes)?;
    ensure!(
        bytes.len() as u64 <= LARGEST_JSON,
        "it is larger than {LARGEST_JSON} bytes, so no report"
    );
    Ok(bytes)
}

fn parse(text: &[u8]) -> anyhow::Result<Report> {
    #[derive(serde::Deserialize)]
    struct Head {
        schema: Option<String>,
    }
    let head: Head = serde_json::from_slice(text)?;
    match head.schema.as_deref() {
        Some(SCHEMA) => Ok(serde_json::from_slice(text)?),
        Some(other) => bail!("its schema is {other:?}, this tokengap reads {SCHEMA}"),
        None => bail!("it has no schema; give what --json or report --format json printed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(content: &[u8]) -> String {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        std::io::Write::write_all(&mut file, content).expect("written");
        format!("{:#}", report(file.path()).expect_err("no report"))
    }

    #[test]
    fn what_is_no_report_is_said_to_be_none() {
        for (content, said) in [
            (&b""[..], "is empty"),
            (b"\x00\x01", "does not begin like JSON"),
            (
                b"{\"schema\": \"x/2\"}",
                "its schema is \"x/2\", this tokengap reads tokengap.report/1",
            ),
            (b"{}", "it has no schema"),
            (b"{\"schema\": \"tokengap.report/1\"}", "missing field"),
            (b"{\"schema\": ", "EOF"),
        ] {
            let error = told(content);
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn a_report_of_a_version_without_slots_reads() {
        let report = trace::Analysis::new(trace::Config::default()).report(&trace::report::ReportInput::of("tap"));
        let mut value = serde_json::to_value(report).expect("JSON");
        for added in ["series", "window_wall_ns"] {
            value.as_object_mut().expect("an object").remove(added);
        }
        let report = parse(value.to_string().as_bytes()).expect("fields may be missing that came later");
        assert!(report.series.is_none() && report.window_wall_ns.is_none());
    }
}
