//! Time that `attach` takes to show the first number on its screen, and to exit.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::super::aims;
use super::peers::{Kit, Peers};
use super::{PATIENCE, frames_per_s, on_screen, wait_for};

/// Starts and stops `attach` repeatedly on an engine at full rate.
pub(super) fn measure(kit: &Kit, binary: &Path, folder: &Path, times: usize) -> Result<()> {
    let folder = tempfile::tempdir_in(folder)?;
    let mut peers = Peers::start(kit, folder.path())?;
    // More frames than the test can last for; the peers end when dropped.
    peers.order(u64::MAX >> 1, frames_per_s(1))?;
    let (mut came, mut went) = (Vec::new(), Vec::new());
    for _ in 0..times {
        let begun = Instant::now();
        let tmux = on_screen(binary, &peers, &[])?;
        wait_for(&tmux, shows_a_number)?;
        came.push(begun.elapsed());
        let pid = Pid::from_raw(tmux.pid()? as i32).context("the program's id")?;
        let process = pidfd_open(pid, PidfdFlags::empty()).context("the program has ended")?;
        let asked = Instant::now();
        tmux.press(&["q"])?;
        let patience = PATIENCE.try_into().ok();
        rustix::event::poll(&mut [PollFd::new(&process, PollFlags::IN)], patience.as_ref())?;
        went.push(asked.elapsed());
    }
    for (key, what, times) in [
        ("attach.first", "started, to the first number on the screen", &mut came),
        ("attach.gone", "`q` pressed, to the end of the process", &mut went),
    ] {
        times.sort();
        let ms = |time: Option<&Duration>| time.map_or(f64::NAN, |time| time.as_secs_f64() * 1e3);
        println!(
            "{what}: median {:.0} ms, {:.0}..{:.0} of {}",
            ms(times.get(times.len() / 2)),
            ms(times.first()),
            ms(times.last()),
            times.len()
        );
        aims::came(key, ms(times.get(times.len() / 2)), &[])?;
    }
    Ok(())
}

/// Whether the overview counts tokens: ` tokens   31.3k sent`.
fn shows_a_number(pane: &str) -> bool {
    let mut lines = pane.lines();
    let said = lines.find_map(|line| line.strip_prefix(" tokens ")?.trim_start().split_once(" sent"));
    said.is_some_and(|(number, _)| number.starts_with(|first: char| ('1'..='9').contains(&first)))
}
