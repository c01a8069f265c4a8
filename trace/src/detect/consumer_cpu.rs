//! A CPU-bound consumer: its thread computes all the time while frames wait.

use std::fmt::Write as _;

use super::consumer::{late, rounded, worst_of_each_line};
use super::{Detector, Look, Verdict, advice};
use crate::ledger::HotFunction;
use crate::words::{bytes, duration, percent};

/// With fewer stack samples of a running thread, a share is not significant.
const SAMPLES: u64 = 20;

pub(super) struct ConsumerCpuBound;

/// Whether the function writes parts of an HTTP response: uvicorn's `RequestResponseCycle.send`, of either parser.
fn writes_response(function: &HotFunction) -> bool {
    function.file.contains("uvicorn/protocols/http/") && function.function.rsplit('.').next() == Some("send")
}

/// Share of stack samples of a role's running threads that were writing HTTP responses while frames piled up; `None` with too few samples.
fn writes_share(look: &Look<'_>, role: &str) -> Option<f64> {
    let role = look.ledger.hot().iter().find(|hot| *hot.role == *role)?;
    let running = role.growing.running;
    (running >= SAMPLES).then(|| {
        let functions = role.functions();
        let writing = functions.iter().filter(|f| writes_response(f));
        writing.map(|f| f.growing.total).sum::<u64>() as f64 / running as f64
    })
}

impl Detector for ConsumerCpuBound {
    fn kind(&self) -> &'static str {
        "consumer-cpu-bound"
    }

    fn comes_and_goes(&self) -> bool {
        true
    }

    fn check(&self, look: &Look<'_>, found: &mut Vec<Verdict>) {
        let least = look.thresholds.consumer_busy_share;
        let on_cpu = |one: &super::consumer::Late<'_>| Some(one.spent.share(one.spent.on_ns));
        for (one, share) in worst_of_each_line(late(look), least, on_cpu) {
            let mut summary = format!(
                "{} is on a CPU {} of the time {}",
                one.who(),
                percent(share),
                one.meanwhile()
            );
            let recv_wait = one.group.recv_wait.quantile(0.5);
            if let Some(ns) = recv_wait {
                let _ = write!(summary, "; it gets a frame {} after asking (median)", duration(ns));
            }
            let kernel = one.group.kernel.max_between(one.from, look.now);
            match kernel {
                Some(0) => summary.push_str("; the kernel holds none of them: all wait in libzmq's own queue"),
                Some(most) => {
                    let _ = write!(summary, "; the kernel holds up to {} of them", bytes(most));
                }
                None => {}
            }
            let role = one.thread.role();
            let writes = writes_share(look, role);
            if let Some(share) = writes.filter(|share| *share >= 0.1) {
                let _ = write!(
                    summary,
                    "; {} of its stack samples were writing HTTP responses",
                    percent(share)
                );
            }
            let process = one.process_cpus(look);
            let advice = match writes {
                Some(share) if share >= 0.5 => advice::own_writes(role),
                _ => advice::own_work(role).to_owned(),
            };
            let mut verdict = one
                .verdict(look, summary)
                .with("process_cpus", rounded(process))
                .advice(advice);
            if let Some(share) = writes {
                verdict = verdict.with("http_writes", rounded(share));
            }
            if let Some(ns) = recv_wait {
                verdict = verdict.with("recv_wait_p50_ns", ns);
            }
            let handling = one.spent.share(one.spent.handling_ns);
            found.push(verdict.with("handling", rounded(handling)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::scene::{MS, SECOND, Scene};
    use super::*;

    #[test]
    fn a_thread_that_computes_while_frames_wait_is_bound_and_one_that_keeps_up_is_not() {
        let mut scene = Scene::skip_path();
        for n in 0..20 {
            scene.send(n * 100 * MS, &[]);
            scene.take_by(n * 100 * MS + MS, n, 7);
            scene.cpu((n + 1) * 100 * MS, 7, [95, 3, 0]);
        }
        assert!(scene.check(&ConsumerCpuBound, 2 * SECOND).is_empty(), "nothing waits");
        for n in 20..60 {
            scene.send(n * 100 * MS, &[]);
            scene.cpu((n + 1) * 100 * MS, 7, [95, 3, 0]);
            scene.kernel((n + 1) * 100 * MS, 0);
        }
        let found = scene.check(&ConsumerCpuBound, 6 * SECOND);
        assert_eq!(found[0].evidence["on_cpu"], 0.95);
        assert_eq!(
            (&found[0].evidence["waiting_frames"], &*found[0].hop),
            (&40.into(), "scheduler->tokenizer")
        );
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
                    scene.take_by(n * 100 * MS, 0, 7);
                }
                if n % 5 == 0 {
                    scene.stack(n * 100 * MS, ("RequestResponseCycle.send", file), writing);
                    scene.stack(
                        n * 100 * MS,
                        ("TokenizerManager._handle", "sglang/srt/managers/tokenizer_manager.py"),
                        50 - writing,
                    );
                }
            }
            scene.check(&ConsumerCpuBound, 6 * SECOND).remove(0)
        };
        let uvicorn = "uvicorn/protocols/http/httptools_impl.py";
        let found = late_with(30, uvicorn);
        assert_eq!(found.evidence["http_writes"], 0.6);
        assert!(
            found
                .summary
                .contains("60 % of its stack samples were writing HTTP responses"),
            "{}",
            found.summary
        );
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
    fn a_consumer_that_was_never_seen_to_take_is_judged_where_it_is_the_only_one() {
        let mut scene = Scene::skip_path();
        for n in 1..40 {
            scene.send(n * 100 * MS, &[]);
            scene.cpu(n * 100 * MS, 7, [97, 3, 0]);
            scene.cpu(n * 100 * MS, 9, [1, 0, 0]);
        }
        let found = scene.check(&ConsumerCpuBound, 4 * SECOND);
        assert_eq!((found.len(), &found[0].evidence["tid"]), (1, &7.into()));
    }

    #[test]
    fn a_thread_that_sleeps_or_starves_is_not_bound_by_its_work() {
        for shares in [[10, 5, 0], [40, 55, 0]] {
            let mut scene = Scene::skip_path();
            scene.send(0, &[]);
            scene.take_by(MS, 0, 7);
            for n in 1..40 {
                scene.send(n * 100 * MS, &[]);
                scene.cpu(n * 100 * MS, 7, shares);
            }
            assert!(scene.check(&ConsumerCpuBound, 4 * SECOND).is_empty());
        }
    }
}
