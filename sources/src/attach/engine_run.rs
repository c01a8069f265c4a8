//! Sources of `tokengap attach`: one for each engine of the machine. A run goes on when its engine is started again.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use probe_user::discover::{Engine, Watcher};
use serde_json::Value;
use session::{About, Flow, LiveSource};
use trace::event::{Event, Missed, MissedCause, What};
use trace::{MonoNs, SamplingCost};

use super::engine_search::{EngineSearch, FoundEngine, unique_name};
use super::inbox::RunId;
use super::node::NodeHandle;
use super::paths::HopIds;
use super::{Attach, AttachOptions, start_node};
use crate::open_files;

/// Delay before retrying after a failed attach.
const RETRY_DELAY: Duration = Duration::from_secs(15);
/// Maximum number of engines, each of which needs memory of its own.
const MAX_ENGINES: usize = 64;

/// The engines of this machine that are watched, and the search for further ones.
pub struct EngineRuns {
    node: NodeHandle,
    options: AttachOptions,
    is_following: bool,
    run_count: usize,
}

/// An engine, across restarts.
pub struct EngineRun {
    node: NodeHandle,
    run: RunId,
    options: AttachOptions,
    /// The run waits for an engine as long as it takes, and its engine's exit is an event of the run.
    is_following: bool,
    state: State,
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
    Waiting {
        since: Instant,
        /// When the next attempt to attach is made.
        retry_at: Instant,
    },
    Watching(Box<Attach>),
}

/// Whether the engine of a run is observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineState {
    /// Its processes run, with probes attached.
    Attached,
    /// It was not found, or the attach to it failed.
    Waiting,
    /// Its processes have exited.
    Ended,
}

impl EngineRuns {
    /// Attaches to these engines. Further ones join once they have started if `engine_search`.
    pub fn attach(
        watcher: Watcher,
        engines: Vec<Engine>,
        options: AttachOptions,
        engine_search: Option<EngineNames>,
    ) -> anyhow::Result<(Self, Vec<EngineRun>)> {
        let inspect = |engine| FoundEngine::inspect(engine, options.may_read_tokenizers());
        let found: Vec<FoundEngine> = engines.into_iter().map(inspect).collect();
        let search = engine_search.map(|names| names.into_search(&options, &found));
        let node = start_node(Some(watcher), &found, search, &options)?;
        let names: Vec<String> = found.iter().map(|found| unused_name(&node, found)).collect();
        let ids: Vec<RunId> = names.into_iter().map(|name| node.lock().add_run(name)).collect();
        let mut runs = Self { node, options, is_following: false, run_count: 0 };
        let mut attached = Vec::new();
        let is_only_engine = found.len() == 1;
        let mut last_error = None;
        for (run, engine) in ids.into_iter().zip(found) {
            let mut engine_run = runs.create_run(run);
            match engine_run.attach_to(engine, false) {
                Err(error) if is_only_engine => return Err(error),
                Err(error) => last_error = Some(error),
                Ok(()) => {}
            }
            attached.push(engine_run);
        }
        match last_error.filter(|_| attached.iter().all(|run| run.watched().is_none())) {
            Some(error) => Err(error),
            None => Ok((runs, attached)),
        }
    }

    /// Waits for an engine, and for the next one after it exits.
    pub fn follow(options: AttachOptions, names: EngineNames) -> anyhow::Result<(Self, EngineRun)> {
        open_files::raise_limit(open_files::DISCOVERY);
        let search = names.into_search(&options, &[]);
        let node = start_node(None, &[], Some(search), &options)?;
        // An error is reported when an engine is there.
        let _ = node.lock().load_probe();
        let run = node.lock().add_run(String::new());
        let mut runs = Self { node, options, is_following: true, run_count: 0 };
        let first = runs.create_run(run);
        Ok((runs, first))
    }

    /// Name of the first run's engine. Empty if no engine was found yet.
    pub fn first_name(&self) -> String {
        self.node.lock().name_of(0).to_owned()
    }

    fn create_run(&mut self, run: RunId) -> EngineRun {
        self.run_count += 1;
        let now = Instant::now();
        EngineRun {
            node: self.node.clone(),
            run,
            options: self.options.clone(),
            is_following: self.is_following,
            state: State::Waiting { since: now, retry_at: now },
            ids: HopIds::default(),
            keep_ids: false,
            stopping: false,
            ended: 0,
            away: Duration::ZERO,
            refused: None,
        }
    }

    /// A run for an engine that no run waits for, if one was found.
    pub fn next_run(&mut self) -> Option<EngineRun> {
        if self.run_count == MAX_ENGINES {
            // Engines that have ended count, because the report contains them.
            return None;
        }
        let run = {
            let mut node = self.node.lock();
            let name = node.new_run_name()?;
            tracing::info!("a further engine has started: {name}");
            node.add_run(name)
        };
        Some(self.create_run(run))
    }
}

/// Names of the engines to watch; empty for all of them.
#[derive(Clone, Debug, Default)]
pub struct EngineNames(pub BTreeSet<String>);

impl EngineNames {
    fn into_search(self, options: &AttachOptions, found: &[FoundEngine]) -> EngineSearch {
        let mut search = EngineSearch::new(self.0, options.may_read_tokenizers());
        for found in found {
            search.ignore_engine(&found.engine);
        }
        search
    }

    /// The engines with these names. Reads their command lines and ports. An error lists the names.
    pub fn select(&self, engines: Vec<Engine>) -> anyhow::Result<Vec<Engine>> {
        if self.0.is_empty() {
            return Ok(engines);
        }
        let found: Vec<FoundEngine> = engines.into_iter().map(|engine| FoundEngine::inspect(engine, false)).collect();
        let names: Vec<&str> = found.iter().map(|found| found.name.as_str()).collect();
        if let Some(unknown) = self.0.iter().find(|name| !names.contains(&name.as_str())) {
            anyhow::bail!("no engine is named {unknown}: running are {}", names.join(", "));
        }
        Ok(found.into_iter().filter(|found| self.0.contains(&found.name)).map(|found| found.engine).collect())
    }
}

/// Name of an engine that no run has.
fn unused_name(node: &NodeHandle, found: &FoundEngine) -> String {
    node.lock().name_for_new_run(found).unwrap_or_else(|| unique_name(found))
}

impl EngineRun {
    /// Name of the engine, which it has again after a restart. Empty if no engine was found yet.
    pub fn name(&self) -> String {
        self.node.lock().name_of(self.run).to_owned()
    }

    /// Side of a pair of servers: `prefill` or `decode`.
    pub fn side(&self) -> Option<&'static str> {
        Some(self.watched()?.disaggregation()?.value.word)
    }

    /// The attach to the engine, while there is one.
    pub fn watched(&self) -> Option<&Attach> {
        match &self.state {
            State::Watching(attach) => Some(attach),
            State::Waiting { .. } => None,
        }
    }

    /// Whether the engine is observed.
    pub fn engine_state(&self) -> EngineState {
        match &self.state {
            State::Watching(attach) if !attach.has_ended() => EngineState::Attached,
            State::Watching(_) => EngineState::Ended,
            State::Waiting { .. } if self.ended > 0 => EngineState::Ended,
            State::Waiting { .. } => EngineState::Waiting,
        }
    }

    /// Why the engine is not observed, if it is not.
    pub fn obstacle(&self) -> Option<String> {
        let State::Waiting { .. } = self.state else {
            return None;
        };
        let node = self.node.lock();
        let is_gone = self.ended > 0 && node.has_several_runs();
        let unfound = if is_gone { "it has not been started again" } else { node.lookout.obstacle() };
        Some(self.refused.clone().unwrap_or_else(|| unfound.to_owned()))
    }

    /// Attaches to the engine that this run waits for, once one was found.
    fn attach_when_found(&mut self) {
        let State::Waiting { retry_at, .. } = self.state else {
            return;
        };
        if Instant::now() < retry_at {
            return;
        }
        let found = {
            let mut node = self.node.lock();
            node.lookout.update();
            node.take_engine(self.run)
        };
        if let Some(found) = found
            && let Err(error) = self.attach_to(found, true)
        {
            tracing::debug!("the attach failed: {error:#}");
        }
    }

    fn attach_to(&mut self, found: FoundEngine, is_ring_read: bool) -> anyhow::Result<()> {
        let State::Waiting { since, .. } = self.state else {
            return Ok(());
        };
        let attached = Attach::join(&self.node, self.run, &found, &self.options, is_ring_read);
        let attached = attached.and_then(|attach| match attach.refusal() {
            Some(refusal) => {
                attach.release();
                Err(anyhow::Error::msg(refusal))
            }
            None => Ok(attach),
        });
        match attached {
            Ok(mut attach) => {
                attach.interpreter.lanes.paths.ids = self.ids.clone();
                if self.keep_ids {
                    attach.keep_ids();
                }
                self.away += since.elapsed();
                self.refused = None;
                tracing::info!("attached to {} processes of {}", attach.watched(), found.name);
                self.node.lock().set_waiting(self.run, false);
                self.state = State::Watching(Box::new(attach));
                Ok(())
            }
            Err(error) => {
                let why = format!("{error:#}");
                if self.refused.as_ref() != Some(&why) {
                    tracing::warn!("{}: {why}; trying again every {} s", found.name, RETRY_DELAY.as_secs());
                }
                self.refused = Some(why);
                self.node.lock().return_engine(found);
                self.state = State::Waiting { since, retry_at: Instant::now() + RETRY_DELAY };
                Err(error)
            }
        }
    }

    /// Handles the exit of the engine: frames queued on its hops were never received.
    fn end(&mut self, sink: &mut dyn FnMut(&Event<'_>)) {
        self.ended += 1;
        tracing::warn!("the engine exited (exit {} of {}); waiting for the next one", self.ended, self.name());
        self.stop_watching(sink);
    }

    fn stop_watching(&mut self, sink: &mut dyn FnMut(&Event<'_>)) {
        let now = Instant::now();
        let next = State::Waiting { since: now, retry_at: now };
        let State::Watching(attach) = std::mem::replace(&mut self.state, next) else {
            return;
        };
        self.ids = attach.interpreter.lanes.paths.ids.clone();
        self.ids.generation += 1;
        attach.release();
        self.node.lock().set_waiting(self.run, true);
        sink(&Event::new(MonoNs::now(), What::Missed(Missed::new(None, 0, MissedCause::Ended))));
    }
}

impl About for EngineRun {
    fn kind(&self) -> &'static str {
        "attach"
    }

    fn is_attached(&self) -> bool {
        self.watched().is_some()
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
        let waiting = match &self.state {
            State::Waiting { since, .. } => since.elapsed(),
            State::Watching(_) => Duration::ZERO,
        };
        if self.ended > 0 {
            degraded.push(format!(
                "engine: it exited {} times; {:.1} s without an engine were not observed",
                self.ended,
                (self.away + waiting).as_secs_f64()
            ));
        }
        degraded.extend(self.obstacle().map(|why| format!("engine: no engine is watched: {why}")));
        degraded
    }
}

impl LiveSource for EngineRun {
    fn failure(&self) -> Option<String> {
        match self.watched() {
            Some(attach) => attach.failure(),
            None => self.refused.clone(),
        }
    }

    fn poll(&mut self, sink: &mut dyn FnMut(&Event<'_>)) -> Flow {
        let flow = match &mut self.state {
            State::Watching(attach) => attach.poll(sink),
            State::Waiting { .. } if self.stopping => return Flow::Ended,
            State::Waiting { .. } => Flow::Idle,
        };
        // It ends unasked if the probe has failed, which all runs share.
        if flow != Flow::Idle || self.stopping {
            return flow;
        }
        if let State::Watching(attach) = &self.state {
            let can_go_on = self.is_following || self.node.lock().has_engine_for(self.run);
            if !can_go_on {
                return flow;
            }
            if attach.has_ended() {
                self.end(sink);
            } else if self.is_following && attach.is_superseded() {
                tracing::warn!("a connected engine was found; the watched processes have no connection and are left");
                self.stop_watching(sink);
            }
        }
        self.attach_when_found();
        Flow::Idle
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
