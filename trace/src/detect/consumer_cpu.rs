//! A CPU-bound consumer: its thread computes all the time while frames wait.

use std::fmt::Write as _;

use super::consumer::{late, rounded, worst_of_each_line};
use super::thresholds::CPU_BOUND_SHARE;
use super::{DetectContext, Verdict, advice};
use crate::ledger::StackFunction;
use crate::words::{bytes, duration, percent};

/// With fewer stack samples of a running thread, a share is not significant.
const SAMPLES: u64 = 20;

/// Whether the function writes parts of an HTTP response: uvicorn's `RequestResponseCycle.send`, of either parser.
fn writes_response(function: &StackFunction) -> bool {
    function.file.contains("uvicorn/protocols/http/") && function.function.rsplit('.').next() == Some("send")
}

/// Share of stack samples of a role's running threads that were writing HTTP responses while frames piled up; `None` with too few samples.
fn writes_share(context: &DetectContext<'_>, role: &str) -> Option<f64> {
    let role = context.ledger.stacks().iter().find(|stacks| *stacks.role == *role)?;
    let running = role.growing.running;
    (running >= SAMPLES).then(|| {
        let functions = role.functions();
        let writing = functions.iter().filter(|f| writes_response(f));
        writing.map(|f| f.growing.total).sum::<u64>() as f64 / running as f64
    })
}

pub(super) fn check(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    let min = CPU_BOUND_SHARE;
    let on_cpu = |one: &super::consumer::Late<'_>| Some(one.spent.share(one.spent.on_ns));
    for (one, share) in worst_of_each_line(late(context), min, on_cpu) {
        let mut summary =
            format!("{} is on CPU {} of the time {}", one.describe_thread(), percent(share), one.meanwhile());
        let recv_wait = one.group.recv_wait.quantile(0.5);
        if let Some(ns) = recv_wait {
            let _ = write!(summary, "; it receives a frame {} after asking for one (median)", duration(ns));
        }
        let kernel = one.group.kernel.max_between(one.from, context.now);
        match kernel {
            Some(0) => summary.push_str("; none of them are in the kernel: all wait in libzmq's own queue"),
            Some(max) => {
                let _ = write!(summary, "; up to {} of them are in the kernel", bytes(max));
            }
            None => {}
        }
        let role = &one.thread.role;
        let writes = writes_share(context, role);
        if let Some(share) = writes.filter(|share| *share >= 0.1) {
            let _ = write!(summary, "; {} of its stack samples were writing HTTP responses", percent(share));
        }
        let engine = context.facts();
        let advice = match writes {
            Some(share) if share >= 0.5 => advice::own_writes(engine, role),
            _ => advice::own_work(engine, role),
        };
        let processing = one.spent.share(one.spent.processing_ns);
        found.push(
            one.verdict(context, summary)
                .with("process_cpus", rounded(one.process_cpus(context)))
                .with("processing", rounded(processing))
                .with_known("http_writes", writes.map(rounded))
                .with_known("recv_wait_p50_ns", recv_wait)
                .advice(advice),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::scene::{MS, SECOND, Scene};
    use super::*;

    #[test]
    fn only_a_thread_that_computes_while_frames_wait_is_cpu_bound() {
        let mut scene = Scene::skip_path();
        for n in 0..20 {
            scene.send(n * 100 * MS, &[]);
            scene.receive_by(n * 100 * MS + MS, n, 7);
            scene.cpu((n + 1) * 100 * MS, 7, [95, 3, 0]);
        }
        assert!(scene.check(check, 2 * SECOND).is_empty(), "no frame is queued");
        for n in 20..60 {
            scene.send(n * 100 * MS, &[]);
            scene.cpu((n + 1) * 100 * MS, 7, [95, 3, 0]);
            scene.kernel((n + 1) * 100 * MS, 0);
        }
        let found = scene.check(check, 6 * SECOND);
        assert_eq!(found[0].evidence["on_cpu"], 0.95);
        assert_eq!(found[0].evidence["waiting_frames"], 40);
        assert_eq!(&*found[0].hop, "scheduler->tokenizer");
        assert!(found[0].summary.contains("libzmq's own queue"), "{}", found[0].summary);
    }

    #[test]
    fn the_share_of_http_writes_is_reported_where_stacks_show_it() {
        let late_with = |writing: u32, file| {
            let mut scene = Scene::skip_path();
            for n in 1..60 {
                scene.send(n * 100 * MS, &[]);
                scene.cpu(n * 100 * MS, 7, [97, 3, 0]);
                if n == 40 {
                    scene.receive_by(n * 100 * MS, 0, 7);
                }
                if n % 5 == 0 {
                    scene.stack(n * 100 * MS, ("RequestResponseCycle.send", file), writing);
                    scene.stack(
                        n * 100 * MS,
                        ("TokenizerManager._handle", "engine/managers/tokenizer_manager.py"),
                        50 - writing,
                    );
                }
            }
            scene.check(check, 6 * SECOND).remove(0)
        };
        let uvicorn = "uvicorn/protocols/http/httptools_impl.py";
        let found = late_with(30, uvicorn);
        assert_eq!(found.evidence["http_writes"], 0.6);
        assert!(found.summary.contains("60 % of its stack samples were writing HTTP responses"), "{}", found.summary);
        let advice = found.advice.expect("every verdict has advice");
        assert!(advice.contains("writing HTTP responses"), "{advice}");
        let found = late_with(10, uvicorn);
        assert_eq!(found.evidence["http_writes"], 0.2);
        assert!(!found.advice.expect("advice").contains("HTTP"));
        let found = late_with(30, "another/client.py");
        assert_eq!(found.evidence["http_writes"], 0.0);
        assert!(!found.summary.contains("HTTP"), "{}", found.summary);
    }

    #[test]
    fn a_consumer_without_observed_receives_is_judged_only_if_unique() {
        let mut scene = Scene::skip_path();
        for n in 1..40 {
            scene.send(n * 100 * MS, &[]);
            scene.cpu(n * 100 * MS, 7, [97, 3, 0]);
            scene.cpu(n * 100 * MS, 9, [1, 0, 0]);
        }
        let found = scene.check(check, 4 * SECOND);
        assert_eq!((found.len(), &found[0].evidence["tid"]), (1, &7.into()));
    }

    #[test]
    fn a_sleeping_or_starved_thread_is_not_cpu_bound() {
        for shares in [[10, 5, 0], [40, 55, 0]] {
            let scene = Scene::late_consumer(shares);
            assert!(scene.check(check, 4 * SECOND).is_empty());
        }
    }
}
