//! How the watched processes' threads spent the run, for the report's `cpu` lines.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use probe_user::cpu::Sampler;
use trace::report::CpuLine;

/// Threads looked at in one process.
const MOST_THREADS: usize = 256;
/// Threads below this share of a core are left out of the report, but for the main thread.
const WORTH_A_LINE: f64 = 0.005;
const EVERY: Duration = Duration::from_millis(100);

/// Samplers of all watched processes, and what they have seen so far.
#[derive(Default)]
pub(super) struct CpuWatch {
    processes: Vec<Watched>,
    next: Option<Instant>,
}

struct Watched {
    role: &'static str,
    pid: u32,
    sampler: Sampler,
    interval_ns: u64,
    throttled_ns: Option<u64>,
    threads: BTreeMap<u32, Sum>,
}

#[derive(Default)]
struct Sum {
    on_ns: u64,
    wait_ns: Option<u64>,
}

impl CpuWatch {
    /// Begins to watch a process; says why when that is not possible.
    pub(super) fn add(&mut self, pid: u32, role: &'static str) -> Result<(), String> {
        let sampler = Sampler::new(pid, MOST_THREADS).map_err(|error| error.to_string())?;
        let watched = Watched {
            role,
            pid,
            sampler,
            interval_ns: 0,
            throttled_ns: None,
            threads: BTreeMap::new(),
        };
        self.processes.push(watched);
        Ok(())
    }

    /// Samples when it is time to.
    pub(super) fn poll(&mut self) {
        let now = Instant::now();
        if self.next.is_some_and(|next| now < next) {
            return;
        }
        self.next = Some(now + EVERY);
        for process in &mut self.processes {
            process.sample();
        }
    }

    /// One line a thread that mattered, main threads first.
    pub(super) fn lines(&self) -> Vec<CpuLine> {
        self.processes.iter().flat_map(Watched::lines).collect()
    }
}

impl Watched {
    fn sample(&mut self) {
        // A process that has ended keeps what was seen of it.
        let Ok(sample) = self.sampler.sample() else { return };
        self.interval_ns += sample.interval_ns;
        if let Some(throttle) = &sample.throttle {
            *self.throttled_ns.get_or_insert(0) += throttle.throttled_ns;
        }
        for thread in &sample.threads {
            let sum = self.threads.entry(thread.tid).or_default();
            sum.on_ns += thread.on_ns;
            if let Some(wait) = thread.wait_ns {
                *sum.wait_ns.get_or_insert(0) += wait;
            }
        }
    }

    fn lines(&self) -> impl Iterator<Item = CpuLine> + '_ {
        let share = |ns: u64| ns as f64 / self.interval_ns.max(1) as f64;
        self.threads.iter().filter_map(move |(&tid, sum)| {
            let worth = tid == self.pid || share(sum.on_ns) >= WORTH_A_LINE;
            worth.then(|| CpuLine {
                role: self.role.to_owned(),
                pid: self.pid,
                tid,
                on_cpu: Some(share(sum.on_ns)),
                run_wait: sum.wait_ns.map(share),
                throttled: self.throttled_ns.map(share),
            })
        })
    }
}
