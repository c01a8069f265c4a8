//! Fields of kernel structs, at offsets that user space finds in BTF.

use aya_ebpf::helpers::bpf_probe_read_kernel;

/// Reads the field at `offset` of the struct at `address`.
#[inline(always)]
pub(crate) fn read_field<T>(address: u64, offset: u32) -> Option<T> {
    // SAFETY: a read of kernel memory; a fault is an error value.
    unsafe { bpf_probe_read_kernel((address + u64::from(offset)) as *const T) }.ok()
}
