//! Entry of log data into the ledger: finds the request of each stage and pairs first sends with receives.

use super::marks::{MarkPlacement, StageMark, StageMarks, keep_request_if_slowest};
use super::{GapPosition, MAX_AWAITED, MAX_STAGE_PAIRS, Stages};
use crate::clock::MonoNs;
use crate::event::{Finish, LoggedState, Merged, Stage};
use crate::id::Ticket;
use crate::ledger::Ledger;
use crate::ledger::limits::push_bounded;

impl Stages {
    /// Finds the latest of these stages that is in the chain with this index (stages that one process passes in order). Returns its name
    /// and the time from it until `at`; `None` if there is none.
    fn previous_name_in_chain_and_ns_since(&self, marks: &StageMarks, chain: usize, at: MonoNs) -> Option<(u8, u64)> {
        let mut latest_first = marks.list.iter().rev();
        let before = latest_first.find(|mark| self.meanings[usize::from(mark.name)].chain == Some(chain))?;
        Some((before.name, at.since(before.at)))
    }

    /// Records the time from one stage of a request to the next one. Beyond the limit of pairs, a further pair is left out.
    fn record_time_between_stages(&mut self, from_name: u8, to_name: u8, ns: u64) {
        let is_kept = self.between.len() < MAX_STAGE_PAIRS || self.between.contains_key(&(from_name, to_name));
        if is_kept {
            self.between.entry((from_name, to_name)).or_default().record(ns);
        }
    }

    /// Keeps a gap that ended at the stage `received`, to correlate its length with the number of requests of which the receiving process
    /// had state then. Returns that number. If it is not logged, keeps nothing and returns `None`.
    fn keep_gap_and_find_state_count(&mut self, received: StageMark, gap_ns: u64) -> Option<u32> {
        let receiver = self.loggers.name_of(received.by);
        let states = self.logged_processes.state_count_at(receiver, received.at)?;
        self.gaps.add_gap_with_states(gap_ns, states);
        Some(states)
    }
}

impl Ledger {
    /// Records a stage of a request in the engine's log: a moment that the engine names.
    pub(in crate::ledger) fn record_stage(&mut self, at: MonoNs, stage: &Stage<'_>) {
        if self.engine.is_health_check(stage.rid) {
            return self.count_health_check_if_new(stage.rid);
        }
        let stages = &mut self.stages;
        stages.counts.logged += 1;
        let (Some(name), Some(by)) =
            (stages.stage_names.name_id_or_add(stage.name), stages.loggers.name_id_or_add(stage.by))
        else {
            stages.counts.left_out += 1;
            return;
        };
        let meaning = stages.meaning_of_stage(name, self.engine.facts());
        stages.counts.sends += u64::from(meaning.position == GapPosition::Begin);
        stages.counts.receives += u64::from(meaning.position == GapPosition::End);
        let ticket = self.table.ticket_of(stage.rid).unwrap_or_else(|| self.admit_request(stage.rid, at));
        let Some(request) = self.table.get_mut(ticket) else { return };
        request.last_at = request.last_at.max(at);
        // Lines of several log files are only nearly in order.
        request.first_at = request.first_at.min(at);
        let stages = &mut self.stages;
        let marks = request.marks.get_or_insert_with(|| {
            stages.counts.requests += 1;
            Box::default()
        });
        if meaning.is_discarded {
            stages.abandoned.add_discarded_output(&request.rid, at, &mut marks.discarded);
        }
        let mark = StageMark { at, name, by, tokens: stage.tokens, pending: stage.pending, states: None };
        let before_in_chain = meaning.chain.map(|chain| stages.previous_name_in_chain_and_ns_since(marks, chain, at));
        match marks.insert_mark(mark) {
            MarkPlacement::Last { after } => {
                let after = before_in_chain.unwrap_or(after);
                // A repeated stage is no step from one stage to another.
                if let Some((from, ns)) = after.filter(|(from, _)| *from != name) {
                    stages.record_time_between_stages(from, name, ns);
                }
            }
            MarkPlacement::Earlier => stages.counts.late += 1,
            MarkPlacement::Repeat => {
                stages.counts.repeats += 1;
                return;
            }
            MarkPlacement::Full => {
                stages.counts.left_out += 1;
                return;
            }
        }
        // Observed frames give more precise send and receive times than a log.
        if request.streams.is_empty() {
            if let Some(gap_ns) = stage.gap_ns {
                self.record_timed_gap(ticket, mark, gap_ns);
            }
            self.record_logged_gap(ticket, mark, meaning.position);
        }
        if meaning.is_end && self.table.get(ticket).is_some_and(|request| request.finish.is_none()) {
            self.totals.requests.finished += 1;
            self.totals.requests.completed += 1;
            self.finish_request(ticket, at, Finish::Other);
        }
    }

    /// Records the gap of a request (time from its first send to its first receive) from a log line that has its length and its end, the
    /// stage `receive_mark`.
    fn record_timed_gap(&mut self, ticket: Ticket, receive_mark: StageMark, gap_ns: u64) {
        let stages = &mut self.stages;
        let Some(request) = self.table.get_mut(ticket) else { return };
        let Some(marks) = &mut request.marks else { return };
        let first_sent = stages.stage_names.id_of(self.engine.facts().stages().first_sent);
        // A send and a receive that are logged one by one are more precise, and a request that is logged twice has one gap.
        let has_logged_send = marks.list.iter().any(|mark| Some(mark.name) == first_sent);
        if has_logged_send || request.gap.get().is_some() {
            return;
        }
        stages.counts.timed_gaps += 1;
        request.gap = gap_ns.into();
        request.sent_first = Some(MonoNs(receive_mark.at.0.saturating_sub(gap_ns)));
        request.received_first = Some(receive_mark.at);
        // Requests whose first receive is logged are evicted before others.
        push_bounded(&mut stages.with_logged_receive, ticket, MAX_AWAITED);
        self.gap.record(receive_mark.at, gap_ns);
        self.worst_gap.keep_longest(receive_mark.at, &request.rid, gap_ns);
        if let Some(states) = stages.keep_gap_and_find_state_count(receive_mark, gap_ns) {
            // `receive_mark` is a copy of the mark in the list.
            for mark in marks.list.iter_mut().filter(|mark| **mark == receive_mark) {
                mark.states = Some(states);
            }
        }
        keep_request_if_slowest(&mut stages.slowest, &request.rid, gap_ns, marks);
    }

    /// Keeps the time of a logged stage if the gap of its request begins or ends with it. The gap is the time from the first send to the
    /// first receive. `position`: position of the stage relative to the gap.
    fn keep_gap_end(&mut self, ticket: Ticket, mark: StageMark, position: GapPosition) {
        let Some(request) = self.table.get_mut(ticket) else { return };
        let stages = &mut self.stages;
        let at = mark.at;
        match position {
            GapPosition::Begin => {
                // Lines of several log files are only nearly in order, so the earliest time counts.
                request.sent_first = Some(request.sent_first.map_or(at, |known| known.min(at)));
                push_bounded(stages.awaited.entry(mark.by).or_default(), (at, ticket), MAX_AWAITED);
            }
            GapPosition::End => {
                request.received_first = Some(request.received_first.map_or(at, |known| known.min(at)));
                push_bounded(&mut stages.with_logged_receive, ticket, MAX_AWAITED);
            }
            // A later stage shows that the first token was received.
            GapPosition::After => request.first_receive_missed |= request.received_first.is_none(),
            GapPosition::Other => {}
        }
    }

    /// Records a logged stage of a request. If it is the first send or the first receive, and the other one is logged already, records the
    /// gap between both.
    fn record_logged_gap(&mut self, ticket: Ticket, mark: StageMark, position: GapPosition) {
        self.keep_gap_end(ticket, mark, position);
        let stages = &mut self.stages;
        let Some(request) = self.table.get_mut(ticket) else { return };
        // The process that sent a first token whose receive is logged, and when. All that it sent before was received before.
        let mut overtaking = None;
        let Some(marks) = &mut request.marks else { return };
        let names = self.engine.facts().stages();
        let is_gap_end = matches!(position, GapPosition::Begin | GapPosition::End);
        if is_gap_end
            && let (Some(sent), Some(received)) =
                (stages.stage_names.id_of(names.first_sent), stages.stage_names.id_of(names.first_received))
        {
            // A request that went through two servers has two gaps.
            for gap in marks.take_new_gaps(sent, received) {
                let end = gap.end.at;
                let ns = end.since(gap.begin.at);
                overtaking = Some((gap.begin.by, gap.begin.at));
                self.gap.record(end, ns);
                request.gap = request.gap.get().map_or(ns, |known_ns| known_ns.max(ns)).into();
                self.worst_gap.keep_longest(end, &request.rid, ns);
                marks.list[gap.receive_index].states = stages.keep_gap_and_find_state_count(gap.end, ns);
            }
        }
        if let Some(gap) = request.gap.get() {
            keep_request_if_slowest(&mut stages.slowest, &request.rid, gap, marks);
        }
        if let Some((sender, sent_at)) = overtaking {
            self.mark_overtaken_receives(sender, sent_at);
        }
    }

    /// Marks the receives of first tokens that the process `sender_id` sent before `last_sent_at` as missed, if they are not logged. Frames
    /// of one sender arrive in order, so they were received, too.
    fn mark_overtaken_receives(&mut self, sender_id: u8, last_sent_at: MonoNs) {
        let Some(awaited) = self.stages.awaited.get_mut(&sender_id) else { return };
        while let Some((_, ticket)) = awaited.pop_front_if(|(sent_before, _)| *sent_before < last_sent_at) {
            let Some(request) = self.table.get_mut(ticket) else { continue };
            if request.received_first.is_none() {
                request.first_receive_missed = true;
            }
        }
    }

    pub(in crate::ledger) fn record_logged_state(&mut self, at: MonoNs, logged: &LoggedState<'_>) {
        self.stages.logged_processes.record_state(at, logged);
    }

    /// Records that the engine has logged merged chunks.
    pub(in crate::ledger) fn record_logged_merge(&mut self, at: MonoNs, merged: &Merged<'_>) {
        let counts = &mut self.stages.merged;
        counts.times += 1;
        counts.chunks += u64::from(merged.chunks);
        counts.logged_at.record(at);
        if merged.chunks > counts.max {
            counts.max = merged.chunks;
            counts.most_rid = merged.rid.into();
        }
    }
}
