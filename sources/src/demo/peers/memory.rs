//! Network for runs on a virtual clock: a message reaches its inbox as soon as it is sent.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use trace::{FrameId, HopId, MonoNs};

use super::network::{Inbox, InboxMessage, Parts};
use super::report::Reports;

/// Inboxes, and the messages sent to them.
#[derive(Clone)]
pub(in crate::demo) struct Memory {
    reports: Reports,
    state: Arc<Mutex<MemoryState>>,
}

#[derive(Default)]
struct MemoryState {
    receivers: HashMap<HopId, HopReceiver>,
    sent: VecDeque<Sent>,
}

#[derive(Default)]
struct HopReceiver {
    inbox: Inbox,
    /// Number of connections to it.
    lane_count: u32,
}

/// A message as the relay would observe it.
pub(in crate::demo) struct Sent {
    pub(in crate::demo) at: MonoNs,
    pub(in crate::demo) id: FrameId,
    pub(in crate::demo) message: Parts,
}

pub(super) struct MemoryLane {
    memory: Memory,
    inbox: Inbox,
    next: FrameId,
}

impl Memory {
    /// Creates a network without inboxes, whose messages get times from `reports`.
    pub(in crate::demo) fn new(reports: Reports) -> Self {
        Self { reports, state: Arc::default() }
    }

    /// Takes the oldest message not taken yet; `None` if all were.
    pub(in crate::demo) fn next(&self) -> Option<Sent> {
        self.state().sent.pop_front()
    }

    /// Inbox of the receiver of a hop.
    pub(super) fn inbox_of(&self, hop: HopId) -> Inbox {
        self.state().receivers.entry(hop).or_default().inbox.clone()
    }

    /// Opens a lane to the receiver of a hop, as a connection would be.
    pub(super) fn open_lane(&self, hop: HopId) -> anyhow::Result<MemoryLane> {
        let mut state = self.state();
        let receiver = state.receivers.get_mut(&hop).context("a hop without a receiver")?;
        let lane = receiver.lane_count;
        receiver.lane_count += 1;
        Ok(MemoryLane { memory: self.clone(), inbox: receiver.inbox.clone(), next: FrameId { hop, lane, seq: 0 } })
    }

    fn state(&self) -> MutexGuard<'_, MemoryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryLane {
    /// Puts a message into the receiver's inbox, and remembers it as sent.
    pub(super) fn send(&mut self, message: Parts) {
        let at = self.memory.reports.now();
        let id = self.next;
        self.next.seq += 1;
        self.memory.state().sent.push_back(Sent { at, id, message: message.clone() });
        self.inbox.push(InboxMessage { id, parts: message });
    }
}
