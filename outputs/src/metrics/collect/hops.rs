//! Metrics of hops: traffic, backlog, times, and the time use of receiving threads while frames waited.

use trace::MonoNs;
use trace::detect::attribution::HopReceiver;
use trace::ledger::{Hop, HopGroup, Ledger, QueuedLoad, TimeUse};
use trace::stats::Distribution;

use crate::metrics::definition as metric;
use crate::metrics::family::Families;
use crate::metrics::{Definition, Histogram, MAX_HOPS, Value};

/// Adds the hops, up to [`MAX_HOPS`] groups of hops with the same name.
pub(super) fn add_hop_groups(families: &mut Families, ledger: &Ledger) {
    let mut added = 0;
    let mut left_out = 0;
    for (index, group) in ledger.groups().iter().enumerate() {
        let members: Vec<&Hop> = ledger.hops_of_group(index).collect();
        // Renaming a hop can leave its old group without hops.
        if members.is_empty() {
            continue;
        }
        // Each name is a label value, whose number must be bounded.
        if added == MAX_HOPS {
            left_out += 1;
            continue;
        }
        add_hop_group(families, group, &members, ledger.now());
        add_cpu_shares_of_hop_receiver(families, ledger, &group.name, &members);
        added += 1;
    }
    families.put_left_out("hop", left_out);
}

/// Sum of a count of these hops.
fn sum_over_hops(hops: &[&Hop], count_of: fn(&Hop) -> u64) -> u64 {
    hops.iter().map(|hop| count_of(hop)).sum()
}

/// Adds the metrics of a group of hops: all hops with one name, where a hop is a channel from one process to another. Counts are sums over
/// its `members`, and times are kept for the whole group.
fn add_hop_group(families: &mut Families, group: &HopGroup, members: &[&Hop], now: MonoNs) {
    let label = [group.name.as_str()];
    add_hop_counts(families, group, members);
    let observes_sends = members.iter().any(|hop| hop.capabilities().sent);
    // The backlog is a current value, so receives must be observed now (`shows`), and not only earlier in the run (`capabilities`).
    let observes_receives_now = members.iter().any(|hop| hop.shows.received);
    if observes_sends && observes_receives_now {
        add_backlog(families, group, members, now);
    }
    families.put_int(&metric::HOP_KERNEL_RECEIVE, label, group.kernel.bytes);
    families.put_int(&metric::HOP_KERNEL_SEND, label, group.kernel.send_bytes);
    add_hop_distributions(families, group);
}

/// Adds the numbers of frames, chunks and bytes of a group of hops. Leaves out a number of frames that no hop of the group can observe.
fn add_hop_counts(families: &mut Families, group: &HopGroup, members: &[&Hop]) {
    let label = [group.name.as_str()];
    if members.iter().any(|hop| hop.capabilities().sent) {
        families.put_int(&metric::HOP_FRAMES_SENT, label, sum_over_hops(members, |hop| hop.counts.frames_sent));
    }
    if members.iter().any(|hop| hop.capabilities().forwarded) {
        let frames = sum_over_hops(members, |hop| hop.counts.frames_forwarded);
        families.put_int(&metric::HOP_FRAMES_FORWARDED, label, frames);
    }
    if members.iter().any(|hop| hop.capabilities().received) {
        families.put_int(&metric::HOP_FRAMES_RECEIVED, label, sum_over_hops(members, |hop| hop.counts.frames_received));
    }
    families.put_int(&metric::HOP_FRAMES_UNDECODED, label, sum_over_hops(members, |hop| hop.counts.undecoded));
    // Requests have no chunks.
    if !group.carries_requests {
        families.put_int(&metric::HOP_CHUNKS, label, sum_over_hops(members, |hop| hop.counts.chunks));
    }
    families.put_int(&metric::HOP_BYTES, label, sum_over_hops(members, |hop| hop.counts.bytes));
}

/// Adds the distributions of a group of hops: the times of its frames, and the frames of each wakeup of the receiver. Leaves out those
/// without a value.
fn add_hop_distributions(families: &mut Families, group: &HopGroup) {
    let label = [group.name.as_str()];
    let times_by_metric: [(&'static Definition, &Distribution); 5] = [
        (&metric::HOP_QUEUE_WAIT, &group.queue_wait),
        (&metric::HOP_SEND_WAIT, group.send_wait.whole()),
        (&metric::HOP_RELAY, &group.relay),
        (&metric::HOP_PROCESSING, &group.processing),
        (&metric::HOP_RECV_WAIT, &group.recv_wait),
    ];
    for (definition, times) in times_by_metric {
        if times.count() > 0 {
            families.put_histogram(definition, label, Histogram::of_durations(times));
        }
    }
    if group.wakeups.count() > 0 {
        families.put_histogram(&metric::HOP_WAKEUP, label, Histogram::of_counts(&group.wakeups));
    }
}

/// Adds how the receiving thread of a group spent the time while frames waited.
fn add_cpu_shares_of_hop_receiver(families: &mut Families, ledger: &Ledger, hop_name: &str, members: &[&Hop]) {
    // Only the thread's time is used, which needs neither the busy share nor the length of the window.
    let busy_share = None;
    let window_ns = 0;
    let spent = HopReceiver::of_hops(ledger, members, busy_share, window_ns).spent;
    // Without a sample there is no share.
    if spent.interval_ns == 0 {
        return;
    }
    for (state, ns) in ns_by_cpu_state(&spent) {
        if let Some(ns) = ns {
            families.put_value(&metric::HOP_RECEIVER, [hop_name, state], Value::Float(spent.share(ns)));
        }
    }
}

/// Adds the frames of a group that were sent and not yet received.
fn add_backlog(families: &mut Families, group: &HopGroup, members: &[&Hop], now: MonoNs) {
    let label = [group.name.as_str()];
    families.put_int(&metric::HOP_BACKLOG_FRAMES, label, group.backlog);
    // If the load of one hop is unknown, so is the sum.
    let loads: Option<Vec<QueuedLoad>> = members.iter().map(|hop| hop.queued_load()).collect();
    if let Some(loads) = loads {
        if !group.carries_requests {
            families.put_int(&metric::HOP_BACKLOG_CHUNKS, label, loads.iter().map(|load| load.chunks).sum::<u64>());
        }
        families.put_int(&metric::HOP_BACKLOG_BYTES, label, loads.iter().map(|load| load.bytes).sum::<u64>());
    }
    families.put_int(&metric::HOP_BACKLOG_MAX, label, group.backlog_max);
    let oldest = members.iter().filter_map(|hop| hop.oldest_waiting()).min();
    families.put_ns_as_seconds(&metric::HOP_OLDEST, label, oldest.map_or(0, |since| now.since(since)));
}

/// Names of the thread states, each with the time spent in it; `None` if not observable.
pub(super) fn ns_by_cpu_state(spent: &TimeUse) -> [(&'static str, Option<u64>); 4] {
    [
        ("on_cpu", Some(spent.on_ns)),
        ("run_wait", spent.starved_ns()),
        ("throttled", spent.throttled_ns()),
        ("asleep", spent.blocked_ns()),
    ]
}
