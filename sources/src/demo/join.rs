//! Joins the reports of the peers with the frames observed by the tap, in order of time.
//!
//! The tap reports a frame after its last byte is written, when the receiver may already have received it. A report therefore waits until
//! its frame is known.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use trace::engine::Mode;
use trace::event::{Answer, AnswerEnd, Arrival, Delivery, Engine, Event, Received, Response, What};
use trace::{FrameId, MonoNs};

use super::peers::{PeerAction, PeerEvent};
use super::scenario::Script;

/// Time a report waits for earlier observations of the tap.
const HOLD: Duration = Duration::from_millis(20);
/// Maximum time a report waits for its frame. After that the tap has missed the frame, and reports that itself.
const PATIENCE: Duration = Duration::from_secs(2);

/// Pending reports, and the engine they are about.
pub(super) struct Join {
    script: Script,
    /// In order of time, because the peers share a thread.
    reports: VecDeque<PeerEvent>,
    /// Frames sent but not processed. Bounded by the requests that clients have open.
    frames: HashSet<FrameId>,
}

impl Join {
    pub(super) fn new(script: Script) -> Self {
        Self { script, reports: VecDeque::new(), frames: HashSet::new() }
    }

    /// The engine at the start, as an event.
    pub(super) fn engine(&self) -> What<'static> {
        self.engine_event_for_mode(self.script.phases[0].mode)
    }

    /// Event with the properties of the simulated engine while it delivers in `mode`, which its messages do not reveal. The event also has
    /// the waiter: how the coroutine that passes a request's chunks to its client treats several at once.
    fn engine_event_for_mode(&self, mode: Mode) -> What<'static> {
        let Script { engine, waiter, waiter_turns, .. } = self.script;
        What::Engine(Engine {
            name: Some(engine.format().engine),
            version: Some(engine.version()),
            mode: Some(mode),
            waiter: Some(waiter),
            turnaround: waiter_turns,
        })
    }

    pub(super) fn add_report(&mut self, report: PeerEvent) {
        self.reports.push_back(report);
    }

    /// Passes on an event of the tap, which is the relay between the simulated processes, the peers. Before it, passes the peers' reports
    /// of earlier actions. The tap's engine events are dropped.
    pub(super) fn pass_event_after_earlier_reports(&mut self, event: &Event<'_>, sink: &mut dyn FnMut(&Event<'_>)) {
        match &event.what {
            // The wire does not reveal the mode, so the demo's own announcement counts.
            What::Engine(_) => return,
            What::Sent(frame) => {
                self.frames.insert(frame.id);
            }
            What::Dispatched(dispatch) => {
                self.frames.insert(dispatch.id);
            }
            _ => {}
        }
        // A report waits until the tap has observed its frame. Later reports wait behind it, to keep the order.
        while self.reports.front().is_some_and(|oldest| oldest.at < event.at && self.is_frame_known(oldest)) {
            self.pass_oldest_report(sink);
        }
        sink(event);
    }

    /// Passes on the peers' reports that have waited long enough, or all of them if `passes_all`. Returns whether there were any.
    pub(super) fn pass_ready_reports(
        &mut self,
        now: MonoNs,
        passes_all: bool,
        sink: &mut dyn FnMut(&Event<'_>),
    ) -> bool {
        let mut has_passed = false;
        // In order of time, so a report that must wait holds up those after it.
        while let Some(oldest) = self.reports.front()
            && (passes_all || self.has_waited_enough(oldest, now))
        {
            self.pass_oldest_report(sink);
            has_passed = true;
        }
        has_passed
    }

    /// Whether a report need not wait any longer for its frame, which the tap observes a little later.
    fn has_waited_enough(&self, report: &PeerEvent, now: MonoNs) -> bool {
        let age = Duration::from_nanos(now.since(report.at));
        let is_overdue = age >= PATIENCE;
        is_overdue || (age >= HOLD && self.is_frame_known(report))
    }

    /// Returns whether the tap has observed the frame of a report. True for a report of something else.
    fn is_frame_known(&self, report: &PeerEvent) -> bool {
        match &report.action {
            PeerAction::Received { id, .. } => self.frames.contains(id),
            _ => true,
        }
    }

    /// Emits the event of the oldest report of a peer, if it has one. The last delivery of a request also ends its response.
    fn pass_oldest_report(&mut self, sink: &mut dyn FnMut(&Event<'_>)) {
        let Some(PeerEvent { at, action }) = self.reports.pop_front() else { return };
        let Some(what) = self.convert_report_and_forget_processed(&action) else { return };
        sink(&Event { at, what });
        if let PeerAction::Delivered(last) = &action
            && last.finished
        {
            // The deliveries have already stated the numbers of tokens.
            let (tokens, completion_tokens) = (None, None);
            let end = Answer::new(&last.rid, tokens, completion_tokens);
            sink(&Event { at, what: What::Answered(end) });
        }
    }

    /// The event for the report of a peer, which is a simulated process. `None` if the report is about a frame that the tap between the
    /// peers has not observed. A frame that was processed is forgotten.
    fn convert_report_and_forget_processed<'r>(&mut self, action: &'r PeerAction) -> Option<What<'r>> {
        Some(match action {
            // A report about an unobserved frame is dropped, because the tap has reported the frame as missed.
            PeerAction::Received { id, .. } if !self.frames.contains(id) => return None,
            PeerAction::Received { id, wakeup } => What::Received(Received { wakeup: *wakeup, ..Received::new(*id) }),
            PeerAction::Processed(id) => {
                let was_observed = self.frames.remove(id);
                if !was_observed {
                    return None;
                }
                What::Processed(*id)
            }
            PeerAction::Responds { rid, times } => What::Arrived(Arrival { rid, times: Ok(*times) }),
            PeerAction::ClientLeft { rid, tokens } => {
                // A response of vLLM does not state the number of its tokens.
                let claimed_tokens = self.script.engine.states_counts().then_some(*tokens);
                What::Answered(Answer { end: AnswerEnd::ClientLeft, ..Answer::new(rid, Some(*tokens), claimed_tokens) })
            }
            PeerAction::Delivered(delivery) => What::Delivered(Delivery {
                rid: &delivery.rid,
                tokens: delivery.tokens,
                mode: delivery.mode,
                completion_tokens: self.script.engine.states_counts().then_some(delivery.completion_tokens),
                finished: delivery.finished,
                response: Response::Streamed,
                without_text: 0,
            }),
            PeerAction::Serves(mode) => self.engine_event_for_mode(*mode),
        })
    }
}

#[cfg(test)]
mod tests {
    use trace::HopId;
    use trace::event::Frame;

    use super::super::Scenario;
    use super::*;

    fn frame(seq: u64) -> FrameId {
        FrameId { hop: HopId(0), lane: 0, seq }
    }

    /// A frame is `+seq` when sent and `-seq` when received; times are in milliseconds. The join gets each report or frame in turn, and
    /// `settle` at each time without either.
    #[test]
    fn reports_are_interleaved_with_frames_by_time_and_follow_their_frame() {
        for (given, expected) in [
            // Its frame has not been seen yet when the report settles.
            ("-7@100 200 +7@99 200", "200 idle +7@99 -7@100 200 settled"),
            // At 40 ms the tap may still report an earlier frame than the one received at 31 ms.
            ("-1@11 -2@31 +1@10 +2@20 +3@30 40 51", "+1@10 -1@11 +2@20 +3@30 40 idle -2@31 51 settled"),
            // A report of an unseen frame does not block later ones.
            ("-0@100 -1@101 +1@99 3000", "+1@99 -1@101 3000 settled"),
        ] {
            let (mut join, mut notes) = (Join::new(Scenario::Race.script()), Vec::new());
            for step in given.split(' ') {
                let (what, at) = step.split_once('@').unwrap_or(("", step));
                let at = MonoNs(at.parse::<u64>().expect("a time") * 1_000_000);
                let note = |notes: &mut Vec<String>, event: &Event<'_>| {
                    let ms = event.at.0 / 1_000_000;
                    notes.push(match &event.what {
                        What::Sent(frame) => format!("+{}@{ms}", frame.id.seq),
                        What::Received(received) => format!("-{}@{ms}", received.id.seq),
                        other => format!("{other:?}"),
                    });
                };
                let id = || frame(what[1..].parse().expect("a number"));
                match what.chars().next() {
                    Some('-') => {
                        join.add_report(PeerEvent { at, action: PeerAction::Received { id: id(), wakeup: Some(1) } });
                    }
                    Some(_) => {
                        let sent = Event::new(at, What::Sent(Frame::token_ids(id(), 5, &[])));
                        join.pass_event_after_earlier_reports(&sent, &mut |event| note(&mut notes, event));
                    }
                    None => {
                        let any = join.pass_ready_reports(at, false, &mut |event| note(&mut notes, event));
                        notes.push(format!("{step} {}", if any { "settled" } else { "idle" }));
                    }
                }
            }
            assert_eq!(notes.join(" "), expected);
        }
    }
}
