//! A probe on running processes: attach, read, detach.

mod options;
mod read;
mod serving;

use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, RingBuf};
use probe_ebpf::{Capture, Loss, MAX_TARGETS, Offsets, Thread};
use rustix::process::{Pid, PidfdFlags};

use crate::attach::{self, Group, Link, Place};
use crate::btf::{Btf, VMLINUX};
use crate::capability::{Feature, Permissions};
use crate::degraded::{Degraded, Missing};
use crate::diagnostics::Diagnostics;
use crate::egress::places;
use crate::library;
use crate::load::{self, Settings};
use crate::observation::Observation;
use crate::plain::Plain;

use serving::Serving;

pub use options::{Options, ProbeError, Target};

/// Losses and exits are looked at this often; both are rare.
const HOUSEKEEPING: Duration = Duration::from_millis(100);

/// A probe. Dropping it detaches everything.
pub struct Probe {
    ebpf: Ebpf,
    records: RingBuf<MapData>,
    losses: PerCpuArray<MapData, u64>,
    captures: Array<MapData, Plain<Capture>>,
    targets: Vec<Watched>,
    global: Vec<Link>,
    /// Thread states are observed; what is not observed is `None` in every observation.
    scheduler: bool,
    degraded: Vec<Degraded>,
    permissions: Permissions,
    options: Options,
    diagnostics: Option<Diagnostics>,
    serving: Serving,
    told: [u64; Loss::ALL.len()],
    kept_at: Instant,
}

struct Watched {
    pid: u32,
    /// Readable when the process has ended; `None` once that was said, or where pidfds are refused.
    alive: Option<OwnedFd>,
    links: Vec<Link>,
    polls: bool,
}

impl Probe {
    /// Attaches to `targets`, which may have been running for long. What cannot be attached is in [`Probe::degraded`].
    pub fn attach(targets: &[Target], options: Options) -> Result<Self, ProbeError> {
        let permissions = Permissions::here();
        let mut degraded = Vec::new();
        let (offsets, places) = match Btf::running() {
            Ok(btf) => (btf.offsets(), places(&btf).map_err(|error| error.to_string())),
            Err(error) => {
                degraded.push(no_types(error.to_string()));
                (Offsets::NONE, Err(error.to_string()))
            }
        };
        let ring_bytes = options.ring_bytes.clamp(64 << 10, 1 << 30).next_power_of_two();
        let settings = Settings {
            ring_bytes,
            wake_bytes: options.wake_bytes,
            offsets,
            places: places.clone().unwrap_or_default(),
            diagnostics: options.diagnostics,
        };
        let mut ebpf = load::load(settings).map_err(|error| {
            ProbeError::Unavailable(Degraded::explain(Feature::Messages, None, permissions, chain(&error)))
        })?;
        let records = map(&mut ebpf, "RECORDS", RingBuf::try_from)?;
        let losses = map(&mut ebpf, "LOSSES", PerCpuArray::try_from)?;
        let captures = map(&mut ebpf, "CAPTURES", Array::try_from)?;
        let diagnostics = if options.diagnostics {
            Diagnostics::of(&mut ebpf)
        } else {
            None
        };
        let mut probe = Self {
            ebpf,
            records,
            losses,
            captures,
            targets: Vec::new(),
            global: Vec::new(),
            scheduler: false,
            degraded,
            permissions,
            options,
            diagnostics,
            serving: Serving::new(places.map(|_| ())),
            told: [0; Loss::ALL.len()],
            kept_at: Instant::now(),
        };
        probe.watch_everything(offsets);
        probe.add(targets)?;
        Ok(probe)
    }

    /// Watches more processes, for example workers that were started later.
    pub fn add(&mut self, targets: &[Target]) -> Result<(), ProbeError> {
        let asked = self.targets.len() + targets.len();
        if asked > MAX_TARGETS as usize {
            return Err(ProbeError::TooManyTargets {
                asked,
                most: MAX_TARGETS,
            });
        }
        let first = self.targets.len();
        for target in targets {
            self.register(*target)?;
        }
        // All takes before any send: a frame that is seen sent is then seen taken, whoever takes it.
        let options = self.options;
        let groups = [
            (options.polls, Group::Polls),
            (options.handled, Group::Handled),
            (true, Group::Receives),
            (true, Group::Sends),
            // After their entries: a return without one would count as a loss.
            (options.refused, Group::Refused),
        ];
        for (_, group) in groups.into_iter().filter(|(wanted, _)| *wanted) {
            for index in first..self.targets.len() {
                self.uprobes(group, index);
            }
        }
        Ok(())
    }

    /// What is missing, and the line that grants it.
    pub fn degraded(&self) -> &[Degraded] {
        &self.degraded
    }

    /// Changes how much of a process's messages is copied.
    pub fn set_capture(&mut self, pid: u32, capture: Capture) -> Result<(), ProbeError> {
        for index in (0..self.targets.len()).filter(|i| self.targets[*i].pid == pid) {
            self.captures
                .set(index as u32, Plain(capture), 0)
                .map_err(wrong("CAPTURES"))?;
        }
        Ok(())
    }

    /// Gives what was observed to `see`, oldest first, and returns how many observations that were. Waits up to `patience`
    /// if there is none: use a few milliseconds, since small amounts do not wake the reader.
    pub fn poll(&mut self, patience: Duration, mut see: impl FnMut(Observation<'_>)) -> Result<usize, ProbeError> {
        let mut seen = self.drain(&mut see);
        if seen == 0 {
            self.wait(patience)?;
            seen = self.drain(&mut see);
        }
        if self.kept_at.elapsed() >= HOUSEKEEPING {
            self.kept_at = Instant::now();
            if let Some(diagnostics) = &mut self.diagnostics {
                diagnostics.tell();
            }
            seen += self.losses(&mut see)?;
            seen += self.exits(&mut see);
        }
        Ok(seen)
    }

    /// The accounting of every thread seen so far. The processes' ids are those of [`Target::pid`].
    pub fn threads(&self) -> Result<Vec<(u32, Thread)>, ProbeError> {
        let Some(map) = self.ebpf.map("THREADS") else {
            return Ok(Vec::new());
        };
        let threads: HashMap<_, u32, Plain<Thread>> = HashMap::try_from(map).map_err(wrong("THREADS"))?;
        // An entry may be replaced while the map is walked; the next walk sees it.
        let known = threads.iter().flatten().filter_map(|(key, Plain(mut thread))| {
            if thread.tid == 0 && load::namespace().1 == 0 {
                thread.tid = key;
            }
            let pid = self.targets.get(thread.target as usize)?.pid;
            (thread.tid != 0).then_some((pid, thread))
        });
        Ok(known.collect())
    }

    fn watch_everything(&mut self, offsets: Offsets) {
        if self.options.scheduler {
            if offsets.sched() {
                match attach::scheduler(&mut self.ebpf) {
                    Ok(links) => {
                        self.global.extend(links);
                        self.scheduler = true;
                    }
                    Err(error) => self.lacking(Feature::Scheduler, None, &error),
                }
            } else if self.degraded.is_empty() {
                self.degraded
                    .push(no_types(format!("{VMLINUX} lacks a field of task_struct")));
            }
        }
    }

    fn register(&mut self, target: Target) -> Result<(), ProbeError> {
        let index = self.targets.len() as u32;
        self.captures
            .set(index, Plain(target.capture), 0)
            .map_err(wrong("CAPTURES"))?;
        self.tell_programs(target.pid, Some(index))?;
        self.tell_serving(target.pid, index)?;
        let alive =
            Pid::from_raw(target.pid as i32).and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
        self.targets.push(Watched {
            pid: target.pid,
            alive,
            links: Vec::new(),
            polls: false,
        });
        Ok(())
    }

    /// Puts a process into the map of watched ones, or takes it out. In a pid namespace of our own its id would be another
    /// process's in the kernel: there the kernel side learns it at the target's first probe.
    fn tell_programs(&mut self, pid: u32, index: Option<u32>) -> Result<(), ProbeError> {
        if load::namespace().1 != 0 {
            return Ok(());
        }
        let Some(map) = self.ebpf.map_mut("TARGETS") else {
            return Ok(());
        };
        let mut targets: HashMap<_, u32, u32> = HashMap::try_from(map).map_err(wrong("TARGETS"))?;
        match index {
            Some(index) => targets.insert(pid, index, 0),
            None => targets.remove(&pid),
        }
        .map_err(wrong("TARGETS"))
    }

    fn uprobes(&mut self, group: Group, index: usize) {
        let pid = self.targets[index].pid;
        let (feature, found) = match group {
            Group::Receives | Group::Sends | Group::Refused => (Feature::Messages, library::libzmq(pid)),
            Group::Handled => (Feature::Handled, library::libzmq(pid)),
            Group::Polls => (Feature::Polls, library::libc(pid)),
        };
        let libraries = match found {
            Ok(found) => found,
            Err(error) => return self.lacking(feature, Some(pid), &error),
        };
        if libraries.is_empty() && group == Group::Receives {
            self.degraded.push(Degraded {
                feature,
                pid: Some(pid),
                missing: Missing::Libzmq,
            });
        }
        let Some(id) = NonZeroU32::new(pid) else { return };
        for library in &libraries {
            let place = Place {
                library,
                pid: id,
                target: index as u32,
            };
            match attach::uprobes(&mut self.ebpf, group, place) {
                Ok(links) => {
                    self.targets[index].links.extend(links);
                    self.targets[index].polls |= group == Group::Polls;
                }
                Err(error) => self.lacking(feature, Some(pid), &error),
            }
        }
    }

    fn lacking(&mut self, feature: Feature, pid: Option<u32>, error: &dyn std::error::Error) {
        let new = Degraded::explain(feature, pid, self.permissions, chain(error));
        if !self.degraded.contains(&new) {
            self.degraded.push(new);
        }
    }
}

fn map<T>(ebpf: &mut Ebpf, name: &'static str, of: impl FnOnce(Map) -> Result<T, MapError>) -> Result<T, ProbeError> {
    let map = ebpf
        .take_map(name)
        .ok_or_else(|| MapError::InvalidName { name: name.to_owned() });
    map.and_then(of).map_err(wrong(name))
}

fn wrong(name: &'static str) -> impl FnOnce(MapError) -> ProbeError {
    move |source| ProbeError::Map {
        name,
        source: Box::new(source),
    }
}

fn no_types(what: String) -> Degraded {
    Degraded {
        feature: Feature::Scheduler,
        pid: None,
        missing: Missing::KernelTypes(what),
    }
}

/// An error and its causes on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |words, cause| format!("{words}: {cause}"))
}
