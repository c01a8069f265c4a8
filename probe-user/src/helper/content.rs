//! What a request changes in the programs' tables, and what others read from them, as numbers of fixed size.

use probe_ebpf::egress::Serves;
use probe_ebpf::{Capture, Thread};

use crate::programs::{LossCounts, TableChange, ThreadEntry};

// Operations.
const WATCH: u32 = 16;
const ENTER_TARGET: u32 = 17;
const REMOVE_TARGET: u32 = 18;
const SERVE: u32 = 19;
const ENTER_ZMTP: u32 = 20;
const REMOVE_ZMTP: u32 = 21;
const IGNORE_STREAM: u32 = 22;
const IGNORE_TLS: u32 = 23;
const REMOVE_THREADS: u32 = 24;
const ENTER_LISTENER: u32 = 25;
const REMOVE_LISTENER: u32 = 26;

/// Operation, target, and up to three numbers.
pub(super) type ChangeNumbers = [u32; 5];

fn low_half(number: u64) -> u32 {
    number as u32
}

fn high_half(number: u64) -> u32 {
    (number >> 32) as u32
}

/// Encodes a change of the tables for the helper.
pub(super) fn change_to_numbers(change: TableChange) -> ChangeNumbers {
    match change {
        TableChange::Watch { target, capture, counts_sends } => {
            [WATCH, target, capture.sent, capture.received, counts_sends.into()]
        }
        TableChange::EnterTarget { target, pid } => [ENTER_TARGET, target, pid, 0, 0],
        TableChange::RemoveTarget { pid } => [REMOVE_TARGET, 0, pid, 0, 0],
        TableChange::Serve { target, serves } => [SERVE, target, serves.written, serves.read, serves.callers],
        TableChange::EnterListener { target, namespace, port } => [ENTER_LISTENER, target, namespace, port.into(), 0],
        TableChange::RemoveListener { namespace, port } => [REMOVE_LISTENER, 0, namespace, port.into(), 0],
        TableChange::EnterZmtp { target, inode } => [ENTER_ZMTP, target, low_half(inode), high_half(inode), 0],
        TableChange::RemoveZmtp { inode } => [REMOVE_ZMTP, 0, low_half(inode), high_half(inode), 0],
        TableChange::IgnoreStream { socket } => [IGNORE_STREAM, 0, low_half(socket), high_half(socket), 0],
        TableChange::IgnoreTls { connection } => [IGNORE_TLS, 0, low_half(connection), high_half(connection), 0],
        TableChange::RemoveThreads { target } => [REMOVE_THREADS, target, 0, 0, 0],
    }
}

/// The change with these numbers; `None` if there is none.
pub(super) fn parse_change(numbers: ChangeNumbers) -> Option<TableChange> {
    // Inodes and addresses have 64 bits and take two numbers.
    let [_, _, id_low, id_high, _] = numbers;
    let id = u64::from(id_low) | u64::from(id_high) << 32;
    Some(match numbers {
        [WATCH, target, sent, received, sends @ 0..=1] => {
            TableChange::Watch { target, capture: Capture { sent, received }, counts_sends: sends == 1 }
        }
        [ENTER_TARGET, target, pid, 0, 0] => TableChange::EnterTarget { target, pid },
        [REMOVE_TARGET, 0, pid, 0, 0] => TableChange::RemoveTarget { pid },
        [SERVE, target, written, read, callers] => {
            TableChange::Serve { target, serves: Serves { written, read, callers } }
        }
        [ENTER_LISTENER, target, namespace, port, 0] => {
            TableChange::EnterListener { target, namespace, port: port.try_into().ok()? }
        }
        [REMOVE_LISTENER, 0, namespace, port, 0] => {
            TableChange::RemoveListener { namespace, port: port.try_into().ok()? }
        }
        [ENTER_ZMTP, target, _, _, 0] => TableChange::EnterZmtp { target, inode: id },
        [REMOVE_ZMTP, 0, _, _, 0] => TableChange::RemoveZmtp { inode: id },
        [IGNORE_STREAM, 0, _, _, 0] => TableChange::IgnoreStream { socket: id },
        [IGNORE_TLS, 0, _, _, 0] => TableChange::IgnoreTls { connection: id },
        [REMOVE_THREADS, target, 0, 0, 0] => TableChange::RemoveThreads { target },
        _ => return None,
    })
}

/// Encodes the counters of lost records.
pub(crate) fn losses_to_bytes(counts: &LossCounts) -> Vec<u8> {
    counts.iter().flat_map(|count| count.to_le_bytes()).collect()
}

/// Parses the counters of lost records; `None` if there are not as many as this program has.
pub(super) fn parse_losses(bytes: &[u8]) -> Option<LossCounts> {
    let mut counts = LossCounts::default();
    if bytes.len() != size_of::<LossCounts>() {
        return None;
    }
    for (count, from) in counts.iter_mut().zip(bytes.chunks_exact(8)) {
        *count = u64::from_le_bytes(from.try_into().ok()?);
    }
    Some(counts)
}

/// Numbers of a thread's entry, of 64 bits each.
const THREAD_NUMBERS: usize = 13;
/// Bytes of a thread's entry.
const THREAD_BYTES: usize = THREAD_NUMBERS * 8;

/// Encodes threads as [`THREAD_NUMBERS`] numbers each.
pub(crate) fn threads_to_bytes(threads: &[ThreadEntry]) -> Vec<u8> {
    let numbers = threads.iter().flat_map(|ThreadEntry { key, thread }| {
        [
            u64::from(*key) | u64::from(thread.target) << 32,
            u64::from(thread.tid) | u64::from(thread.state) << 32,
            thread.polling.into(),
            thread.since_ns,
            thread.on_ns,
            thread.wait_ns,
            thread.blocked_ns,
            thread.switches,
            thread.preempted,
            thread.epolls,
            thread.waits,
            thread.polled_ns,
            thread.poll_ns,
        ]
    });
    numbers.flat_map(u64::to_le_bytes).collect()
}

/// Decodes threads. Bytes behind the last complete entry are ignored.
pub(super) fn parse_threads(bytes: &[u8]) -> Vec<ThreadEntry> {
    bytes.chunks_exact(THREAD_BYTES).filter_map(parse_thread).collect()
}

/// Decodes a thread from as many numbers as [`threads_to_bytes`] writes.
fn parse_thread(bytes: &[u8]) -> Option<ThreadEntry> {
    let mut numbers = [0_u64; THREAD_NUMBERS];
    for (number, from) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
        *number = u64::from_le_bytes(from.try_into().ok()?);
    }
    let [
        key_and_target,
        tid_and_state,
        polling,
        since_ns,
        on_ns,
        wait_ns,
        blocked_ns,
        switches,
        preempted,
        epolls,
        waits,
        polled_ns,
        poll_ns,
    ] = numbers;
    let thread = Thread {
        target: high_half(key_and_target),
        tid: low_half(tid_and_state),
        state: high_half(tid_and_state),
        polling: low_half(polling),
        since_ns,
        on_ns,
        wait_ns,
        blocked_ns,
        switches,
        preempted,
        epolls,
        waits,
        polled_ns,
        poll_ns,
    };
    Some(ThreadEntry { key: low_half(key_and_target), thread })
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn any_change() -> impl Strategy<Value = TableChange> {
        let numbers = (any::<u32>(), any::<u32>(), any::<u32>(), any::<bool>(), any::<u64>());
        (0..11_u8, numbers).prop_map(|(kind, (target, first, second, flag, id))| match kind {
            0 => {
                let capture = Capture { sent: first, received: second };
                TableChange::Watch { target, capture, counts_sends: flag }
            }
            1 => TableChange::EnterTarget { target, pid: first },
            2 => TableChange::RemoveTarget { pid: first },
            3 => {
                let serves = Serves { written: first, read: second, callers: flag.into() };
                TableChange::Serve { target, serves }
            }
            4 => TableChange::EnterZmtp { target, inode: id },
            5 => TableChange::RemoveZmtp { inode: id },
            6 => TableChange::IgnoreStream { socket: id },
            7 => TableChange::IgnoreTls { connection: id },
            8 => TableChange::EnterListener { target, namespace: first, port: second as u16 },
            9 => TableChange::RemoveListener { namespace: first, port: second as u16 },
            _ => TableChange::RemoveThreads { target },
        })
    }

    fn any_thread() -> impl Strategy<Value = ThreadEntry> {
        (any::<u32>(), any::<[u32; 4]>(), any::<[u64; 10]>()).prop_map(|(key, small, large)| {
            let [target, tid, state, polling] = small;
            let [since_ns, on_ns, wait_ns, blocked_ns, switches, preempted, epolls, waits, polled_ns, poll_ns] = large;
            let thread = Thread {
                target,
                tid,
                state,
                polling,
                since_ns,
                on_ns,
                wait_ns,
                blocked_ns,
                switches,
                preempted,
                epolls,
                waits,
                polled_ns,
                poll_ns,
            };
            ThreadEntry { key, thread }
        })
    }

    proptest! {
        #[test]
        fn content_round_trips(threads in prop::collection::vec(any_thread(), 0..20), counts: LossCounts) {
            prop_assert_eq!(parse_threads(&threads_to_bytes(&threads)), threads);
            prop_assert_eq!(parse_losses(&losses_to_bytes(&counts)), Some(counts));
            prop_assert_eq!(parse_losses(&losses_to_bytes(&counts)[1..]), None);
        }
    }
}
