//! Captures reads of ZMTP connections by processes without libzmq. User space registers the sockets.
//!
//! `sock_recv_length` fires when a read of any socket returns, whatever the system call. Minimum kernel: 6.5, with BTF for the offsets.

use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{bpf_get_current_task_btf, bpf_task_pt_regs};
use aya_ebpf::macros::{map, raw_tracepoint};
use aya_ebpf::maps::HashMap;
use aya_ebpf::programs::RawTracePointContext;
use probe_ebpf::Loss;
use probe_ebpf::egress::{Head, Kind, MARK, MAX_ZMTP, ZmtpConnection};

use crate::buffers::{self, Repeat};
use crate::egress::{MSG_PEEK, PLACES, is_tcp};
use crate::fields::read_field;
use crate::here::{self, Caller};
use crate::maps::{NAMESPACE_INO, RECORDS, TARGETS, count_loss};

/// Registered connections, by inode of the reading socket.
#[map]
static ZMTP: HashMap<u64, ZmtpConnection> = HashMap::with_max_entries(MAX_ZMTP, 0);

/// `sock_recv_length(struct sock *sk, int result, int flags)`: a read of a socket returns. Reports it if the socket is a watched ZMTP one.
#[raw_tracepoint(tracepoint = "sock_recv_length")]
pub(crate) fn zmtp_read(ctx: RawTracePointContext) -> i32 {
    let (result, flags) = (ctx.arg::<u32>(1) as i32, ctx.arg::<u32>(2));
    if result > 0 && flags & MSG_PEEK == 0 {
        let _ = report_zmtp_read(ctx.arg(0), result);
    }
    0
}

#[inline(always)]
fn report_zmtp_read(sock: u64, result: i32) -> Option<()> {
    // In another PID namespace, user space does not know the ids of the targets here.
    if NAMESPACE_INO.load() == 0 {
        // SAFETY: only its presence is checked.
        unsafe { TARGETS.get((bpf_get_current_pid_tgid() >> 32) as u32) }?;
    }
    let places = PLACES.load();
    let socket: u64 = read_field(sock, places.socket)?;
    let file: u64 = read_field(socket, places.file)?;
    let inode: u64 = read_field(file, places.inode)?;
    let number: u64 = read_field(inode, places.inode_number)?;
    let connection = ZMTP.get_ptr_mut(number)?;
    // SAFETY: a map value, checked for null. Only one thread at a time reads a byte stream in order.
    let ZmtpConnection { read, target, limit } = unsafe {
        (*connection).read = (*connection).read.wrapping_add(result as u64);
        *connection
    };
    let head = Head {
        mark: MARK,
        at_ns: here::now(),
        socket: number,
        accepted: i64::from(result),
        asked: 0,
        from: 0,
        captured: 0,
        written: if is_tcp(&places, sock)? { read_field(sock, places.consumed)? } else { read as u32 },
        unacknowledged: 0,
        target,
        tid: Caller::of(target)?.tid,
        ports: [0; 2],
        kind: Kind::Zmtp as u8,
        before: 0,
        state: 0,
        reserved: 0,
    };
    // SAFETY: helpers on the current task, which exists while this program runs.
    let registers = unsafe { bpf_task_pt_regs(bpf_get_current_task_btf()) } as u64;
    if let Some(shape) = buffers::call_shape(&places, registers, places.reads) {
        return buffers::send_call_buffers(&places, registers, shape, Repeat::Kernel, u64::from(limit), head);
    }
    // Another call, such as `recvmmsg` or `io_uring_enter`, whose buffers are not read.
    if RECORDS.output::<Head>(&head, u64::from(BPF_RB_NO_WAKEUP)).is_err() {
        count_loss(Loss::RingFull);
    }
    Some(())
}
