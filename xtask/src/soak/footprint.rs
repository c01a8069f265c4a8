//! Resource use of a process, sampled repeatedly: a linear fit of its memory, and values that must not change.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::e2e::check::Checks;
use crate::faults::tap::Held;

/// Allowed memory growth in KiB over the judged two thirds of a run. A leak of 20 bytes per message exceeds it within an hour.
const MOST_KIB: f64 = 4_096.0;

/// One sample.
#[derive(Clone, Copy, Debug)]
struct Look {
    minutes: f64,
    held: Held,
    /// Bytes of the kernel that its maps take.
    maps: u64,
}

/// All samples of one process.
#[derive(Debug)]
pub(super) struct Footprint {
    pid: u32,
    looks: Vec<Look>,
}

/// Evaluation of the samples after the first third of the run, during which tables fill.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged {
    first: Look,
    last: Look,
    /// Slope in KiB per minute by least squares, and twice its standard error.
    slope: f64,
    doubt: f64,
}

impl Footprint {
    pub(super) fn of(pid: u32) -> Self {
        Self { pid, looks: Vec::new() }
    }

    pub(super) fn look(&mut self, at: Duration) -> Result<()> {
        self.looks.push(Look {
            minutes: at.as_secs_f64() / 60.0,
            held: Held::by(self.pid)?,
            maps: kernel_maps(self.pid)?,
        });
        Ok(())
    }

    /// Checks the measurements against the promised limits.
    pub(super) fn judge(&self, name: &str, checks: &mut Checks) -> Result<Judged> {
        let judged = &self.looks[self.looks.len() / 3..];
        let ([first, ..], [.., last]) = (judged, judged) else {
            anyhow::bail!("{name} was never looked at")
        };
        let (slope, doubt) = slope(judged);
        let judged = Judged {
            first: *first,
            last: *last,
            slope,
            doubt,
        };
        let grown = (slope - doubt) * (last.minutes - first.minutes);
        checks.equal(&format!("{name} grows ({judged})"), &true, &(grown < MOST_KIB));
        // Open files fluctuate during the scan of `/proc`: compare the minimum at the end with the maximum at the beginning.
        let (begin, end) = self.looks.split_at(self.looks.len() / 2);
        let most = |of: fn(&Look) -> u64| begin.iter().map(of).max().unwrap_or(0);
        let least = |of: fn(&Look) -> u64| end.iter().map(of).min().unwrap_or(0);
        let mut bounded = |what: &str, slack: u64, of: fn(&Look) -> u64| {
            let (before, after) = (most(of), least(of));
            let told = format!("{what} of {name} do not grow (from {before} to {after})");
            checks.equal(&told, &true, &(after <= before + slack));
        };
        bounded("open files", 0, |look| look.held.files as u64);
        bounded("threads", 0, |look| look.held.threads);
        bounded("the kernel's maps", 0, |look| look.maps);
        bounded("mappings", 20, |look| look.held.mappings as u64);
        Ok(judged)
    }
}

/// Least squares fit: KiB per minute, and twice the slope's standard error.
fn slope(looks: &[Look]) -> (f64, f64) {
    let count = looks.len() as f64;
    let memory = |look: &Look| look.held.memory as f64;
    let mean = |of: &dyn Fn(&Look) -> f64| looks.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(&|look| look.minutes), mean(&memory));
    let spread: f64 = looks.iter().map(|look| (look.minutes - x).powi(2)).sum();
    let together: f64 = looks.iter().map(|look| (look.minutes - x) * (memory(look) - y)).sum();
    let slope = together / spread;
    let off = |look: &Look| memory(look) - y - slope * (look.minutes - x);
    let left: f64 = looks.iter().map(|look| off(look).powi(2)).sum();
    (slope, 2.0 * (left / (count - 2.0) / spread).sqrt())
}

/// Memory of the eBPF maps that a process holds open, as counted by the kernel.
fn kernel_maps(pid: u32) -> Result<u64> {
    let folder = Path::new("/proc").join(pid.to_string()).join("fdinfo");
    let mut sum = 0;
    for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
        // A descriptor may be closed during the scan.
        let text = fs::read_to_string(entry?.path()).unwrap_or_default();
        if text.contains("map_id:") {
            let taken = text.lines().find_map(|line| line.strip_prefix("memlock:"));
            sum += taken.and_then(|bytes| bytes.trim().parse::<u64>().ok()).unwrap_or(0);
        }
    }
    Ok(sum)
}

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            first,
            last,
            slope,
            doubt,
        } = self;
        write!(
            f,
            "{:.1} to {:.1} MiB | {slope:+.1} ± {doubt:.1} KiB | {}, {}, {}, {:.1} MiB",
            first.held.memory as f64 / 1024.0,
            last.held.memory as f64 / 1024.0,
            last.held.files,
            last.held.threads,
            last.held.mappings,
            last.maps as f64 / f64::from(1 << 20),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_slope_and_noise_has_doubt() {
        let held = |memory| Held {
            memory,
            files: 1,
            threads: 1,
            mappings: 1,
        };
        let looks = |of: &dyn Fn(u64) -> u64| -> Vec<Look> {
            let look = |n: u64| Look {
                minutes: n as f64 / 2.0,
                held: held(of(n)),
                maps: 0,
            };
            (0..40).map(look).collect()
        };
        let (rises, sure) = slope(&looks(&|n| 1_000 + 3 * n));
        assert!((rises - 6.0).abs() < 1e-9 && sure < 1e-6, "{rises} {sure}");
        let (flat, unsure) = slope(&looks(&|n| 1_000 + 50 * (n % 2)));
        assert!(flat.abs() < unsure, "{flat} {unsure}");
    }
}
