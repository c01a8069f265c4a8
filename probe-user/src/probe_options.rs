//! What a probe observes.

/// Features to attach, and their limits.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each probe is enabled independently")]
pub struct ProbeOptions {
    /// Size of the ring between kernel and reader in bytes, rounded up to a power of 2. Records that do not fit are counted as lost.
    pub ring_bytes: u32,
    /// Observe when a received frame has been processed: a trap per `zmq_getsockopt` and per receive of the target.
    pub processed: bool,
    /// Observe thread states: 0.1 us per context switch of any process.
    pub scheduler: bool,
    /// Observe wakeups and the time outside of polls: a trap and possibly a return probe per poll of the target.
    pub polls: bool,
    /// Observe the plain bytes that serving processes pass to OpenSSL: two traps per write of the target.
    pub tls: bool,
    /// Observe writes of serving processes at the return of every system call, as needed before Linux 6.5, instead of at socket writes.
    pub every_call: bool,
    /// Attach each uprobe by a perf event of its own, as needed before Linux 6.6, instead of one link for many.
    pub perf_events: bool,
}

impl Default for ProbeOptions {
    /// All features, except for responses over TLS, and without the methods that only older kernels need.
    fn default() -> Self {
        Self {
            // 8 MiB.
            ring_bytes: 8 << 20,
            processed: true,
            scheduler: true,
            polls: true,
            tls: false,
            every_call: false,
            perf_events: false,
        }
    }
}
