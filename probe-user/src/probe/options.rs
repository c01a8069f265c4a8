//! What to attach to, the limits of it, and why there may be no probe at all.

use aya::maps::MapError;
use probe_ebpf::Capture;

use crate::degraded::Degraded;

/// A process to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its id, in our pid namespace.
    pub pid: u32,
    /// How much of its messages to copy.
    pub capture: Capture,
}

/// What to attach, and the limits of it.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a probe that is there or not, alone"
)]
pub struct Options {
    /// Size of the ring between kernel and reader in bytes; rounded up to a power of 2. What does not fit is counted.
    pub ring_bytes: u32,
    /// Pending bytes at which the reader is woken before its tick, which costs the target 2 to 3 us; 0: it is not.
    pub wake_bytes: u32,
    /// See when a taken frame has been handled: a trap per `zmq_getsockopt` and per receive of the target.
    pub handled: bool,
    /// See which sends were refused, and take those back: nothing per send where libzmq's code is understood, else a return
    /// probe. Without it a refused send counts as sent; a
    /// blocking send without high-water mark, as `SGLang` makes it, is refused only when its context ends.
    pub refused: bool,
    /// See the threads' states: 0.1 us per switch of any process.
    pub scheduler: bool,
    /// See wakeups and the time away from the poll: a trap and a return probe per poll of the target.
    pub polls: bool,
    /// See what serving processes write where any system call of any process returns, as kernels before 6.5 need it, and not
    /// where writes on sockets do.
    pub every_call: bool,
    /// Tell through `tracing`, target `probe`, what the kernel side finds wrong with a message.
    pub diagnostics: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ring_bytes: 8 << 20,
            wake_bytes: 0,
            handled: true,
            refused: true,
            scheduler: true,
            polls: true,
            every_call: false,
            diagnostics: false,
        }
    }
}

/// Why there is no probe at all.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Nothing of it is permitted or possible here.
    #[error("{}; {}", .0, .0.remedy())]
    Unavailable(Degraded),
    /// More processes than one probe watches.
    #[error("cannot watch {asked} processes, one probe watches at most {most}: name the ones of interest with --pid")]
    TooManyTargets {
        /// How many were asked for.
        asked: usize,
        /// [`probe_ebpf::MAX_TARGETS`].
        most: u32,
    },
    /// A map of the loaded object could not be used.
    #[error("the probe's map {name}: {source}; the embedded object and this program are of different builds")]
    Map {
        /// Which.
        name: &'static str,
        /// What aya said.
        source: Box<MapError>,
    },
    /// Waiting for records failed.
    #[error("wait for records: {0}")]
    Wait(#[source] std::io::Error),
}
