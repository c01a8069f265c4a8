//! Copies the buffers of a returned system call to user space.
//!
//! The saved registers still hold the call's arguments, its buffers are intact, and the result is the number of moved bytes.

use core::ffi::c_void;
use core::ptr::null_mut;

use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;
use aya_ebpf::helpers::bpf_probe_read_user;
use aya_ebpf::helpers::generated::{bpf_loop, bpf_probe_read_user as read_user};
use aya_ebpf::macros::map;
use aya_ebpf::maps::PerCpuArray;
use probe_ebpf::Loss;
use probe_ebpf::egress::{Head, Places, SEGMENT};
use probe_ebpf::traceparent::{CallerSpan, HeadSearch, MAX_HEAD, MAX_STEPS};

use crate::fields::read_field;
use crate::maps::{RECORDS, count_loss};

#[map]
static SEGMENTS: PerCpuArray<Segment> = PerCpuArray::with_max_entries(1, 0);

#[map]
static WALKS: PerCpuArray<Walk> = PerCpuArray::with_max_entries(1, 0);

/// Apart from [`SEGMENTS`], because on preemptible kernels another program may run while the one that fills it is preempted.
#[map]
static HEAD_SEARCHES: PerCpuArray<HeadSearch> = PerCpuArray::with_max_entries(1, 0);

/// Maximum number of segments copied per call. The rest of a longer one is not copied; user space sees the gap in the byte count.
const STEPS: u32 = 512;
/// Offset in `struct user_msghdr` of the vector's address, followed by its length.
const VECTOR: u64 = 16;

#[repr(C)]
struct Segment {
    head: Head,
    payload: [u8; SEGMENT],
}

/// Progress of copying a call's buffers. Stored in a map so that the verifier does not track it per step.
#[repr(C)]
struct Walk {
    /// Number of bytes left to copy.
    left: u64,
    /// Address of the next byte.
    at: u64,
    /// Number of bytes left in the current buffer.
    here: u64,
    /// Address of the next vector entry.
    vector: u64,
    /// Number of vector entries left.
    vectors: u64,
}

/// How a system call passes its buffers.
#[derive(Clone, Copy)]
pub(crate) enum Shape {
    /// An address and a size.
    Single,
    /// A vector.
    Vector,
    /// A `struct user_msghdr` with a vector.
    Message,
}

/// Shape of the call with these registers; `None` if it is not one of `calls`, which are a single, a vectored, another single and a
/// message call.
#[inline(always)]
pub(crate) fn call_shape(places: &Places, registers: u64, calls: [u32; 4]) -> Option<Shape> {
    let number: u32 = read_field(registers, places.number)?;
    let [single, vector, other_single, message] = calls;
    if number == single || number == other_single {
        Some(Shape::Single)
    } else if number == vector {
        Some(Shape::Vector)
    } else if number == message {
        Some(Shape::Message)
    } else {
        None
    }
}

/// Address and size of the call's buffer, or of its vector.
#[inline(always)]
fn buffer_arguments(places: &Places, registers: u64, shape: Shape) -> Option<[u64; 2]> {
    let address: u64 = read_field(registers, places.arguments[1])?;
    if matches!(shape, Shape::Message) {
        // SAFETY: a read of the target's memory; a fault is an error value.
        return unsafe { bpf_probe_read_user((address + VECTOR) as *const [u64; 2]) }.ok();
    }
    Some([address, read_field(registers, places.arguments[2])?])
}

/// Searches the first `read_bytes` of a request, which the call has read, for the caller's span. Only the first buffer is searched.
#[inline(always)]
pub(crate) fn find_caller(places: &Places, registers: u64, shape: Shape, read_bytes: u64) -> Option<CallerSpan> {
    let [mut address, mut size] = buffer_arguments(places, registers, shape)?;
    if !matches!(shape, Shape::Single) {
        // SAFETY: a read of the target's memory; a fault is an error value.
        [address, size] = unsafe { bpf_probe_read_user(address as *const [u64; 2]) }.ok()?;
    }
    let search = HEAD_SEARCHES.get_ptr_mut(0)?;
    // SAFETY: a per-CPU slot, checked for null, of the only program that uses it. The length is read back as in `send_next_segment`.
    unsafe {
        (*search).length = size.min(read_bytes).min(MAX_HEAD as u64) as usize;
        let length = (&raw const (*search).length).read_volatile().min(MAX_HEAD);
        if read_user((&raw mut (*search).words).cast(), length as u32, address as *const _) != 0 {
            return None;
        }
        if !(*search).begin(length) {
            return Some(CallerSpan::ABSENT);
        }
        bpf_loop(MAX_STEPS, search_step as *mut c_void, null_mut(), 0);
        Some((*search).caller)
    }
}

/// A callback of `bpf_loop`: a step of the search. Returns 1 after the last one.
extern "C" fn search_step(_: u32, _: *mut c_void) -> i64 {
    // SAFETY: as in `find_caller`.
    let goes_on = HEAD_SEARCHES.get_ptr_mut(0).is_some_and(|search| unsafe { (*search).step() });
    i64::from(!goes_on)
}

/// Where the loop over the steps of a copy runs.
#[derive(Clone, Copy)]
pub(crate) enum Repeat {
    /// The kernel (5.17 and later), which verifies one step.
    Kernel,
    /// The program itself. The verifier follows every step, about 0.2 s.
    Program,
}

/// Sends the first `max_bytes` of the `head.accepted` bytes of the call's buffers, one record per segment. A refused call has one record
/// without bytes.
#[inline(always)]
pub(crate) fn send_call_buffers(
    places: &Places,
    registers: u64,
    shape: Shape,
    repeat: Repeat,
    max_bytes: u64,
    head: Head,
) -> Option<()> {
    let [place, size] = buffer_arguments(places, registers, shape)?;
    let walk = WALKS.get_ptr_mut(0)?;
    let segment = SEGMENTS.get_ptr_mut(0)?;
    let whole = if head.accepted > 0 { head.accepted as u64 } else { 0 };
    let single = matches!(shape, Shape::Single);
    // SAFETY: per-CPU slots, checked for null; no other program writes them while this one runs.
    unsafe {
        *walk = if single {
            Walk { left: whole.min(max_bytes), at: place, here: size, vector: 0, vectors: 0 }
        } else {
            Walk { left: whole.min(max_bytes), at: 0, here: 0, vector: place, vectors: size }
        };
        (*segment).head = head;
        (*segment).head.asked = if single { size } else { 0 };
    }
    if whole == 0 {
        output_segment(segment, 0);
        return Some(());
    }
    match repeat {
        // SAFETY: `step` has the callback's signature and needs no context.
        Repeat::Kernel => unsafe {
            bpf_loop(STEPS, step as *mut c_void, null_mut(), 0);
        },
        Repeat::Program => {
            for _ in 0..STEPS {
                if send_next_segment(segment, walk).is_none() {
                    break;
                }
            }
        }
    }
    Some(())
}

/// A callback of `bpf_loop`: a step of the copy. Returns 1 after the last one.
extern "C" fn step(_: u32, _: *mut c_void) -> i64 {
    let copied = || send_next_segment(SEGMENTS.get_ptr_mut(0)?, WALKS.get_ptr_mut(0)?);
    i64::from(copied().is_none())
}

/// Sends the next segment of a call's buffers. `walk` says how much is left and where it is. Returns `None` after the last segment.
#[inline(always)]
fn send_next_segment(segment: *mut Segment, walk: *mut Walk) -> Option<()> {
    // SAFETY: both are per-CPU slots, checked for null. Volatile reads keep the verifier from tracking every step.
    let Walk { left, mut at, mut here, vector, vectors } = unsafe { walk.read_volatile() };
    if left == 0 {
        return None;
    }
    if here == 0 {
        if vectors == 0 {
            return None;
        }
        // SAFETY: a read of the target's memory; a fault is an error value.
        let Ok([base, length]) = (unsafe { bpf_probe_read_user(vector as *const [u64; 2]) }) else {
            count_loss(Loss::PayloadFault);
            return None;
        };
        (at, here) = (base, length);
        // SAFETY: as above.
        unsafe {
            (&raw mut (*walk).vector).write_volatile(vector + 16);
            (&raw mut (*walk).vectors).write_volatile(vectors - 1);
        }
    }
    let size = here.min(left).min(SEGMENT as u64) as u32;
    if size == 0 {
        return Some(());
    }
    // SAFETY: as above. The size is read back so that the compiler keeps the bound check that the verifier needs.
    unsafe {
        (*segment).head.captured = size;
        let bound = (&raw const (*segment).head.captured).read_volatile().min(SEGMENT as u32);
        if read_user((&raw mut (*segment).payload).cast(), bound, at as *const _) != 0 {
            count_loss(Loss::PayloadFault);
            return None;
        }
        output_segment(segment, bound);
        (&raw mut (*segment).head.from).write_volatile((*segment).head.from + size);
        (&raw mut (*walk).left).write_volatile(left - u64::from(size));
        (&raw mut (*walk).at).write_volatile(at + u64::from(size));
        (&raw mut (*walk).here).write_volatile(here - u64::from(size));
    }
    Some(())
}

/// Sends the header and the first `payload_bytes` of the payload.
#[inline(always)]
fn output_segment(segment: *mut Segment, payload_bytes: u32) {
    let length = size_of::<Head>() + payload_bytes as usize;
    // SAFETY: `payload_bytes` is at most the payload's length.
    let bytes = unsafe { core::slice::from_raw_parts(segment.cast::<u8>(), length) };
    if RECORDS.output::<[u8]>(bytes, u64::from(BPF_RB_NO_WAKEUP)).is_err() {
        count_loss(Loss::RingFull);
    }
}
