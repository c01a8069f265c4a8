//! Where processes that tokengap starts for itself write what nobody reads.

use std::io;
use std::path::Path;
use std::process::Stdio;

use rustix::fs::{MemfdFlags, memfd_create};

/// Standard output or error of a process whose output is not needed. This is `/dev/null`, or in a container without it a file in memory,
/// because a failed write would end the process. Such a file grows, so the process should write little.
pub fn discarded_output() -> io::Result<Stdio> {
    if Path::new("/dev/null").exists() {
        return Ok(Stdio::null());
    }
    // The child gets a copy of the descriptor, which `CLOEXEC` does not close.
    Ok(memfd_create("discarded", MemfdFlags::CLOEXEC)?.into())
}
