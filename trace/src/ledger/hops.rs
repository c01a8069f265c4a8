//! All hops, and groups of hops with one name.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use super::backlog::BacklogCourse;
use super::kernel_queue::KernelQueue;
use super::lane::Lane;
use super::processing_stage::ProcessingStages;
use super::stream::Stream;
use super::totals::{AffectedRequests, IdCounts, ModeCounts};
use super::{CountedRids, GAP_WARNING_NS, OccurrenceTimes};
use crate::clock::MonoNs;
use crate::event::{self, Capabilities, SendWait};
use crate::id::HopId;
use crate::path::{Ends, UNKNOWN};
use crate::stats::{Buckets, Distribution, Trend, WindowedDistribution};

use super::hop::{Hop, HopRoles};

/// Hops of one name, reported together.
#[derive(Debug, Default)]
pub struct HopGroup {
    /// Name of its hops.
    pub name: String,
    /// Roles at the ends of its hops.
    pub ends: Ends<Box<str>>,
    /// Whether its hops lead to the scheduler and carry requests.
    pub carries_requests: bool,
    /// Frames sent and not received, over all of its hops.
    pub backlog: u64,
    /// Maximum backlog at one time.
    pub backlog_max: u64,
    /// Time of the maximum backlog.
    pub backlog_max_at: MonoNs,
    /// Requests with a received frame that waited at least [`super::LATE_NS`].
    pub(crate) late_requests: CountedRids,
    /// Maximum backlog in the current time slot.
    pub(crate) backlog_slot: u64,
    /// Queue wait: received minus sent.
    pub queue_wait: Distribution,
    /// Queue waits in the current time slot.
    pub(crate) queue_wait_slot: Buckets,
    /// Wait of the content in the sender: see [`SendWait`].
    pub send_wait: WindowedDistribution,
    /// Ends of such waits that are worth a finding.
    pub(crate) late_sends: OccurrenceTimes,
    /// Forwarded minus sent.
    pub relay: Distribution,
    /// Processed minus received.
    pub processing: Distribution,
    /// Received minus requested: how long receivers waited for a frame.
    pub recv_wait: Distribution,
    /// Frames received per wakeup, over finished wakeups; a count, not a time.
    pub wakeups: Distribution,
    /// Times of receives that made a wakeup a burst.
    pub(crate) bursts: OccurrenceTimes,
    /// Bytes in kernel queues.
    pub kernel: KernelQueue,
    /// Time of the last decoded frame; `None` before the first.
    pub last_frame_at: Option<MonoNs>,
    /// Backlog over time.
    pub trend: Trend,
    /// Backlog since few frames waited.
    pub(crate) course: BacklogCourse,
    /// Streams, by what their counts show that they list.
    pub streams: ModeCounts,
    /// Token ids that crossed.
    pub ids: IdCounts,
    /// Requests whose chunks went to more than one receiver of the group.
    pub moved: AffectedRequests,
    /// Chunks received after a later chunk of their request.
    pub out_of_order: AffectedRequests,
}

impl HopGroup {
    fn set_ends(&mut self, ends: Ends<&str>) {
        self.name = ends.to_string();
        self.ends = ends.to_owned();
    }
}

#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is one fact about all hops, read by its name")]
pub(crate) struct Hops {
    pub(crate) all: Vec<Hop>,
    pub(crate) groups: Vec<HopGroup>,
    /// Roles at the ends of hops, and time inside each process between two hops.
    pub(crate) processing_stages: ProcessingStages,
    /// Index in `all` by id.
    by_id: HashMap<HopId, usize>,
    pub(crate) any_origin: bool,
    pub(crate) any_last: bool,
    /// Receives are or were observed on some hop.
    pub(crate) any_received: bool,
    /// Deliveries are or were observed on some hop.
    pub(crate) any_delivered: bool,
}

impl Hops {
    /// A number that changes whenever a message was missed, or output may have been because a hop became known.
    pub(crate) fn missed_messages(&self) -> u64 {
        // Each missed message raises an epoch, and each new hop with output adds one.
        self.all.iter().map(|hop| u64::from(hop.epoch) + u64::from(!hop.carries_requests)).sum()
    }

    /// Records that a request sent on this hop (channel to the scheduler) was answered although no receive of it was observed, so its
    /// receives are unobserved.
    pub(crate) fn mark_receives_of_hop_unobserved(&mut self, hop_id: HopId) {
        if let Some(hop) = self.all.iter_mut().find(|hop| hop.id == hop_id) {
            hop.is_received_unobserved = true;
        }
    }

    /// Whether each scheduler has hops of its own on which it receives requests. If several share one, it is unknown which of them received
    /// a request.
    pub(crate) fn each_scheduler_has_request_hop(&self) -> bool {
        // Counted by the hops on which they send their output.
        let schedulers = self.all.iter().filter(|hop| hop.origin && !hop.carries_requests).count();
        let into_schedulers = self.all.iter().filter(|hop| hop.carries_requests && !hop.forwards_requests).count();
        // A single scheduler gets all requests, on whichever hop.
        schedulers <= 1 || schedulers <= into_schedulers
    }

    /// Records how long a message waited before its send, by the sender's own clock.
    pub(crate) fn record_send_wait(&mut self, at: MonoNs, wait: SendWait) {
        if let Some(group_index) = self.get(wait.hop).map(|hop| hop.group) {
            let group = &mut self.groups[group_index];
            group.send_wait.record(at, wait.ns);
            if wait.ns >= GAP_WARNING_NS {
                group.late_sends.record(at);
            }
        }
    }

    pub(crate) fn get(&self, id: HopId) -> Option<&Hop> {
        self.all.get(*self.by_id.get(&id)?)
    }

    pub(crate) fn hop_of(&self, stream: &Stream) -> Option<&Hop> {
        self.get(stream.hop)
    }

    /// Whether no observation of the hop was missed since the stream's last chunk.
    pub(crate) fn observed_all_since(&self, stream: &Stream) -> bool {
        self.hop_of(stream).is_some_and(|hop| hop.epoch == stream.epoch)
    }

    /// Number of frames with chunks that the stream's connection carried after its last chunk, up to
    /// [`RECENT_SENDS`](super::lane::RECENT_SENDS).
    pub(crate) fn frames_sent_since_last_chunk(&self, stream: &Stream) -> usize {
        let Some(hop) = self.hop_of(stream) else { return 0 };
        // A stream keeps only the lower half of its lane's number.
        let lane = hop.lanes.iter().find(|(number, _)| **number as u16 == stream.lane);
        lane.map_or(0, |(_, lane)| lane.sends_since(stream.last_at))
    }

    /// Index of the hop, which is added if unknown. `None` at the limit of hops.
    pub(crate) fn hop_index_or_add(&mut self, hop_id: HopId, max_hops: usize) -> Option<usize> {
        if let Some(&hop_index) = self.by_id.get(&hop_id) {
            return Some(hop_index);
        }
        self.add_unannounced_hop(hop_id, Ends::from(&*format!("hop {}", hop_id.0)), max_hops)
    }

    /// Adds a hop that has not been announced, and returns its index; `None` at the limit.
    fn add_unannounced_hop(&mut self, id: HopId, ends: Ends<&str>, max_hops: usize) -> Option<usize> {
        if self.all.len() >= max_hops {
            return None;
        }
        let group = self.group_index_or_add(ends);
        let mut hop = Hop::new(id, group, self.processing_stages.seconds);
        hop.ends = self.role_indices_or_add(ends);
        // Presumed until its announcement, which may say otherwise.
        hop.shows.sent = true;
        hop.capabilities.sent = true;
        self.all.push(hop);
        self.by_id.insert(id, self.all.len() - 1);
        Some(self.all.len() - 1)
    }

    pub(crate) fn observes_receives(&self) -> bool {
        self.all.iter().any(|hop| hop.last && hop.capabilities.received)
    }

    /// Tokenizer worker at the end of these streams; `None` if there is only one, or none is known yet.
    pub(crate) fn worker_of(&self, streams: &[Stream]) -> Option<u16> {
        let hops = streams.iter().rev().filter_map(|stream| self.hop_of(stream));
        hops.filter(|hop| hop.last).find_map(|hop| hop.worker)
    }

    /// Applies an announcement to its hop (channel between two processes), which is added if needed. Returns false if there is no room for
    /// it. Hops with one name form a group.
    pub(crate) fn apply_announcement(&mut self, announced: &event::Hop<'_>, max_hops: usize) -> bool {
        let known = self.by_id.get(&announced.id).copied();
        let Some(hop_index) = known.or_else(|| self.add_unannounced_hop(announced.id, announced.ends, max_hops)) else {
            return false;
        };
        let old_group = self.all[hop_index].group;
        let group = self.rename_or_find_group_of_hop(hop_index, announced.ends);
        self.groups[group].carries_requests = announced.carries_requests;
        let ends = self.role_indices_or_add(announced.ends);
        let hop = &mut self.all[hop_index];
        hop.group = group;
        hop.ends = ends;
        hop.endpoint = announced.endpoint.into();
        hop.worker = announced.worker;
        hop.origin = announced.origin;
        hop.last = announced.last;
        hop.carries_requests = announced.carries_requests;
        hop.shows = announced.capabilities;
        // A hop used before its announcement has presumed stages that count as observed; a new hop has none.
        let previous = known.map_or(Capabilities::default(), |_| hop.capabilities);
        hop.capabilities = previous | announced.capabilities;
        hop.may_be_last = announced.ends.to == UNKNOWN && !announced.carries_requests;
        if announced.capabilities.received && !announced.last && !announced.carries_requests {
            self.processing_stages.mark_receives_observed(ends.to);
        }
        if old_group != group {
            self.move_backlog(hop_index, old_group);
        }
        self.update_facts_of_all_hops();
        true
    }

    /// Index of the group for the hop at `hop_index`, which gets these ends. If the hop is alone in its group and no group has these ends,
    /// its group is renamed to them, and so keeps its history. Otherwise it is the group with these ends, which is added if needed.
    fn rename_or_find_group_of_hop(&mut self, hop_index: usize, ends: Ends<&str>) -> usize {
        let old_group = self.all[hop_index].group;
        let hops_of_old_group = self.all.iter().filter(|hop| hop.group == old_group).count();
        if hops_of_old_group == 1 && self.group_between(ends).is_none() {
            self.groups[old_group].set_ends(ends);
        }
        self.group_index_or_add(ends)
    }

    /// Updates what depends on all hops together, after an announcement has changed one of them.
    fn update_facts_of_all_hops(&mut self) {
        self.any_origin = self.all.iter().any(|hop| hop.origin);
        self.any_last = self.all.iter().any(|hop| hop.last);
        // The chunks of a request are tracked on one hop only: the hop into the tokenizer, if deliveries are observed there.
        let observed_at_last = self.all.iter().any(|hop| hop.last && hop.capabilities.delivered);
        for hop in &mut self.all {
            hop.tracks_deliveries = hop.capabilities.delivered && (hop.last || !observed_at_last);
        }
        self.mark_forwarding_hops();
        self.any_received = self.all.iter().any(|hop| hop.capabilities.received && !hop.carries_requests);
        self.any_delivered = self.all.iter().any(|hop| hop.capabilities.delivered);
    }

    /// Marks the hops into a process that forwards requests (`forwards_requests`), and those out of it (`repeats_requests`). A receiver of
    /// requests forwards them if it also sends requests, or if the schedulers are known and it is none of them.
    fn mark_forwarding_hops(&mut self) {
        let origins = self.all.iter().filter(|hop| hop.origin && !hop.carries_requests);
        let schedulers: BTreeSet<u16> = origins.map(|hop| hop.ends.from).collect();
        let mut senders = BTreeSet::new();
        let mut receivers = BTreeSet::new();
        for hop in self.all.iter().filter(|hop| hop.carries_requests) {
            senders.insert(hop.ends.from);
            receivers.insert(hop.ends.to);
        }
        for hop in self.all.iter_mut().filter(|hop| hop.carries_requests) {
            let leads_to_no_scheduler = !schedulers.is_empty() && !schedulers.contains(&hop.ends.to);
            let does_receiver_send_requests = senders.contains(&hop.ends.to);
            hop.forwards_requests = leads_to_no_scheduler || does_receiver_send_requests;
            let does_sender_receive_requests = receivers.contains(&hop.ends.from);
            hop.repeats_requests = does_sender_receive_requests;
        }
    }

    /// Whether the receiver of the first hop (channel between two processes) is the sender on the second one: it then forwards what it
    /// receives.
    pub(crate) fn is_first_hop_followed_by_second(&self, first_hop: HopId, second_hop: HopId) -> bool {
        match (self.get(first_hop), self.get(second_hop)) {
            (Some(first_hop), Some(second_hop)) => first_hop.ends.to == second_hop.ends.from,
            _ => false,
        }
    }

    /// Moves the queued frames (backlog) of the hop at `hop_index` from its old group (hops of one name) to its new one. The measured times
    /// of its frames stay with the old group.
    fn move_backlog(&mut self, hop_index: usize, old_group: usize) {
        let new_group = self.all[hop_index].group;
        let moved = self.all[hop_index].counts;
        let others = self.all.iter().filter(|hop| hop.group == old_group);
        let sum_of_other_maxima = others.map(|hop| hop.counts.backlog_max).sum();
        let old = &mut self.groups[old_group];
        let old_max_at = old.backlog_max_at;
        old.backlog -= moved.backlog;
        // Without this hop, the old group cannot have had more than the other hops had at most.
        old.backlog_max = old.backlog_max.min(sum_of_other_maxima);
        let new = &mut self.groups[new_group];
        new.backlog += moved.backlog;
        // With this hop, the new group has had at least the hop's maximum and the sum of now.
        let least_max = moved.backlog_max.max(new.backlog);
        if least_max > new.backlog_max {
            new.backlog_max = least_max;
            // A hop does not keep the time of its maximum, so that of its old group is used.
            new.backlog_max_at = old_max_at;
        }
    }

    /// Numbers of the roles at both ends, which are added if unknown.
    fn role_indices_or_add(&mut self, ends: Ends<&str>) -> HopRoles {
        HopRoles {
            from: self.processing_stages.role_index_or_add(ends.from),
            to: self.processing_stages.role_index_or_add(ends.to),
        }
    }

    pub(crate) fn group_named(&self, name: &str) -> Option<usize> {
        self.groups.iter().position(|group| group.name == name)
    }

    fn group_between(&self, ends: Ends<&str>) -> Option<usize> {
        self.groups.iter().position(|group| group.ends.as_str() == ends)
    }

    /// Index of the group of hops between these ends, which is added if there is none.
    fn group_index_or_add(&mut self, ends: Ends<&str>) -> usize {
        if let Some(group_index) = self.group_between(ends) {
            return group_index;
        }
        let send_wait = WindowedDistribution::with_seconds(self.processing_stages.seconds);
        let mut group = HopGroup { send_wait, ..HopGroup::default() };
        group.set_ends(ends);
        self.groups.push(group);
        self.groups.len() - 1
    }

    /// Makes room in the hop for `new_lane`, one of its connections, if it is not known yet and the hop is full. Evicts and returns the
    /// lane with the fewest queued frames. Of several such lanes, it is the one silent longest. `None` if there was room.
    pub(crate) fn evict_lane_if_full(hop: &mut Hop, new_lane: u32, max_lanes: usize) -> Option<Lane> {
        if hop.lanes.len() < max_lanes.max(1) || hop.lanes.contains_key(&new_lane) {
            return None;
        }
        let (&least_used, _) = hop.lanes.iter().min_by_key(|(_, lane)| (lane.frames.len(), lane.last_at))?;
        hop.lanes.remove(&least_used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(id: u16, name: &str) -> event::Hop<'_> {
        let capabilities = Capabilities::SENT;
        event::Hop { origin: id == 0, ..event::Hop::new(HopId(id), name, capabilities) }
    }

    #[test]
    fn hops_with_one_name_share_a_group_and_a_late_name_moves_the_hop() {
        let mut hops = Hops::default();
        assert_eq!(hops.hop_index_or_add(HopId(1), 3), Some(0));
        assert_eq!(hops.groups[0].name, "hop 1");
        assert!(hops.apply_announcement(&named(0, "router->detokenizer"), 3));
        assert!(hops.apply_announcement(&named(1, "router->detokenizer"), 3));
        assert_eq!(hops.all[0].group, hops.all[1].group);
        assert!(hops.apply_announcement(&named(2, "x"), 3) && !hops.apply_announcement(&named(3, "y"), 3));
    }

    #[test]
    fn a_late_name_moves_the_backlog_of_its_hop() {
        let mut hops = Hops::default();
        assert!(hops.apply_announcement(&named(0, "scheduler->?"), 8));
        let wait = |hops: &mut Hops, hop_index: usize, frames: u64| {
            let group = hops.all[hop_index].group;
            (hops.all[hop_index].counts.backlog, hops.all[hop_index].counts.backlog_max) = (frames, frames);
            hops.groups[group].backlog += frames;
            hops.groups[group].backlog_max = hops.groups[group].backlog;
        };
        wait(&mut hops, 0, 5);
        assert!(hops.apply_announcement(&named(0, "scheduler->tokenizer"), 8));
        let of = |hops: &Hops, name: &str| {
            hops.group_named(name).map(|g| (hops.groups[g].backlog, hops.groups[g].backlog_max))
        };
        assert_eq!(of(&hops, "scheduler->?"), None);
        assert_eq!(of(&hops, "scheduler->tokenizer"), Some((5, 5)));
        // One of two hops with the same name is renamed to the name of a third.
        assert!(
            hops.apply_announcement(&named(1, "scheduler->?"), 8)
                && hops.apply_announcement(&named(2, "scheduler->?"), 8)
        );
        wait(&mut hops, 1, 3);
        wait(&mut hops, 2, 2);
        assert!(hops.apply_announcement(&named(1, "scheduler->tokenizer"), 8));
        assert_eq!(of(&hops, "scheduler->?"), Some((2, 2)));
        assert_eq!(of(&hops, "scheduler->tokenizer"), Some((8, 8)));
    }
}
