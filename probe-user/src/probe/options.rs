//! Targets and options of a probe, and the errors of attaching it.

use aya::maps::MapError;
use probe_ebpf::Capture;

use crate::degraded::Degraded;

/// A process to observe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Process id in the current pid namespace.
    pub pid: u32,
    /// Capture limits for its messages.
    pub capture: Capture,
}

/// Features to attach, and their limits.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each probe is enabled independently")]
pub struct Options {
    /// Size of the ring between kernel and reader in bytes, rounded up to a power of 2. Records that do not fit are counted as lost.
    pub ring_bytes: u32,
    /// Number of pending bytes at which the reader is woken early, which costs the target 2 to 3 us; 0 for never.
    pub wake_bytes: u32,
    /// Observe when a received frame has been processed: a trap per `zmq_getsockopt` and per receive of the target.
    pub processed: bool,
    /// Observe which sends were refused, and reverse those. Costs nothing per send if libzmq's code is understood, and a return probe
    /// otherwise. Without it a refused send counts as sent. A blocking send without high-water mark is refused only when
    /// its context ends.
    pub refused: bool,
    /// Observe thread states: 0.1 us per context switch of any process.
    pub scheduler: bool,
    /// Observe wakeups and the time outside of polls: a trap and possibly a return probe per poll of the target.
    pub polls: bool,
    /// Observe the plain bytes that serving processes pass to OpenSSL: two traps per write of the target.
    pub tls: bool,
    /// Observe writes of serving processes at the return of every system call, as needed before Linux 6.5, instead of at socket writes.
    pub every_call: bool,
    /// Log problems that the kernel side finds with a message through `tracing`, with target `probe`.
    pub diagnostics: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ring_bytes: 8 << 20,
            wake_bytes: 0,
            processed: true,
            refused: true,
            scheduler: true,
            polls: true,
            tls: false,
            every_call: false,
            diagnostics: false,
        }
    }
}

/// Error that prevents any probe.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Probes are not permitted or not possible here.
    #[error("{}; {}", .0, .0.remedy())]
    Unavailable(Degraded),
    /// More processes than one probe supports.
    #[error("cannot watch {requested} processes, the limit is {limit}: choose some with --pid")]
    TooManyTargets {
        /// Number of requested processes.
        requested: usize,
        /// Limit: [`probe_ebpf::MAX_TARGETS`].
        limit: u32,
    },
    /// A map of the loaded object could not be used.
    #[error("cannot use the probe's map {name}: {source}; the embedded object is from another build")]
    Map {
        /// Name of the map.
        name: &'static str,
        /// Error from aya.
        source: Box<MapError>,
    },
    /// Waiting for records failed.
    #[error("cannot wait for records: {0}")]
    Wait(#[source] std::io::Error),
}
