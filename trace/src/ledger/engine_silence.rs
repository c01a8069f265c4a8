//! Silences of the engine: times in which it sent no frame at all although several streams were open.
//!
//! A silence is confirmed after its end, by what only a silent engine explains: streams with chunks before it go on after it, and without
//! the tokens that a working engine would have made meanwhile. Frames that only arrived late (a blocked connection, a starved relay) bring
//! these tokens at once. A time with missed observations, or in which tokengap itself did not run, proves nothing.

use std::collections::VecDeque;

use super::limits::push_bounded;
use super::time_use::TimeUse;
use super::{GAP_WARNING_NS, Ledger, OccurrenceTimes, Request};
use crate::clock::MonoNs;
use crate::event::ThreadPart;

/// Shortest silence: clients notice a pause of this length.
const MIN_SILENCE_NS: u64 = GAP_WARNING_NS;
/// A silence is at least this many times as long as the usual time between two chunks of a stream, so that slow streams are none.
pub(crate) const MIN_TIMES_USUAL: u64 = 10;
/// One silent stream looks the same as a slow request.
pub(crate) const MIN_STREAMS: u64 = 2;
/// Time between two ticks above which tokengap itself did not run.
const OWN_STALL_NS: u64 = 500_000_000;
/// Queued frames above which the receiver may have blocked the engine's sends.
const BLOCKING_FRAMES: u64 = 64;
/// Number of silences kept for the requests that waited meanwhile. Each is at least a second long.
const MAX_RECENT: usize = 64;
/// Time after a silence in which its streams are counted.
const MAX_RESUME_NS: u64 = 1_000_000_000;
/// Frames that were only held up arrive within this part of the silence's length: one tenth.
const CATCH_UP_DIVISOR: u64 = 10;

/// Longest time from a control message to the last frame before its effect.
const MAX_CONTROL_DELAY_NS: u64 = 1_000_000_000;

/// Messages to the engine that are no requests, such as those that pause it or update its weights, around a silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlMessages {
    /// Messages to the engine are not observed.
    Unobserved,
    /// None was sent.
    None,
    /// At least one was sent.
    Sent,
}

/// A time without any frame from the engine while streams were open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineSilence {
    /// End of the last frame before it.
    pub from: MonoNs,
    /// Send of the first frame after it, or the present.
    pub to: MonoNs,
    /// Streams with a chunk before it that went on after it, or, while it lasts, that have not ended.
    pub streams: u64,
    /// Median time between two chunks of a stream before it.
    pub usual_ns: u64,
    /// Name of the hop that carried the first frame after it.
    pub hop: Box<str>,
    /// Time use of the busiest main thread of the engine's processes meanwhile; `None` if not sampled.
    pub main_thread: Option<TimeUse>,
    /// Control messages before and in it.
    pub control: ControlMessages,
}

impl EngineSilence {
    /// Its length.
    pub fn ns(&self) -> u64 {
        self.to.since(self.from)
    }
}

/// Silences so far.
#[derive(Clone, Debug, Default)]
pub struct EngineSilences {
    /// Number of confirmed silences.
    pub count: u64,
    /// Their total length.
    pub total_ns: u64,
    /// The longest.
    pub longest: Option<EngineSilence>,
    /// End of the last frame; `None` if it is unknown.
    last_frame: Option<MonoNs>,
    last_tick: Option<MonoNs>,
    last_control: Option<MonoNs>,
    ended_silence: Option<EndedSilence>,
    /// The last confirmed ones.
    recent: VecDeque<SilentTime>,
    /// Times of all confirmed ones.
    pub(crate) times: OccurrenceTimes,
}

/// Begin and end of a confirmed silence.
#[derive(Clone, Copy, Debug)]
struct SilentTime {
    from: MonoNs,
    to: MonoNs,
}

impl SilentTime {
    fn overlap_ns(self, from: MonoNs, to: MonoNs) -> u64 {
        self.to.min(to).since(self.from.max(from))
    }
}

/// A silence that has ended and whose streams are being counted.
#[derive(Clone, Debug)]
struct EndedSilence {
    silence: EngineSilence,
    /// Tokens of its streams within [`Self::catch_up_ns`] after it.
    tokens_after: u64,
    /// Median time between two tokens of a stream before it.
    usual_token_ns: u64,
    is_confirmed: bool,
}

impl EndedSilence {
    /// Time after the silence in which frames that were only held up arrive.
    fn catch_up_ns(&self) -> u64 {
        (self.silence.ns() / CATCH_UP_DIVISOR).min(MAX_RESUME_NS)
    }

    /// Whether the engine itself was silent: several streams (requests with chunks) went on, with less than half of the tokens that they
    /// usually make in such a time.
    fn is_silence_of_engine(&self) -> bool {
        // A working engine would have made these tokens meanwhile. If only its frames were held up, they would bring the tokens at once.
        let usual_tokens_per_stream = self.silence.ns() / self.usual_token_ns.max(1);
        let usual_tokens = usual_tokens_per_stream.saturating_mul(self.silence.streams);
        self.silence.streams >= MIN_STREAMS && self.tokens_after < usual_tokens / 2
    }
}

impl EngineSilences {
    /// Begins of the last confirmed ones, in order.
    pub(crate) fn recent_begins(&self) -> impl Iterator<Item = MonoNs> {
        self.recent.iter().map(|silent| silent.from)
    }

    /// Whether the engine was silent for more than half of a wait: all requests waited then.
    pub(super) fn explains(&self, from: MonoNs, to: MonoNs) -> bool {
        let silent_ns: u64 = self.recent.iter().map(|silent| silent.overlap_ns(from, to)).sum();
        silent_ns > to.since(from) / 2
    }

    /// Whether the silence that ended last may still be confirmed.
    pub(super) fn is_undecided(&self, now: MonoNs) -> bool {
        let unconfirmed = self.ended_silence.as_ref().filter(|ended| !ended.is_confirmed);
        unconfirmed.is_some_and(|ended| now.since(ended.silence.to) <= MAX_RESUME_NS.max(ended.catch_up_ns()))
    }

    /// Forgets the current silence, and the one that has just ended, because observations were missed.
    pub(super) fn forget_current_silence(&mut self) {
        // Without the last frame, the next one ends no silence.
        self.last_frame = None;
        self.ended_silence = None;
    }

    /// Records a message to the engine that is no request.
    pub(super) fn record_control(&mut self, at: MonoNs) {
        self.last_control = self.last_control.max(Some(at));
    }

    /// Records a frame sent at `sent_at`. A relay may write it later, until `written_at`. If no frame was sent or written for a long time
    /// before it, returns when that time began.
    fn record_frame_and_find_silence_start(&mut self, sent_at: MonoNs, written_at: MonoNs) -> Option<MonoNs> {
        let newest_end = self.last_frame.map_or(written_at, |last| last.max(written_at));
        // Before the first frame, there is no silence.
        let previous_end = self.last_frame.replace(newest_end)?;
        (sent_at.since(previous_end) >= MIN_SILENCE_NS).then_some(previous_end)
    }

    /// Records that the wire lost tokens of a stream whose previous chunk was sent at `last_chunk_at`. Forgets an unconfirmed silence since
    /// then, because the lost tokens may have been sent in it.
    pub(super) fn forget_silence_with_wire_loss(&mut self, last_chunk_at: MonoNs) {
        let Some(ended) = &self.ended_silence else { return };
        let lies_in_between = last_chunk_at <= ended.silence.from;
        if lies_in_between && !ended.is_confirmed {
            self.ended_silence = None;
        }
    }

    /// Counts new tokens of a stream (a request's chunks) after the silence that has just ended. `last_chunk_at`: time of the stream's
    /// previous chunk. A stream whose previous chunk precedes the silence was open all through it, and counts if `is_streamed`.
    #[inline]
    pub(super) fn record_tokens_after_silence(
        &mut self,
        at: MonoNs,
        last_chunk_at: MonoNs,
        tokens: u32,
        is_streamed: impl FnOnce() -> bool,
    ) {
        let Some(ended) = &mut self.ended_silence else { return };
        let since_end = at.since(ended.silence.to);
        let is_first_after_silence = last_chunk_at <= ended.silence.from;
        if is_first_after_silence && since_end <= MAX_RESUME_NS {
            ended.silence.streams += u64::from(is_streamed());
        }
        // Frames that were only held up arrive all at once after it. So many tokens soon after it show that the engine was not silent.
        if since_end <= ended.catch_up_ns() {
            ended.tokens_after += u64::from(tokens);
        }
    }

    /// Advances time. Returns whether a silence ended so long ago that what followed can confirm it.
    fn advance_and_check_confirmable(&mut self, now: MonoNs) -> bool {
        let last_tick = self.last_tick.replace(now);
        if last_tick.is_some_and(|last_tick| now.since(last_tick) > OWN_STALL_NS) {
            // tokengap itself did not run, so the engine may have sent frames meanwhile.
            self.forget_current_silence();
        }
        let Some(ended) = &self.ended_silence else { return false };
        let since_end = now.since(ended.silence.to);
        // From then on, `record_tokens_after_silence` adds nothing to it.
        let is_fully_counted = since_end > MAX_RESUME_NS.max(ended.catch_up_ns());
        if is_fully_counted && ended.is_confirmed {
            self.ended_silence = None;
            return false;
        }
        since_end >= ended.catch_up_ns()
    }

    /// Confirms the silence that has ended, if it was a silence of the engine. A confirmed one counts once, and is kept if it is the
    /// longest. `main_thread_use`: time use of the engine's busiest main thread in it.
    fn confirm_ended_silence(&mut self, main_thread_use: Option<TimeUse>) {
        let Some(ended) = &mut self.ended_silence else { return };
        if !ended.is_silence_of_engine() {
            return;
        }
        // Later ticks come here again for the same silence.
        if !ended.is_confirmed {
            ended.is_confirmed = true;
            self.count += 1;
            self.total_ns = self.total_ns.saturating_add(ended.silence.ns());
            let silent = SilentTime { from: ended.silence.from, to: ended.silence.to };
            push_bounded(&mut self.recent, silent, MAX_RECENT);
            self.times.record_span(silent.from, silent.to);
            ended.silence.main_thread = main_thread_use;
        }
        // Its streams are counted for some time after it, so the kept copy is updated.
        if self.longest.as_ref().is_none_or(|longest| ended.silence.ns() >= longest.ns()) {
            self.longest = Some(ended.silence.clone());
        }
    }
}

impl Ledger {
    /// Ends the silence (time without a frame) before a frame on the hop (channel between two processes) at `hop_index`. Records it if the
    /// engine itself sends on the hop, and if its last frame was far longer ago than usual. Called before the frame's chunks are recorded.
    /// `forwarded_at`: when a relay had written the frame to its receiver.
    pub(super) fn end_engine_silence_before_frame(
        &mut self,
        at: MonoNs,
        hop_index: usize,
        forwarded_at: Option<MonoNs>,
    ) {
        let hop = &self.hops.all[hop_index];
        let is_behind_scheduler = self.hops.any_origin && !hop.origin;
        if is_behind_scheduler {
            // Another process may hold frames back there.
            return;
        }
        // A relay reads no further frame until it has written this one, so the next silence of the engine can only begin then.
        let next_silence_from = forwarded_at.map_or(at, |forwarded_at| forwarded_at.max(at));
        let Some(from) = self.silences.record_frame_and_find_silence_start(at, next_silence_from) else { return };
        let hop_name = self.hops.groups[hop.group].name.as_str().into();
        let Some(usual_ns) = self.usual_chunk_interval_if_exceeded_ns(at.since(from)) else { return };
        // The median. It is unknown until a stream has several tokens.
        let Some(usual_token_ns) = self.itl_sent_by_token.quantile(0.5) else { return };
        let silence = EngineSilence {
            from,
            to: at,
            // Counted when they go on.
            streams: 0,
            usual_ns,
            hop: hop_name,
            // Set when the silence is confirmed.
            main_thread: None,
            control: self.control_messages_since(from),
        };
        self.silences.ended_silence =
            Some(EndedSilence { silence, tokens_after: 0, usual_token_ns, is_confirmed: false });
    }

    /// Whether control messages may have caused a silence since `from`, because one was sent in it or shortly before.
    fn control_messages_since(&self, from: MonoNs) -> ControlMessages {
        let last_control = self.silences.last_control;
        // `since` is 0 for a message sent after `from`.
        if last_control.is_some_and(|sent_at| from.since(sent_at) <= MAX_CONTROL_DELAY_NS) {
            return ControlMessages::Sent;
        }
        // Control messages are sent on the same hops as requests. Where sends are observed, none was missed.
        if self.hops.all.iter().any(|hop| hop.carries_requests && hop.shows.sent) {
            return ControlMessages::None;
        }
        ControlMessages::Unobserved
    }

    /// Median time between two chunks of a stream, with which a silence of `silence_ns` is compared. `None` if the silence is not far
    /// longer, or if sends may have been blocked or unseen.
    fn usual_chunk_interval_if_exceeded_ns(&self, silence_ns: u64) -> Option<u64> {
        let usual_ns = self.itl_sent.quantile(0.5)?;
        let mut outputs = self.hops.all.iter().filter(|hop| !hop.carries_requests);
        // With so many frames queued, the engine may wait until the receiver makes room.
        let is_blocked = outputs.any(|hop| hop.counts.backlog >= BLOCKING_FRAMES);
        let is_far_above = silence_ns >= usual_ns.saturating_mul(MIN_TIMES_USUAL);
        (is_far_above && !is_blocked && !self.has_unseen_hops()).then_some(usual_ns)
    }

    /// Whether frames crossed hops beyond the limit of hops.
    pub(super) fn has_unseen_hops(&self) -> bool {
        self.limits.list_counted_limits().any(|limit| limit.name == "hops" && limit.times > 0)
    }

    /// Advances time for [`EngineSilences`]. Counts the silence that has ended, if what followed shows that the engine was silent.
    pub(super) fn advance_engine_silences(&mut self, now: MonoNs) {
        let may_be_confirmed = self.silences.advance_and_check_confirmable(now);
        if !may_be_confirmed {
            return;
        }
        let Some(ended) = &self.silences.ended_silence else { return };
        let main_thread = self.time_use_of_busiest_main_thread(&ended.silence);
        self.silences.confirm_ended_silence(main_thread);
    }

    /// Time use of the busiest main thread of the processes that send on the silence's hop.
    fn time_use_of_busiest_main_thread(&self, silence: &EngineSilence) -> Option<TimeUse> {
        let group = &self.hops.groups[self.hops.group_named(&silence.hop)?];
        let sender_threads = self.threads.all.iter().filter(|thread| *thread.role == *group.ends.from);
        let main_threads = sender_threads.filter(|thread| thread.part == Some(ThreadPart::Main));
        let uses = main_threads.filter_map(|thread| thread.use_between(silence.from, silence.to));
        uses.max_by_key(TimeUse::wanted_ns)
    }

    /// Confirmed silences of the engine.
    pub(crate) fn engine_silences(&self) -> &EngineSilences {
        &self.silences
    }

    /// The silence that lasts at `now`; `None` without one. A relay reports missed frames only with its next frame, so the streams may have
    /// ended unobserved. Behind a relay, a silence therefore counts only if the scheduler does not receive its requests either.
    pub(crate) fn current_engine_silence(&self, now: MonoNs) -> Option<EngineSilence> {
        let silence = self.long_silence_at(now)?;
        let is_proven = !self.is_relayed() || self.has_long_unreceived_request(silence.from, now);
        is_proven.then_some(silence)
    }

    /// Whether the engine seems to be silent at `now`, which a relay can decide only once the next frame has come.
    pub fn has_undecided_silence(&self, now: MonoNs) -> bool {
        self.long_silence_at(now).is_some() && self.current_engine_silence(now).is_none()
    }

    /// Whether a request that was sent to the scheduler after `sent_after` has waited in its socket for as long as the shortest silence. A
    /// scheduler that runs receives its requests even while it sends nothing.
    fn has_long_unreceived_request(&self, sent_after: MonoNs, now: MonoNs) -> bool {
        self.dispatched.waiting.values().any(|request| {
            let hop = self.hop(request.message.hop);
            let is_receive_observed = hop.is_some_and(|hop| hop.shows.received && !hop.forwards_requests);
            let sent = request.times.sent;
            let is_late = sent >= sent_after && now.since(sent) >= MIN_SILENCE_NS;
            is_late && is_receive_observed && request.times.received.is_none()
        })
    }

    fn is_relayed(&self) -> bool {
        self.hops.all.iter().any(|hop| hop.shows.forwarded)
    }

    /// The silence that lasts at `now`, if it is far longer than the usual time between chunks and several streams are open.
    fn long_silence_at(&self, now: MonoNs) -> Option<EngineSilence> {
        let from = self.silences.last_frame.filter(|from| now.since(*from) >= MIN_SILENCE_NS)?;
        // Such an engine does not send the end of each request, so it is not known which streams are open.
        if self.engine.facts().ends_silently() {
            return None;
        }
        let usual_ns = self.usual_chunk_interval_if_exceeded_ns(now.since(from))?;
        let streams = self.count_open_streams(from, usual_ns);
        if streams < MIN_STREAMS {
            return None;
        }
        let group_of_engine = self.groups().iter().find(|group| self.is_group_of_engine(&group.name))?;
        let silence = EngineSilence {
            from,
            to: now,
            streams,
            usual_ns,
            hop: group_of_engine.name.as_str().into(),
            main_thread: None,
            control: self.control_messages_since(from),
        };
        let main_thread = self.time_use_of_busiest_main_thread(&silence);
        Some(EngineSilence { main_thread, ..silence })
    }

    /// Number of requests that streamed when a silence began at `silence_start`.
    fn count_open_streams(&self, silence_start: MonoNs, usual_interval_ns: u64) -> u64 {
        // A stream whose last chunk is older than that may have ended unobserved.
        let active_since = MonoNs(silence_start.0.saturating_sub(usual_interval_ns.saturating_mul(MIN_TIMES_USUAL)));
        self.table.iter().filter(|request| self.is_streaming_since(request, active_since)).count() as u64
    }

    /// Whether the hops of this name are the engine's.
    fn is_group_of_engine(&self, name: &str) -> bool {
        let mut hops = self.hops.all.iter().filter(|hop| hop.origin || !self.hops.any_origin);
        hops.any(|hop| self.hops.groups[hop.group].name == name)
    }

    /// Whether the request is open and streamed, and has had a chunk at or after `since`.
    fn is_streaming_since(&self, request: &Request, since: MonoNs) -> bool {
        // The rid of an unmapped record belongs to another request.
        let is_open = request.is_mapped && request.finish.is_none();
        // If several requests share the rid, it is not known which of them still streams.
        if !is_open || request.is_shared() || request.last_at < since {
            return false;
        }
        let unstreamed_tokens = self.engine.facts().unstreamed_tokens();
        request.streams.iter().any(|stream| {
            let has_streamed_chunks = is_streamed(stream.chunks, stream.count.highest, unstreamed_tokens);
            // A missed chunk may have been its last.
            let may_have_ended = stream.is_finished() || !self.hops.observed_all_since(stream);
            has_streamed_chunks && !may_have_ended
        })
    }
}

/// Whether a stream with `chunks` chunks so far, which end at `count`, has more of them than one that is not streamed: the first, and one
/// for each `unstreamed_tokens` tokens.
pub(super) fn is_streamed(chunks: u32, count: u32, unstreamed_tokens: Option<u32>) -> bool {
    let further_unstreamed_chunks = unstreamed_tokens.map_or(0, |tokens| count / tokens.max(1));
    chunks > 1 + further_unstreamed_chunks
}
