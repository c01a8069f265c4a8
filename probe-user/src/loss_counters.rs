//! Counters of the observations that the kernel side dropped, per cause and processor.
//!
//! aya 0.14 can read such an array only if `/sys` lists the possible processors, and a container may lack `/sys`.
#![expect(unsafe_code, reason = "bpf(2) has no safe wrapper that works without /sys")]

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};

use aya::maps::{MapData, MapError};
use probe_ebpf::Loss;

use crate::programs::LossCounts;

/// Maximum value of `CONFIG_NR_CPUS` on any architecture.
const MAX_PROCESSORS: usize = 8192;
// include/uapi/linux/bpf.h
const BPF_MAP_LOOKUP_ELEM: libc::c_int = 1;

/// Buffer for the values of one counter, one per processor.
pub(crate) struct LossCounters {
    values: Box<[u64]>,
}

/// The part of `union bpf_attr` for a lookup.
#[repr(C)]
struct MapLookupAttribute {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl LossCounters {
    pub(crate) fn new() -> Self {
        // The kernel writes a value for each possible processor, however many there are.
        Self { values: vec![0; MAX_PROCESSORS].into_boxed_slice() }
    }

    /// Reads the counters of all causes from their map.
    pub(crate) fn read_all(&mut self, map: &MapData) -> Result<LossCounts, MapError> {
        let mut counts = LossCounts::default();
        for cause in Loss::ALL {
            counts[cause as usize] = self.read_total(map, cause)?;
        }
        Ok(counts)
    }

    /// Number of observations lost for `cause` since the load, on all processors.
    fn read_total(&mut self, map: &MapData, cause: Loss) -> Result<u64, MapError> {
        self.fill_values_of_counter(map, cause as u32)
            .map_err(|io_error| aya::sys::SyscallError { call: "bpf_map_lookup_elem", io_error })?;
        // Values of absent processors stay 0.
        Ok(self.values.iter().sum())
    }

    /// Copies the values of the counter with this key from the map, one per processor.
    fn fill_values_of_counter(&mut self, map: &MapData, key: u32) -> io::Result<()> {
        let lookup = MapLookupAttribute {
            map: map.fd().as_fd().as_raw_fd() as u32,
            padding: 0,
            key: &raw const key as u64,
            value: self.values.as_mut_ptr() as u64,
            flags: 0,
        };
        // SAFETY: the kernel writes 8 bytes for each possible processor, at most [`MAX_PROCESSORS`], which is the length of the buffer; key
        // and buffer outlive the call.
        let returned = unsafe {
            libc::syscall(libc::SYS_bpf, BPF_MAP_LOOKUP_ELEM, &raw const lookup, size_of::<MapLookupAttribute>())
        };
        if returned < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}
