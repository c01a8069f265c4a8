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

/// A register in `struct pt_regs`.
#[derive(Clone, Copy)]
struct SavedRegister {
    member: &'static str,
    /// Offset of the register in this member.
    extra_bytes: u32,
}

/// System call number and first arguments at the return of a call.
#[cfg(target_arch = "x86_64")]
const REGISTERS: [SavedRegister; 4] = [
    SavedRegister::new("orig_ax", 0),
    SavedRegister::new("di", 0),
    SavedRegister::new("si", 0),
    SavedRegister::new("dx", 0),
];
/// The result overwrites the first argument in `regs[0]`; `orig_x0` preserves it.
#[cfg(target_arch = "aarch64")]
const REGISTERS: [SavedRegister; 4] = [
    SavedRegister::new("syscallno", 0),
    SavedRegister::new("orig_x0", 0),
    SavedRegister::new("regs", 8),
    SavedRegister::new("regs", 16),
];

impl SavedRegister {
    const fn new(member: &'static str, extra_bytes: u32) -> Self {
        Self { member, extra_bytes }
    }

    fn offset(self, btf: &Btf) -> Result<u32, MissingField> {
        Ok(field_offset(btf, "pt_regs", self.member)? + self.extra_bytes)
    }
}

/// Offset of a field in a struct of the kernel, in bytes.
fn field_offset(btf: &Btf, struct_name: &str, path: &str) -> Result<u32, MissingField> {
    btf.field_offset(struct_name, path).ok_or_else(|| MissingField(format!("{struct_name}.{path}")))
}

/// Finds the offsets of kernel struct fields that the eBPF programs for serving processes read. The error names the first field that the
/// running kernel lacks.
pub(crate) fn find_egress_offsets(btf: &Btf) -> Result<Places, MissingField> {
    // The number of the system call, and its first three arguments.
    let [number, first, second, third] = REGISTERS;
    Ok(Places {
        calls: CALLS,
        reads: READS,
        number: number.offset(btf)?,
        arguments: [first.offset(btf)?, second.offset(btf)?, third.offset(btf)?],
        // From a process to its open files.
        files: field_offset(btf, "task_struct", "files")?,
        table: field_offset(btf, "files_struct", "fdt")?,
        room: field_offset(btf, "fdtable", "max_fds")?,
        descriptors: field_offset(btf, "fdtable", "fd")?,
        // From a file to its inode and its socket.
        inode: field_offset(btf, "file", "f_inode")?,
        mode: field_offset(btf, "inode", "i_mode")?,
        inode_number: field_offset(btf, "inode", "i_ino")?,
        private: field_offset(btf, "file", "private_data")?,
        sock: field_offset(btf, "socket", "sk")?,
        file: field_offset(btf, "socket", "file")?,
        socket: field_offset(btf, "sock", "sk_socket")?,
        // The connection of a socket, with its ports.
        family: field_offset(btf, "sock", "__sk_common.skc_family")?,
        protocol: field_offset(btf, "sock", "sk_protocol")?,
        local: field_offset(btf, "sock", "__sk_common.skc_num")?,
        remote: field_offset(btf, "sock", "__sk_common.skc_dport")?,
        // Positions in the byte streams of a TCP connection.
        written: field_offset(btf, "tcp_sock", "write_seq")?,
        acknowledged: field_offset(btf, "tcp_sock", "snd_una")?,
        consumed: field_offset(btf, "tcp_sock", "copied_seq")?,
        arrived: field_offset(btf, "tcp_sock", "rcv_nxt")?,
        // The network namespace.
        network: field_offset(btf, "sock", "__sk_common.skc_net.net")?,
        namespace: field_offset(btf, "net", "ns.inum")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_kernel_has_all_probed_functions() {
        match Btf::read_running_kernel() {
            Ok(btf) => assert!(find_egress_offsets(&btf).is_ok(), "{:?}", find_egress_offsets(&btf)),
            Err(error) => eprintln!("SKIPPED: {error}"),
        }
    }
}
