//! A CPU-bound consumer: its thread computes all the time while frames wait.

use std::fmt::Write as _;

use super::consumer::{Late, rounded, worst_of_each_line};
use super::thresholds::CPU_BOUND_SHARE;
use super::{DetectContext, Verdicts, advice};
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

pub(super) fn check(context: &DetectContext<'_>, out: &mut Verdicts) {
    let on_cpu = |one: &Late<'_>| Some(one.spent.share(one.spent.on_ns));
    for (one, share) in worst_of_each_line(context, CPU_BOUND_SHARE, on_cpu) {
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
        one.report(context, out, summary)
            .with("process_cpus", rounded(one.process_cpus(context)))
            .with("processing", rounded(processing))
            .with_known("http_writes", writes.map(rounded))
            .with_known("recv_wait_p50_ns", recv_wait)
            .advice(advice);
    }
}
