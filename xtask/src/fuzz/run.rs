//! Runs targets concurrently and parses libFuzzer's final statistics.

use std::fmt;
use std::fs;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, bail};

use super::{Options, Place, Target};

/// Statistics of a run.
pub(super) struct Stats {
    executions: u64,
    edges: u64,
    features: u64,
    corpus: u64,
    memory_mib: u64,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            executions,
            edges,
            features,
            corpus,
            memory_mib,
        } = self;
        write!(f, "{executions} | {edges} | {features} | {corpus} | {memory_mib} MiB")
    }
}

/// Runs all of `targets`; returns results in the same order.
pub(super) fn all(place: &Place, targets: &[&Target], options: &Options) -> Vec<Result<Stats>> {
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<Result<Stats>>>> = targets.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.clamp(1, targets.len().max(1)) {
            scope.spawn(|| {
                while let Some((target, slot)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    targets.get(index).zip(results.get(index))
                } {
                    let result = one(place, target, options);
                    *slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(result);
                }
            });
        }
    });
    results
        .into_iter()
        .map(|slot| {
            let slot = slot.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
            slot.unwrap_or_else(|| bail!("it did not run"))
        })
        .collect()
}

fn one(place: &Place, target: &Target, options: &Options) -> Result<Stats> {
    let (corpus, findings) = (place.corpus(target.name), place.findings(target.name));
    for dir in [&corpus, &findings] {
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    }
    let program = place.program(target.name);
    let mut command = Command::new(&program);
    command
        .arg(&corpus)
        .arg(place.seeds(target.name))
        .arg(format!("-max_total_time={}", options.time))
        .arg(format!("-seed={}", options.seed))
        .arg(format!("-max_len={}", target.longest))
        .arg(format!("-rss_limit_mb={}", target.memory))
        // Disable entropic scheduling for seeded targets, where it takes more than half of the time.
        .arg(format!("-entropic={}", u8::from(!target.seeded)))
        .arg(format!("-artifact_prefix={}/", findings.display()))
        // Limit allocations and run time per input, to catch hostile lengths and slow inputs. Leak detection runs every input that retains
        // memory twice.
        .args([
            "-malloc_limit_mb=256",
            "-timeout=30",
            "-print_final_stats=1",
            "-detect_leaks=0",
        ])
        .env("ASAN_OPTIONS", "detect_leaks=0");
    let output = command
        .output()
        .with_context(|| format!("start {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let tail: Vec<&str> = said.lines().rev().take(40).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        bail!(
            "{}\nrun it again: {} FILE, with the file named above",
            tail.join("\n"),
            program.display()
        );
    }
    stats(&said).with_context(|| format!("{} did not say how it went", program.display()))
}

/// Parses `#12345 DONE cov: 812 ft: 2210 corp: 310/45Kb ..` and the `stat::` lines.
fn stats(said: &str) -> Option<Stats> {
    let done = said
        .lines()
        .rfind(|line| line.contains("cov: ") && line.contains("ft: "))?;
    let after = |line: &str, key: &str| -> Option<u64> {
        let rest = line.split(key).nth(1)?.trim_start();
        rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())]
            .parse()
            .ok()
    };
    let stat = |key: &str| said.lines().find_map(|line| after(line, key));
    Some(Stats {
        executions: stat("stat::number_of_executed_units:")?,
        edges: after(done, "cov: ")?,
        features: after(done, "ft: ")?,
        corpus: after(done, "corp: ")?,
        memory_mib: stat("stat::peak_rss_mb:")?,
    })
}
