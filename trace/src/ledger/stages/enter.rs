//! Enters data from the log into the ledger: finds the request of each stage and pairs first sends with receives.

use super::marks::{Entered, Mark};
use super::{AWAITED, ENDS, FIRST_SENT, FIRST_TAKEN, NAMES, PAIRS, place_of};
use crate::clock::MonoNs;
use crate::event::{Finish, Merged, Stage, Told};
use crate::ledger::Ledger;
use crate::ledger::health::HealthChecks;
use crate::ledger::table::Ticket;

impl Ledger {
    pub(in crate::ledger) fn staged(&mut self, at: MonoNs, stage: &Stage<'_>) {
        if HealthChecks::is_one(stage.rid) {
            if self.health.is_new(stage.rid) {
                self.totals.requests.health_checks += 1;
            }
            return;
        }
        let told = &mut self.stages;
        told.counts.told += 1;
        let (Some(name), Some(by)) = (told.names.id(stage.name, NAMES), told.by.id(stage.by, NAMES)) else {
            told.counts.left_out += 1;
            return;
        };
        told.counts.sends += u64::from(stage.name == FIRST_SENT);
        told.counts.takes += u64::from(stage.name == FIRST_TAKEN);
        let ticket = match self.table.find(stage.rid) {
            Some(ticket) => ticket,
            None => self.admit(stage.rid, at),
        };
        let Some(request) = self.table.get_mut(ticket) else {
            return;
        };
        request.last_at = request.last_at.max(at);
        request.first_at = request.first_at.min(at);
        let told = &mut self.stages;
        let marks = request.marks.get_or_insert_with(|| {
            told.counts.requests += 1;
            Box::default()
        });
        let mark = Mark {
            at,
            name,
            by,
            tokens: stage.tokens,
            pending: stage.pending,
            states: None,
        };
        match marks.enter(mark) {
            Entered::Last { after } => {
                if let Some((from, ns)) = after.filter(|(from, _)| *from != name) {
                    let known = told.between.len() < PAIRS || told.between.contains_key(&(from, name));
                    if known {
                        told.between.entry((from, name)).or_default().record(at, ns);
                    }
                }
            }
            Entered::Earlier => told.counts.late += 1,
            Entered::Repeat => {
                told.counts.repeats += 1;
                return;
            }
            Entered::NoRoom => {
                told.counts.left_out += 1;
                return;
            }
        }
        // Observed frames give more precise send and receive times than a log.
        if request.streams.is_empty() {
            self.gap_as_told(ticket, at, stage, by);
        }
        if ENDS.contains(&stage.name) && self.table.get(ticket).is_some_and(|r| r.finish.is_none()) {
            self.totals.requests.finished += 1;
            self.finish(ticket, at, Finish::Other);
        }
    }

    /// Pairs a request's first send with its first receive, whichever is logged last.
    fn gap_as_told(&mut self, ticket: Ticket, at: MonoNs, stage: &Stage<'_>, by: u8) {
        let told = &mut self.stages;
        let Some(request) = self.table.get_mut(ticket) else {
            return;
        };
        let earlier = |known: Option<MonoNs>| Some(known.map_or(at, |known| known.min(at)));
        match stage.name {
            FIRST_SENT => {
                request.sent_first = earlier(request.sent_first);
                let awaited = told.awaited.entry(by).or_default();
                if awaited.len() == AWAITED {
                    awaited.pop_front();
                }
                awaited.push_back((at, ticket));
            }
            FIRST_TAKEN => {
                request.taken_first = earlier(request.taken_first);
                if told.passed.len() == AWAITED {
                    told.passed.pop_front();
                }
                told.passed.push_back(ticket);
            }
            // A later stage shows that the first token was received.
            name if place_of(name) > place_of(FIRST_TAKEN) => {
                request.first_take_missed |= request.taken_first.is_none();
            }
            _ => {}
        }
        let mut overtaking = None;
        let Some(marks) = &mut request.marks else { return };
        if let (Some(sent), Some(taken)) = (told.names.known(FIRST_SENT), told.names.known(FIRST_TAKEN))
            && [FIRST_SENT, FIRST_TAKEN].contains(&stage.name)
        {
            for gap in marks.gaps(sent, taken) {
                let (end, ns) = (gap.end.at, gap.end.at.since(gap.begin.at));
                overtaking = Some((gap.begin.by, gap.begin.at));
                self.gap.record(end, ns);
                request.gap_ns = request.gap_ns.max(Some(ns));
                if ns >= self.worst_gap.ns {
                    self.worst_gap.ns = ns;
                    self.worst_gap.rid = request.rid.clone();
                    self.worst_gap.at = end;
                }
                let states = told.tellers.states(told.by.get(gap.end.by), end);
                marks.held(gap.place, states);
                if let Some(states) = states {
                    told.gaps.push(ns, states);
                }
            }
        }
        if let Some(gap) = request.gap_ns {
            told.slowest.offer(&request.rid, gap, marks);
        }
        if let Some((by, sent)) = overtaking {
            self.overtaken(by, sent);
        }
    }

    /// Marks the unlogged receives of earlier first sends as missed. Frames of one sender arrive in order, so they were received too.
    fn overtaken(&mut self, by: u8, sent: MonoNs) {
        let Some(awaited) = self.stages.awaited.get_mut(&by) else {
            return;
        };
        while let Some((_, ticket)) = awaited.pop_front_if(|(at, _)| *at < sent) {
            if let Some(request) = self.table.get_mut(ticket) {
                request.first_take_missed |= request.taken_first.is_none();
            }
        }
    }

    pub(in crate::ledger) fn told(&mut self, at: MonoNs, told: &Told<'_>) {
        self.stages.tellers.enter(at, told);
    }

    pub(in crate::ledger) fn merged(&mut self, at: MonoNs, merged: &Merged<'_>) {
        let counts = &mut self.stages.merged;
        counts.times += 1;
        counts.chunks += u64::from(merged.chunks);
        counts.since.get_or_insert(at);
        if merged.chunks > counts.most {
            counts.most = merged.chunks;
            counts.most_rid = merged.rid.into();
        }
    }
}
