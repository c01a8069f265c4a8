//! Runs a demo on a virtual clock: fast, and with the same events for the same seed on every machine.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use adapter::decode::Excerpt;
use outputs::report::Report;
use tokio::time::{Instant, sleep};
use trace::event::{Capabilities, Event, Frame, Hop, What};
use trace::{Analysis, Config, MonoNs, ReportInput};

use super::super::join::Join;
use super::super::peers::{Memory, Network, Reports, Sent, Stage};
use super::super::scenario::Script;
use super::super::topology::HopPlan;
use super::super::truth::DemoTruth;
use crate::translate::DispatchedMessage;

const SEED: u64 = 1;
/// Poll interval of the source.
const TURN: Duration = Duration::from_millis(10);

/// Runs `script` for `time`, then until everything is delivered.
pub(super) fn play(script: Script, time: Duration) -> (Report, DemoTruth) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let reports = Reports::at_times_of(clock());
        let memory = Memory::new(reports.clone());
        let stage = Stage::new(script, SEED, Path::new("/demo"), reports, Network::Memory(memory.clone()));
        let Stage { script, hops, reports, .. } = &stage;
        let (mut join, mut decoder) = (Join::new(script.clone()), script.engine.decoder());
        let mut analysis = Analysis::new(Config { engines: engines::FACTS, ..Config::default() });
        let (at, what) = (reports.now(), join.engine());
        analysis.apply(&Event { at, what });
        for hop in hops {
            analysis.apply(&announcement(hop, at));
        }
        // The turn of a tap, the join and the analysis.
        let mut turn = |all: bool| {
            while let Some(report) = reports.next() {
                join.add_report(report);
            }
            assert_eq!(reports.take_dropped(), 0, "reports that found no room");
            let mut apply = |event: &Event<'_>| analysis.apply(event);
            while let Some(Sent { at, id, message }) = memory.next() {
                let bytes = message.iter().map(|part| part.len() as u64).sum();
                if hops.iter().any(|hop| hop.id == id.hop && hop.carries_requests()) {
                    let parts: Vec<_> = message.iter().map(|part| Excerpt::whole(part)).collect();
                    let mut requests = Vec::new();
                    let content = (script.engine.format().read_requests)(&parts, &mut requests);
                    let dispatched = DispatchedMessage { id, at, bytes, requests: &requests };
                    dispatched.emit_requests_or_refusal(content, &mut |event| {
                        join.pass_event_after_earlier_reports(event, &mut apply);
                    });
                    continue;
                }
                let batch = decoder.decode(&[&message[0]]).expect("the peers' own frames");
                let what = What::Sent(Frame { forwarded: Some(at), ..batch.frame(id, bytes) });
                join.pass_event_after_earlier_reports(&Event { at, what }, &mut apply);
                for times in batch.request_times(at) {
                    join.pass_event_after_earlier_reports(&Event { at, what: What::RequestTimes(times) }, &mut apply);
                }
            }
            let now = reports.now();
            join.pass_ready_reports(now, all, &mut apply);
            analysis.tick(now);
        };
        let watched = async {
            let start = Instant::now();
            loop {
                sleep(TURN).await;
                turn(false);
                stage.ending.store(start.elapsed() >= time, Ordering::Relaxed);
            }
        };
        tokio::select! {
            biased;
            played = async { stage.start_peers().await?.await } => played.expect("the peers play"),
            () = watched => {}
        }
        turn(true);
        let truth = stage.truth();
        let input = ReportInput { demo: serde_json::to_value(&truth).ok(), ..ReportInput::for_source("demo") };
        (Report::of(&analysis, &input), truth)
    })
}

/// Clock of the runtime. Readings are at least a microsecond apart, so that no two events have the same time.
fn clock() -> impl Fn() -> MonoNs + Send + Sync {
    let (start, last) = (Instant::now(), AtomicU64::new(0));
    move || {
        let now = start.elapsed().as_nanos() as u64;
        let next = |last: u64| Some(now.max(last + 1_000));
        let last = last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        MonoNs(now.max(last.unwrap_or_default() + 1_000))
    }
}

/// Announcement of the hop by the demo's tap.
fn announcement(hop: &HopPlan, at: MonoNs) -> Event<'_> {
    let what = What::Hop(Hop {
        endpoint: &hop.upstream,
        worker: hop.worker,
        origin: hop.is_origin(),
        last: hop.is_last(),
        carries_requests: hop.carries_requests(),
        ..Hop::new(hop.id, hop.ends, Capabilities { sent: true, forwarded: !hop.carries_requests(), ..hop.reported() })
    });
    Event { at, what }
}
