//! Kernel side of the probe. It observes and never changes the target's behaviour. One file per concern.
//!
//! Each program states its minimum kernel version; the object as a whole needs 5.15 (attach cookies).
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "BPF helpers and maps are raw pointers; the verifier checks every access")]
#![expect(clippy::inline_always, reason = "calls use stack, and a BPF program has 512 bytes of it")]
#![expect(unexpected_cfgs, reason = "cargo xtask ebpf sets bpf_target_arch")]
#![expect(clippy::needless_pass_by_value, reason = "aya's macros pass the context by value")]

mod body;
mod buffers;
mod egress;
mod fields;
mod here;
mod maps;
mod nothing;
mod poll;
mod python;
mod regs;
mod report;
mod ring;
mod sched;
mod stack;
mod tls;
mod zmq;
mod zmtp;

/// Required by the language. The verifier rejects programs that could reach it.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

/// Some helpers are restricted to GPL-compatible programs.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
