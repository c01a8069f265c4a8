//! libzmq I/O threads without a CPU: frames wait on their way into the inbox although the consumer has time for them.

use super::consumer::{Late, SUSPENDED, late, rounded};
use super::thresholds::STARVED_SHARE;
use super::{DetectContext, Verdict};
use crate::event::ThreadPart;
use crate::ledger::{Thread, TimeUse};
use crate::words::percent;

pub(super) fn check(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
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
        found.push(
            one.verdict(context, summary)
                .with("io_pid", id.pid)
                .with("io_tid", id.tid)
                .with("io_on_cpu", rounded(spent.share(spent.on_ns)))
                .with("io_run_wait", rounded(share))
                .advice("other threads have its CPU: do not pin the process to fewer CPUs than it has busy threads"),
        );
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

#[cfg(test)]
mod tests {
    use super::super::scene::{MS, SECOND, Scene};
    use super::*;

    #[test]
    fn a_starved_io_thread_is_reported_when_the_consumer_sleeps() {
        let late_with = |consumer, io| {
            let mut scene = Scene::skip_path();
            scene.send(0, &[]);
            scene.receive_by(MS, 0, 7);
            for n in 1..40 {
                scene.send(n * 100 * MS, &[]);
                scene.cpu(n * 100 * MS, 7, consumer);
                scene.cpu(n * 100 * MS, 9, io);
            }
            scene.check(check, 4 * SECOND)
        };
        let found = late_with([10, 10, 0], [5, 90, 0]);
        assert_eq!(found[0].evidence["io_tid"], 9);
        assert_eq!(found[0].evidence["io_run_wait"], 0.9);
        assert!(late_with([95, 3, 0], [5, 90, 0]).is_empty(), "the consumer is busy itself");
        assert!(late_with([10, 10, 0], [5, 2, 0]).is_empty());
    }
}
