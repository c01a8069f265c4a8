//! A uprobe on this program itself, to test whether uprobes are possible when no engine runs.

use std::num::NonZeroU32;
use std::path::Path;

use aya::Ebpf;

use crate::attach::{Batch, Way};
use crate::capability::{Feature, Permissions};
use crate::degraded::Degraded;
use crate::floor::NOTHING;
use crate::load::{self, Settings};
use crate::probe::multi::Multi;

/// Error of setting a uprobe on this program.
#[derive(Debug, thiserror::Error)]
#[error("{}; {}", .0, .0.remedy())]
pub struct OwnError(pub Degraded);

/// Sets and removes a uprobe on a function of this program. Returns true if a multi-uprobe link was used (Linux 6.6 and later), and false
/// for a perf event.
pub fn own_uprobe() -> Result<bool, OwnError> {
    attempt().map_err(|error| OwnError(Degraded::explain(Feature::Messages, None, Permissions::here(), error)))
}

fn attempt() -> Result<bool, Box<dyn std::error::Error>> {
    let mut ebpf: Ebpf = load::load(Settings::bare())?;
    let mut way = Multi::load(&ebpf, &[NOTHING]).map_or(Way::Perf, Way::Multi);
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let address = attempt as *const () as u64;
    let offset = offset(&maps, address).ok_or("/proc/self/maps does not show this program")?;
    let id = NonZeroU32::new(std::process::id()).ok_or("this process has no id")?;
    let batch = Batch::of(NOTHING, false, [offset]);
    way.attach(&mut ebpf, &batch, Path::new("/proc/self/exe"), id)?;
    Ok(matches!(way, Way::Multi(_)))
}

/// File offset of the code at `address`.
fn offset(maps: &str, address: u64) -> Option<u64> {
    maps.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        let offset = u64::from_str_radix(fields.nth(1)?, 16).ok()?;
        (start..end)
            .contains(&address)
            .then(|| (address - start).checked_add(offset))?
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
        assert!(offset(&own, attempt as *const () as u64).is_some());
    }
}
