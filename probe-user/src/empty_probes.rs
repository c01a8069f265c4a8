//! Empty probes, which measure the kernel's own cost of a trap, or test whether uprobes are possible.

use std::num::NonZeroU32;
use std::path::Path;

use aya::Ebpf;
use probe_ebpf::Cookie;

use crate::attach::{AttachError, AttachMethod, Link};
use crate::capability::{Feature, Permissions};
use crate::degraded::Degraded;
use crate::library::{self, Library};
use crate::load::{self, LoadSettings};
use crate::probe::batches::{message_batches, poll_batches};
use crate::probe_points::{ProbePointCache, ProbePoints, ProbePointsError, Sought};
use crate::programs::{Batch, MessagePoints, Points};

/// Name of a program that returns immediately.
const EMPTY_PROGRAM: &str = "nothing";
/// Index of the target in the cookies, which an empty program does not read.
const NO_TARGET: u32 = 0;

/// Set of probe points for the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traps {
    /// The points that [`crate::Probe`] needs to observe messages sent and received.
    ProbePoints,
    /// Entries of send and receive and the return of receive: the points needed without code analysis.
    Calls,
    /// Every point that [`crate::Probe`] uses with all its features.
    All,
}

/// Attaches a program that does nothing to the probe points in `traps` of process `pid`, to measure their cost. Dropping the result
/// detaches it. The error says why it cannot be attached.
pub fn attach_empty_probes(pid: u32, traps: Traps) -> Result<Vec<Box<dyn Send>>, String> {
    attach_traps(pid, traps).map_err(|error| {
        format!("cannot set probes in process {pid}: {error}; this needs the same privileges as observing frames")
    })
}

/// Attaches programs that do nothing to probe points of process `pid`, to measure what the kernel alone costs. `traps` selects the points,
/// at each of which the process traps into the kernel. Fails if the process has not loaded libzmq.
fn attach_traps(pid: u32, traps: Traps) -> Result<Vec<Link>, Box<dyn std::error::Error>> {
    let mut ebpf: Ebpf = load::load_object(LoadSettings::minimal())?;
    let mut method = AttachMethod::choose(&ebpf, &[EMPTY_PROGRAM]);
    let id = NonZeroU32::new(pid).ok_or("no process has this id")?;
    let mut links = Vec::new();
    let mut cache = ProbePointCache::default();
    for library in library::open_libzmq(pid)? {
        let probe_points = cache.find_in_library(Sought::Functions, &library.file)?;
        let batches = batches_of_traps(&probe_points, traps, library.may_use_buffers)?;
        links.extend(attach_with_empty_program(&mut ebpf, &mut method, batches, &library, id)?);
    }
    if links.is_empty() {
        return Err("libzmq is not loaded in it".into());
    }
    // Polls are in libc.
    if traps == Traps::All {
        for library in library::open_libc(pid)? {
            let probe_points = cache.find_in_library(Sought::Functions, &library.file)?;
            // With all its features, the probe needs no returns of polls.
            let with_returns = false;
            let batches = poll_batches(&probe_points, NO_TARGET, with_returns)?;
            links.extend(attach_with_empty_program(&mut ebpf, &mut method, batches, &library, id)?);
        }
    }
    Ok(links)
}

/// Attaches an empty program to the probe points of these batches in a library of process `pid`. A batch is a program with its points; its
/// program is replaced here.
fn attach_with_empty_program(
    ebpf: &mut Ebpf,
    method: &mut AttachMethod,
    batches: Vec<Batch>,
    library: &Library,
    pid: NonZeroU32,
) -> Result<Vec<Link>, AttachError> {
    let mut links = Vec::new();
    for batch in batches {
        links.extend(method.attach_batch(ebpf, &with_empty_program(batch), &library.file.path(), pid)?);
    }
    Ok(links)
}

/// The probe points in libzmq that `traps` selects. A batch is a program with its points. `may_use_buffers`: the process may also send
/// plain buffers, which other functions of libzmq do.
fn batches_of_traps(
    probe_points: &ProbePoints,
    traps: Traps,
    may_use_buffers: bool,
) -> Result<Vec<Batch>, ProbePointsError> {
    if traps == Traps::All {
        return message_batches(probe_points, NO_TARGET, MessagePoints { processed: true, buffers: may_use_buffers });
    }
    let send = probe_points.entry_offset_of("zmq_msg_send")?;
    let recv = probe_points.entry_offset_of("zmq_msg_recv")?;
    // If the code of `zmq_msg_recv` is understood, one point inside it has the result of the receive.
    if traps == Traps::ProbePoints
        && let Some(received) = probe_points.received
    {
        return Ok(vec![Batch::at_entries(EMPTY_PROGRAM, points_at([send, received.at]))]);
    }
    // Otherwise entry and return of the function are probed, which costs more.
    Ok(vec![
        Batch::at_entries(EMPTY_PROGRAM, points_at([send, recv])),
        Batch::at_returns(EMPTY_PROGRAM, points_at([recv])),
    ])
}

/// Probe points at these offsets, with the cookie that an empty program ignores.
fn points_at<const N: usize>(offsets: [u64; N]) -> Points {
    offsets.map(|offset| (offset, Cookie(0))).to_vec()
}

/// The same probe points with the program that returns immediately.
fn with_empty_program(batch: Batch) -> Batch {
    Batch { program: EMPTY_PROGRAM, ..batch }
}

/// Sets and removes a uprobe on a function of this program. Returns whether a multi-uprobe link was used (Linux 6.6 and later), instead of
/// a perf event.
pub fn probe_self_with_multi_uprobe() -> Result<bool, Degraded> {
    attach_to_self_and_check_multi_links()
        .map_err(|error| Degraded::from_failure(Feature::Messages, None, Permissions::current(), error))
}

/// Sets a uprobe on this function of this process, to test whether uprobes are possible. Returns whether the kernel can attach several
/// points by one link, which is cheaper.
fn attach_to_self_and_check_multi_links() -> Result<bool, Box<dyn std::error::Error>> {
    let mut ebpf: Ebpf = load::load_object(LoadSettings::minimal())?;
    let mut method = AttachMethod::choose(&ebpf, &[EMPTY_PROGRAM]);
    let maps = foreign::kernel::read_text("/proc/self/maps")?;
    let address = attach_to_self_and_check_multi_links as *const () as u64;
    let offset = file_offset_of_code(&maps, address).ok_or("/proc/self/maps does not show this program")?;
    let id = NonZeroU32::new(std::process::id()).ok_or("this process has no id")?;
    let probe = Batch::at_entries(EMPTY_PROGRAM, points_at([offset]));
    method.attach_batch(&mut ebpf, &probe, Path::new("/proc/self/exe"), id)?;
    Ok(matches!(method, AttachMethod::MultiUprobes(_)))
}

/// File offset of the code at `address`, by the lines of `/proc/PID/maps`.
fn file_offset_of_code(maps: &str, address: u64) -> Option<u64> {
    maps.lines().find_map(|line| file_offset_in_mapping(line, address))
}

/// Converts the `address` of code to its offset in the file that is mapped there. `maps_line` is a line of `/proc/self/maps`, such as
/// `7f12-7f34 r-xp 00002000 ..`. `None` if its mapping does not contain the address.
fn file_offset_in_mapping(maps_line: &str, address: u64) -> Option<u64> {
    let mut fields = maps_line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    if !(start..end).contains(&address) {
        return None;
    }
    // The permissions come between. The offset is that of the mapping's start in the file.
    let mapped_offset = u64::from_str_radix(fields.nth(1)?, 16).ok()?;
    (address - start).checked_add(mapped_offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_translate_to_file_offsets() {
        let maps = "55d0-55e0 r--p 00000000 fe:00 7 /x\n55e0-55ff r-xp 00000010 fe:00 7 /x\n";
        assert_eq!(file_offset_of_code(maps, 0x55e4), Some(0x14));
        assert_eq!(file_offset_of_code(maps, 0x1), None);
        let own = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(file_offset_of_code(&own, attach_to_self_and_check_multi_links as *const () as u64).is_some());
    }
}
