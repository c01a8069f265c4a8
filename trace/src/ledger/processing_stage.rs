//! Processing stages between two hops: a router or detokenizer receives a chunk on one hop and forwards it on the next.
//!
//! A chunk is identified by its request and its cumulative token count, which both frames contain. Different threads report receives and
//! sends, so either may come first, and several of one kind may come before any of the other.

use std::collections::VecDeque;

use super::limits::CountedLimits;
use super::stream::Stream;
use crate::clock::MonoNs;
use crate::stats::{Distribution, LongDurations, RunSeconds, WindowedSum};

/// Maximum number of distinct roles; the ends of further ones are left unassigned.
const MAX_ROLES: usize = 1_024;

/// Processing stage: one role, with the time that chunks spend inside its processes.
#[derive(Debug, Default)]
pub struct ProcessingStage {
    /// Role name, as in hop names.
    pub role: String,
    /// Forwarded minus received, of every chunk with both times observed.
    pub inside: Distribution,
    /// Sums of `inside`.
    pub inside_sum: WindowedSum,
    /// Time inside, of each request's first chunk.
    pub first_inside: WindowedSum,
    /// The part of long first-token gaps that was spent inside, by the length of the whole gap.
    pub(crate) long_gaps_inside: LongDurations,
    /// Forwarded minus sent to it, of each request's first chunk; includes the queue wait.
    pub through: Distribution,
    /// Sums of `through`.
    pub through_sum: WindowedSum,
    /// The part of long first-token gaps before and inside the process, where its receives are not observed.
    pub(crate) long_gaps_through: LongDurations,
    /// Receives are observed on a hop that leads to it.
    pub(crate) shows_receives: bool,
}

impl ProcessingStage {
    /// A process of this role, without times so far.
    fn new(role: &str, seconds: RunSeconds) -> Self {
        Self {
            role: role.to_owned(),
            inside_sum: WindowedSum::with_seconds(seconds),
            first_inside: WindowedSum::with_seconds(seconds),
            through_sum: WindowedSum::with_seconds(seconds),
            ..Self::default()
        }
    }

    /// Records the time of a request's first chunk through the process, which ended at `ended_at`.
    fn record_time_through(&mut self, ended_at: MonoNs, through_ns: u64) {
        let times = 1;
        self.through.record(through_ns);
        self.through_sum.record_n(ended_at, through_ns, times);
    }

    /// Records the time of a chunk inside the process, which ended at `ended_at`.
    fn record_time_inside(&mut self, ended_at: MonoNs, inside_ns: u64, is_first_chunk: bool) {
        let times = 1;
        self.inside.record(inside_ns);
        self.inside_sum.record_n(ended_at, inside_ns, times);
        if is_first_chunk {
            self.first_inside.record_n(ended_at, inside_ns, times);
        }
    }
}

/// Side of a chunk's processing stage whose time is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StageSide {
    Received,
    SentOn,
}

/// A chunk's cumulative token count, and when it passed one side of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimedCount {
    pub(crate) count: u32,
    pub(crate) at: MonoNs,
}

/// One request at one role: unmatched times of its chunks, all of the same side.
///
/// A request's chunks are received and sent on in order, so an entry older than a matched one will never be matched.
#[derive(Clone, Debug)]
pub(crate) struct InProcess {
    role: u16,
    side: StageSide,
    waiting: VecDeque<TimedCount>,
}

impl InProcess {
    /// Removes and returns the waiting chunk with this count. Chunks keep their order, so the other times of those before it were missed:
    /// they are removed, too.
    fn remove_waiting_through(&mut self, token_count: u32) -> Option<TimedCount> {
        while let Some(oldest) = self.waiting.front() {
            if oldest.count >= token_count {
                break;
            }
            self.waiting.pop_front();
        }
        self.waiting.pop_front_if(|waiting| waiting.count == token_count)
    }

    /// Matches a chunk that has passed one side of the process (`passed_side`): its receive, or its send on the next hop. Returns when the
    /// chunk passed the other side, if that is known. Otherwise keeps the chunk until it does.
    fn take_time_of_other_side_or_keep(&mut self, passed_side: StageSide, chunk: TimedCount) -> Option<MonoNs> {
        // All waiting chunks have passed `self.side` only. If that is the other side, this chunk may be among them.
        if self.side != passed_side {
            if let Some(matched) = self.remove_waiting_through(chunk.count) {
                return Some(matched.at);
            }
            if !self.waiting.is_empty() {
                // All waiting chunks are later ones, so this chunk's other time was missed.
                return None;
            }
            // No chunk waits, so from here on, chunks that have passed this side wait.
            self.side = passed_side;
        }
        // Counts began again, so the chunks before will not be matched any more.
        let has_count_restarted = self.waiting.back().is_some_and(|last| last.count > chunk.count);
        if has_count_restarted {
            self.waiting.clear();
        }
        self.waiting.push_back(chunk);
        None
    }
}

/// All roles in hop names.
#[derive(Debug, Default)]
pub(crate) struct ProcessingStages {
    pub(crate) all: Vec<ProcessingStage>,
    /// Seconds of the window of current figures.
    pub(crate) seconds: RunSeconds,
    /// Number of times in all requests' [`InProcess`].
    waiting: usize,
}

impl ProcessingStages {
    /// Index of a role, which is added if unknown.
    pub(crate) fn role_index_or_add(&mut self, role: &str) -> u16 {
        if let Some(index) = self.all.iter().position(|stage| stage.role == role) {
            return index as u16;
        }
        if self.all.len() >= MAX_ROLES {
            // Beyond the limit, roles share an index without an entry.
            return u16::MAX;
        }
        self.all.push(ProcessingStage::new(role, self.seconds));
        (self.all.len() - 1) as u16
    }

    /// The processes of a role; `None` for roles beyond the limit.
    pub(crate) fn get_mut(&mut self, role: u16) -> Option<&mut ProcessingStage> {
        self.all.get_mut(usize::from(role))
    }

    /// Marks the receives of a role as observed. Times inside its process begin with them.
    pub(crate) fn mark_receives_observed(&mut self, role_index: u16) {
        if let Some(processing_stage) = self.get_mut(role_index) {
            processing_stage.shows_receives = true;
        }
    }

    /// Records the send of a chunk by the process that sends on the hop (channel) of the stream at `stream_index`. If that process has
    /// received the chunk on another hop, the time since then counts as time inside the process.
    pub(crate) fn record_chunk_send(
        &mut self,
        streams: &[Stream],
        in_process: &mut Vec<InProcess>,
        stream_index: usize,
        chunk: TimedCount,
        limits: &mut CountedLimits,
    ) {
        let stream = &streams[stream_index];
        let sender = stream.ends.from;
        let is_first_chunk = stream.chunks == 1 && stream.is_whole();
        let Some(processing_stage) = self.all.get_mut(usize::from(sender)) else { return };
        // Without a hop that leads to the sender, it is the scheduler: no chunk passes through it.
        let Some(incoming) = streams.iter().find(|stream| stream.ends.to == sender) else { return };
        if is_first_chunk && incoming.is_whole() {
            // The time through the process begins with the send to it, which is observed even without its receives.
            processing_stage.record_time_through(chunk.at, chunk.at.since(incoming.first_at));
        }
        // The time inside begins with the receive of the chunk.
        if processing_stage.shows_receives {
            let received = record_side_and_find_other_time(
                &mut self.waiting,
                in_process,
                sender,
                StageSide::SentOn,
                chunk,
                limits,
            );
            // A process cannot send a chunk before it receives it. A later receive is that of another chunk with the same count.
            if let Some(received) = received.filter(|&received| received <= chunk.at) {
                processing_stage.record_time_inside(chunk.at, chunk.at.since(received), is_first_chunk);
            }
        }
    }

    /// Records the receive of a chunk by a process that forwards it. `role_index`: index of the role of that process. `in_process`: chunks
    /// of the request that have passed one side of a process only.
    pub(crate) fn record_chunk_receive(
        &mut self,
        in_process: &mut Vec<InProcess>,
        role_index: u16,
        chunk: TimedCount,
        is_first_chunk: bool,
        limits: &mut CountedLimits,
    ) {
        let Some(processing_stage) = self.all.get_mut(usize::from(role_index)) else { return };
        // The send may have been reported before this receive.
        let sent = record_side_and_find_other_time(
            &mut self.waiting,
            in_process,
            role_index,
            StageSide::Received,
            chunk,
            limits,
        );
        // A process cannot send a chunk before it receives it. An earlier send is that of another chunk with the same count.
        if let Some(sent) = sent.filter(|&sent| sent >= chunk.at) {
            processing_stage.record_time_inside(sent, sent.since(chunk.at), is_first_chunk);
        }
    }

    /// Removes a closed request's times from the total.
    pub(crate) fn subtract_closed(&mut self, in_process: &[InProcess]) {
        let waiting: usize = in_process.iter().map(|role| role.waiting.len()).sum();
        self.waiting = self.waiting.saturating_sub(waiting);
    }
}

/// Chunks of a request at this role, without any if it is new there. `side`: the side of the first of them.
fn chunks_of_role_or_add(in_process: &mut Vec<InProcess>, role: u16, side: StageSide) -> &mut InProcess {
    let known_index = in_process.iter().position(|known| known.role == role);
    if known_index.is_none() {
        in_process.push(InProcess { role, side, waiting: VecDeque::new() });
    }
    // A new one is the last.
    let index = known_index.unwrap_or(in_process.len() - 1);
    &mut in_process[index]
}

/// Records when a chunk of a request entered or left the process of a role, depending on `side`. Returns when the same chunk passed the
/// other side, if that is known. `all_waiting`: number of chunks that wait for their other side, over all requests; it is updated.
fn record_side_and_find_other_time(
    all_waiting: &mut usize,
    in_process: &mut Vec<InProcess>,
    role: u16,
    side: StageSide,
    chunk: TimedCount,
    limits: &mut CountedLimits,
) -> Option<MonoNs> {
    let chunks_of_role = chunks_of_role_or_add(in_process, role, side);
    let waiting_before = chunks_of_role.waiting.len();
    let other_side = chunks_of_role.take_time_of_other_side_or_keep(side, chunk);
    let waiting = chunks_of_role.waiting.len();
    let is_request_full = waiting > limits.in_process_per_rid;
    // Only a chunk that was just added can exceed the limit over all requests.
    let is_total_full = waiting > waiting_before && *all_waiting >= limits.in_process;
    if is_request_full || is_total_full {
        chunks_of_role.waiting.pop_front();
        limits.count_reached("in_process");
    }
    // The number over all requests changes by as many as this list has become longer or shorter.
    let waiting_now = chunks_of_role.waiting.len();
    *all_waiting = (*all_waiting + waiting_now).saturating_sub(waiting_before);
    other_side
}

#[cfg(test)]
mod tests {
    use super::ProcessingStage;
    use crate::Config;
    use crate::event::{Capabilities, Chunk, IdColumn};
    use crate::id::{FrameId, HopId};
    use crate::ledger::Limits;
    use crate::ledger::test_path::Path;

    /// A router between two hops; receives on the first may be observed.
    fn router(received: bool, limits: Limits) -> Path {
        let mut path = Path { step_ns: 0, ..Path::new(Config { limits, ..Config::default() }) };
        path.announce(0, "scheduler->router", [true, false], Capabilities { received, ..Capabilities::SENT });
        path.announce(1, "router->worker", [false, true], Capabilities::SENT);
        path
    }

    /// Sends token `number` of request `a` on `hop`.
    fn send(path: &mut Path, at: u64, hop: u16, number: u32) {
        path.now = at;
        path.send(hop, IdColumn::Delta, &[Chunk::counted("a", 1, number)]);
    }

    fn receive(path: &mut Path, at: u64, number: u32) {
        path.now = at;
        path.receive(FrameId::new(HopId(0), 0, u64::from(number) - 1));
    }

    fn stage(path: &Path) -> &ProcessingStage {
        path.ledger().processing_stages().iter().find(|p| p.role == "router").expect("the router")
    }

    #[test]
    fn a_chunk_is_matched_across_the_router_with_others_queued() {
        let mut path = router(true, Limits::default());
        for number in 1..=3 {
            send(&mut path, u64::from(number), 0, number);
        }
        for number in 1..=3 {
            receive(&mut path, 100 * u64::from(number), number);
            send(&mut path, 100 * u64::from(number) + 7, 1, number);
        }
        assert_eq!(stage(&path).inside.count(), 3);
        assert_eq!(stage(&path).inside_sum.whole().ns, 21);
        assert_eq!(stage(&path).through.count(), 1);
        assert_eq!(stage(&path).through_sum.whole().ns, 106);
    }

    #[test]
    fn a_late_receive_counts_and_a_missed_one_does_not() {
        let mut path = router(true, Limits::default());
        send(&mut path, 1, 0, 1);
        send(&mut path, 50, 1, 1);
        receive(&mut path, 40, 1);
        assert_eq!(stage(&path).inside_sum.whole().ns, 10);
        send(&mut path, 60, 0, 2);
        send(&mut path, 90, 1, 2);
        assert_eq!(stage(&path).inside.count(), 1);
    }

    #[test]
    fn receives_reported_after_the_sends_all_count() {
        let mut path = router(true, Limits::default());
        for number in 1..=5 {
            send(&mut path, u64::from(number), 0, number);
        }
        for number in 1..=5 {
            send(&mut path, 1_000 * u64::from(number), 1, number);
        }
        for number in 1..=5 {
            receive(&mut path, 1_000 * u64::from(number) - 3, number);
        }
        assert_eq!(stage(&path).inside.count(), 5);
        assert_eq!(stage(&path).inside_sum.whole().ns, 15);
        assert_eq!(path.ledger().hops.processing_stages.waiting, 0);
    }

    #[test]
    fn receives_reported_before_the_sends_are_kept_up_to_the_limit() {
        let mut path = router(true, Limits { in_process_per_rid: 3, ..Limits::default() });
        for number in 1..=5 {
            send(&mut path, u64::from(number), 0, number);
        }
        for number in 1..=5 {
            receive(&mut path, 10 + u64::from(number), number);
        }
        for number in 1..=5 {
            send(&mut path, 30 + u64::from(number), 1, number);
        }
        assert_eq!(stage(&path).inside.count(), 3);
        assert_eq!(stage(&path).inside_sum.whole().ns, 60);
        let reached = path.ledger().limits();
        assert!(reached.iter().any(|l| (l.name, l.times) == ("in_process", 2)), "{reached:?}");
    }

    #[test]
    fn without_receives_first_chunks_measure_the_time_through_a_stage() {
        let mut path = router(false, Limits::default());
        send(&mut path, 1, 0, 1);
        send(&mut path, 2, 0, 2);
        send(&mut path, 31, 1, 1);
        send(&mut path, 99, 1, 2);
        assert_eq!(stage(&path).inside.count(), 0);
        assert_eq!(stage(&path).through_sum.whole().ns, 30);
    }
}
