//! What the engine itself says in its log: stages of requests, how its processes stand, what they merged. All of it is the
//! engine's word, and named so; nothing here was observed on a socket.

use serde::{Deserialize, Serialize};

use super::Spread;
use crate::clock::MonoNs;
use crate::ledger::stages::{Mark, Slow, Teller, place_of};
use crate::ledger::{Ledger, Stages};

/// What the engine's log tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageReport {
    /// Stages told, health checks apart.
    pub told: u64,
    /// Requests with at least one.
    pub requests: u64,
    /// Told again of the same request, by the same process or of the same millisecond: the first stands.
    pub repeats: u64,
    /// Told after a later one of the same request: in its table, in no distribution between stages.
    pub late: u64,
    /// Not entered, for want of room.
    pub left_out: u64,
    /// How gaps go with the `states` of the tokenizer at the moment of each `tokenizer_first_token`.
    pub gap_with_states: Option<Correlated>,
    /// The requests with the worst gaps, stage by stage, worst first.
    pub slowest: Vec<StageTable>,
    /// Time from one stage to the next of the same request, in the order in which they happened.
    pub between: Vec<Between>,
    /// Processes that say how they stand.
    pub processes: Vec<ProcessLine>,
    /// Chunks that the engine says it merged.
    pub merged: Option<MergedLine>,
}

/// A rank correlation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Correlated {
    /// Spearman's: from -1 over 0 (nothing in common) to 1 (they rise together).
    pub spearman: f64,
    /// Requests of which both are known.
    pub n: u64,
    /// How many of them it was computed from.
    pub sampled: u64,
}

/// One request, stage by stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageTable {
    /// SGLang's request id, as far as the log gives it: one that ends in `...` is cut short.
    pub rid: String,
    /// From its `first_output_stream` to its `tokenizer_first_token`.
    pub gap_ns: u64,
    /// Its stages, earliest first.
    pub stages: Vec<StageRow>,
}

/// A request at a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageRow {
    /// The stage.
    pub stage: String,
    /// When, from the start of the capture.
    pub at_ns: u64,
    /// Since the stage before it; `null` for the first.
    pub delta_ns: Option<u64>,
    /// Who says so; empty when unknown.
    pub by: String,
    /// Tokens the request had then.
    pub tokens: Option<u32>,
    /// What waited behind it.
    pub pending: Option<u32>,
    /// Requests the process held state for then; said of the stages that end a gap only.
    pub states: Option<u32>,
    /// By its name it comes before a stage that the log dates earlier.
    pub out_of_order: bool,
}

/// From one stage to the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Between {
    /// The earlier.
    pub from: String,
    /// The later.
    pub to: String,
    /// How long it took.
    pub ns: Spread,
}

/// A process, as it describes itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessLine {
    /// Who.
    pub by: String,
    /// Messages it says it took.
    pub messages: u64,
    /// Share of them behind which more were ready.
    pub more_ready: Option<f64>,
    /// How long it waited for a message.
    pub recv_wait_ns: Option<Spread>,
    /// The most requests it held state for.
    pub states_max: Option<u32>,
    /// When that was.
    pub states_max_at_ns: Option<u64>,
    /// Length of a step of `states`.
    pub step_ns: u64,
    /// When its first step begins.
    pub from_ns: u64,
    /// The most in each step; `null` where nothing was told.
    pub states: Vec<Option<u32>>,
    /// Its highest CPU, as a share of one core. It may speak of high ones only: no mean can be made of it.
    pub cpu_max: Option<f64>,
    /// How often it told of its CPU.
    pub cpu_told: u64,
}

/// Merged chunks by the engine's own word, which it gives from 20 chunks on only: there are more than this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergedLine {
    /// How often it said so.
    pub times: u64,
    /// Queued chunks that became one, summed.
    pub chunks: u64,
    /// The most at once.
    pub most: u32,
    /// Whose they were.
    pub most_rid: String,
}

/// `None` where the engine has said nothing.
pub(super) fn stages(ledger: &Ledger, slowest: usize, from: MonoNs) -> Option<StageReport> {
    let told = ledger.stages();
    let merged = &told.merged;
    if told.counts.told == 0 && told.tellers().is_empty() && merged.times == 0 {
        return None;
    }
    let mut between: Vec<Between> = told
        .between()
        .filter_map(|(from, to, durations)| {
            Some(Between {
                from: from.to_owned(),
                to: to.to_owned(),
                ns: super::build::spread(durations)?,
            })
        })
        .collect();
    between.sort_by(|a, b| {
        b.ns.count
            .cmp(&a.ns.count)
            .then_with(|| (&a.from, &a.to).cmp(&(&b.from, &b.to)))
    });
    Some(StageReport {
        told: told.counts.told,
        requests: told.counts.requests,
        repeats: told.counts.repeats,
        late: told.counts.late,
        left_out: told.counts.left_out,
        gap_with_states: told.correlation().map(|c| Correlated {
            spearman: (c.rho * 1e4).round() / 1e4,
            n: c.of,
            sampled: c.sampled,
        }),
        slowest: told
            .slowest()
            .iter()
            .take(slowest)
            .map(|slow| table(told, slow, from))
            .collect(),
        between,
        processes: told.tellers().iter().map(|teller| process(teller, from)).collect(),
        merged: (merged.times > 0).then(|| MergedLine {
            times: merged.times,
            chunks: merged.chunks,
            most: merged.most,
            most_rid: merged.most_rid.to_string(),
        }),
    })
}

fn table(told: &Stages, slow: &Slow, from: MonoNs) -> StageTable {
    let mut before: Option<&Mark> = None;
    let mut furthest = 0;
    let rows = slow.marks.list().iter().map(|mark| {
        let name = told.name(mark);
        let place = place_of(name);
        let out_of_order = place.is_some_and(|place| place < furthest);
        furthest = furthest.max(place.unwrap_or(0));
        StageRow {
            stage: name.to_owned(),
            at_ns: mark.at.since(from),
            delta_ns: before.replace(mark).map(|before| mark.at.since(before.at)),
            by: told.by(mark).to_owned(),
            tokens: mark.tokens,
            pending: mark.pending,
            states: mark.states,
            out_of_order,
        }
    });
    StageTable {
        rid: slow.rid.to_string(),
        gap_ns: slow.gap_ns,
        stages: rows.collect(),
    }
}

fn process(teller: &Teller, from: MonoNs) -> ProcessLine {
    ProcessLine {
        by: teller.by.to_string(),
        messages: teller.messages,
        more_ready: teller.more_share(),
        recv_wait_ns: super::build::spread(&teller.recv_wait),
        states_max: teller.states.most.map(|(_, most)| most),
        states_max_at_ns: teller.states.most.map(|(at, _)| at.since(from)),
        step_ns: teller.states.step_ns,
        from_ns: teller.states.from.since(from),
        states: teller.states.steps.clone(),
        cpu_max: teller.cpu_max.map(|(_, cpu)| cpu),
        cpu_told: teller.cpu_told,
    }
}
