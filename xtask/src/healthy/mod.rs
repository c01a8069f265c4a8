//! `cargo xtask healthy`: healthy responses of the engines' own serving code (`testbed/healthy`), read as `attach` reads them. None may be
//! accused of more than its parser did.

mod judge;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use self::judge::{Response, Verdict};
use crate::e2e::setup::{installed, prepare, prepare_vllm};
use crate::script::root;

/// Engines and versions.
const RELEASES: [(&str, &str); 9] = [
    ("sglang", "0.5.9"),
    ("sglang", "0.5.12"),
    ("sglang", "0.5.15"),
    ("sglang", "0.5.17"),
    ("sglang", "0.5.20"),
    ("sglang", "0.5.23"),
    ("vllm", "0.28.0"),
    ("vllm", "0.30.0"),
    ("vllm", "0.32.0"),
];
/// Releases that are installed, with the packages that the others need too.
const INSTALLED: [(&str, &str); 2] = [("sglang", "0.5.23"), ("vllm", "0.32.0")];

/// Options of `cargo xtask healthy`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Number of responses of each release.
    #[arg(long, value_name = "N", default_value_t = 12_000)]
    count: u32,
    /// Seed of the responses.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Only releases whose name, such as `sglang 0.5.9`, contains TEXT.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Write accused responses to this file, one JSON line each.
    #[arg(long, value_name = "FILE")]
    accused: Option<PathBuf>,
    /// Judge responses on standard input instead, of this engine and version.
    #[arg(long, num_args = 2, value_names = ["ENGINE", "VERSION"])]
    read: Option<Vec<String>>,
}

/// Runs `cargo xtask healthy`.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut accused = options.accused.as_ref().map(File::create).transpose()?;
    let mut rows = Vec::new();
    if let Some([engine, version]) = options.read.as_deref() {
        rows.push(judge(engine, version, std::io::stdin().lock(), &mut accused)?);
    } else {
        let wanted = RELEASES.iter().filter(|(engine, version)| format!("{engine} {version}").contains(&options.only));
        for (engine, version) in wanted {
            let mut served = serve(engine, version, options)?.spawn().context("starting testbed.healthy")?;
            let lines = BufReader::new(served.stdout.take().context("no output of testbed.healthy")?);
            rows.push(judge(engine, version, lines, &mut accused)?);
            ensure!(served.wait()?.success(), "cannot serve the responses of {engine} {version}");
        }
    }
    print(&rows);
    ensure!(rows.iter().all(|row| row.accused.is_empty()), "healthy responses were accused");
    Ok(())
}

/// The command that prints the responses of a release.
fn serve(engine: &str, version: &str, options: &Options) -> Result<Command> {
    let (_, newest) = INSTALLED.iter().find(|(name, _)| *name == engine).context("unknown engine")?;
    let mut serve = Command::new(installed(engine, newest)?);
    serve.args(["-W", "ignore", "-m", "testbed.healthy", engine, version]);
    serve.args([options.seed.to_string(), options.count.to_string()]);
    serve.current_dir(root()).stdout(Stdio::piped());
    if engine == "sglang" {
        prepare(&[version])?;
    } else {
        // The release's own files come before the installed ones.
        if version != *newest {
            serve.env("PYTHONPATH", prepare_vllm(version)?);
        }
        serve.envs([("VLLM_TARGET_DEVICE", "cpu"), ("VLLM_LOGGING_LEVEL", "CRITICAL"), ("CUDA_VISIBLE_DEVICES", "")]);
    }
    Ok(serve)
}

fn judge(engine: &str, version: &str, lines: impl BufRead, accused: &mut Option<File>) -> Result<Row> {
    let mut row = Row { release: format!("{engine} {version}"), ..Row::default() };
    for line in lines.lines() {
        let line = line?;
        let response: Response = serde_json::from_str(&line)?;
        let verdicts = response.judge(engine, version);
        let is_accused = |verdict: &&Verdict| matches!(verdict, Verdict::Accused(_) | Verdict::Changed);
        if let (Some(file), Some(first)) = (&mut *accused, verdicts.iter().find(is_accused)) {
            writeln!(file, "{{\"release\":\"{}\",\"verdict\":\"{first:?}\",\"response\":{line}}}", row.release)?;
        }
        row.enter(&response, verdicts);
    }
    Ok(row)
}

/// Results of a release.
#[derive(Debug, Default)]
struct Row {
    release: String,
    responses: u64,
    tokens: u64,
    equal: u64,
    equal_calls: u64,
    unjudged: BTreeMap<&'static str, u64>,
    /// Responses whose parser changed the arguments, by parser.
    changed: BTreeMap<String, u64>,
    /// Findings that no response deserves.
    accused: BTreeMap<&'static str, u64>,
}

impl Row {
    fn enter(&mut self, response: &Response, verdicts: Vec<Verdict>) {
        self.responses += 1;
        self.tokens += response.tokens();
        for verdict in verdicts {
            match verdict {
                Verdict::Equal => self.equal += 1,
                Verdict::EqualCalls => self.equal_calls += 1,
                Verdict::Unjudged(why) => *self.unjudged.entry(why).or_default() += 1,
                Verdict::Changed => *self.changed.entry(response.parser().to_owned()).or_default() += 1,
                Verdict::Accused(kind) => *self.accused.entry(kind).or_default() += 1,
            }
        }
    }
}

fn print(rows: &[Row]) {
    println!(
        "| release | responses | tokens | text equal | calls equal | unjudged | changed by its parser | accused |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|");
    let sum = |counts: &BTreeMap<&'static str, u64>| counts.values().sum::<u64>();
    for Row { release, responses, tokens, equal, equal_calls, unjudged, changed, accused } in rows {
        let (unjudged, changed, accused) = (sum(unjudged), changed.values().sum::<u64>(), sum(accused));
        println!(
            "| {release} | {responses} | {tokens} | {equal} | {equal_calls} | {unjudged} | {changed} | {accused} |"
        );
    }
    for Row { release, unjudged, changed, accused, .. } in rows {
        println!("\n{release}: unjudged {unjudged:?}; changed by {changed:?}; accused {accused:?}");
    }
    println!();
}
