//! Objects of `CPython` in the target's memory. Their layout is that of 64-bit builds with a global interpreter lock (3.8 to 3.14).

use aya_ebpf::EbpfContext;
use aya_ebpf::helpers::bpf_probe_read_user;
use aya_log_ebpf::warn;
use probe_ebpf::Loss;

use crate::body::Body;
use crate::maps::count_loss;

/// Offset of the content in a `PyBytesObject`. Before it are reference count, type, size and hash.
const BYTES: u64 = 32;

/// Body of the bytes object that is first in the array of pointers at `arguments_address`. Counts a miss if it is unreadable.
#[inline(always)]
pub(crate) fn body_of_first_argument<C: EbpfContext>(ctx: &C, arguments_address: u64) -> Option<Body> {
    // SAFETY: reads of the target's memory; a fault is an error value.
    let object = unsafe { bpf_probe_read_user(arguments_address as *const u64) };
    // SAFETY: as above.
    let head = object.and_then(|object| Ok((object, unsafe { bpf_probe_read_user(object as *const [u64; 3]) }?)));
    let Ok((object, [_references, _class, size])) = head else {
        count_loss(Loss::HeaderFault);
        warn!(ctx, "the arguments at {:x} are not readable", arguments_address);
        return None;
    };
    Some(Body::of_buffer(object + BYTES, size, size))
}
