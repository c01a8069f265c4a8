//! `cargo xtask healthy`: healthy responses of the engines' own serving code (`testbed/healthy`), read as `attach` reads them. None may be
//! accused of more than its parser did.

mod judge;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use self::judge::{ResponseVerdict, ServedResponse};
use crate::e2e::setup::{install_server, prepare_sglang, prepare_vllm};
use crate::script::project_root;

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
pub(crate) struct HealthyOptions {
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

/// `cargo xtask healthy`: judges the responses of each release, or those on standard input, and prints the tables. Fails if any is accused.
pub(crate) fn judge_healthy_responses(options: &HealthyOptions) -> Result<()> {
    let mut accused_file = options.accused.as_ref().map(File::create).transpose()?;
    let mut rows = Vec::new();
    if let Some([engine, version]) = options.read.as_deref() {
        rows.push(judge_responses(engine, version, std::io::stdin().lock(), &mut accused_file)?);
    } else {
        let wanted = RELEASES.iter().filter(|(engine, version)| format!("{engine} {version}").contains(&options.only));
        for (engine, version) in wanted {
            rows.push(judge_release(engine, version, options, &mut accused_file)?);
        }
    }
    print_tables(&rows);
    ensure!(rows.iter().all(|row| row.accused.is_empty()), "healthy responses were accused");
    Ok(())
}

/// Starts the server of a release and judges the responses that it prints. Fails if the server fails.
fn judge_release(
    engine: &str,
    version: &str,
    options: &HealthyOptions,
    accused_file: &mut Option<File>,
) -> Result<ReleaseResults> {
    let mut served = response_server_command(engine, version, options)?.spawn().context("starting testbed.healthy")?;
    let lines = BufReader::new(served.stdout.take().context("no output of testbed.healthy")?);
    let row = judge_responses(engine, version, lines, accused_file)?;
    ensure!(served.wait()?.success(), "cannot serve the responses of {engine} {version}");
    Ok(row)
}

/// The command that prints the responses of a release.
fn response_server_command(engine: &str, version: &str, options: &HealthyOptions) -> Result<Command> {
    // The packages of the newest release serve all releases of the engine.
    let (_, newest) = INSTALLED.iter().find(|(name, _)| *name == engine).context("unknown engine")?;
    let mut serve = Command::new(install_server(engine, newest)?);
    serve.args(["-W", "ignore", "-m", "testbed.healthy", engine, version]);
    serve.args([options.seed.to_string(), options.count.to_string()]);
    serve.current_dir(project_root()).stdout(Stdio::piped());
    if engine == "sglang" {
        prepare_sglang(&[version])?;
    } else {
        // The release's own files come before the installed ones.
        if version != *newest {
            serve.env("PYTHONPATH", prepare_vllm(version)?);
        }
        serve.envs([("VLLM_TARGET_DEVICE", "cpu"), ("VLLM_LOGGING_LEVEL", "CRITICAL"), ("CUDA_VISIBLE_DEVICES", "")]);
    }
    Ok(serve)
}

/// Judges the responses of a release. Each line of `lines` has one response in JSON. If `accused_file` is given, writes to it each response
/// with a finding, including those that deserve it because their server's parser has changed them.
fn judge_responses(
    engine: &str,
    version: &str,
    lines: impl BufRead,
    accused_file: &mut Option<File>,
) -> Result<ReleaseResults> {
    let mut row = ReleaseResults { release: format!("{engine} {version}"), ..ReleaseResults::default() };
    for line in lines.lines() {
        let line = line?;
        let response: ServedResponse = serde_json::from_str(&line)?;
        let verdicts = response.judge_choices(engine, version);
        let first_finding =
            verdicts.iter().find(|verdict| matches!(verdict, ResponseVerdict::Accused(_) | ResponseVerdict::Changed));
        if let Some(file) = accused_file
            && let Some(verdict) = first_finding
        {
            writeln!(file, "{{\"release\":\"{}\",\"verdict\":\"{verdict:?}\",\"response\":{line}}}", row.release)?;
        }
        row.add_response(&response, verdicts);
    }
    Ok(row)
}

#[derive(Debug, Default)]
struct ReleaseResults {
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

impl ReleaseResults {
    /// Counts a response and its verdicts.
    fn add_response(&mut self, response: &ServedResponse, verdicts: Vec<ResponseVerdict>) {
        self.responses += 1;
        self.tokens += response.token_count();
        for verdict in verdicts {
            match verdict {
                ResponseVerdict::Equal => self.equal += 1,
                ResponseVerdict::EqualCalls => self.equal_calls += 1,
                ResponseVerdict::Unjudged(why) => *self.unjudged.entry(why).or_default() += 1,
                ResponseVerdict::Changed => {
                    *self.changed.entry(response.tool_call_parser().to_owned()).or_default() += 1;
                }
                ResponseVerdict::Accused(kind) => *self.accused.entry(kind).or_default() += 1,
            }
        }
    }
}

/// Prints a table with a row per release, then the reasons and kinds of each.
fn print_tables(rows: &[ReleaseResults]) {
    println!(
        "| release | responses | tokens | text equal | calls equal | unjudged | changed by its parser | accused |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|");
    for ReleaseResults { release, responses, tokens, equal, equal_calls, unjudged, changed, accused } in rows {
        let unjudged = unjudged.values().sum::<u64>();
        let changed = changed.values().sum::<u64>();
        let accused = accused.values().sum::<u64>();
        println!(
            "| {release} | {responses} | {tokens} | {equal} | {equal_calls} | {unjudged} | {changed} | {accused} |"
        );
    }
    for ReleaseResults { release, unjudged, changed, accused, .. } in rows {
        println!("\n{release}: unjudged {unjudged:?}; changed by {changed:?}; accused {accused:?}");
    }
    println!();
}
