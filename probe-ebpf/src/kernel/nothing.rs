//! Empty program. Its cost is the kernel's own cost of a uprobe, the lower bound for any probe.

use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;

#[uprobe]
pub(crate) fn nothing(_: ProbeContext) -> u32 {
    0
}
