//! Converts hops into lines, in the order of the path.

use trace::detect::thresholds::{BACKLOG_CRITICAL_FRAMES, GAP_CRITICAL_NS, GAP_WARNING_NS};
use trace::detect::{Finding, Severity, attribution};
use trace::ledger::{Group, Hop, Ledger};
use trace::path::{self, Ends};
use trace::stats::{Distribution, Spread};

use super::flags::Health;
use super::model::{CLASSES, HopLine, Member};
use super::request::HopEnds;

/// Maximum number of reasons for undecoded frames shown per hop.
const REASONS: usize = 4;
/// Maximum number of hops listed under one line.
const MEMBERS: usize = 64;

/// Hops grouped by name, starting at the scheduler.
pub(crate) fn read(ledger: &Ledger, findings: &[Finding]) -> Vec<HopLine> {
    let found = |name: &str| {
        let here = findings.iter().filter(|f| f.active && f.verdict.hop == name).map(|f| f.verdict.severity);
        here.filter(|severity| *severity >= Severity::Warning).max().map_or(Health::Unknown, Health::from)
    };
    let lines = ledger.groups().iter().enumerate().filter_map(|(place, group)| {
        let members: Vec<&Hop> = ledger.members(place).collect();
        (!members.is_empty()).then(|| line(ledger, found(&group.name), (place, group, &members)))
    });
    in_path_order(lines, |line| &line.ends)
}

/// Both ends of every hop, in the order of the path.
pub(crate) fn ends(ledger: &Ledger) -> Vec<HopEnds> {
    let ends = ledger.hops().iter().map(|hop| HopEnds {
        id: hop.id,
        ends: ledger.groups()[hop.group].ends.clone(),
        observes_received: hop.capabilities().received,
    });
    in_path_order(ends, |hop| &hop.ends)
}

fn in_path_order<T>(of: impl Iterator<Item = T>, ends: fn(&T) -> &Ends<Box<str>>) -> Vec<T> {
    let mut list: Vec<T> = of.collect();
    let hops: Vec<Ends<Box<str>>> = list.iter().map(|one| ends(one).clone()).collect();
    list.sort_by_key(|one| path::depth(&hops, &ends(one).from));
    list
}

fn line(ledger: &Ledger, found: Health, (place, group, members): (usize, &Group, &[&Hop])) -> HopLine {
    let now = ledger.now();
    let sum = |count: fn(&trace::ledger::HopCounts) -> u64| members.iter().map(|h| count(&h.counts)).sum();
    let capabilities =
        |stage: fn(&trace::event::Capabilities) -> bool| members.iter().any(|h| stage(&h.capabilities()));
    let receives = capabilities(|s| s.received);
    let oldest_ns = members.iter().filter_map(|h| h.oldest_waiting()).min().map(|at| now.since(at));
    let reasons = ledger.undecoded_by_reason(place).into_iter();
    let mut reasons: Vec<(String, u64)> = reasons.map(|(why, n)| (why.to_owned(), n)).collect();
    reasons.sort_by_key(|r| std::cmp::Reverse(r.1));
    reasons.truncate(REASONS);
    let wakeup = members.iter().map(|h| h.counts.wakeup_frames_max).max().unwrap_or(0);
    let stage = ledger.processing_stages().iter().find(|p| *p.role == *group.ends.to);
    HopLine {
        name: group.name.clone(),
        group: place,
        observes_sends: capabilities(|s| s.sent),
        inside: stage.and_then(|p| Spread::of(&p.inside)),
        busy: busy(ledger, members),
        ends: group.ends.clone(),
        health: health(group, receives, oldest_ns, sum(|c| c.frames_sent.max(c.frames_received))).max(found),
        rates: group.rate.recent(now),
        frames: sum(|c| c.frames_sent.max(c.frames_received)),
        chunks: sum(|c| c.chunks),
        bytes: sum(|c| c.bytes),
        undecoded: sum(|c| c.undecoded),
        reasons,
        backlog: receives.then_some(group.backlog),
        backlog_max: receives.then_some(group.backlog_max),
        oldest_ns: oldest_ns.filter(|_| receives),
        queue_wait: Spread::of(&group.queue_wait).filter(|_| receives),
        queue_wait_classes: if receives { classes(&group.queue_wait) } else { Vec::new() },
        send_wait: Spread::of(&group.send_wait),
        relay: Spread::of(&group.relay),
        processing: Spread::of(&group.processing),
        wakeup_frames_max: (wakeup > 0).then_some(wakeup.into()),
        kernel_bytes: group.kernel.bytes.zip(group.kernel.bytes_max),
        inbox_max: group.kernel.inbox_max,
        members: members.iter().take(MEMBERS).map(|h| member(ledger, h)).collect(),
    }
}

fn member(ledger: &Ledger, hop: &Hop) -> Member {
    let counts = hop.counts;
    Member {
        worker: hop.worker,
        endpoint: hop.endpoint.to_string(),
        frames: counts.frames_sent.max(counts.frames_received),
        chunks: counts.chunks,
        backlog: hop.capabilities().received.then_some(counts.backlog),
        busy: busy(ledger, &[hop]),
    }
}

/// Share of the time since the first event during which the receivers were busy.
fn busy(ledger: &Ledger, members: &[&Hop]) -> Option<f64> {
    let window_ns = ledger.now().since(ledger.started()?);
    attribution::busy(ledger, members.iter().copied(), window_ns)
}

/// Health by the oldest waiting frame, judged by the first-token thresholds; a large backlog alone is a warning.
fn health(group: &Group, receives: bool, oldest_ns: Option<u64>, frames: u64) -> Health {
    match oldest_ns {
        Some(wait) if wait >= GAP_CRITICAL_NS => Health::Critical,
        Some(wait) if wait >= GAP_WARNING_NS => Health::Warning,
        _ if receives && group.backlog >= BACKLOG_CRITICAL_FRAMES => Health::Warning,
        _ if receives && frames > 0 => Health::Good,
        _ => Health::Unknown,
    }
}

fn classes(of: &Distribution) -> Vec<u64> {
    let mut above = of.count();
    let mut classes = Vec::with_capacity(CLASSES.len() + 1);
    for bound in CLASSES {
        let higher = of.above(bound).min(above);
        classes.push(above - higher);
        above = higher;
    }
    classes.push(above);
    classes
}

#[cfg(test)]
mod tests {
    use trace::event::Capabilities;

    use super::*;
    use crate::state::scene::{MS, Scene};

    #[test]
    fn hops_are_listed_in_path_order() {
        let capabilities = Capabilities::SENT;
        let scene = Scene::new(&[
            ("router->tokenizer", capabilities),
            ("detokenizer->router", capabilities),
            ("scheduler->detokenizer", capabilities),
        ]);
        let lines = read(scene.analysis.ledger(), &[]);
        let from: Vec<&str> = lines.iter().map(|l| &*l.ends.from).collect();
        assert_eq!(from, ["scheduler", "detokenizer", "router"]);
    }

    #[test]
    fn a_waiting_frame_is_critical_and_unobserved_receives_are_unknown() {
        let mut scene = Scene::delivering();
        scene.send(0, &[("a", 1, 1)]);
        scene.receive(3 * MS, 0, 1);
        scene.send(5 * MS, &[("a", 1, 2)]);
        let at = |scene: &Scene| read(scene.analysis.ledger(), &[]).remove(0);
        assert_eq!((at(&scene).health, at(&scene).queue_wait_classes), (Health::Good, vec![0, 0, 1, 0, 0, 0, 0, 0]));
        scene.tick(6_000 * MS);
        assert_eq!((at(&scene).health, at(&scene).backlog), (Health::Critical, Some(1)));
        let mut tapped = Scene::tapped();
        tapped.send(0, &[("a", 1, 1)]);
        assert_eq!((at(&tapped).health, at(&tapped).backlog), (Health::Unknown, None));
    }
}
