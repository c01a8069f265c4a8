//! Captures the TCP writes of serving processes as the kernel accepted them, their reads if configured, and the state changes
//! of those connections.
//!
//! Raw tracepoints need no tracefs. The programs run when a call returns. Then the saved registers still hold its arguments,
//! its buffers are intact, and the result is the number of accepted bytes. `sock_send_length` (Linux 6.5 and later) fires
//! only for writes to sockets; `sys_exit` fires for every system call of every process.
//! Minimum kernel: 5.8 (ring buffer), with BTF for the offsets.
//!
//! Also notes when each request reaches the process (Linux 6.5 and later): `sk_data_ready` fires when bytes are in a socket, whether the
//! process runs or not.

use aya_ebpf::Global;
use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{bpf_get_current_task, bpf_get_current_task_btf, bpf_task_pt_regs};
use aya_ebpf::macros::{map, raw_tracepoint, uretprobe};
use aya_ebpf::maps::{Array, HashMap, LruHashMap};
use aya_ebpf::programs::{RawTracePointContext, RetProbeContext};
use probe_ebpf::egress::{
    CLOSE, ESTABLISHED, Head, Kind, MARK, MAX_LISTENERS, Places, RequestTimes, SYN_RECV, Serves, Stream, listener_key,
};
use probe_ebpf::traceparent::CallerSpan;
use probe_ebpf::{Loss, MAX_TARGETS};

use crate::buffers::{self, Repeat};
use crate::fields::read_field;
use crate::here;
use crate::maps::{RECORDS, TARGETS, count_loss};
use crate::stack::refuse_private_stack;

/// Set by user space before the load.
#[unsafe(no_mangle)]
pub(crate) static PLACES: Global<Places> = Global::new(NOWHERE);

const NOWHERE: Places = Places {
    calls: [u32::MAX; 4],
    reads: [u32::MAX; 4],
    number: 0,
    arguments: [0; 3],
    files: 0,
    table: 0,
    room: 0,
    descriptors: 0,
    inode: 0,
    mode: 0,
    inode_number: 0,
    private: 0,
    sock: 0,
    file: 0,
    socket: 0,
    family: 0,
    protocol: 0,
    local: 0,
    remote: 0,
    written: 0,
    acknowledged: 0,
    consumed: 0,
    arrived: 0,
    network: 0,
    namespace: 0,
};

/// Copy limits by target index; both are 0 for a process without HTTP clients.
#[map]
pub(crate) static SERVING: Array<Serves> = Array::with_max_entries(MAX_TARGETS, 0);

/// Targets that listen on a port, by [`listener_key`].
#[map]
static LISTENERS: HashMap<u64, u32> = HashMap::with_max_entries(MAX_LISTENERS, 0);

/// Connections to listeners, and connections with writes, by socket. User space marks those that it does not need.
#[map]
pub(crate) static STREAMS: LruHashMap<u64, Stream> = LruHashMap::with_max_entries(16_384, 0);

const S_IFMT: u16 = 0o170_000;
const S_IFSOCK: u16 = 0o140_000;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const IPPROTO_TCP: u16 = 6;
/// `-EAGAIN`.
const AGAIN: i64 = -11;
/// `include/linux/socket.h`: the bytes remain in the socket and will be read again.
pub(crate) const MSG_PEEK: u32 = 2;

/// A system call that has returned.
struct Returned {
    target: u32,
    kind: Kind,
    /// Maximum number of bytes to copy.
    limit: u64,
    /// Address of the thread's `struct pt_regs`.
    registers: u64,
    result: i64,
}

/// `sock_send_length(struct sock *sk, int result, int flags)`: a write to a socket returns. Reports the bytes that a target has written.
#[raw_tracepoint(tracepoint = "sock_send_length")]
pub(crate) fn egress_sent(ctx: RawTracePointContext) -> i32 {
    if let Some((target, serves)) = serving_target()
        && serves.written > 0
    {
        let _ = report_call_on_tcp_socket(&ctx, target, Kind::Wrote, serves.written);
    }
    0
}

/// `sock_recv_length(struct sock *sk, int result, int flags)`: a read of a socket returns. Reports the bytes that a target has read.
#[raw_tracepoint(tracepoint = "sock_recv_length")]
pub(crate) fn egress_received(ctx: RawTracePointContext) -> i32 {
    let peeked = ctx.arg::<u32>(2) & MSG_PEEK != 0;
    if let Some((target, serves)) = serving_target()
        && serves.read > 0
        && !peeked
    {
        let _ = report_call_on_tcp_socket(&ctx, target, Kind::Read, serves.read);
    }
    0
}

/// `sys_exit(struct pt_regs *regs, long result)`: a system call returns. Reports a target's writes on kernels before 6.5.
#[raw_tracepoint(tracepoint = "sys_exit")]
pub(crate) fn egress_written(ctx: RawTracePointContext) -> i32 {
    if let Some((target, serves)) = serving_target()
        && serves.written > 0
    {
        let call = Returned {
            target,
            kind: Kind::Wrote,
            limit: u64::from(serves.written),
            registers: ctx.arg(0),
            result: ctx.arg(1),
        };
        let _ = report_returned_call(&call, None);
    }
    0
}

/// Returns the current process's target index and copy limits; `None` if it is not a target.
#[inline(always)]
fn serving_target() -> Option<(u32, Serves)> {
    let process = (bpf_get_current_pid_tgid() >> 32) as u32;
    // SAFETY: copied immediately; targets are only ever added.
    let target = unsafe { TARGETS.get(process) }.copied()?;
    Some((target, SERVING.get(target).copied()?))
}

#[inline(always)]
fn report_call_on_tcp_socket(ctx: &RawTracePointContext, target: u32, kind: Kind, limit: u32) -> Option<()> {
    let sock: u64 = ctx.arg(0);
    if !is_tcp(&PLACES.load(), sock)? {
        return None;
    }
    // SAFETY: helpers on the current task, which exists while this program runs.
    let registers = unsafe { bpf_task_pt_regs(bpf_get_current_task_btf()) } as u64;
    let call =
        Returned { target, kind, limit: u64::from(limit), registers, result: i64::from(ctx.arg::<u32>(1) as i32) };
    report_returned_call(&call, Some(sock))
}

/// Reports a returned call on a TCP socket. Looks the socket up by its file descriptor if `sock` is `None`, which only kernels before
/// 6.5 need.
#[inline(always)]
fn report_returned_call(call: &Returned, sock: Option<u64>) -> Option<()> {
    let Returned { target, kind, limit, registers, result: accepted } = *call;
    let places = PLACES.load();
    let calls = if matches!(kind, Kind::Read) { places.reads } else { places.calls };
    let shape = buffers::call_shape(&places, registers, calls)?;
    let refused = accepted == AGAIN && !matches!(kind, Kind::Read);
    if accepted <= 0 && !refused {
        return None;
    }
    let socket = match sock {
        Some(sock) => sock,
        None => tcp_socket_of_descriptor(&places, read_field(registers, places.arguments[0])?)?,
    };
    if let Some(stream) = STREAMS.get_ptr_mut(socket) {
        // SAFETY: a map value, checked for null; only one thread at a time writes a byte stream in order.
        unsafe {
            if (*stream).ignored != 0 {
                return None;
            }
            // Processes may share a listener.
            (*stream).target = target;
        }
        // Kernels without this tracepoint observe no reads.
        if sock.is_some() && matches!(kind, Kind::Wrote) {
            report_request(&places, stream, target, socket);
        }
    } else {
        let _ = STREAMS.insert(socket, Stream { target, ..NEW_STREAM }, 0);
    }
    let mut head = record_head(&places, kind, target, socket);
    head.accepted = accepted;
    let repeat = if sock.is_some() { Repeat::Kernel } else { Repeat::Program };
    buffers::send_call_buffers(&places, registers, shape, repeat, limit, head)
}

/// A connection of which nothing is known.
const NEW_STREAM: Stream = Stream {
    target: 0,
    ignored: 0,
    request: RequestTimes { opened_ns: 0, accepted_ns: 0, arrived_ns: 0, read_ns: 0 },
    caller: CallerSpan::ABSENT,
    unread_since_ns: 0,
};

/// `sk_data_ready(const struct sock *sk)`, for every socket of the machine. Notes when a request, or its first unread byte, arrived.
#[raw_tracepoint(tracepoint = "sk_data_ready")]
pub(crate) fn request_arrived(ctx: RawTracePointContext) -> i32 {
    let Some(stream) = STREAMS.get_ptr_mut(ctx.arg::<u64>(0)) else {
        return 0;
    };
    // SAFETY: a map value, checked for null; the kernel holds the socket.
    unsafe {
        if (*stream).unread_since_ns == 0 && (*stream).ignored == 0 {
            let now = here::now();
            (*stream).unread_since_ns = now;
            if (*stream).request.arrived_ns == 0 {
                (*stream).request.arrived_ns = now;
            }
        }
    }
    0
}

/// `sock_recv_length(struct sock *sk, int result, int flags)`, for every socket of the machine. Notes when a request is first read.
#[raw_tracepoint(tracepoint = "sock_recv_length")]
pub(crate) fn request_read(ctx: RawTracePointContext) -> i32 {
    let socket: u64 = ctx.arg(0);
    let Some(stream) = STREAMS.get_ptr_mut(socket) else {
        return 0;
    };
    let read_bytes: u32 = ctx.arg(1);
    if read_bytes as i32 <= 0 || ctx.arg::<u32>(2) & MSG_PEEK != 0 {
        return 0;
    }
    let places = PLACES.load();
    let has_read_all = read_field::<u32>(socket, places.arrived) == read_field(socket, places.consumed);
    // SAFETY: a map value, checked for null; only one thread at a time reads a byte stream in order.
    unsafe {
        if (*stream).request.arrived_ns != 0 && (*stream).request.read_ns == 0 {
            (*stream).request.read_ns = here::now();
            if SERVING.get((*stream).target).is_some_and(|serves| serves.callers != 0) {
                (*stream).caller = search_read_for_caller(&places, read_bytes).unwrap_or(CallerSpan::INCOMPLETE);
            }
        }
        if has_read_all {
            (*stream).unread_since_ns = 0;
        }
    }
    0
}

/// Searches the head of a request that the current thread has begun to read.
#[inline(always)]
fn search_read_for_caller(places: &Places, read_bytes: u32) -> Option<CallerSpan> {
    // SAFETY: helpers on the current task, which exists while this program runs.
    let registers = unsafe { bpf_task_pt_regs(bpf_get_current_task_btf()) } as u64;
    let shape = buffers::call_shape(places, registers, places.reads)?;
    buffers::find_caller(places, registers, shape, u64::from(read_bytes))
}

/// Return of `int accept(int fd, ..)` and `int accept4(int fd, ..)`.
#[uretprobe]
pub(crate) fn accepted(ctx: RetProbeContext) -> u32 {
    refuse_private_stack(&ctx);
    let descriptor: i32 = ctx.ret();
    if descriptor >= 0
        && let Some(socket) = tcp_socket_of_descriptor(&PLACES.load(), descriptor as u32)
        && let Some(stream) = STREAMS.get_ptr_mut(socket)
    {
        // SAFETY: a map value, checked for null; no other thread has the descriptor yet.
        unsafe { (*stream).request.accepted_ns = here::now() };
    }
    0
}

#[repr(C)]
struct RequestRecord {
    head: Head,
    times: RequestTimes,
    caller: CallerSpan,
}

/// Reports the request that this write begins to answer, if its arrival was observed, and prepares for the next one.
#[inline(always)]
fn report_request(places: &Places, stream: *mut Stream, target: u32, socket: u64) {
    // SAFETY: a map value, checked for null, as in `report_returned_call`.
    let (times, caller) = unsafe { ((*stream).request, (*stream).caller) };
    if times.read_ns == 0 {
        return;
    }
    // A client may have received this very write, and the server's next request may be here before the write returns.
    // SAFETY: as above.
    unsafe {
        (*stream).request = RequestTimes { arrived_ns: (*stream).unread_since_ns, ..NEW_STREAM.request };
        (*stream).caller = CallerSpan::ABSENT;
    }
    let Some(mut slot) = RECORDS.reserve::<RequestRecord>(0) else {
        return count_loss(Loss::RingFull);
    };
    let mut head = record_head(places, Kind::Request, target, socket);
    head.captured = (size_of::<RequestTimes>() + size_of::<CallerSpan>()) as u32;
    // SAFETY: inside the reservation.
    unsafe { slot.as_mut_ptr().write(RequestRecord { head, times, caller }) };
    slot.submit(u64::from(BPF_RB_NO_WAKEUP));
}

/// `inet_sock_set_state(const struct sock *sk, int before, int state)`: reports a connection's new state, and adds an opened connection.
#[raw_tracepoint(tracepoint = "inet_sock_set_state")]
pub(crate) fn egress_state(ctx: RawTracePointContext) -> i32 {
    let socket: u64 = ctx.arg(0);
    let (before, state) = (ctx.arg::<u32>(1) as u8, ctx.arg::<u32>(2) as u8);
    // SAFETY: copied immediately.
    if let Some(stream) = (unsafe { STREAMS.get(socket) }).copied() {
        if stream.ignored == 0 {
            let mut head = record_head(&PLACES.load(), Kind::State, stream.target, socket);
            (head.before, head.state) = (before, state);
            if RECORDS.output::<Head>(&head, u64::from(BPF_RB_NO_WAKEUP)).is_err() {
                count_loss(Loss::RingFull);
            }
        }
        if state == CLOSE {
            // The kernel may reuse the address for another connection.
            let _ = STREAMS.remove(socket);
        }
    }
    if before == SYN_RECV && state == ESTABLISHED {
        let _ = add_opened_connection(socket);
    }
    0
}

/// Adds a connection that a client has opened to a listener.
#[inline(always)]
fn add_opened_connection(socket: u64) -> Option<()> {
    let places = PLACES.load();
    let network: u64 = read_field(socket, places.network)?;
    let key = listener_key(read_field(network, places.namespace)?, read_field(socket, places.local)?);
    // SAFETY: copied immediately.
    let target = unsafe { LISTENERS.get(key) }.copied()?;
    if is_tcp(&places, socket)? {
        let request = RequestTimes { opened_ns: here::now(), ..NEW_STREAM.request };
        let _ = STREAMS.insert(socket, Stream { target, request, ..NEW_STREAM }, 0);
    }
    Some(())
}

#[inline(always)]
fn record_head(places: &Places, kind: Kind, target: u32, socket: u64) -> Head {
    let written: u32 = read_field(socket, places.written).unwrap_or(0);
    let consumed: u32 = read_field(socket, places.consumed).unwrap_or(0);
    let acknowledged: u32 = read_field(socket, places.acknowledged).unwrap_or(0);
    Head {
        mark: MARK,
        at_ns: here::now(),
        socket,
        accepted: 0,
        asked: 0,
        from: 0,
        captured: 0,
        written: if matches!(kind, Kind::Read) { consumed } else { written },
        unacknowledged: written.wrapping_sub(acknowledged),
        target,
        tid: 0,
        ports: [
            read_field(socket, places.local).unwrap_or(0),
            u16::from_be(read_field(socket, places.remote).unwrap_or(0)),
        ],
        kind: kind as u8,
        before: 0,
        state: 0,
        reserved: 0,
    }
}

/// Returns the TCP socket that the current thread's file descriptor refers to.
#[inline(always)]
fn tcp_socket_of_descriptor(places: &Places, descriptor: u32) -> Option<u64> {
    // SAFETY: a helper without arguments.
    let task = unsafe { bpf_get_current_task() };
    let files: u64 = read_field(task, places.files)?;
    let table: u64 = read_field(files, places.table)?;
    let room: u32 = read_field(table, places.room)?;
    if descriptor >= room {
        return None;
    }
    let descriptors: u64 = read_field(table, places.descriptors)?;
    let file: u64 = read_field(descriptors + u64::from(descriptor) * 8, 0).filter(|file| *file != 0)?;
    let inode: u64 = read_field(file, places.inode)?;
    if read_field::<u16>(inode, places.mode)? & S_IFMT != S_IFSOCK {
        return None;
    }
    let socket: u64 = read_field(file, places.private)?;
    let sock: u64 = read_field(socket, places.sock).filter(|sock| *sock != 0)?;
    is_tcp(places, sock)?.then_some(sock)
}

#[inline(always)]
pub(crate) fn is_tcp(places: &Places, sock: u64) -> Option<bool> {
    let family: u16 = read_field(sock, places.family)?;
    let protocol: u16 = read_field(sock, places.protocol)?;
    Some((family == AF_INET || family == AF_INET6) && protocol == IPPROTO_TCP)
}
