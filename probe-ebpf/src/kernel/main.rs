//! The kernel side of the probe: it observes, it never changes what the target does. One file a concern.
//!
//! Each program states the oldest kernel that has what it uses; the object as a whole needs 5.15 (attach cookies).
#![no_std]
#![no_main]
#![expect(
    unsafe_code,
    reason = "BPF helpers and maps are raw pointers; the verifier checks every access"
)]

mod here;
mod maps;
mod poll;
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
