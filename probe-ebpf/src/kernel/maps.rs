//! Globals, which user space sets before loading, and maps, which both sides share.

use aya_ebpf::Global;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LruHashMap, PerCpuArray, RingBuf};
use probe_ebpf::{Call, Channel, Loss, MAX_TARGETS, Offsets, Thread, Watched};

/// Struct offsets of the running kernel.
#[unsafe(no_mangle)]
pub(crate) static OFFSETS: Global<Offsets> = Global::new(Offsets::NONE);

/// Wakes the reader each time this many more bytes are pending; 0 if the reader polls.
#[unsafe(no_mangle)]
pub(crate) static WAKE_BYTES: Global<u32> = Global::new(0);

/// Device number of user space's PID namespace; see [`NAMESPACE_INO`].
#[unsafe(no_mangle)]
pub(crate) static NAMESPACE_DEV: Global<u64> = Global::new(0);

/// Inode of user space's PID namespace; 0 for the initial namespace, where ids need no translation.
#[unsafe(no_mangle)]
pub(crate) static NAMESPACE_INO: Global<u64> = Global::new(0);

/// 1 to account for thread states or polls; 0 to skip the thread lookup.
#[unsafe(no_mangle)]
pub(crate) static ACCOUNTING: Global<u32> = Global::new(1);

/// Records for user space, which sets the size before loading.
#[map]
pub(crate) static RECORDS: RingBuf = RingBuf::with_byte_size(8 << 20, 0);

/// Number of missed observations by [`Loss`].
#[map]
pub(crate) static LOSSES: PerCpuArray<u64> = PerCpuArray::with_max_entries(Loss::ALL.len() as u32, 0);

/// Settings of each target, by index. User space may change them at any time.
#[map]
pub(crate) static WATCHED: Array<Watched> = Array::with_max_entries(MAX_TARGETS, 0);

/// Target index by process id in the initial namespace, for programs that run for every process.
#[map]
pub(crate) static TARGETS: HashMap<u32, u32> = HashMap::with_max_entries(MAX_TARGETS, 0);

/// Message counters by [`probe_ebpf::channel_key`].
#[map]
pub(crate) static CHANNELS: LruHashMap<u64, Channel> = LruHashMap::with_max_entries(4096, 0);

/// Thread accounting by thread id in the initial namespace.
#[map]
pub(crate) static THREADS: LruHashMap<u32, Thread> = LruHashMap::with_max_entries(8192, 0);

/// Calls in progress whose return is probed, by thread id in the initial namespace.
#[map]
pub(crate) static CALLS: LruHashMap<u32, Call> = LruHashMap::with_max_entries(4096, 0);

/// Counts a missed observation.
#[inline(always)]
pub(crate) fn count_loss(cause: Loss) {
    if let Some(count) = LOSSES.get_ptr_mut(cause as u32) {
        // SAFETY: a per-CPU map slot, checked for null; no other program writes it while this one runs.
        unsafe { *count += 1 }
    }
}
