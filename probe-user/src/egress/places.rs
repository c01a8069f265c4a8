//! System call numbers and offsets in kernel structs, for the kernel side.

use probe_ebpf::egress::Places;

use crate::btf::Btf;

/// A field that this kernel's BTF lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kernel's type information lacks {0}")]
pub struct MissingField(String);

/// `write`, `writev`, `sendto`, `sendmsg`; `arch/x86/entry/syscalls/syscall_64.tbl`.
#[cfg(target_arch = "x86_64")]
const CALLS: [u32; 4] = [1, 20, 44, 46];
/// As above; `include/uapi/asm-generic/unistd.h`.
#[cfg(target_arch = "aarch64")]
const CALLS: [u32; 4] = [64, 66, 206, 211];

/// System call numbers of `read`, `readv`, `recvfrom`, `recvmsg`.
#[cfg(target_arch = "x86_64")]
const READS: [u32; 4] = [0, 19, 45, 47];
/// As above.
#[cfg(target_arch = "aarch64")]
const READS: [u32; 4] = [63, 65, 207, 212];

/// System call number and first arguments in `struct pt_regs` at the return of a call: the member, and an offset to add.
#[cfg(target_arch = "x86_64")]
const REGISTERS: [(&str, u32); 4] = [("orig_ax", 0), ("di", 0), ("si", 0), ("dx", 0)];
/// The result overwrites the first argument in `regs[0]`; `orig_x0` preserves it.
#[cfg(target_arch = "aarch64")]
const REGISTERS: [(&str, u32); 4] = [("syscallno", 0), ("orig_x0", 0), ("regs", 8), ("regs", 16)];

/// Reads all required offsets from the running kernel's types.
pub(crate) fn places(btf: &Btf) -> Result<Places, MissingField> {
    let of = |name: &str, path: &str| btf.offset(name, path).ok_or_else(|| MissingField(format!("{name}.{path}")));
    let register = |(member, more): (&str, u32)| Ok(of("pt_regs", member)? + more);
    let [number, first, second, third] = REGISTERS;
    Ok(Places {
        calls: CALLS,
        reads: READS,
        number: register(number)?,
        arguments: [register(first)?, register(second)?, register(third)?],
        files: of("task_struct", "files")?,
        table: of("files_struct", "fdt")?,
        room: of("fdtable", "max_fds")?,
        descriptors: of("fdtable", "fd")?,
        inode: of("file", "f_inode")?,
        mode: of("inode", "i_mode")?,
        inode_number: of("inode", "i_ino")?,
        private: of("file", "private_data")?,
        sock: of("socket", "sk")?,
        file: of("socket", "file")?,
        socket: of("sock", "sk_socket")?,
        family: of("sock", "__sk_common.skc_family")?,
        protocol: of("sock", "sk_protocol")?,
        local: of("sock", "__sk_common.skc_num")?,
        remote: of("sock", "__sk_common.skc_dport")?,
        written: of("tcp_sock", "write_seq")?,
        acknowledged: of("tcp_sock", "snd_una")?,
        consumed: of("tcp_sock", "copied_seq")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_kernel_has_all_probed_functions() {
        match Btf::running() {
            Ok(btf) => assert!(places(&btf).is_ok(), "{:?}", places(&btf)),
            Err(error) => eprintln!("SKIPPED: {error}"),
        }
    }
}
