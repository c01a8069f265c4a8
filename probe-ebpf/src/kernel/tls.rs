//! Captures the plain bytes that a serving process passes to OpenSSL.
//!
//! A connection is identified by its `SSL *`: event loops encrypt into memory and write to the socket later. A uprobe can be
//! preempted, so this file uses per-thread map values where system calls use per-CPU ones.
//! Minimum kernel: 5.15 (attach cookies).

use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;
use aya_ebpf::helpers::bpf_probe_read_user;
use aya_ebpf::helpers::generated::bpf_probe_read_user as read_user;
use aya_ebpf::macros::{map, uprobe, uretprobe};
use aya_ebpf::maps::LruHashMap;
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use probe_ebpf::egress::{CLOSE, Head, Kind, MARK, SEGMENT, TlsConnection, tls_key};
use probe_ebpf::{Loss, ProbePoint};

use crate::egress::SERVING;
use crate::here;
use crate::maps::{RECORDS, count_loss};
use crate::regs::Registers;
use crate::stack::refuse_private_stack;

/// Connections by [`tls_key`].
#[map]
pub(crate) static TLS: LruHashMap<u64, TlsConnection> = LruHashMap::with_max_entries(16_384, 0);

/// Writes in progress, by thread id in the initial namespace.
#[map]
static TLS_WRITES: LruHashMap<u32, Write> = LruHashMap::with_max_entries(4096, 0);

/// Maximum number of segments copied per call. User space sees the gap in the byte count after a longer one.
const STEPS: u32 = 64;
/// Payload of the smaller record, which holds a usual event.
const SMALL: usize = 1 << 10;

/// A call of `SSL_write` or `SSL_write_ex`. Its progress is stored in a map so that the verifier does not track it per iteration.
#[repr(C)]
#[derive(Clone, Copy)]
struct Write {
    /// [`tls_key`] of the connection.
    connection: u64,
    /// Address of the buffer.
    at: u64,
    /// Size of the buffer.
    asked: u64,
    /// Address of the result of `SSL_write_ex`; 0 for `SSL_write`, which returns it.
    result: u64,
    /// Number of bytes to copy.
    limit: u64,
    /// Number of bytes copied.
    copied: u64,
    target: u32,
    reserved: u32,
}

#[repr(C)]
struct Slot<const N: usize> {
    head: Head,
    payload: [u8; N],
}

/// Entry of `SSL_write(ssl, buffer, size)`, `SSL_write_ex(ssl, buffer, size, &written)` and `SSL_free(ssl)`. Keeps a write for its return.
#[uprobe]
pub(crate) fn tls_entered(ctx: ProbeContext) -> u32 {
    refuse_private_stack(&ctx);
    let cookie = here::cookie(&ctx);
    let (regs, target) = (Registers::of(ctx.regs), cookie.target());
    let connection = tls_key(target, regs.arg::<0>());
    let result = match cookie.probe_point() {
        Some(ProbePoint::TlsWrite) => 0,
        Some(ProbePoint::TlsWriteEx) => regs.arg::<3>(),
        Some(ProbePoint::TlsFree) => {
            let _ = report_closed_connection(target, connection);
            return 0;
        }
        _ => return 0,
    };
    let write = Write {
        connection,
        at: regs.arg::<1>(),
        asked: regs.arg::<2>(),
        result,
        limit: 0,
        copied: 0,
        target,
        reserved: 0,
    };
    if TLS_WRITES.insert(here::key(), write, 0).is_err() {
        count_loss(Loss::InFlight);
    }
    0
}

/// Return of `SSL_write` and `SSL_write_ex`: reports the bytes that OpenSSL accepted of the write.
#[uretprobe]
pub(crate) fn tls_returned(ctx: RetProbeContext) -> u32 {
    refuse_private_stack(&ctx);
    let thread = here::key();
    if let Some(write) = TLS_WRITES.get_ptr_mut(thread) {
        let _ = report_returned_write(Registers::of(ctx.regs).result(), write);
        let _ = TLS_WRITES.remove(thread);
    }
    0
}

#[inline(always)]
fn report_returned_write(result: i32, progress: *mut Write) -> Option<()> {
    // SAFETY: a map value, checked for null, that only this thread uses.
    let write = unsafe { *progress };
    let accepted = match write.result {
        _ if result <= 0 => return None,
        0 => u64::from(result as u32),
        // SAFETY: a read of the target's memory; a fault is an error value.
        at => unsafe { bpf_probe_read_user(at as *const u64) }.ok()?,
    };
    let connection = known_or_new_connection(write.connection)?;
    if connection.ignored != 0 {
        return None;
    }
    connection.written = connection.written.wrapping_add(accepted as u32);
    let mut head = record_head(Kind::Tls, write.target, write.connection);
    head.accepted = accepted as i64;
    head.asked = write.asked;
    head.written = connection.written;
    // SAFETY: as above.
    unsafe { (&raw mut (*progress).limit).write_volatile(accepted.min(u64::from(SERVING.get(write.target)?.written))) };
    for _ in 0..STEPS {
        // SAFETY: as above. Volatile reads keep the verifier from tracking every iteration.
        let Write { at, limit, copied, .. } = unsafe { progress.read_volatile() };
        let left = limit.saturating_sub(copied);
        if left == 0 {
            return None;
        }
        head.from = copied as u32;
        head.captured = left.min(SEGMENT as u64) as u32;
        let at = at.wrapping_add(copied);
        if head.captured as usize <= SMALL {
            put_record::<SMALL>(&head, at);
        } else {
            put_record::<SEGMENT>(&head, at);
        }
        // SAFETY: as above.
        unsafe { (&raw mut (*progress).copied).write_volatile(copied + u64::from(head.captured)) };
    }
    None
}

/// Sends the header and its captured bytes from `from_address` in the target's memory.
#[inline(always)]
fn put_record<const N: usize>(head: &Head, from_address: u64) {
    let Some(mut slot) = RECORDS.reserve::<Slot<N>>(0) else {
        return count_loss(Loss::RingFull);
    };
    let to = slot.as_mut_ptr();
    // SAFETY: inside the reservation. The size is read back so that the compiler keeps the bound check that the verifier needs.
    unsafe {
        let size = (&raw const head.captured).read_volatile().min(N as u32);
        (&raw mut (*to).head).write(*head);
        if read_user((&raw mut (*to).payload).cast(), size, from_address as *const _) != 0 {
            slot.discard(u64::from(BPF_RB_NO_WAKEUP));
            return count_loss(Loss::PayloadFault);
        }
    }
    slot.submit(u64::from(BPF_RB_NO_WAKEUP));
}

/// Reports the end of a connection on which the process has written.
#[inline(always)]
fn report_closed_connection(target: u32, connection: u64) -> Option<()> {
    // SAFETY: copied immediately.
    let TlsConnection { written, ignored } = unsafe { TLS.get(connection) }.copied()?;
    if ignored == 0 {
        let mut head = record_head(Kind::TlsClosed, target, connection);
        (head.written, head.state) = (written, CLOSE);
        if RECORDS.output::<Head>(&head, u64::from(BPF_RB_NO_WAKEUP)).is_err() {
            count_loss(Loss::RingFull);
        }
    }
    // OpenSSL may reuse the address for another connection.
    let _ = TLS.remove(connection);
    Some(())
}

#[inline(always)]
fn known_or_new_connection(key: u64) -> Option<&'static mut TlsConnection> {
    if TLS.get_ptr_mut(key).is_none() {
        let _ = TLS.insert(key, TlsConnection::default(), 0);
    }
    // SAFETY: a map value, checked for null; only one thread at a time uses an `SSL *`.
    TLS.get_ptr_mut(key).map(|connection| unsafe { &mut *connection })
}

#[inline(always)]
fn record_head(kind: Kind, target: u32, connection: u64) -> Head {
    Head {
        mark: MARK,
        at_ns: here::now(),
        socket: connection,
        accepted: 0,
        asked: 0,
        from: 0,
        captured: 0,
        written: 0,
        unacknowledged: 0,
        target,
        tid: 0,
        ports: [0; 2],
        kind: kind as u8,
        before: 0,
        state: 0,
        reserved: 0,
    }
}
