//! Counters of the observations that the kernel side dropped, per cause and processor.
//!
//! aya 0.14 can read such an array only if `/sys` lists the possible processors, and a container may lack `/sys`.
#![expect(unsafe_code, reason = "bpf(2) has no safe wrapper that works without /sys")]

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};

use aya::maps::{Map, MapData, MapError};
use probe_ebpf::Loss;

use crate::observation::Observation;

/// Causes for which the kernel side neither writes nor drops a record.
pub(super) const UNRECORDED: [Loss; 4] = [Loss::UnknownMessage, Loss::HeaderFault, Loss::InFlight, Loss::Channels];
/// Maximum value of `CONFIG_NR_CPUS` on any architecture.
const MAX_PROCESSORS: usize = 8192;
// include/uapi/linux/bpf.h
const BPF_MAP_LOOKUP_ELEM: libc::c_int = 1;

/// The counters, with a buffer for one value per processor.
pub(super) struct Losses {
    map: MapData,
    values: Box<[u64]>,
    reported: [u64; Loss::ALL.len()],
}

/// The part of `union bpf_attr` for a lookup.
#[repr(C)]
struct Lookup {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl Losses {
    pub(super) fn new(map: Map) -> Result<Self, MapError> {
        let Map::PerCpuArray(map) = map else {
            return Err(MapError::InvalidName { name: "LOSSES".into() });
        };
        Ok(Self { map, values: vec![0; MAX_PROCESSORS].into_boxed_slice(), reported: [0; Loss::ALL.len()] })
    }

    /// Passes observations lost for `causes` since the last call to `emit`, and returns the number of causes with any.
    pub(super) fn report_new(
        &mut self,
        causes: &[Loss],
        emit: &mut impl FnMut(Observation<'_>),
    ) -> Result<usize, MapError> {
        let mut causes_with_losses = 0;
        for &cause in causes {
            let total = self.total(cause)?;
            let reported = std::mem::replace(&mut self.reported[cause as usize], total);
            if total > reported {
                let count = total - reported;
                emit(Observation::Lost { cause, count });
                causes_with_losses += 1;
            }
        }
        Ok(causes_with_losses)
    }

    /// Number of observations lost for `cause` since the load, on all processors.
    fn total(&mut self, cause: Loss) -> Result<u64, MapError> {
        let key = cause as u32;
        let lookup = Lookup {
            map: self.map.fd().as_fd().as_raw_fd() as u32,
            padding: 0,
            key: &raw const key as u64,
            value: self.values.as_mut_ptr() as u64,
            flags: 0,
        };
        // SAFETY: the kernel writes 8 bytes for each possible processor, at most [`MAX_PROCESSORS`], which is the length of `values`; key
        // and values outlive the call.
        let done = unsafe { libc::syscall(libc::SYS_bpf, BPF_MAP_LOOKUP_ELEM, &raw const lookup, size_of::<Lookup>()) };
        if done < 0 {
            return Err(MapError::from(aya::sys::SyscallError {
                call: "bpf_map_lookup_elem",
                io_error: io::Error::last_os_error(),
            }));
        }
        // Values of absent processors stay 0.
        Ok(self.values.iter().sum())
    }
}
