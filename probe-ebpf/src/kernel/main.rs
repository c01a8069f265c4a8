//! The kernel side of the probe: it observes, it never changes what the target does. One file a concern.
//!
//! Each program states the oldest kernel that has what it uses; the object as a whole needs 5.15 (attach cookies).
#![no_std]
#![no_main]
#![expect(
    unsafe_code,
    reason = "BPF helpers and maps are raw pointers; the verifier checks every access"
)]
#![expect(
    clippy::inline_always,
    reason = "a program is one function: calls cost stack, of which there are 512 bytes"
)]
#![expect(unexpected_cfgs, reason = "cargo xtask ebpf sets bpf_target_arch")]
#![expect(clippy::needless_pass_by_value, reason = "aya's macros pass the context by value")]

mod body;
mod egress;
mod here;
mod maps;
mod poll;
mod regs;
mod report;
mod ring;
mod sched;
mod zmq;

/// Unreachable: the verifier admits no path into it, the language asks for it.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

/// Some helpers are for GPL-compatible programs only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
