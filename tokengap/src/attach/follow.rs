//! Source of `tokengap attach --follow`: waits for an engine, watches it until it exits, and waits for the next one.

use std::time::{Duration, Instant};

use probe_user::Probe;
use probe_user::discover::{self, Engine, ProcessId, Watcher};
use serde_json::Value;
use session::{About, Flow, LiveSource};
use trace::MonoNs;
use trace::event::{Event, Missed, MissedCause, What};
use trace::report::SamplingCost;

use super::paths::HopIds;
use super::{Attach, AttachOptions};
use crate::confinement;

/// Interval between searches for an engine.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum wait for an engine whose processes still change or are not connected; they open their sockets one by one.
const SETTLING: Duration = Duration::from_secs(20);
/// Delay before retrying after a failed attach.
const RETRY_DELAY: Duration = Duration::from_secs(15);

/// An engine, across restarts.
pub(crate) struct Follow {
    options: AttachOptions,
    state: State,
    /// Without an engine: the probe, whose programs can be loaded only once.
    probe: Option<Probe>,
    /// Hop ids used so far.
    ids: HopIds,
    keep_ids: bool,
    stopping: bool,
    ended: u64,
    /// Total time during which no engine was watched.
    away: Duration,
    /// Error of the last attempt, until one succeeds.
    refused: Option<String>,
}

enum State {
    Waiting(Box<Waiting>),
    Watching(Box<Attach>),
}

struct Waiting {
    since: Instant,
    next_search: Instant,
    watcher: Option<Watcher>,
    /// Processes found by the last search, and when that set was first seen.
    found: Option<(Vec<ProcessId>, Instant)>,
    /// Obstacle, logged when it changes.
    why: String,
}

impl Waiting {
    fn begin(next_search: Instant) -> Self {
        Self { since: Instant::now(), next_search, watcher: None, found: None, why: String::new() }
    }

    /// Returns an engine if a complete one is running.
    fn search(&mut self) -> Result<Option<(Watcher, Engine)>, String> {
        let mut watcher = match self.watcher.take() {
            Some(watcher) => watcher,
            None => Watcher::new(discover::Options::new(engines::DISCOVERED)).map_err(|e| e.to_string())?,
        };
        let polled = watcher.poll().map_err(|e| e.to_string());
        let picked = polled.and_then(|_| watcher.topology().pick(&[]).cloned().map_err(|e| e.to_string()));
        let engine = match picked {
            Ok(engine) => engine,
            Err(why) => {
                (self.watcher, self.found) = (Some(watcher), None);
                return Err(why);
            }
        };
        let ids: Vec<ProcessId> = engine.processes.iter().map(|p| p.id).collect();
        let (known, first) = match self.found.take() {
            Some((before, first)) => (before == ids, first),
            None => (false, Instant::now()),
        };
        let complete = known && engine.on_token_path().next().is_some();
        if complete || first.elapsed() > SETTLING {
            return Ok(Some((watcher, engine)));
        }
        (self.watcher, self.found) = (Some(watcher), Some((ids, first)));
        Ok(None)
    }
}

impl Follow {
    pub(crate) fn new(options: AttachOptions) -> Self {
        // An error is reported when an engine is there.
        let probe = Probe::attach(&[], options.probe).ok().map(|mut probe| {
            probe.load_programs();
            confinement::refuse_programs();
            probe
        });
        Self {
            options,
            probe,
            state: State::Waiting(Box::new(Waiting::begin(Instant::now()))),
            ids: HopIds::default(),
            keep_ids: false,
            stopping: false,
            ended: 0,
            away: Duration::ZERO,
            refused: None,
        }
    }

    fn wait(&mut self) {
        let State::Waiting(waiting) = &mut self.state else {
            return;
        };
        if Instant::now() < waiting.next_search {
            return;
        }
        waiting.next_search = Instant::now() + SEARCH_INTERVAL;
        match waiting.search() {
            Ok(Some((watcher, engine))) => self.attach(watcher, engine),
            Ok(None) => {}
            Err(why) => {
                if waiting.why != why {
                    tracing::info!("waiting for an engine: {why}");
                    waiting.why = why;
                }
            }
        }
    }

    fn attach(&mut self, watcher: Watcher, engine: Engine) {
        let State::Waiting(waiting) = &self.state else { return };
        let since = waiting.since;
        let attached = Attach::with(&mut self.probe, watcher, engine, self.options.clone());
        let attached = attached.and_then(|attach| match attach.refusal() {
            Some(refusal) => {
                self.probe = Some(attach.into_probe());
                Err(anyhow::Error::msg(refusal))
            }
            None => Ok(attach),
        });
        match attached {
            Ok(mut attach) => {
                attach.lanes.paths.ids = self.ids.clone();
                if self.keep_ids {
                    attach.keep_ids();
                }
                self.away += since.elapsed();
                self.refused = None;
                tracing::info!("attached to {} processes", attach.watched());
                self.state = State::Watching(Box::new(attach));
            }
            Err(error) => {
                let why = format!("{error:#}");
                if self.refused.as_ref() != Some(&why) {
                    tracing::warn!("{why}; trying again every {} s", RETRY_DELAY.as_secs());
                }
                self.refused = Some(why);
                if let Some(probe) = &mut self.probe {
                    probe.reset();
                }
                let mut waiting = Waiting::begin(Instant::now() + RETRY_DELAY);
                waiting.since = since;
                self.state = State::Waiting(Box::new(waiting));
            }
        }
    }

    /// Handles the exit of the engine: frames queued on its hops were never received.
    fn end(&mut self, sink: &mut dyn FnMut(&Event<'_>)) {
        let next = State::Waiting(Box::new(Waiting::begin(Instant::now())));
        let State::Watching(attach) = std::mem::replace(&mut self.state, next) else {
            return;
        };
        self.ids = attach.lanes.paths.ids.clone();
        self.ids.generation += 1;
        self.probe = Some(attach.into_probe());
        self.ended += 1;
        tracing::warn!("the engine exited (exit {}); waiting for the next one", self.ended);
        sink(&Event::new(MonoNs::now(), What::Missed(Missed::new(None, 0, MissedCause::Ended))));
    }

    fn watched(&self) -> Option<&Attach> {
        match &self.state {
            State::Watching(attach) => Some(attach),
            State::Waiting(_) => None,
        }
    }
}

impl About for Follow {
    fn kind(&self) -> &'static str {
        "attach"
    }

    fn wire(&self) -> Option<Value> {
        self.watched()?.wire()
    }

    fn sampling(&self) -> Option<SamplingCost> {
        self.watched()?.sampling()
    }

    fn cost(&self) -> (Option<u64>, Option<u64>) {
        super::own_cost(self.options.python.as_ref())
    }

    fn degraded(&self) -> Vec<String> {
        let mut degraded = self.watched().map(About::degraded).unwrap_or_default();
        let away = match &self.state {
            State::Waiting(waiting) => self.away + waiting.since.elapsed(),
            State::Watching(_) => self.away,
        };
        if self.ended > 0 {
            degraded.push(format!(
                "engine: it exited {} times; {:.1} s without an engine were not observed",
                self.ended,
                away.as_secs_f64()
            ));
        }
        if let State::Waiting(waiting) = &self.state
            && !waiting.why.is_empty()
        {
            degraded.push(format!("engine: no engine is watched: {}", waiting.why));
        }
        degraded.extend(self.refused.iter().cloned());
        degraded
    }
}

impl LiveSource for Follow {
    fn failure(&self) -> Option<String> {
        match self.watched() {
            Some(attach) => attach.failure(),
            None => self.refused.clone(),
        }
    }

    fn poll(&mut self, sink: &mut dyn FnMut(&Event<'_>)) -> Flow {
        let State::Watching(attach) = &mut self.state else {
            if self.stopping {
                return Flow::Ended;
            }
            self.wait();
            return Flow::Idle;
        };
        match attach.poll(sink) {
            Flow::Busy => Flow::Busy,
            flow if self.stopping => flow,
            flow => {
                if flow == Flow::Ended || attach.has_ended() {
                    self.end(sink);
                }
                Flow::Idle
            }
        }
    }

    fn stop(&mut self) {
        self.stopping = true;
        if let State::Watching(attach) = &mut self.state {
            attach.stop();
        }
    }

    fn keep_ids(&mut self) {
        self.keep_ids = true;
        if let State::Watching(attach) = &mut self.state {
            attach.keep_ids();
        }
    }
}
