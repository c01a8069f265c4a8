//! Source of `tokengap attach --follow`: waits for an engine, watches it until it exits, and waits for the next one.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use probe_user::Probe;
use probe_user::discover::{self, Engine, PickError, ProcessId, Topology, Watcher};
use serde_json::Value;
use session::{About, Flow, LiveSource};
use trace::event::{Event, Missed, MissedCause, What};
use trace::{MonoNs, SamplingCost};

use super::background::Background;
use super::paths::HopIds;
use super::{Attach, AttachOptions};
use crate::open_files;

/// Interval between searches for an engine.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum wait for an engine whose processes still change or are not connected; they open their sockets one by one.
const SETTLING: Duration = Duration::from_secs(20);
/// Time after which the only processes that look like an engine are watched although no connection confirms it.
const ALONE: Duration = Duration::from_secs(40);
/// Delay before retrying after a failed attach.
const RETRY_DELAY: Duration = Duration::from_secs(15);

/// An engine, across restarts.
pub struct Follow {
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
    Waiting(Waiting),
    Attaching(Attaching),
    Watching(Box<Attach>),
}

/// A complete engine, and the search that found it.
struct FoundEngine {
    watcher: Watcher,
    engine: Engine,
}

/// Search for an engine, on a thread of its own. The thread ends with this value, unless it waits for a file.
struct Waiting {
    since: Instant,
    found: Receiver<FoundEngine>,
    /// Why there is none yet.
    obstacle: Arc<Mutex<String>>,
    _stop: Sender<()>,
}

/// An attach, on a thread of its own. If it fails, the probe comes back with the error.
struct Attaching {
    since: Instant,
    attached: Background<Result<Attach, Box<FailedAttach>>>,
}

struct FailedAttach {
    error: anyhow::Error,
    probe: Option<Probe>,
}

impl Waiting {
    /// Begins to search after this delay.
    fn begin(since: Instant, delay: Duration) -> Self {
        let (sender, found) = channel();
        let (stop, stopped) = channel();
        let obstacle = Arc::<Mutex<String>>::default();
        let shared = Arc::clone(&obstacle);
        let search = move || EngineSearch::default().run(delay, &sender, &stopped, &shared);
        if let Err(error) = thread::Builder::new().name("search".into()).spawn(search) {
            *lock(&obstacle) = format!("cannot start a thread that looks for one: {error}");
        }
        Self { since, found, obstacle, _stop: stop }
    }
}

fn lock(text: &Mutex<String>) -> MutexGuard<'_, String> {
    text.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State of the search.
#[derive(Default)]
struct EngineSearch {
    watcher: Option<Watcher>,
    /// Processes found by the last search.
    found: Option<SeenProcesses>,
    /// The only candidates, while there is no confirmed engine.
    alone: Option<SeenProcesses>,
}

struct SeenProcesses {
    ids: Vec<ProcessId>,
    since: Instant,
}

impl EngineSearch {
    fn run(mut self, delay: Duration, sender: &Sender<FoundEngine>, stopped: &Receiver<()>, obstacle: &Mutex<String>) {
        let mut wait = delay;
        while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            wait = SEARCH_INTERVAL;
            match self.search() {
                Ok(Some(found)) => {
                    // Nobody waits any more when the program ends.
                    let _ = sender.send(found);
                    return;
                }
                Ok(None) => {}
                Err(why) => {
                    let mut known = lock(obstacle);
                    if *known != why {
                        tracing::info!("waiting for an engine: {why}");
                        *known = why;
                    }
                }
            }
        }
    }

    /// Returns an engine if a complete one is running.
    fn search(&mut self) -> Result<Option<FoundEngine>, String> {
        let mut watcher = match self.watcher.take() {
            Some(watcher) => watcher,
            None => Watcher::new(discover::DiscoverOptions::new(engines::DISCOVERED)).map_err(|e| e.to_string())?,
        };
        let polled = watcher.poll().map_err(|e| e.to_string());
        let picked = polled.and_then(|_| self.pick(watcher.topology()).map_err(|e| e.to_string()));
        let engine = match picked {
            Ok(engine) => engine,
            Err(why) => {
                self.watcher = Some(watcher);
                self.found = None;
                return Err(why);
            }
        };
        let ids: Vec<ProcessId> = engine.processes.iter().map(|p| p.id).collect();
        let before = self.found.take();
        // An engine that starts adds processes, so two searches must find the same ones.
        let is_settled = before.as_ref().is_some_and(|before| before.ids == ids);
        let since = before.map_or_else(Instant::now, |before| before.since);
        let is_complete = is_settled && engine.on_token_path().next().is_some();
        if is_complete || since.elapsed() > SETTLING {
            return Ok(Some(FoundEngine { watcher, engine }));
        }
        self.watcher = Some(watcher);
        self.found = Some(SeenProcesses { ids, since });
        Ok(None)
    }

    /// The only confirmed engine. A title alone does not count, because any process can have it.
    fn pick(&mut self, topology: &Topology) -> Result<Engine, PickError> {
        let engine = topology.pick_engine(&[])?;
        if engine.is_confirmed {
            self.alone = None;
            return Ok(engine.clone());
        }
        let ids: Vec<ProcessId> = engine.processes.iter().map(|process| process.id).collect();
        let before = self.alone.take().filter(|before| before.ids == ids);
        let since = before.map_or_else(Instant::now, |before| before.since);
        self.alone = Some(SeenProcesses { ids, since });
        // An engine whose receivers all run on other machines never has a hop here. libzmq starts its threads with the first socket.
        let has_zmq_sockets = engine.processes.iter().any(|process| !process.io_threads.is_empty());
        if has_zmq_sockets && since.elapsed() >= ALONE {
            return Ok(engine.clone());
        }
        Err(PickError::Unconfirmed(topology.candidate_pids()))
    }
}

impl Follow {
    /// Begins to look for an engine.
    pub fn new(options: AttachOptions) -> Self {
        open_files::raise_limit(open_files::DISCOVERY);
        // An error is reported when an engine is there.
        let probe = Probe::attach(&[], options.probe).ok();
        Self {
            options,
            probe,
            state: State::Waiting(Waiting::begin(Instant::now(), Duration::ZERO)),
            ids: HopIds::default(),
            keep_ids: false,
            stopping: false,
            ended: 0,
            away: Duration::ZERO,
            refused: None,
        }
    }

    /// Attaches to an engine once the search has found one.
    fn wait(&mut self) {
        let State::Waiting(waiting) = &self.state else {
            return;
        };
        let since = waiting.since;
        let Ok(FoundEngine { watcher, engine }) = waiting.found.try_recv() else {
            return;
        };
        let mut probe = self.probe.take();
        let options = self.options.clone();
        let attach = move || {
            let attached = Attach::with(&mut probe, watcher, engine, options);
            let attached = attached.and_then(|attach| match attach.refusal() {
                Some(refusal) => {
                    probe = Some(attach.into_probe());
                    Err(anyhow::Error::msg(refusal))
                }
                None => Ok(attach),
            });
            attached.map_err(|error| Box::new(FailedAttach { error, probe }))
        };
        match Background::start(attach) {
            Ok(attached) => self.state = State::Attaching(Attaching { since, attached }),
            Err(error) => self.retry_later(since, format!("cannot start a thread that attaches: {error}")),
        }
    }

    /// Watches the engine once the attach is complete.
    fn finish_attach(&mut self) {
        let State::Attaching(Attaching { since, attached }) = &self.state else {
            return;
        };
        let since = *since;
        match attached.poll() {
            None => {}
            Some(Ok(Ok(mut attach))) => {
                attach.interpreter.lanes.paths.ids = self.ids.clone();
                if self.keep_ids {
                    attach.keep_ids();
                }
                self.away += since.elapsed();
                self.refused = None;
                tracing::info!("attached to {} processes", attach.watched());
                self.state = State::Watching(Box::new(attach));
            }
            Some(Ok(Err(failed))) => {
                self.probe = failed.probe;
                self.retry_later(since, format!("{:#}", failed.error));
            }
            Some(Err(crashed)) => self.retry_later(since, crashed.to_string()),
        }
    }

    fn retry_later(&mut self, since: Instant, why: String) {
        if self.refused.as_ref() != Some(&why) {
            tracing::warn!("{why}; trying again every {} s", RETRY_DELAY.as_secs());
        }
        self.refused = Some(why);
        if let Some(probe) = &mut self.probe {
            probe.release_all_targets();
        }
        self.state = State::Waiting(Waiting::begin(since, RETRY_DELAY));
    }

    /// Handles the exit of the engine: frames queued on its hops were never received.
    fn end(&mut self, sink: &mut dyn FnMut(&Event<'_>)) {
        self.ended += 1;
        tracing::warn!("the engine exited (exit {}); waiting for the next one", self.ended);
        self.stop_watching(sink);
    }

    fn stop_watching(&mut self, sink: &mut dyn FnMut(&Event<'_>)) {
        let next = State::Waiting(Waiting::begin(Instant::now(), Duration::ZERO));
        let State::Watching(attach) = std::mem::replace(&mut self.state, next) else {
            return;
        };
        self.ids = attach.interpreter.lanes.paths.ids.clone();
        self.ids.generation += 1;
        self.probe = Some(attach.into_probe());
        sink(&Event::new(MonoNs::now(), What::Missed(Missed::new(None, 0, MissedCause::Ended))));
    }

    fn watched(&self) -> Option<&Attach> {
        match &self.state {
            State::Watching(attach) => Some(attach),
            State::Waiting(_) | State::Attaching(_) => None,
        }
    }
}

impl About for Follow {
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
        let away = match &self.state {
            State::Waiting(Waiting { since, .. }) | State::Attaching(Attaching { since, .. }) => {
                self.away + since.elapsed()
            }
            State::Watching(_) => self.away,
        };
        if self.ended > 0 {
            degraded.push(format!(
                "engine: it exited {} times; {:.1} s without an engine were not observed",
                self.ended,
                away.as_secs_f64()
            ));
        }
        match &self.state {
            State::Waiting(waiting) => {
                let why = lock(&waiting.obstacle);
                let why = if why.is_empty() { "the search for one has not finished" } else { &why };
                degraded.push(format!("engine: no engine is watched: {why}"));
            }
            State::Attaching(_) => {
                degraded.push("engine: no engine is watched: the attach to one has not finished".to_owned());
            }
            State::Watching(_) => {}
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
            self.finish_attach();
            return Flow::Idle;
        };
        match attach.poll(sink) {
            Flow::Busy => Flow::Busy,
            flow if self.stopping => flow,
            flow => {
                if flow == Flow::Ended || attach.has_ended() {
                    self.end(sink);
                } else if attach.is_superseded() {
                    tracing::warn!(
                        "a connected engine was found; the watched processes have no connection and are left"
                    );
                    self.stop_watching(sink);
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

#[cfg(test)]
mod tests {
    use adapter::discover::{Rank, RoleSource};
    use engines::sglang::discover::role::SCHEDULER;
    use probe_user::discover::Process;

    use super::*;

    fn titled(pid: u32, io_threads: Vec<u32>) -> Engine {
        let process = Process {
            id: ProcessId { pid, start_time: 1 },
            ns_pids: vec![pid],
            role: SCHEDULER,
            role_source: RoleSource::Title,
            rank: Rank::default(),
            title: "sglang::scheduler".to_owned(),
            libzmq: None,
            python: None,
            io_threads,
            connects_to_clients: None,
            inner_server: None,
        };
        Engine { processes: vec![process], ..Engine::default() }
    }

    #[test]
    fn a_title_is_never_followed_and_lone_zmq_sockets_only_after_a_while() {
        let mut search = EngineSearch::default();
        let mut picks_after_a_while = |engines: Vec<Engine>| {
            let topology = Topology { engines, ..Topology::default() };
            search.alone = None;
            assert!(search.pick(&topology).is_err(), "not at once");
            if let Some(alone) = &mut search.alone {
                alone.since = alone.since.checked_sub(ALONE).expect("the machine runs for longer");
            }
            search.pick(&topology).map(|engine| engine.processes[0].id.pid)
        };
        assert!(picks_after_a_while(vec![titled(5, Vec::new())]).is_err());
        assert_eq!(picks_after_a_while(vec![titled(5, vec![6])]), Ok(5));
        assert!(picks_after_a_while(vec![titled(5, vec![6]), titled(7, vec![8])]).is_err());

        let confirmed = Engine { is_confirmed: true, ..titled(9, Vec::new()) };
        let topology = Topology { engines: vec![confirmed, titled(5, vec![6])], ..Topology::default() };
        assert_eq!(search.pick(&topology).map(|engine| engine.processes[0].id.pid), Ok(9));
    }
}
