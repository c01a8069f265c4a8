//! Kernel queue depths of each hop as events: the sockets found by discovery, every 100 ms while frames flow.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use probe_user::discover::{End, Engine};
use probe_user::queue::{Depth, Queues};
use trace::MonoNs;
use trace::event::{Event, QueueSample, What};

use super::lanes::Sink;

const EVERY: Duration = Duration::from_millis(100);
/// Interval while no frames flow.
const AT_REST: Duration = Duration::from_secs(1);
/// Maximum number of connections sampled; the others are counted in `left_out`.
const MAX_CONNECTIONS: usize = 256;

/// Sender and receiver of a connection, if known.
type Ends = (Option<End>, Option<End>);

#[derive(Default)]
pub(super) struct QueueWatch {
    /// Both ends of each connection, by hop name.
    hops: BTreeMap<String, Vec<Ends>>,
    sockets: Queues,
    sampled: Option<Instant>,
    pub(super) left_out: usize,
    /// First error that prevented reading a socket.
    pub(super) refused: Option<String>,
}

impl QueueWatch {
    /// Watches only the sockets of `engine` that carry output.
    pub(super) fn rewire(&mut self, engine: &Engine) {
        self.hops.clear();
        self.left_out = 0;
        let mut watched = 0;
        for route in engine.routes() {
            for lane in &route.lanes {
                if watched == MAX_CONNECTIONS {
                    self.left_out += 1;
                    continue;
                }
                watched += 1;
                let ends = self.hops.entry(route.ends.to_string()).or_default();
                ends.push((lane.from, lane.to));
            }
        }
        let ends = self.hops.values().flatten();
        let used: HashSet<End> = ends.flat_map(|&(from, to)| [from, to]).flatten().collect();
        self.sockets.retain(|socket| used.contains(socket));
    }

    /// Takes a sample if one is due.
    pub(super) fn poll(&mut self, flows: bool, sink: Sink<'_>) {
        let every = if flows { EVERY } else { AT_REST };
        if self.sampled.is_some_and(|last| last.elapsed() < every) {
            return;
        }
        self.sampled = Some(Instant::now());
        let hops = std::mem::take(&mut self.hops);
        for (name, connections) in &hops {
            let (mut receive_bytes, mut send_bytes) = (None, None);
            for (from, to) in connections {
                add(&mut send_bytes, from.and_then(|end| self.depth(end)?.send_bytes));
                add(&mut receive_bytes, to.and_then(|end| self.depth(end)?.receive_bytes));
            }
            if receive_bytes.or(send_bytes).is_some() {
                let what = What::Queue(QueueSample { hop: name, receive_bytes, send_bytes });
                sink(&Event::new(MonoNs::now(), what));
            }
        }
        self.hops = hops;
    }

    fn depth(&mut self, end: End) -> Option<Depth> {
        self.sockets.depth(end).unwrap_or_else(|error| {
            self.refused.get_or_insert_with(|| error.to_string());
            None
        })
    }
}

fn add(sum: &mut Option<u64>, one: Option<u64>) {
    if let Some(bytes) = one {
        *sum.get_or_insert(0) += bytes;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::net::UnixStream;

    use engines::sglang::discover::role::{SCHEDULER, TOKENIZER};
    use probe_user::discover::{Carries, Confidence, HopSeen, Role};

    use super::*;

    fn end(fd: i32, role: Role) -> End {
        End {
            pid: std::process::id(),
            fd: fd as u32,
            inode: std::fs::metadata(format!("/proc/self/fd/{fd}")).map_or(1, |found| found.ino()),
            role,
        }
    }

    fn hop(from: i32, to: i32, carries: Carries) -> HopSeen {
        HopSeen {
            from: Some(end(from, SCHEDULER)),
            to: Some(end(to, TOKENIZER)),
            endpoint: String::new(),
            carries,
            confidence: Confidence::Certain,
        }
    }

    fn poll_samples(watch: &mut QueueWatch) -> Vec<(String, Option<u64>)> {
        let mut samples = Vec::new();
        watch.poll(true, &mut |event| {
            if let What::Queue(sample) = event.what {
                samples.push((sample.hop.to_owned(), sample.receive_bytes));
            }
        });
        samples
    }

    #[test]
    fn same_named_connections_are_summed_without_requests() {
        let mut pairs: Vec<_> = (0..3).map(|_| UnixStream::pair().unwrap()).collect();
        for (from, _) in &mut pairs {
            from.write_all(&[7; 1000]).unwrap();
        }
        let carries = [Carries::Output, Carries::Output, Carries::Requests];
        let hops =
            pairs.iter().zip(carries).map(|((from, to), carries)| hop(from.as_raw_fd(), to.as_raw_fd(), carries));
        let engine = Engine { hops: hops.collect(), ..Engine::default() };
        let mut watch = QueueWatch::default();
        watch.rewire(&engine);
        assert_eq!(poll_samples(&mut watch), [("scheduler->tokenizer".to_owned(), Some(2000))]);
        assert_eq!(poll_samples(&mut watch), [], "not again before its time");
    }

    #[test]
    fn a_closed_socket_is_skipped_without_an_error() {
        let mut watch = QueueWatch::default();
        let engine = Engine { hops: vec![hop(1_000_000, 1_000_001, Carries::Output)], ..Engine::default() };
        watch.rewire(&engine);
        assert_eq!(poll_samples(&mut watch), []);
        assert_eq!(watch.refused, None);
    }
}
