//! Rights of the process that attaches programs.

use std::os::fd::{AsFd as _, OwnedFd};

use probe_user::prober::{self, ProberSettings};
use probe_user::{KernelVersion, Permissions, ProbeOptions, channel};

/// Oldest release all of whose patch releases have usable links for multiple probe points.
const HAS_LINKS: KernelVersion = KernelVersion::new(6, 10);

/// At every attach by a perf event, aya loads a program. A prober that refused that observed nothing on Linux 6.1.
#[test]
fn rights_to_load_programs_are_kept_only_for_perf_events() {
    if !super::permitted() {
        return;
    }
    assert!(!drops_rights(ProbeOptions { perf_events: true, ..ProbeOptions::default() }));
    if Permissions::current().kernel() >= HAS_LINKS {
        assert!(drops_rights(ProbeOptions::default()));
    }
}

/// Whether a prober with these options drops its rights after it has loaded its programs.
fn drops_rights(options: ProbeOptions) -> bool {
    let settings = ProberSettings { options, servers: Vec::new(), locator: abandoned_socket() };
    let mut has_dropped = false;
    prober::serve_probe_requests(abandoned_socket().as_fd(), settings, || has_dropped = true).expect("served");
    has_dropped
}

/// A socket whose other end is closed: the prober ends with its peer.
fn abandoned_socket() -> OwnedFd {
    channel::message_pair().expect("a pair").0
}
