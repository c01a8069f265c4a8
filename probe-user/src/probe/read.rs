//! From the ring to observations, with what was lost and who has ended.

use std::time::Duration;

use probe_ebpf::{Header, Kind, Loss, Record, egress};
use rustix::event::{PollFd, PollFlags, Timespec};
use trace::MonoNs;

use super::{Probe, ProbeError, Watched};
use crate::observation::{Call, CpuTimes, Message, Observation, SocketId};

impl Probe {
    pub(super) fn drain(&mut self, see: &mut impl FnMut(Observation<'_>)) -> usize {
        let mut seen = 0;
        while let Some(item) = self.records.next() {
            if let Some(record) = egress::Record::parse(&item) {
                if let Some(target) = self.targets.get(record.head.target as usize) {
                    see(Observation::Egress {
                        pid: target.pid,
                        record,
                    });
                    seen += 1;
                }
            } else if let Some(record) = Record::parse(&item)
                && let Some(target) = self.targets.get(record.header.target as usize)
            {
                see(observation(&record, target, self.scheduler));
                seen += 1;
            }
        }
        seen
    }

    pub(super) fn wait(&self, patience: Duration) -> Result<(), ProbeError> {
        let timeout = patience.try_into().ok();
        let mut fds = [PollFd::new(&self.records, PollFlags::IN)];
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(ProbeError::Wait(error.into())),
        }
    }

    pub(super) fn losses(&mut self, see: &mut impl FnMut(Observation<'_>)) -> Result<usize, ProbeError> {
        let mut seen = 0;
        for cause in Loss::ALL {
            let total = self
                .losses
                .get(&(cause as u32), 0)
                .map_err(super::wrong("LOSSES"))?
                .iter()
                .sum::<u64>();
            let told = &mut self.told[cause as usize];
            if total > *told {
                see(Observation::Lost {
                    cause,
                    count: total - *told,
                });
                *told = total;
                seen += 1;
            }
        }
        Ok(seen)
    }

    pub(super) fn exits(&mut self, see: &mut impl FnMut(Observation<'_>)) -> usize {
        let mut seen = 0;
        for index in 0..self.targets.len() {
            let target = &mut self.targets[index];
            let ended = target.alive.as_ref().is_some_and(|alive| {
                let mut fds = [PollFd::new(alive, PollFlags::IN)];
                rustix::event::poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
            });
            if ended {
                target.alive = None;
                let pid = target.pid;
                target.links.clear();
                // Its id may become another process's. Already gone from the map: nothing to forget.
                let _ = self.tell_programs(pid, None);
                see(Observation::Exited { pid });
                seen += 1;
            }
        }
        seen
    }
}

fn observation<'a>(record: &Record<'a>, target: &Watched, scheduler: bool) -> Observation<'a> {
    let Header {
        at_ns,
        socket,
        seq,
        bytes,
        waited_ns,
        on_ns,
        wait_ns,
        blocked_ns,
        wakeup,
        tid,
        more,
        ..
    } = record.header;
    let call = Call {
        at: MonoNs(at_ns),
        socket: SocketId {
            pid: target.pid,
            address: socket,
        },
        tid,
        seq,
        cpu: scheduler.then_some(CpuTimes {
            on_ns,
            wait_ns,
            blocked_ns,
        }),
        wakeup: target.polls.then_some(wakeup),
    };
    let message = Message {
        call,
        bytes,
        more: more != 0,
        payload: record.payload,
    };
    match record.kind {
        Kind::Sent => Observation::Sent(message),
        Kind::Unsent => Observation::Unsent(call),
        Kind::Taken => Observation::Taken { message, waited_ns },
        Kind::Handled => Observation::Handled(call),
    }
}
