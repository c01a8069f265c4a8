//! Forms of the kernel side's types in messages. That crate has no dependencies.

use probe_ebpf::egress::Serves;
use probe_ebpf::{Capture, Kept, Register, Thread};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
#[serde(remote = "Capture")]
pub(crate) struct CaptureMessage {
    sent: u32,
    received: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Serves")]
pub(crate) struct ServesMessage {
    written: u32,
    read: u32,
    callers: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Thread")]
pub(crate) struct ThreadMessage {
    target: u32,
    tid: u32,
    state: u32,
    polling: u32,
    since_ns: u64,
    on_ns: u64,
    wait_ns: u64,
    blocked_ns: u64,
    switches: u64,
    preempted: u64,
    epolls: u64,
    waits: u64,
    polled_ns: u64,
    poll_ns: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Register")]
enum RegisterMessage {
    Rbx,
    Rbp,
    R12,
    R13,
    R14,
    R15,
    Rsp,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Kept")]
pub(crate) enum KeptMessage {
    In(#[serde(with = "RegisterMessage")] Register),
    At(#[serde(with = "RegisterMessage")] Register, i8),
}
