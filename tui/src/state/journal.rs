//! Ring of recent chunk events over all requests, from which the detail of one request is drawn. The ledger keeps only sums.
//!
//! Events are appended without any lookup. The history of a request is collected from the ring on demand.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

use trace::engine::Mode;
use trace::event::{Chunk, Event, Frame, What};
use trace::{FrameId, HopId, MonoNs};

/// Default capacity in moments (12 MiB).
pub const DEFAULT_MOMENTS: usize = 262_144;
/// Maximum number of stories kept outside the ring.
const KEPT: usize = 8;

/// An event of a chunk or of its frame (48 bytes).
#[derive(Clone, Copy, Debug)]
struct Moment {
    at: MonoNs,
    /// Hash of the rid. Unused for [`Kind::Received`].
    key: u64,
    /// Sequence number of the frame in its lane; 0 for deliveries.
    seq: u64,
    lane: u32,
    /// Listed or delivered tokens. For receives: position of the frame in its wakeup.
    tokens: u32,
    /// `completion_tokens` after this event. For receives: the wakeup number, truncated to 32 bits.
    end: u32,
    hop: HopId,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Sent,
    /// A chunk in a frame whose send was not observed.
    Carried,
    /// A frame was received; `true` if its wakeup is known.
    Received(bool),
    Delivered(Mode),
}

#[derive(Debug)]
pub(crate) struct Journal {
    moments: VecDeque<Moment>,
    limit: usize,
    forgot: bool,
    keys: RandomState,
    /// Current wakeup of each hop, and the number of frames received in it.
    wakeups: HashMap<HopId, (u64, u32)>,
    /// Stories of important requests, kept when the ring overwrites their moments.
    kept: HashMap<String, RequestHistory>,
}

/// One chunk on one hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkSeen {
    pub(crate) hop: HopId,
    /// `None` if the send was not observed.
    pub(crate) sent: Option<MonoNs>,
    pub(crate) received: Option<MonoNs>,
    /// Wakeup that received the chunk, and the position of its frame in that wakeup.
    pub(crate) wakeup: Option<(u32, u32)>,
    /// Listed tokens.
    pub(crate) tokens: u32,
    /// `completion_tokens` after this chunk; `None` if the frame does not contain it.
    pub(crate) end: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeliverySeen {
    pub(crate) at: MonoNs,
    pub(crate) mode: Mode,
    pub(crate) tokens: u32,
    pub(crate) end: Option<u32>,
}

/// Everything the journal holds about one request, in order of observation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestHistory {
    pub(crate) chunks: Vec<ChunkSeen>,
    pub(crate) deliveries: Vec<DeliverySeen>,
    /// Start of the known part, if earlier moments were overwritten.
    pub(crate) since: Option<MonoNs>,
}

/// Marks an absent count in `Moment::end`; a count of generated tokens never gets this high.
const NO_COUNT: u32 = u32::MAX;

impl Journal {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            moments: VecDeque::new(),
            limit,
            forgot: false,
            keys: RandomState::new(),
            wakeups: HashMap::new(),
            kept: HashMap::new(),
        }
    }

    pub(crate) fn observe(&mut self, event: &Event<'_>) {
        let at = event.at;
        match &event.what {
            What::Sent(frame) => self.frame(at, frame, Kind::Sent),
            What::Received(received) => {
                if let Some(frame) = &received.frame {
                    self.frame(at, frame, Kind::Carried);
                }
                let FrameId { hop, lane, seq } = received.id;
                let kind = Kind::Received(received.wakeup.is_some());
                let end = received.wakeup.unwrap_or(0) as u32;
                let tokens = received.wakeup.map_or(0, |wakeup| self.place_in_wakeup(hop, wakeup));
                self.push(Moment { at, key: 0, seq, lane, tokens, end, hop, kind });
            }
            What::Delivered(delivered) if !delivered.is_uncounted() => {
                let kind = Kind::Delivered(delivered.mode);
                let end = delivered.completion_tokens.unwrap_or(NO_COUNT);
                let key = self.keys.hash_one(delivered.rid);
                self.push(Moment { at, key, seq: 0, lane: 0, tokens: delivered.tokens, end, hop: HopId(0), kind });
            }
            _ => {}
        }
    }

    fn place_in_wakeup(&mut self, hop: HopId, wakeup: u64) -> u32 {
        let last = self.wakeups.entry(hop).or_insert((wakeup, 0));
        *last = if last.0 == wakeup { (wakeup, last.1 + 1) } else { (wakeup, 1) };
        last.1
    }

    fn frame(&mut self, at: MonoNs, frame: &Frame<'_>, kind: Kind) {
        let FrameId { hop, lane, seq } = frame.id;
        for chunk in frame.chunks {
            let &Chunk { rid, listed, completion_tokens, .. } = chunk;
            let key = self.keys.hash_one(rid);
            let end = completion_tokens.unwrap_or(NO_COUNT);
            self.push(Moment { at, key, seq, lane, tokens: listed.unwrap_or(0), end, hop, kind });
        }
    }

    fn push(&mut self, moment: Moment) {
        if self.limit == 0 {
            return;
        }
        if self.moments.len() >= self.limit {
            self.moments.pop_front();
            self.forgot = true;
        }
        self.moments.push_back(moment);
    }

    /// Keeps the stories of the first few of these requests outside the ring, until they are no longer named. Called every few seconds, so
    /// that the request of a finding can be inspected after the ring has overwritten it.
    pub(crate) fn keep(&mut self, rids: &[&str]) {
        let rids = &rids[..rids.len().min(KEPT)];
        self.kept.retain(|rid, _| rids.contains(&rid.as_str()));
        for &rid in rids {
            let story = self.story(rid);
            self.kept.insert(rid.to_owned(), story);
        }
    }

    /// Returns the story from the ring, or the kept copy if it has more chunks.
    pub(crate) fn story(&self, rid: &str) -> RequestHistory {
        let story = self.read(rid);
        match self.kept.get(rid) {
            Some(kept) if kept.chunks.len() > story.chunks.len() => kept.clone(),
            _ => story,
        }
    }

    /// Reads the story from the ring in two passes.
    fn read(&self, rid: &str) -> RequestHistory {
        let key = self.keys.hash_one(rid);
        let mut story = RequestHistory::default();
        let mut frames: HashMap<FrameId, Vec<usize>> = HashMap::new();
        for moment in self.moments.iter().filter(|m| m.key == key) {
            let end = (moment.end != NO_COUNT).then_some(moment.end);
            match moment.kind {
                Kind::Sent | Kind::Carried => {
                    let sent = (moment.kind == Kind::Sent).then_some(moment.at);
                    frames.entry(moment.frame()).or_default().push(story.chunks.len());
                    let chunk =
                        ChunkSeen { hop: moment.hop, sent, received: None, wakeup: None, tokens: moment.tokens, end };
                    story.chunks.push(chunk);
                }
                Kind::Delivered(mode) => {
                    story.deliveries.push(DeliverySeen { at: moment.at, mode, tokens: moment.tokens, end });
                }
                Kind::Received(_) => {}
            }
        }
        for moment in &self.moments {
            let Kind::Received(known) = moment.kind else { continue };
            for &at in frames.get(&moment.frame()).into_iter().flatten() {
                story.chunks[at].received = Some(moment.at);
                story.chunks[at].wakeup = known.then_some((moment.end, moment.tokens));
            }
        }
        let begins = story.chunks.first().is_some_and(|c| c.end == Some(c.tokens));
        story.since = self.moments.front().filter(|_| self.forgot && !begins).map(|m| m.at);
        story
    }
}

impl Moment {
    fn frame(&self) -> FrameId {
        FrameId::new(self.hop, self.lane, self.seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::scene::{MS, Scene};

    #[test]
    fn a_story_joins_sends_receives_and_deliveries_of_one_request() {
        let mut scene = Scene::delivering();
        scene.send(10 * MS, &[("a", 1, 1), ("b", 1, 1)]);
        scene.send(20 * MS, &[("a", 2, 3)]);
        scene.receive(50 * MS, 0, 7);
        scene.receive(51 * MS, 1, 7);
        scene.deliver(60 * MS, "a", 2, 3);
        let story = scene.journal.story("a");
        let received: Vec<_> = story.chunks.iter().map(|c| (c.received, c.wakeup, c.end)).collect();
        assert_eq!(
            received,
            [(Some(MonoNs(50 * MS)), Some((7, 1)), Some(1)), (Some(MonoNs(51 * MS)), Some((7, 2)), Some(3))]
        );
        assert_eq!((story.deliveries.len(), story.since), (1, None));
        assert_eq!(scene.journal.story("b").chunks.len(), 1);
        assert_eq!(scene.journal.story("nobody"), RequestHistory::default());
    }

    #[test]
    fn a_kept_story_outlives_the_ring() {
        let mut scene = Scene::delivering();
        scene.journal = Journal::new(8);
        scene.send(0, &[("a", 1, 1)]);
        scene.receive(MS, 0, 1);
        scene.journal.keep(&["a"]);
        for n in 0..20 {
            scene.send(n * MS, &[("b", 1, n as u32 + 1)]);
        }
        scene.journal.keep(&["a"]);
        assert_eq!(scene.journal.story("a").chunks.len(), 1);
        scene.journal.keep(&["b"]);
        assert_eq!(scene.journal.story("a").chunks.len(), 0);
    }

    #[test]
    fn a_full_ring_evicts_the_oldest_and_reports_it() {
        let mut scene = Scene::delivering();
        scene.journal = Journal::new(4);
        for n in 0..10 {
            scene.send(n * MS, &[("a", 1, n as u32 + 1)]);
            assert!(scene.journal.moments.len() <= 4);
        }
        let story = scene.journal.story("a");
        assert_eq!((story.chunks.len(), story.since), (4, Some(MonoNs(6 * MS))));
    }
}
