//! Threads of a server inside the process that generates tokens: the busiest one is named, because it may delay the others.

use super::{DetectContext, Verdict};
use crate::MonoNs;
use crate::words::percent;

/// Longest time before a check over which the use of threads is compared: samples are kept for little longer.
const WINDOW_NS: u64 = 10_000_000_000;
/// A smaller share of time is not mentioned.
const BUSY: f64 = 0.05;

/// Adds the thread of the server that was busiest in the last `wait_ns` before the check; unchanged if there is no such server.
pub(super) fn with_busiest(mut verdict: Verdict, context: &DetectContext<'_>, wait_ns: u64) -> Verdict {
    let names = context.facts().server_threads();
    let from = MonoNs(context.now.0.saturating_sub(wait_ns.min(WINDOW_NS)));
    let threads = context.ledger.threads().iter();
    let threads = threads.filter(|thread| names.iter().any(|begin| thread.name.starts_with(begin)));
    let busiest = threads
        .filter_map(|thread| Some((&*thread.name, thread.between(from, context.now)?)))
        .max_by_key(|(_, spent)| spent.on_ns.saturating_add(spent.wait_ns.unwrap_or(0)));
    let Some((name, spent)) = busiest else {
        return verdict;
    };
    let running = spent.share(spent.on_ns);
    let waiting = spent.wait_ns.map(|ns| spent.share(ns));
    let waited = waiting.filter(|share| *share >= BUSY);
    let use_of_time = match waited {
        None if running < BUSY => format!("no thread of the server ran more than {} of that time", percent(BUSY)),
        None => format!("the server's busiest thread, {name}, ran {} of that time", percent(running)),
        Some(waited) => format!(
            "the server's busiest thread, {name}, ran {} of that time and waited for a CPU {}",
            percent(running),
            percent(waited)
        ),
    };
    verdict.summary.push_str("; ");
    verdict.summary.push_str(&use_of_time);
    verdict.with("busiest_thread", name).with("busiest_thread_running", running).with("busiest_thread_waiting", waiting)
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::super::scene::{SECOND, Scene};
    use super::*;
    use crate::engine::{Engines, Facts};
    use crate::event::{CpuSample, ThreadPart, What};
    use crate::id::ThreadId;
    use crate::ledger::Limits;

    #[derive(Debug)]
    struct Threaded;

    impl Facts for Threaded {
        fn name(&self) -> &'static str {
            "threaded"
        }

        fn title(&self) -> &'static str {
            "Threaded"
        }

        fn server_threads(&self) -> &'static [&'static str] {
            &["taker", "shard-"]
        }
    }

    /// The finding about a wait of 3 s, with these shares of it on a CPU and waiting for one, in percent.
    fn found(threads: &[(&str, u64, u64)]) -> Verdict {
        let mut scene = Scene::empty(Engines(&[&Threaded]), Limits::default());
        for second in 1..=3 {
            for (tid, &(name, on, wait)) in (1..).zip(threads) {
                let sample = CpuSample {
                    name,
                    part: ThreadPart::Other,
                    wait_ns: Some(wait * SECOND / 100),
                    ..CpuSample::new(ThreadId { pid: 1, tid }, "sender", SECOND, on * SECOND / 100)
                };
                scene.apply(second * SECOND, What::Cpu(sample));
            }
        }
        let context = DetectContext::at(&scene.ledger, MonoNs(3 * SECOND));
        with_busiest(Verdict::new(Severity::Warning, "late".to_owned()), &context, 3 * SECOND)
    }

    #[test]
    fn the_busiest_thread_of_the_server_is_named() {
        let verdict = found(&[("taker", 2, 0), ("shard-0", 10, 1), ("shard-1", 20, 70), ("main", 99, 0)]);
        assert_eq!(
            verdict.summary,
            "late; the server's busiest thread, shard-1, ran 20 % of that time and waited for a CPU 70 %"
        );
        assert_eq!(verdict.evidence["busiest_thread"], serde_json::Value::from("shard-1"));
        let held = found(&[("taker", 2, 0), ("shard-0", 1, 1)]);
        assert_eq!(held.summary, "late; no thread of the server ran more than 5 % of that time");
        assert_eq!(found(&[("main", 99, 0)]).summary, "late");
    }
}
