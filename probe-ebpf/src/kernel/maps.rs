//! What user space sets before the load (globals) and what both sides share (maps).

use aya_ebpf::Global;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LruHashMap, PerCpuArray, RingBuf};
use probe_ebpf::{Call, Channel, Loss, MAX_TARGETS, Offsets, Thread, Watched};

/// Offsets inside kernel structs of the running kernel.
#[unsafe(no_mangle)]
pub(crate) static OFFSETS: Global<Offsets> = Global::new(Offsets::NONE);

/// The reader is woken whenever so many more bytes are pending; it polls on a timer besides. 0 leaves it to the kernel (a
/// wake-up per record). A power of 2.
#[unsafe(no_mangle)]
pub(crate) static WAKE_BYTES: Global<u32> = Global::new(64 << 10);

/// Device of user space's pid namespace; see [`NAMESPACE_INO`].
#[unsafe(no_mangle)]
pub(crate) static NAMESPACE_DEV: Global<u64> = Global::new(0);

/// Inode of user space's pid namespace; 0 when it is the initial one and ids need no translation.
#[unsafe(no_mangle)]
pub(crate) static NAMESPACE_INO: Global<u64> = Global::new(0);

/// 1 when threads are accounted for (scheduler or polls): else no program looks for its thread.
#[unsafe(no_mangle)]
pub(crate) static ACCOUNTING: Global<u32> = Global::new(1);

/// Records to user space. Its size is set before the load.
#[map]
pub(crate) static RECORDS: RingBuf = RingBuf::with_byte_size(8 << 20, 0);

/// Observations that were not made, by [`Loss`].
#[map]
pub(crate) static LOSSES: PerCpuArray<u64> = PerCpuArray::with_max_entries(Loss::ALL.len() as u32, 0);

/// What is known of each target, by its index. User space may change it at any time.
#[map]
pub(crate) static WATCHED: Array<Watched> = Array::with_max_entries(MAX_TARGETS, 0);

/// Target index by process id in the initial namespace, for programs that see every process.
#[map]
pub(crate) static TARGETS: HashMap<u32, u32> = HashMap::with_max_entries(MAX_TARGETS, 0);

/// Message counts by [`probe_ebpf::channel_key`].
#[map]
pub(crate) static CHANNELS: LruHashMap<u64, Channel> = LruHashMap::with_max_entries(4096, 0);

/// Accounting by thread id in the initial namespace.
#[map]
pub(crate) static THREADS: LruHashMap<u32, Thread> = LruHashMap::with_max_entries(8192, 0);

/// Calls between a probed entry and its return, by thread id in the initial namespace.
#[map]
pub(crate) static CALLS: LruHashMap<u32, Call> = LruHashMap::with_max_entries(4096, 0);

/// Counts an observation that was not made.
#[inline(always)]
pub(crate) fn lost(cause: Loss) {
    if let Some(count) = LOSSES.get_ptr_mut(cause as u32) {
        // SAFETY: a per-CPU slot of a map, checked for null; nothing else writes it while this program runs.
        unsafe { *count += 1 }
    }
}
