//! libzmq I/O threads without a CPU: frames wait on their way into the inbox although the consumer has time for them.

use super::consumer::{Late, SUSPENDED, late, rounded};
use super::thresholds::STARVED_SHARE;
use super::{DetectContext, Verdicts};
use crate::event::ThreadPart;
use crate::ledger::{Thread, TimeUse};
use crate::words::percent;

pub(super) fn check(context: &DetectContext<'_>, out: &mut Verdicts) {
    for one in late(context) {
        // A consumer that never sleeps is itself the cause.
        let asleep = one.spent.blocked_ns().map(|ns| one.spent.share(ns));
        let suspended = one.spent.share(one.away.sum(&SUSPENDED));
        if asleep.is_none_or(|share| share - suspended < STARVED_SHARE) {
            continue;
        }
        let Some((thread, spent, share)) = starved(context, &one).filter(|(.., share)| *share >= STARVED_SHARE) else {
            continue;
        };
        let id = thread.id;
        let summary = format!(
            "libzmq's I/O thread {} of the {} ({}/{}) waits for a CPU {} of the time {}, and the consumer sleeps {}",
            thread.name,
            thread.role,
            id.pid,
            id.tid,
            percent(share),
            one.meanwhile(),
            asleep.map_or_else(String::new, percent),
        );
        one.report(context, out, summary)
            .with("io_pid", id.pid)
            .with("io_tid", id.tid)
            .with("io_on_cpu", rounded(spent.share(spent.on_ns)))
            .with("io_run_wait", rounded(share))
            .advice("other threads have its CPU: do not pin the process to fewer CPUs than it has busy threads");
    }
}

/// The I/O thread at either end of the line that waits most for a CPU.
pub(super) fn starved<'a>(context: &DetectContext<'a>, one: &Late<'a>) -> Option<(&'a Thread, TimeUse, f64)> {
    let sender = &*one.group.ends.from;
    let is_endpoint = |t: &&Thread| t.id.pid == one.thread.id.pid || *t.role == *sender;
    let io = context.ledger.threads().iter().filter(|t| t.part == Some(ThreadPart::Io));
    io.filter(is_endpoint)
        .filter_map(|thread| {
            let spent = thread.between(one.from, context.now)?;
            Some((thread, spent, spent.share(spent.starved_ns()?)))
        })
        .max_by(|a, b| a.2.total_cmp(&b.2))
}
