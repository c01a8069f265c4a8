//! A program that does nothing: what it costs a target is the kernel's price of a probe, below which no tool gets.

use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;

#[uprobe]
pub(crate) fn nothing(_: ProbeContext) -> u32 {
    0
}
