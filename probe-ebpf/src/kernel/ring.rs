//! Sends one record to user space: reserves the smallest size class that holds it and copies the payload with bounded reads.
//!
//! Waking the reader costs the target 2 to 3 us, so it is woken only when enough bytes are pending, or never.
//! Minimum kernel: 5.8 (ring buffer).

use aya_ebpf::bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP};
use aya_ebpf::helpers::generated::bpf_probe_read_user;
use probe_ebpf::class::CLASSES;
use probe_ebpf::{Header, Loss};

use crate::maps::{RECORDS, WAKE_BYTES, count_loss};

#[repr(C)]
struct Slot<const N: usize> {
    header: Header,
    payload: [u8; N],
}

/// Sends `header` and `header.captured` of the `readable_bytes` at `from_address` in the target's memory.
///
/// Everything here is inlined: the symbol of a separate function would contain a hash of the build folder.
#[inline(always)]
pub(crate) fn send_with_payload(header: &mut Header, from_address: u64, readable_bytes: u64) {
    match header.captured as usize {
        0 => put_record::<0>(header, from_address, readable_bytes),
        n if n <= CLASSES[0] => put_record::<{ CLASSES[0] }>(header, from_address, readable_bytes),
        n if n <= CLASSES[1] => put_record::<{ CLASSES[1] }>(header, from_address, readable_bytes),
        n if n <= CLASSES[2] => put_record::<{ CLASSES[2] }>(header, from_address, readable_bytes),
        n if n <= CLASSES[3] => put_record::<{ CLASSES[3] }>(header, from_address, readable_bytes),
        n if n <= CLASSES[4] => put_record::<{ CLASSES[4] }>(header, from_address, readable_bytes),
        n if n <= CLASSES[5] => put_record::<{ CLASSES[5] }>(header, from_address, readable_bytes),
        n if n <= CLASSES[6] => put_record::<{ CLASSES[6] }>(header, from_address, readable_bytes),
        _ => put_record::<{ CLASSES[7] }>(header, from_address, readable_bytes),
    }
}

/// Sends `header` without a payload.
#[inline(always)]
pub(crate) fn note(mut header: Header) {
    put_record::<0>(&mut header, 0, 0);
}

#[inline(always)]
fn put_record<const N: usize>(header: &mut Header, from_address: u64, readable_bytes: u64) {
    let Some(mut slot) = RECORDS.reserve::<Slot<N>>(0) else {
        return count_loss(Loss::RingFull);
    };
    let at = slot.as_mut_ptr();
    if N > 0 {
        // A volatile read, so that the compiler keeps this bound check although the caller has one: the verifier needs it.
        // SAFETY: a field of a borrowed struct.
        let captured = unsafe { (&raw const header.captured).read_volatile() }.min(N as u32);
        // SAFETY: inside the reservation.
        let payload = unsafe { &raw mut (*at).payload }.cast();
        if !has_copied_payload::<N>(payload, captured, from_address, readable_bytes) {
            header.captured = 0;
            header.fault = 1;
            count_loss(Loss::PayloadFault);
        }
    }
    // SAFETY: inside the reservation.
    unsafe { (&raw mut (*at).header).write(*header) };
    slot.submit(wakeup_flags(size_of::<Slot<N>>() as u64));
}

/// Copies `captured` of the `readable_bytes` at `from_address` to `payload`, which holds `N` bytes. A truncated copy
/// takes `captured / 2` bytes from the start and as many from the end.
#[inline(always)]
fn has_copied_payload<const N: usize>(payload: *mut u8, captured: u32, from_address: u64, readable_bytes: u64) -> bool {
    if u64::from(captured) == readable_bytes {
        // SAFETY: writes at most N bytes into a buffer of N; a fault is a return value.
        return unsafe { bpf_probe_read_user(payload.cast(), captured, from_address as *const _) } == 0;
    }
    let half = (captured / 2).min(N as u32 / 2);
    let end = from_address.wrapping_add(readable_bytes).wrapping_sub(u64::from(half));
    // SAFETY: writes at most N / 2 bytes twice, one after the other, into a buffer of N; a fault is a return value.
    unsafe {
        bpf_probe_read_user(payload.cast(), half, from_address as *const _) == 0
            && bpf_probe_read_user(payload.add(half as usize).cast(), half, end as *const _) == 0
    }
}

/// Flags that wake the reader only if this record crosses a multiple of [`WAKE_BYTES`]. Waking it for every record beyond the
/// threshold would cost the target a wakeup per message while the reader is starved of CPU.
#[inline(always)]
fn wakeup_flags(record_bytes: u64) -> u64 {
    let step = u64::from(WAKE_BYTES.load());
    if step == 0 {
        return u64::from(BPF_RB_NO_WAKEUP);
    }
    let pending = RECORDS.query(u64::from(BPF_RB_AVAIL_DATA));
    if pending / step == pending.saturating_sub(record_bytes) / step {
        u64::from(BPF_RB_NO_WAKEUP)
    } else {
        u64::from(BPF_RB_FORCE_WAKEUP)
    }
}
