//! The tap between real peers.
#![cfg(target_os = "linux")]

mod responses;
#[expect(dead_code, reason = "the relay's tests use the rest")]
#[path = "../../../zmq-tap/tests/relay/support.rs"]
mod support;
mod toy;
