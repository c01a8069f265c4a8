//! Timelines of requests, for exports: when the first and the finishing chunk reached each stage of each hop, and point events.
//!
//! They are kept only on demand ([`crate::Analysis::keep_timelines`]), exactly as long as the records of their requests, and have a
//! constant size: the chunks between the first and the finishing one are only counted. All chunks of recent requests are in
//! `recent_chunks`.

use smallvec::SmallVec;

use super::marked_frames::{FrameMark, MarkedFrames};
use super::{ChunkOutcome, Ledger, Request, RequestSummary};
use crate::clock::MonoNs;
use crate::event::{AnswerEnd, Capabilities, Event, Frame, Kind, Received, What};
use crate::id::{FrameId, HopId, Ticket};

/// Times of a chunk on one hop; `None` means "not observed".
#[derive(Clone, Copy, Debug)]
pub struct FrameTimes {
    /// The frame that carried the chunk.
    pub frame: FrameId,
    /// When it was sent.
    pub sent: Option<MonoNs>,
    /// When the relay had forwarded it.
    pub forwarded: Option<MonoNs>,
    /// When it was received.
    pub received: Option<MonoNs>,
    /// When its receiver had processed it.
    pub processed: Option<MonoNs>,
}

impl FrameTimes {
    fn new(frame: FrameId) -> Self {
        Self { frame, sent: None, forwarded: None, received: None, processed: None }
    }

    /// First known time.
    pub fn first_time(&self) -> Option<MonoNs> {
        self.sent.or(self.forwarded).or(self.received).or(self.processed)
    }

    fn last_time(&self) -> Option<MonoNs> {
        self.processed.max(self.received).max(self.forwarded).max(self.sent)
    }
}

/// Times of a request on one hop.
#[derive(Clone, Copy, Debug)]
pub struct HopTimes {
    /// The hop.
    pub hop: HopId,
    /// First chunk observed on the hop.
    pub first: FrameTimes,
    /// Its finishing chunk.
    pub last: Option<FrameTimes>,
}

/// A point event of a request.
#[derive(Clone, Debug)]
pub struct RequestNote {
    /// When it happened.
    pub at: MonoNs,
    /// What happened.
    pub what: NoteKind,
}

/// Kinds of point events.
#[derive(Clone, Debug)]
pub enum NoteKind {
    /// A stage in the engine's log.
    Stage {
        /// Its name.
        name: Box<str>,
        /// Process that logged it.
        by: Box<str>,
        /// Number of tokens, if it is logged.
        tokens: Option<u32>,
        /// Number of pending items, if it is logged.
        pending: Option<u32>,
    },
    /// Merged chunks in the engine's log.
    Merged {
        /// Their number.
        chunks: u32,
        /// Process that logged them.
        by: Box<str>,
    },
    /// The response ended.
    Answered {
        /// How it ended.
        end: AnswerEnd,
        /// Number of tokens in it, if known.
        tokens: Option<u32>,
        /// Number of writes that the kernel accepted only in part.
        short_writes: u32,
    },
    /// The first tokens were accepted for the client: `first_token_received`.
    FirstReceived,
    /// A delivery proved earlier chunks lost.
    Dropped {
        /// Number of chunks.
        chunks: u64,
        /// Number of tokens in them.
        tokens: u64,
    },
}

/// Maximum number of notes per request; further ones are only counted.
const MAX_NOTES: usize = 64;

/// Timeline of one request. The fields that every chunk reads or writes come first.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub struct RequestTimeline {
    /// Number of chunks sent by the scheduler and of deliveries so far.
    pub points: u32,
    /// Notes above the limit.
    pub notes_left_out: u32,
    /// Its times on each hop, in the order first observed.
    pub hops: SmallVec<[HopTimes; 2]>,
    /// Whether an earlier request with the same rid was not closed when this one began.
    pub has_reused_rid: bool,
    /// Last observed delivery.
    pub last_delivered: Option<MonoNs>,
    /// Point events in the order observed.
    pub notes: Vec<RequestNote>,
}

impl RequestTimeline {
    /// Adds a note. Beyond the limit, it is only counted.
    fn add_note(&mut self, at: MonoNs, what: NoteKind) {
        if self.notes.len() < MAX_NOTES {
            self.notes.push(RequestNote { at, what });
        } else {
            self.notes_left_out += 1;
        }
    }

    /// Keeps the times of a chunk's frame if the chunk is the request's first one on its hop (channel), or the first finishing one there
    /// (`finishes`). Returns the index of the hop if the times were kept.
    fn keep_times_if_first_or_finishing(&mut self, times: FrameTimes, finishes: bool) -> Option<usize> {
        let hop = times.frame.hop;
        let Some(index) = self.hops.iter().position(|known| known.hop == hop) else {
            self.hops.push(HopTimes { hop, first: times, last: finishes.then_some(times) });
            return Some(self.hops.len() - 1);
        };
        let last = &mut self.hops[index].last;
        let is_first_finishing = finishes && last.is_none();
        if !is_first_finishing {
            return None;
        }
        *last = Some(times);
        Some(index)
    }

    /// Earliest known time on a hop.
    pub fn first_time(&self) -> Option<MonoNs> {
        self.hops.iter().filter_map(|times| times.first.first_time()).min()
    }

    /// Latest known time on a hop or of a delivery.
    pub fn last_time(&self) -> Option<MonoNs> {
        let mut latest = self.last_delivered;
        for times in &self.hops {
            let last_chunk = times.last.and_then(|last| last.last_time());
            // `None` is less than any time.
            latest = latest.max(times.first.last_time()).max(last_chunk);
        }
        latest
    }
}

/// A closed request with its timeline.
#[derive(Clone, Debug)]
pub struct ClosedRequest {
    /// Its summary.
    pub summary: RequestSummary,
    /// Its timeline; empty if none of its chunks or deliveries was observed.
    pub timeline: RequestTimeline,
}

/// A request in the ledger with its timeline.
#[derive(Clone, Copy, Debug)]
pub struct TimedRequest<'a> {
    /// Its record.
    pub request: &'a Request,
    /// `None` if none of its chunks or deliveries was observed, or timelines are not kept.
    pub timeline: Option<&'a RequestTimeline>,
}

#[derive(Debug)]
struct OpenTimeline {
    ticket: Ticket,
    timeline: Box<RequestTimeline>,
}

/// Timelines of the requests in the ledger, and of those that the last event or tick closed.
#[derive(Debug, Default)]
pub(super) struct Timelines {
    /// Indexed by the slots of the ledger's table.
    open: Vec<Option<OpenTimeline>>,
    marked_frames: MarkedFrames,
    closed: Vec<ClosedRequest>,
    /// Number of timelines, including closed ones.
    count: usize,
    /// Number of closed requests that had a timeline.
    closed_count: usize,
}

impl Timelines {
    /// Closes the timeline of a request that has ended.
    pub(super) fn close_timeline(&mut self, ticket: Ticket, summary: RequestSummary) {
        let open = self.open.get_mut(ticket.slot as usize).and_then(Option::take);
        self.closed_count += usize::from(open.is_some());
        // A request whose chunks came before timelines were kept has none.
        let timeline = open.map(|open| *open.timeline).unwrap_or_default();
        self.closed.push(ClosedRequest { summary, timeline });
    }

    /// Forgets the closed requests, whose timelines do not count any more.
    fn forget_closed(&mut self) {
        self.closed.clear();
        self.count -= std::mem::take(&mut self.closed_count);
    }

    fn get(&self, ticket: Ticket) -> Option<&RequestTimeline> {
        let open = self.open.get(ticket.slot as usize)?.as_ref()?;
        (open.ticket == ticket).then_some(&*open.timeline)
    }

    fn get_mut(&mut self, ticket: Ticket) -> Option<&mut RequestTimeline> {
        let open = self.open.get_mut(ticket.slot as usize)?.as_mut()?;
        (open.ticket == ticket).then_some(&mut *open.timeline)
    }

    /// Timeline of the request whose record has this ticket (handle), created if needed. `None` without a record.
    fn timeline_or_open(&mut self, ticket: Ticket, ledger: &Ledger) -> Option<&mut RequestTimeline> {
        let request = ledger.table.get(ticket)?;
        let index = ticket.slot as usize;
        if self.open.len() <= index {
            self.open.resize_with(index + 1, || None);
        }
        // No earlier request's timeline is left in the slot, because closing that request has taken it.
        let slot = &mut self.open[index];
        if slot.is_none() {
            self.count += 1;
        }
        let open = slot.get_or_insert_with(|| {
            let has_reused_rid = request.is_mapped && ledger.table.has_unmapped(&request.rid);
            OpenTimeline {
                ticket,
                timeline: Box::new(RequestTimeline { has_reused_rid, ..RequestTimeline::default() }),
            }
        });
        Some(&mut open.timeline)
    }

    /// Records an event that the ledger has applied.
    fn apply_event(&mut self, event: &Event<'_>, ledger: &Ledger) {
        let at = event.at;
        match &event.what {
            What::Sent(frame) => self.record_sent_frame(at, frame, ledger),
            What::Received(received) => self.record_received_frame(at, received, ledger),
            What::Processed(id) => {
                self.stamp_frame(*id, |times| times.processed = Some(at));
                self.marked_frames.mark_frame_processed(*id, at);
            }
            What::Delivered(_) => self.note_delivery(at, ledger),
            What::Stage(stage) => self.add_note(stage.rid, at, ledger, || NoteKind::Stage {
                name: stage.name.into(),
                by: stage.by.into(),
                tokens: stage.tokens,
                pending: stage.pending,
            }),
            What::Merged(merged) => self
                .add_note(merged.rid, at, ledger, || NoteKind::Merged { chunks: merged.chunks, by: merged.by.into() }),
            What::Answered(answer) => self.add_note(answer.rid, at, ledger, || NoteKind::Answered {
                end: answer.end,
                tokens: answer.tokens,
                short_writes: answer.short_writes,
            }),
            // The other events have no place in a request's timeline.
            _ => {}
        }
    }

    /// Records a sent frame, whose receive may have been reported before.
    fn record_sent_frame(&mut self, at: MonoNs, frame: &Frame<'_>, ledger: &Ledger) {
        let times = FrameTimes { sent: Some(at), forwarded: frame.forwarded, ..FrameTimes::new(frame.id) };
        let marks = self.record_chunks_and_mark_requests(frame, times, ledger);
        if let Some(early) = self.marked_frames.register_frame_and_take_early_stages(
            frame.id,
            marks,
            capabilities_of(ledger, frame.id.hop),
        ) {
            self.stamp_frame(frame.id, |times| {
                times.received = Some(early.received);
                times.processed = early.processed;
            });
        }
    }

    /// Records the receive of a frame.
    fn record_received_frame(&mut self, at: MonoNs, received: &Received<'_>, ledger: &Ledger) {
        let capabilities = capabilities_of(ledger, received.id.hop);
        if let Some(frame) = &received.frame {
            let times = FrameTimes { received: Some(at), ..FrameTimes::new(frame.id) };
            let marks = self.record_chunks_and_mark_requests(frame, times, ledger);
            // Returns the stages reported before, of which a frame that comes with its receive has none.
            self.marked_frames.register_frame_and_take_early_stages(frame.id, marks, capabilities);
        } else {
            self.stamp_frame(received.id, |times| times.received = Some(at));
        }
        self.marked_frames.mark_frame_received(received.id, at, capabilities.processed);
    }

    /// Records the chunks of a frame in the timelines of their requests. Returns marks of the requests whose first or finishing chunks are
    /// among them: later stages of the frame apply to those.
    fn record_chunks_and_mark_requests(
        &mut self,
        frame: &Frame<'_>,
        times: FrameTimes,
        ledger: &Ledger,
    ) -> Vec<FrameMark> {
        if frame.kind == Kind::Abort {
            // An abort has no chunk to mark, but its request has a timeline.
            self.open_timelines(frame, ledger);
            return Vec::new();
        }
        let mut marks = Vec::new();
        // `touched` has the request of each chunk, in the same order.
        for (&ticket, chunk) in ledger.touched.iter().zip(frame.chunks) {
            let request = ledger.table.get(ticket);
            // A chunk is a point of the time series once, at the scheduler.
            let is_point = request.is_some_and(|request| ledger.is_from_scheduler(request, frame.id.hop));
            let Some(timeline) = self.timeline_or_open(ticket, ledger) else { continue };
            timeline.points = timeline.points.saturating_add(u32::from(is_point));
            if let Some(hop_index) = timeline.keep_times_if_first_or_finishing(times, chunk.finish.is_some()) {
                marks.push(FrameMark { ticket, hop_index: hop_index as u16 });
            }
        }
        marks
    }

    /// Creates the timelines of the requests that the frame names, as far as they have records.
    fn open_timelines(&mut self, frame: &Frame<'_>, ledger: &Ledger) {
        for ticket in frame.chunks.iter().filter_map(|chunk| ledger.table.ticket_of(chunk.rid)) {
            self.timeline_or_open(ticket, ledger);
        }
    }

    /// Records a later stage of a frame: applies `stamp` to the kept times of each first and finishing chunk in it.
    fn stamp_frame(&mut self, id: FrameId, stamp: impl Fn(&mut FrameTimes)) {
        // Taken out, because stamps change the timelines.
        let marked = std::mem::take(&mut self.marked_frames);
        for mark in marked.marks_of_frame(id) {
            let Some(timeline) = self.get_mut(mark.ticket) else { continue };
            let Some(times_on_hop) = timeline.hops.get_mut(usize::from(mark.hop_index)) else { continue };
            if times_on_hop.first.frame == id {
                stamp(&mut times_on_hop.first);
            }
            if let Some(last) = &mut times_on_hop.last
                && last.frame == id
            {
                stamp(last);
            }
        }
        self.marked_frames = marked;
    }

    /// Notes a delivery, and the chunks that it shows as dropped.
    fn note_delivery(&mut self, at: MonoNs, ledger: &Ledger) {
        // The request of the delivery, if it has a record.
        let Some(&ticket) = ledger.touched.first() else { return };
        let Some(timeline) = self.timeline_or_open(ticket, ledger) else { return };
        let Some(request) = ledger.table.get(ticket) else { return };
        // Without outcomes, the tokens of its deliveries are not observed.
        if request.outcomes().is_none() {
            return;
        }
        // A delivery is a point of the request's time series, as is a chunk that the scheduler sent.
        timeline.points = timeline.points.saturating_add(1);
        // Noted once, even if the next delivery comes at the same time.
        if request.delivered_first() == Some(at) && timeline.last_delivered != Some(at) {
            timeline.add_note(at, NoteKind::FirstReceived);
        }
        timeline.last_delivered = Some(at);
        if let Some(dropped) = note_of_dropped_chunks(ledger) {
            timeline.add_note(at, dropped);
        }
    }

    /// Adds a note to a request with a timeline.
    fn add_note(&mut self, rid: &str, at: MonoNs, ledger: &Ledger, kind: impl FnOnce() -> NoteKind) {
        if let Some(timeline) = ledger.table.ticket_of(rid).and_then(|ticket| self.get_mut(ticket)) {
            timeline.add_note(at, kind());
        }
    }
}

/// Note of the chunks that the last delivery shows as dropped; `None` if it shows none.
fn note_of_dropped_chunks(ledger: &Ledger) -> Option<NoteKind> {
    let mut chunks = 0;
    let mut tokens = 0;
    for (_, judged) in ledger.judged_chunks().filter(|(_, judged)| judged.outcome == ChunkOutcome::Dropped) {
        chunks += u64::from(judged.count);
        tokens += u64::from(judged.tokens_lost);
    }
    (chunks > 0).then_some(NoteKind::Dropped { chunks, tokens })
}

fn capabilities_of(ledger: &Ledger, hop: HopId) -> Capabilities {
    ledger.hop(hop).map(|hop| hop.shows).unwrap_or_default()
}

impl Ledger {
    /// Keeps a timeline of every request whose first chunk is still to come.
    pub(crate) fn keep_timelines(&mut self) {
        self.timelines.get_or_insert_default();
    }

    /// Forgets the requests that the previous event or tick closed.
    pub(super) fn forget_closed_timelines(&mut self) {
        if let Some(timelines) = &mut self.timelines {
            timelines.forget_closed();
        }
    }

    /// Requests that the last event or tick closed, in order; empty unless timelines are kept.
    pub fn closed_requests(&self) -> &[ClosedRequest] {
        self.timelines.as_ref().map_or(&[], |timelines| &timelines.closed)
    }

    /// All live and settling requests with their timelines, in no order.
    pub fn timed_requests(&self) -> impl Iterator<Item = TimedRequest<'_>> {
        self.table.tickets().into_iter().filter_map(|ticket| self.timed_request(ticket))
    }

    /// Request of the chunk with this index in the last event, or of the delivery. `None` unless timelines are kept.
    pub fn request_of_chunk(&self, index: usize) -> Option<TimedRequest<'_>> {
        self.timed_request(*self.touched.get(index)?).filter(|timed| timed.timeline.is_some())
    }

    fn timed_request(&self, ticket: Ticket) -> Option<TimedRequest<'_>> {
        let timeline = self.timelines.as_ref().and_then(|timelines| timelines.get(ticket));
        Some(TimedRequest { request: self.table.get(ticket)?, timeline })
    }

    /// Number of requests with a timeline, including those that the last event or tick closed; 0 unless timelines are kept.
    pub fn timeline_count(&self) -> usize {
        self.timelines.as_ref().map_or(0, |timelines| timelines.count)
    }

    /// Records an applied event into the timelines of its requests.
    pub(super) fn update_timelines(&mut self, event: &Event<'_>) {
        // Taken out, because recording into them reads the rest of the ledger.
        let Some(mut timelines) = self.timelines.take() else { return };
        if let What::Delivered(delivery) = &event.what {
            // A delivery has no chunks of its own to name its request.
            self.touched.extend(self.table.ticket_of(delivery.rid));
        }
        timelines.apply_event(event, self);
        self.timelines = Some(timelines);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::event::{Chunk, Finish, IdColumn};
    use crate::ledger::Limits;
    use crate::ledger::test_path::Path;

    fn path(limits: Limits) -> Path {
        let mut path = Path { step_ns: 5, ..Path::new(Config { limits, ..Config::default() }) };
        path.analysis.keep_timelines();
        path.announce(0, "scheduler->tokenizer", [true, true], Capabilities::SENT | Capabilities::RECEIVED);
        path
    }

    fn chunk(rid: &str, count: u32, finish: Option<Finish>) -> Chunk<'_> {
        Chunk { finish, ..Chunk::counted(rid, 1, count) }
    }

    #[test]
    fn a_closed_request_is_handed_over_once_with_its_first_and_finishing_chunk() {
        let mut path = path(Limits::default());
        for count in 1..=3 {
            let finish = (count == 3).then_some(Finish::Stop);
            let id = path.send(0, IdColumn::Delta, &[chunk("a", count, finish)]);
            path.receive(id);
        }
        assert!(path.ledger().closed_requests().is_empty() && path.ledger().timeline_count() == 1);
        path.analysis.tick(MonoNs(path.now + 3_000_000_000));
        let [closed] = path.ledger().closed_requests() else { panic!("one request was closed") };
        let on = closed.timeline.hops[0];
        let last = on.last.expect("it has finished");
        let numbers = [on.first, last].map(|times| (times.frame.seq, times.received.zip(times.sent).is_some()));
        assert_eq!((&*closed.summary.rid, numbers, closed.timeline.points), ("a", [(0, true), (2, true)], 3));
        assert_eq!(on.first.sent, closed.summary.sent_first);
        path.analysis.tick(MonoNs(path.now + 3_100_000_000));
        assert!(path.ledger().closed_requests().is_empty() && path.ledger().timeline_count() == 0);
    }

    #[test]
    fn a_request_evicted_by_its_own_frame_is_handed_over() {
        let mut path = path(Limits { live_rids: 1, finished_kept: 0, ..Limits::default() });
        path.send(0, IdColumn::Delta, &[chunk("a", 1, None)]);
        path.send(0, IdColumn::Delta, &[chunk("b", 1, None), chunk("c", 1, None)]);
        let closed = path.ledger().closed_requests().iter();
        let points: Vec<_> = closed.map(|closed| (&*closed.summary.rid, closed.timeline.points)).collect();
        assert_eq!(points, [("a", 1), ("b", 0)], "b was known for less than an event");
        assert_eq!(path.ledger().request_of_chunk(1).map(|timed| &*timed.request.rid), Some("c"));
    }

    #[test]
    fn a_reused_rid_is_marked_while_its_first_request_is_open() {
        let mut path = path(Limits::default());
        path.send(0, IdColumn::Delta, &[chunk("a", 1, None)]);
        path.send(0, IdColumn::Delta, &[chunk("a", 2, None)]);
        path.send(0, IdColumn::Delta, &[chunk("a", 1, None)]);
        let timed = path.ledger().timed_requests();
        let marks: Vec<_> = timed.map(|timed| timed.timeline.map(|timeline| timeline.has_reused_rid)).collect();
        assert_eq!(marks, [Some(false), Some(true)]);
        path.wait(3);
        assert_eq!(path.ledger().timed_requests().count(), 1, "the first request is closed");
        path.send(0, IdColumn::Delta, &[chunk("a", 1, None)]);
        let reused = path.ledger().request_of_chunk(0).and_then(|timed| timed.timeline).map(|t| t.has_reused_rid);
        assert_eq!(reused, Some(true), "the second one is open");
    }

    #[test]
    fn nothing_is_kept_unless_asked_for() {
        let mut path = Path::new(Config::default());
        path.announce(0, "scheduler->tokenizer", [true, true], Capabilities::SENT);
        path.send(0, IdColumn::Delta, &[chunk("a", 1, Some(Finish::Stop))]);
        assert!(path.ledger().request_of_chunk(0).is_none());
        path.wait(600);
        assert!(path.ledger().finished_count() == 1 && path.ledger().closed_requests().is_empty());
    }
}
