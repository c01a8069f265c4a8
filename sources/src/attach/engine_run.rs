//! Sources of `tokengap attach`: one for each engine of the machine. A run goes on when its engine is started again.

use std::time::{Duration, Instant};

use probe_user::discover::Watcher;
use serde_json::Value;
use session::{About, EngineIdentity, Flow, LiveSource, OwnUsage};
use trace::event::{Event, Missed, MissedCause, What};
use trace::{MonoNs, SamplingCost};

use super::engine_names::{EngineNames, NamedEngines, SelectedEngines};
use super::engine_search::EngineSearch;
use super::found_engine::FoundEngine;
use super::hop_ids::HopIds;
use super::inbox::RunId;
use super::node::NodeHandle;
use super::start::start_node;
use super::{Attach, AttachOptions};
use crate::open_files;

/// Delay before retrying after a failed attach.
const RETRY_DELAY: Duration = Duration::from_secs(15);
/// Time after an engine's exit in which its last observations are read.
const MAX_READ_TIME: Duration = Duration::from_secs(5);
/// Maximum number of lines that are kept about engines that have ended.
const MAX_PAST_DEGRADED: usize = 32;
/// The run that reports what concerns the whole process.
const FIRST_RUN: RunId = 0;

/// The engines of this machine that are watched, and the search for further ones.
pub struct EngineRuns {
    node: NodeHandle,
    options: AttachOptions,
    is_following: bool,
    /// Logged last: the engines beyond the limit.
    limit_note: Option<String>,
}

/// An engine, across restarts.
pub struct EngineRun {
    node: NodeHandle,
    run: RunId,
    options: AttachOptions,
    /// The run waits for an engine as long as it takes, and its engine's exit is an event of the run.
    is_following: bool,
    state: RunState,
    /// When the exit of the watched engine was noticed; `None` while none is watched.
    exited_at: Option<Instant>,
    /// Change of the node's processes at which the exit was looked for last.
    change_at_exit_check: Option<u64>,
    /// Port of the engine's HTTP server, and its model, as last known.
    port: Option<u16>,
    model: Option<String>,
    /// Side of a pair, as last known.
    side: Option<&'static str>,
    /// Observed processes of the engine that was watched last.
    last_wire_json: Option<Value>,
    /// Degradations of the engines that have ended, which lasted until then.
    past_degraded: Vec<String>,
    /// Hop ids used so far.
    hop_ids: HopIds,
    keeps_ids: bool,
    is_stopping: bool,
    /// Number of engines of this run that have exited.
    exit_count: u64,
    /// Total time during which no engine was watched.
    time_without_engine: Duration,
    /// Error of the last attempt, until one succeeds.
    attach_error: Option<String>,
}

enum RunState {
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

impl EngineState {
    /// Word for the state in reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Attached => "live",
            Self::Waiting => "waiting",
            Self::Ended => "ended",
        }
    }
}

impl EngineRuns {
    /// Attaches to the `selected` engines, and returns a run for each up to the limit. If there is an `engine_search`, engines of these
    /// names that start later get a run from [`Self::create_run_for_new_engine`]. Fails if no engine can be attached.
    pub fn attach_selected_engines(
        watcher: Watcher,
        selected: SelectedEngines,
        options: AttachOptions,
        engine_search: Option<EngineNames>,
    ) -> anyhow::Result<(Self, Vec<EngineRun>)> {
        let SelectedEngines { engines, mut named } = selected;
        // Engines are named in the order in which their runs are added, so that both give the same numbers to engines of equal names.
        let mut found = Vec::new();
        for engine in engines {
            let mut engine = FoundEngine::inspect(engine, options.may_read_tokenizers());
            named.set_unique_name(&mut engine);
            found.push(engine);
        }
        let search = engine_search.map(|names| EngineSearch::for_further_engines(names, &options, &found, named));
        let run_count = found.len().min(usize::from(options.max_engines.0));
        let beyond_limit = found.split_off(run_count);
        // The node is what all runs share. It keeps the engines that get no run, to report them.
        let node = start_node(Some(watcher), &found, search, &options)?;
        node.lock().discovery.found = beyond_limit;
        // All runs exist before the first attach, which depends on whether there are several.
        let run_ids: Vec<RunId> = found.iter().map(|found| node.lock().add_run(Some(&found.traits))).collect();
        let runs = Self { node, options, is_following: false, limit_note: None };
        let engine_runs = runs.create_and_attach_runs(run_ids, found)?;
        Ok((runs, engine_runs))
    }

    /// Creates a run for each of these ids and engines, which are in the same order, and attaches it. A run whose engine cannot be attached
    /// tries again later. Fails if no engine can be attached.
    fn create_and_attach_runs(&self, run_ids: Vec<RunId>, engines: Vec<FoundEngine>) -> anyhow::Result<Vec<EngineRun>> {
        let is_only_engine = engines.len() == 1;
        // No run reads the probe's ring buffer until all are attached.
        let is_ring_read_by_others = false;
        let mut engine_runs = Vec::new();
        let mut last_error = None;
        for (run_id, engine) in run_ids.into_iter().zip(engines) {
            let mut engine_run = self.create_waiting_run(run_id);
            if let Err(error) = engine_run.attach_to(engine, is_ring_read_by_others) {
                if is_only_engine {
                    return Err(error);
                }
                last_error = Some(error);
            }
            engine_runs.push(engine_run);
            // Copies what the ring buffer holds into the inboxes of the runs, so that it does not fill meanwhile.
            self.node.lock().keep_observations();
        }
        let is_none_attached = engine_runs.iter().all(|run| run.current_attach().is_none());
        match last_error {
            Some(error) if is_none_attached => Err(error),
            _ => Ok(engine_runs),
        }
    }

    /// Waits for an engine with one of these names, and for the next one after it exits. Returns the run that waits.
    pub fn wait_for_engines(options: AttachOptions, names: EngineNames) -> anyhow::Result<(Self, EngineRun)> {
        open_files::raise_open_file_limit(open_files::DISCOVERY);
        let none_found = [];
        let search = EngineSearch::for_further_engines(names, &options, &none_found, NamedEngines::default());
        let no_watcher = None;
        let node = start_node(no_watcher, &none_found, Some(search), &options)?;
        // Loaded before there is an engine, to attach to it quickly. An error comes again when the engine is there, and is reported then.
        let _ = node.lock().load_probe();
        let run = node.lock().add_run(None);
        let runs = Self { node, options, is_following: true, limit_note: None };
        let first = runs.create_waiting_run(run);
        Ok((runs, first))
    }

    /// States which engines are not watched because of the limit of engines. `None` if there are none.
    pub fn describe_unwatched_engines(&self) -> Option<String> {
        self.node.lock().describe_unwatched_engines()
    }

    /// A run that waits for its engine.
    fn create_waiting_run(&self, run: RunId) -> EngineRun {
        let now = Instant::now();
        EngineRun {
            node: self.node.clone(),
            run,
            options: self.options.clone(),
            is_following: self.is_following,
            state: RunState::Waiting { since: now, retry_at: now },
            exited_at: None,
            change_at_exit_check: None,
            port: None,
            model: None,
            side: None,
            last_wire_json: None,
            past_degraded: Vec::new(),
            hop_ids: HopIds::default(),
            keeps_ids: false,
            is_stopping: false,
            exit_count: 0,
            time_without_engine: Duration::ZERO,
            attach_error: None,
        }
    }

    /// Creates a run for the next found engine that no run waits for. `None` without one, and at the limit of engines. At the limit, logs
    /// which engines are not watched.
    pub fn create_run_for_new_engine(&mut self) -> Option<EngineRun> {
        let mut node = self.node.lock();
        if node.is_full() {
            let note = node.describe_unwatched_engines();
            // Called at every turn, so the same engines are logged once.
            if note != self.limit_note
                && let Some(note) = &note
            {
                tracing::warn!("{note}");
            }
            self.limit_note = note;
            return None;
        }
        let engine = node.next_new_engine()?;
        let run = node.add_run(Some(&engine));
        tracing::info!("a further engine has started: {}", node.name_of(run));
        drop(node);
        Some(self.create_waiting_run(run))
    }
}

impl EngineRun {
    /// Name of the engine, which it has again after a restart. Empty if no engine was found yet.
    pub fn name(&self) -> String {
        self.node.lock().name_of(self.run).to_owned()
    }

    /// Port of the engine's HTTP server, if known.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// Last part of the name of the engine's model, if known.
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// States which engines are not watched because of the limit of engines. `None` if there are none.
    pub fn describe_unwatched_engines(&self) -> Option<String> {
        self.node.lock().describe_unwatched_engines()
    }

    /// Side of a pair of servers: `prefill` or `decode`; `None` for an engine that is in no pair.
    pub fn side(&self) -> Option<&'static str> {
        self.side
    }

    /// The attach to the engine, while there is one.
    pub fn current_attach(&self) -> Option<&Attach> {
        match &self.state {
            RunState::Watching(attach) => Some(attach),
            RunState::Waiting { .. } => None,
        }
    }

    /// Whether the engine of this run is observed, has ended, or was not found so far.
    pub fn engine_state(&self) -> EngineState {
        let is_watched = self.current_attach().is_some();
        // An engine that has exited is watched until its last events are read, and is counted as exited only then.
        let has_ended = if is_watched { self.exited_at.is_some() } else { self.exit_count > 0 };
        if has_ended {
            EngineState::Ended
        } else if is_watched {
            EngineState::Attached
        } else {
            EngineState::Waiting
        }
    }

    /// Why no engine is observed; `None` while one is.
    pub fn reason_no_engine_is_watched(&self) -> Option<String> {
        let RunState::Waiting { .. } = self.state else { return None };
        if let Some(refusal) = &self.attach_error {
            return Some(refusal.clone());
        }
        let node = self.node.lock();
        // The search works, because it has found the other engines: only this one is missing.
        let is_gone = self.exit_count > 0 && node.has_several_runs();
        let reason = if is_gone { "it has not been started again" } else { node.discovery.obstacle() };
        Some(reason.to_owned())
    }

    /// Attaches to the engine that this run waits for, if it was found. Does nothing while the run watches an engine, or has to wait after
    /// a failed attempt.
    fn attach_when_found(&mut self) {
        let RunState::Waiting { retry_at, .. } = self.state else { return };
        if Instant::now() < retry_at {
            return;
        }
        let Some(found) = self.take_found_engine() else { return };
        // The other runs read it meanwhile.
        let is_ring_read_by_others = true;
        if let Err(error) = self.attach_to(found, is_ring_read_by_others) {
            // The run keeps the error for the report.
            tracing::debug!("the attach failed: {error:#}");
        }
    }

    /// Takes the engine that this run waits for, if discovery has found one. The node is unlocked again before the attach, which locks it
    /// itself.
    fn take_found_engine(&self) -> Option<FoundEngine> {
        let mut node = self.node.lock();
        node.discovery.receive_updates();
        node.take_next_engine_of_run(self.run)
    }

    /// Watches this engine. Does nothing if the run watches one already. `is_ring_read_by_others` says whether other runs read the ring
    /// meanwhile. After an error, the engine goes back to the node, and the run tries again after [`RETRY_DELAY`].
    fn attach_to(&mut self, found: FoundEngine, is_ring_read_by_others: bool) -> anyhow::Result<()> {
        let RunState::Waiting { since, .. } = self.state else { return Ok(()) };
        self.port = found.traits.port;
        self.model.clone_from(&found.traits.model);
        // `prefill` or `decode` for a server of such a pair.
        self.side = found.engine.settings.disaggregation.as_ref().map(|setting| setting.value.word);
        match self.attach_and_require_frames(&found, is_ring_read_by_others) {
            Ok(attach) => {
                self.time_without_engine += since.elapsed();
                self.begin_watching(attach);
                Ok(())
            }
            Err(error) => {
                self.note_failed_attach(&found.traits.name, format!("{error:#}"));
                self.node.lock().return_engine(found);
                self.state = RunState::Waiting { since, retry_at: Instant::now() + RETRY_DELAY };
                Err(error)
            }
        }
    }

    /// Attaches to the engine. An attach that observes no frame is an error: its probes are removed until the next attempt.
    fn attach_and_require_frames(&self, found: &FoundEngine, is_ring_read_by_others: bool) -> anyhow::Result<Attach> {
        let attach = Attach::start_run(&self.node, self.run, found, &self.options, is_ring_read_by_others)?;
        if let Some(refusal) = attach.reason_to_refuse_attach() {
            attach.release_run();
            return Err(anyhow::Error::msg(refusal));
        }
        Ok(attach)
    }

    /// Keeps the reason of a failed attach for the report, and logs it if it is new. Attempts go on every [`RETRY_DELAY`].
    fn note_failed_attach(&mut self, engine_name: &str, reason: String) {
        if self.attach_error.as_ref() != Some(&reason) {
            tracing::warn!("{engine_name}: {reason}; trying again every {} s", RETRY_DELAY.as_secs());
        }
        self.attach_error = Some(reason);
    }

    /// Continues the run with a new attach, which observes the processes of the engine. The run then no longer waits for an engine.
    fn begin_watching(&mut self, mut attach: Attach) {
        // A hop has the same id after a restart of the engine.
        attach.interpreter.lanes.paths.ids = self.hop_ids.clone();
        if self.keeps_ids {
            attach.keep_ids();
        }
        self.attach_error = None;
        self.change_at_exit_check = None;
        tracing::info!("attached to {} processes of {}", attach.probed_process_count(), self.name());
        self.node.lock().set_waiting(self.run, false);
        self.state = RunState::Watching(Box::new(attach));
    }

    /// Notes the exit of the engine. From then on, an engine of its name continues this run. Does nothing while no process has changed.
    fn note_exit_if_engine_ended(&mut self) {
        // Number of process changes that discovery has found so far. Every exit raises it, so an equal number means that no process
        // has exited since the last check.
        let change_count = self.node.lock().discovery.changes();
        if self.change_at_exit_check == Some(change_count) {
            return;
        }
        if let RunState::Watching(attach) = &self.state
            && self.exited_at.is_none()
            && attach.have_watched_processes_exited()
        {
            self.exited_at = Some(Instant::now());
            self.node.lock().set_waiting(self.run, true);
        }
        self.change_at_exit_check = Some(change_count);
    }

    /// Leaves an engine that has exited, or processes that turned out to be no engine. Then attaches to an engine that continues the run,
    /// if one was found.
    fn leave_ended_engine_and_attach_next(&mut self, sink: &mut dyn FnMut(&Event<'_>)) {
        if let Some(exited_at) = self.exited_at {
            if self.should_leave_exited_engine() {
                self.leave_exited_engine_and_emit_exit(exited_at, sink);
            }
        } else if self.is_watching_no_engine() {
            tracing::warn!("a connected engine was found; the watched processes have no connection and are left");
            self.leave_engine(Instant::now());
        }
        self.attach_when_found();
    }

    /// Whether the run leaves its engine, which has exited. The only engine is not left before it has started again, unless the run follows
    /// engines: the report shows it as it was last.
    fn should_leave_exited_engine(&self) -> bool {
        let mut node = self.node.lock();
        self.is_following || node.has_several_runs() || node.has_next_engine_for(self.run)
    }

    /// Whether the watched processes turned out to be no engine. Only the single run that follows engines attaches to such processes.
    fn is_watching_no_engine(&self) -> bool {
        let is_only_run = !self.node.lock().has_several_runs();
        self.is_following && is_only_run && self.current_attach().is_some_and(Attach::is_probably_no_engine)
    }

    /// Ends the watch of an engine that has exited. Emits the exit as an event of no hop, because the frames queued on all of its hops were
    /// never received. Their count of 0 means that it is not known.
    fn leave_exited_engine_and_emit_exit(&mut self, exited_at: Instant, sink: &mut dyn FnMut(&Event<'_>)) {
        self.exit_count += 1;
        tracing::warn!("the engine exited (exit {} of {}); waiting for the next one", self.exit_count, self.name());
        self.leave_engine(exited_at);
        // The next engine may have been found long after the exit.
        let since_exit = u64::try_from(exited_at.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let at = MonoNs(MonoNs::now().0.saturating_sub(since_exit));
        sink(&Event::new(at, What::Missed(Missed::new(None, 0, MissedCause::Ended))));
    }

    /// Ends the observation of the watched engine, and waits for the next one. The time without an engine counts from `absent_since`. Keeps
    /// the engine's report lines and the ids of its hops. Does nothing if no engine is watched.
    fn leave_engine(&mut self, absent_since: Instant) {
        let waiting = RunState::Waiting { since: absent_since, retry_at: Instant::now() };
        let RunState::Watching(attach) = std::mem::replace(&mut self.state, waiting) else {
            return;
        };
        self.exited_at = None;
        self.last_wire_json = attach.wire_json();
        for line in attach.degraded_lines() {
            if self.past_degraded.len() < MAX_PAST_DEGRADED && !self.past_degraded.contains(&line) {
                self.past_degraded.push(line);
            }
        }
        // A hop has the same id after a restart of the engine.
        self.hop_ids = attach.interpreter.lanes.paths.ids.clone();
        // The numbers of frames start at 0 again, and the generation tells them from those before.
        self.hop_ids.generation += 1;
        attach.release_run();
        self.node.lock().set_waiting(self.run, true);
    }
}

impl EngineRun {
    /// Line for the report about the exits of the run's engines; `None` if none has exited.
    fn describe_exits(&self) -> Option<String> {
        if self.exit_count == 0 {
            return None;
        }
        let current_wait = match &self.state {
            RunState::Waiting { since, .. } => since.elapsed(),
            RunState::Watching(_) => Duration::ZERO,
        };
        let unobserved = self.time_without_engine + current_wait;
        Some(format!(
            "engine: it exited {} times; {:.1} s without an engine were not observed",
            self.exit_count,
            unobserved.as_secs_f64()
        ))
    }

    /// Line for the report if an engine that was found before has the same name; `None` if none has. The run then has a longer name.
    fn describe_shared_name(&self) -> Option<String> {
        let pid = self.current_attach()?.main_pid().unwrap_or_default();
        let node = self.node.lock();
        let shared = node.name_shared_with_other_engine(self.run)?;
        Some(format!("engine: main pid {pid}; {shared} is another engine with the same port or model"))
    }
}

impl About for EngineRun {
    fn kind(&self) -> &'static str {
        "attach"
    }

    fn is_attached(&self) -> bool {
        self.current_attach().is_some()
    }

    /// The engine as reports and metrics name it, which every run has.
    fn engine(&self) -> Option<EngineIdentity> {
        Some(EngineIdentity {
            name: self.name(),
            port: self.port,
            model: self.model.clone(),
            side: self.side(),
            state: self.engine_state().word(),
        })
    }

    fn observed_until(&self) -> MonoNs {
        self.current_attach().map_or_else(MonoNs::now, About::observed_until)
    }

    fn wire_json(&self) -> Option<Value> {
        self.current_attach().map_or_else(|| self.last_wire_json.clone(), About::wire_json)
    }

    fn stack_sampling_cost(&self) -> Option<SamplingCost> {
        self.current_attach()?.stack_sampling_cost()
    }

    /// CPU time and memory of tokengap, in the first run only.
    fn own_usage(&self) -> OwnUsage {
        // All runs share the process, so only the first one reports its usage.
        if self.run != FIRST_RUN {
            return OwnUsage::default();
        }
        super::own_usage_with_stack_reader(self.options.python.as_ref())
    }

    /// Lines for the report: limits of the observation of this engine and of its predecessors, and why none is watched.
    fn degraded_lines(&self) -> Vec<String> {
        let mut degraded = self.current_attach().map(About::degraded_lines).unwrap_or_default();
        for line in &self.past_degraded {
            if !degraded.contains(line) {
                degraded.push(line.clone());
            }
        }
        degraded.extend(self.describe_exits());
        degraded.extend(self.describe_shared_name());
        // All runs share the limit, so only the first one reports it.
        if self.run == FIRST_RUN {
            degraded.extend(self.describe_unwatched_engines());
        }
        degraded.extend(self.reason_no_engine_is_watched().map(|why| format!("engine: no engine is watched: {why}")));
        degraded
    }
}

impl LiveSource for EngineRun {
    /// Why nothing could be observed, if the probe failed or the attach was refused.
    fn failure(&self) -> Option<String> {
        match self.current_attach() {
            Some(attach) => attach.failure(),
            None => self.attach_error.clone(),
        }
    }

    /// Emits new events of the engine, and changes to the next engine once all events of one that has exited were emitted.
    fn poll(&mut self, sink: &mut dyn FnMut(&Event<'_>)) -> Flow {
        let flow = match &mut self.state {
            RunState::Watching(attach) => attach.poll(sink),
            RunState::Waiting { .. } if self.is_stopping => return Flow::Ended,
            RunState::Waiting { .. } => Flow::Idle,
        };
        // An attach ends by itself only if the probe has failed. All runs share the probe, so there is no next engine.
        if flow == Flow::Ended || self.is_stopping {
            return flow;
        }
        self.note_exit_if_engine_ended();
        // An engine that has exited is left once its last events are read. The time limit is for the case that other engines fill the
        // ring buffer faster than it is read, so that the last events are never reached.
        let is_overdue = self.exited_at.is_some_and(|exited_at| exited_at.elapsed() >= MAX_READ_TIME);
        if is_overdue || self.current_attach().is_none_or(|attach| attach.has_read_all) {
            self.leave_ended_engine_and_attach_next(sink);
        }
        flow
    }

    /// Ends the run. Observations made until now are still read.
    fn stop(&mut self) {
        self.is_stopping = true;
        if let RunState::Watching(attach) = &mut self.state {
            attach.stop();
        }
    }

    /// Makes the run emit the token ids of chunks from now on, also those of later engines.
    fn keep_ids(&mut self) {
        self.keeps_ids = true;
        if let RunState::Watching(attach) = &mut self.state {
            attach.keep_ids();
        }
    }
}
