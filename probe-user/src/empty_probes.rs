//! Empty probes, which measure the kernel's own cost of a trap, or test whether uprobes are possible.

use std::num::NonZeroU32;
use std::path::Path;

use aya::Ebpf;
use probe_ebpf::Cookie;

use crate::attach::{AttachMethod, Link};
use crate::capability::{Feature, Permissions};
use crate::degraded::Degraded;
use crate::library;
use crate::load::{self, Settings};
use crate::probe::batches::{messages, polls};
use crate::probe_points::{Known, Sought};
use crate::programs::{Batch, MessagePoints};

/// Name of a program that returns immediately.
const NOTHING: &str = "nothing";

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

/// Attaches empty probes to process `pid`. Dropping the result detaches them.
pub fn attach(pid: u32, traps: Traps) -> Result<Vec<Box<dyn Send>>, String> {
    let failed =
        |why| format!("cannot set probes in process {pid}: {why}; this needs the same privileges as observing frames");
    set(pid, traps).map_err(failed)
}

fn set(pid: u32, traps: Traps) -> Result<Vec<Link>, Box<dyn std::error::Error>> {
    let mut ebpf: Ebpf = load::load(Settings::bare())?;
    let mut way = AttachMethod::of(&ebpf, &[NOTHING]);
    let id = NonZeroU32::new(pid).ok_or("no process has this id")?;
    let (mut links, mut known) = (Vec::new(), Known::default());
    for library in library::libzmq(pid)? {
        let probe_points = known.find(Sought::Functions, &library.file)?;
        let (send, recv) = (probe_points.entry("zmq_msg_send")?, probe_points.entry("zmq_msg_recv")?);
        let batches = match (traps, probe_points.received) {
            (Traps::ProbePoints, Some(done)) => vec![batch(false, [send, done.at])],
            (Traps::All, _) => messages(&probe_points, 0, MessagePoints { processed: true, buffers: library.buffers })?,
            _ => vec![batch(false, [send, recv]), batch(true, [recv])],
        };
        for batch in batches {
            links.extend(way.attach(&mut ebpf, &emptied(batch), &library.file.path(), id)?);
        }
    }
    if links.is_empty() {
        return Err("libzmq is not loaded in it".into());
    }
    if traps == Traps::All {
        for library in library::libc(pid)? {
            for batch in polls(&*known.find(Sought::Functions, &library.file)?, 0, false)? {
                links.extend(way.attach(&mut ebpf, &emptied(batch), &library.file.path(), id)?);
            }
        }
    }
    Ok(links)
}

/// Empty probes at these offsets.
fn batch<const N: usize>(returns: bool, offsets: [u64; N]) -> Batch {
    Batch { program: NOTHING, returns, points: offsets.map(|offset| (offset, Cookie(0))).to_vec() }
}

/// The same probe points with the program that returns immediately.
fn emptied(batch: Batch) -> Batch {
    Batch { program: NOTHING, ..batch }
}

/// Sets and removes a uprobe on a function of this program. Returns true if a multi-uprobe link was used (Linux 6.6 and later), and false
/// for a perf event.
pub fn own_uprobe() -> Result<bool, Degraded> {
    attach_to_self().map_err(|error| Degraded::explain(Feature::Messages, None, Permissions::here(), error))
}

fn attach_to_self() -> Result<bool, Box<dyn std::error::Error>> {
    let mut ebpf: Ebpf = load::load(Settings::bare())?;
    let mut way = AttachMethod::of(&ebpf, &[NOTHING]);
    let maps = foreign::kernel::read_text("/proc/self/maps")?;
    let address = attach_to_self as *const () as u64;
    let offset = offset(&maps, address).ok_or("/proc/self/maps does not show this program")?;
    let id = NonZeroU32::new(std::process::id()).ok_or("this process has no id")?;
    way.attach(&mut ebpf, &batch(false, [offset]), Path::new("/proc/self/exe"), id)?;
    Ok(matches!(way, AttachMethod::Multi(_)))
}

/// File offset of the code at `address`.
fn offset(maps: &str, address: u64) -> Option<u64> {
    maps.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        let offset = u64::from_str_radix(fields.nth(1)?, 16).ok()?;
        (start..end).contains(&address).then(|| (address - start).checked_add(offset))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_translate_to_file_offsets() {
        let maps = "55d0-55e0 r--p 00000000 fe:00 7 /x\n55e0-55ff r-xp 00000010 fe:00 7 /x\n";
        assert_eq!(offset(maps, 0x55e4), Some(0x14));
        assert_eq!(offset(maps, 0x1), None);
        let own = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(offset(&own, attach_to_self as *const () as u64).is_some());
    }
}
