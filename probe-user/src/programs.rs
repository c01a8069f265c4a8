//! Programs and maps of the embedded object, and what is attached where.

use std::os::fd::OwnedFd;

use aya::maps::{Map, MapData, MapError, RingBuf};
use probe_ebpf::egress::Serves;
use probe_ebpf::{Capture, Cookie, Loss, Thread};
use serde::{Deserialize, Serialize};

use crate::degraded::error_with_causes;
use crate::kernel_types::{CaptureMessage, ServesMessage, ThreadMessage};

/// Uprobe programs, each of which may be attached at many addresses with one link.
pub(crate) const UPROBES: [&str; 5] = [ZMQ_ENTERED, ZMQ_RETURNED, POLL_ENTERED, POLL_RETURNED, ACCEPT_RETURNED];
/// The same with those of [`crate::ProbeOptions::tls`].
pub(crate) const UPROBES_WITH_TLS: [&str; 7] =
    [ZMQ_ENTERED, ZMQ_RETURNED, POLL_ENTERED, POLL_RETURNED, ACCEPT_RETURNED, TLS_ENTERED, TLS_RETURNED];

// Names of the programs at the entries and at the returns of the probed functions.
pub(crate) const ZMQ_ENTERED: &str = "zmq";
pub(crate) const ZMQ_RETURNED: &str = "zmq_returned";
pub(crate) const POLL_ENTERED: &str = "poll_entered";
pub(crate) const POLL_RETURNED: &str = "poll_left";
pub(crate) const ACCEPT_RETURNED: &str = "accepted";
pub(crate) const TLS_ENTERED: &str = "tls_entered";
pub(crate) const TLS_RETURNED: &str = "tls_returned";

/// A change of the programs' tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TableChange {
    /// Sets the capture limits of a target, and whether its sends are counted.
    Watch {
        target: u32,
        #[serde(with = "CaptureMessage")]
        capture: Capture,
        counts_sends: bool,
    },
    /// Enters a process as a target.
    EnterTarget { target: u32, pid: u32 },
    /// Removes a process.
    RemoveTarget { pid: u32 },
    /// Sets the capture limits for calls on TCP sockets of a target.
    Serve {
        target: u32,
        #[serde(with = "ServesMessage")]
        serves: Serves,
    },
    /// Enters a port that a target listens on, in the network namespace with this inode.
    EnterListener { target: u32, namespace: u32, port: u16 },
    /// Removes such a port.
    RemoveListener { namespace: u32, port: u16 },
    /// Enters a socket whose reads by a target are observed.
    EnterZmtp { target: u32, inode: u64 },
    /// Removes such a socket.
    RemoveZmtp { inode: u64 },
    /// Stops observing a connection.
    IgnoreStream { socket: u64 },
    /// Stops observing a TLS connection.
    IgnoreTls { connection: u64 },
    /// Removes the accounting of a target's threads.
    RemoveThreads { target: u32 },
}

/// Number of observations lost since the load, by cause.
pub(crate) type LossCounts = [u64; Loss::ALL.len()];

/// Accounting of a thread, with its key in the table: its id in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ThreadEntry {
    pub(crate) key: u32,
    #[serde(with = "ThreadMessage")]
    pub(crate) thread: Thread,
}

/// Programs that serve all targets and are attached together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Group {
    /// Thread states.
    Scheduler,
    /// Polls, at the kernel's own functions.
    KernelPolls,
    /// Writes to clients.
    Writes,
    /// Reads from clients.
    ClientReads,
    /// Reads of ZMTP connections without libzmq.
    ZmtpReads,
    /// Arrivals of requests.
    Arrivals,
}

/// The probe points of a target in one library that are attached together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PointSet {
    /// Messages, in libzmq.
    Messages(MessagePoints),
    /// Polls, in the C library; their returns only if no scheduler program measures the time in a poll.
    Polls { with_returns: bool },
    /// Accepted connections, in the C library.
    Accepts,
    /// Plain bytes of TLS connections, in OpenSSL.
    Tls,
    /// The method that passes messages to a server inside the process, in an engine's extension.
    Method,
}

/// Which of libzmq's functions are probed besides the send and the receipt of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MessagePoints {
    /// Those that show when a message has been processed.
    pub(crate) processed: bool,
    /// Those for plain buffers (`zmq_send`).
    pub(crate) buffers: bool,
}

/// Why a part of the probe cannot be attached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub(crate) enum Refusal {
    /// The kernel, or the process that asks it, refused.
    #[error("{0}")]
    Kernel(String),
    /// The kernel does not describe a type or field that the programs read.
    #[error("{0}")]
    Types(String),
}

impl Refusal {
    /// Refusal with the text of an error and of its causes.
    pub(crate) fn from_error(error: &dyn std::error::Error) -> Self {
        Self::Kernel(error_with_causes(error))
    }

    /// Refusal with the error of the table with this name.
    pub(crate) fn from_table_error(name: &str, error: &MapError) -> Self {
        Self::Kernel(format!("the table {name}: {}", error_with_causes(error)))
    }
}

/// Opens the ring with this descriptor.
pub(crate) fn open_ring(descriptor: OwnedFd) -> Result<RingBuf<MapData>, Refusal> {
    let opened = MapData::from_fd(descriptor).and_then(Map::from_map_data).and_then(RingBuf::try_from);
    opened.map_err(|error| Refusal::from_table_error("RECORDS", &error))
}

/// Offsets in a library's file, each with its cookie.
pub(crate) type Points = Vec<(u64, Cookie)>;

/// A program with its probe points in one library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) program: &'static str,
    /// Attach at the returns of the functions that begin at these offsets.
    pub(crate) is_at_returns: bool,
    pub(crate) points: Points,
}

impl Batch {
    pub(crate) const fn at_entries(program: &'static str, points: Points) -> Self {
        Self { program, is_at_returns: false, points }
    }

    pub(crate) const fn at_returns(program: &'static str, points: Points) -> Self {
        Self { program, is_at_returns: true, points }
    }
}

/// Properties of the loaded programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LoadedFacts {
    /// The scheduler programs also observe which threads sleep in a poll.
    pub(crate) observes_sleep: bool,
    /// Uprobes are attached by perf events, which need other capabilities.
    pub(crate) uses_perf_events: bool,
}
