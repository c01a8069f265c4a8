//! The recordings of runs on another machine or of another process, read from their endpoint.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, HOST};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use recording::{StreamSection, StreamSplitter};
use serde_json::Value;
use session::telemetry::{AccessToken, HOST_HEADER, encode_name, next_body_part};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, UnboundedSender, channel, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Sections received but not polled. Beyond this limit the connection is not read, and the source sees a slow client.
const WAITING_SECTIONS: usize = 8;
/// Maximum time to connect, and for the response to begin.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Silence after which a source counts as lost. It normally sends ten sections a second.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(15);
/// Pause before the first new attempt to connect. Each failure in a row doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Maximum pause between two attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Interval of requests for the engines of a source.
const ENGINES_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum size of the list of engines that is read, in bytes.
const MAX_LIST_BYTES: usize = 256 << 10;
/// Maximum number of engines of one source.
const MAX_ENGINES: usize = 256;

/// Address of a run, and access to it.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// Address as `HOST:PORT`.
    pub address: String,
    /// Name of the engine; `None` for all of the source.
    pub engine: Option<String>,
    /// Token of the source, if it has one.
    pub token: Option<AccessToken>,
}

/// Event of the connection to a source.
#[derive(Debug)]
pub enum RemoteEvent {
    /// The source answers; with the name of its machine.
    Up(Option<String>),
    /// The connection failed or ended, with the reason. A new attempt follows automatically.
    Down(String),
    /// A section of the recording. After each connection, the kept past comes first.
    Section(Box<StreamSection>),
}

/// Connection to the endpoint of a run, made again whenever it ends.
#[derive(Debug)]
pub struct RemoteRun {
    target: RunTarget,
    events: Receiver<RemoteEvent>,
}

/// What a source says of an engine that it watches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteEngine {
    /// Its name.
    pub name: String,
    /// Port of its HTTP server, if known.
    pub port: Option<u16>,
    /// Last part of the name of its model, if known.
    pub model: Option<String>,
    /// Its role: `prefill` or `decode`, otherwise `single`; empty if the source was not asked.
    pub role: &'static str,
}

impl RemoteEngine {
    /// Reads an entry of the source's health. `None` until the engine has a name.
    fn from_health(health: &Value) -> Option<Self> {
        let name = health["engine"].as_str().filter(|name| !name.is_empty())?;
        Some(Self {
            name: name.to_owned(),
            port: health["port"].as_u64().and_then(|port| port.try_into().ok()),
            model: health["model"].as_str().map(str::to_owned),
            // A server that is not one of a pair has no side.
            role: match health["side"].as_str() {
                Some("prefill") => "prefill",
                Some("decode") => "decode",
                _ => "single",
            },
        })
    }
}

/// The run that a connection reads.
#[derive(Clone, Debug)]
struct RunTarget {
    address: String,
    token: Option<AccessToken>,
    /// Its engine, once it is known.
    engine: Arc<OnceLock<RemoteEngine>>,
    /// Whether its engine's name is shown: the source has several engines, or the user named this one.
    is_engine_shown: Arc<AtomicBool>,
}

/// The engines of the sources that are found later.
#[derive(Debug)]
pub struct RemoteRuns {
    further_runs: UnboundedReceiver<RemoteRun>,
}

impl RemoteRuns {
    /// Follows all sources on one thread. Returns the first run of each source. [`Self::next_run`] returns the runs of further engines.
    pub fn start(sources: Vec<RemoteOptions>) -> io::Result<(Self, Vec<RemoteRun>)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (add_run, further_runs) = unbounded_channel();
        let mut runs = Vec::new();
        let mut tasks = JoinSet::new();
        for options in sources {
            let (sender, events) = channel(WAITING_SECTIONS);
            let target = RunTarget::for_first_run_of_source(&options);
            runs.push(RemoteRun { target: target.clone(), events });
            // An engine that the user named is the only run of its source.
            if options.engine.is_some() {
                tasks.spawn_on(follow_run(target, sender), runtime.handle());
            } else {
                tasks.spawn_on(follow_all_engines(target, sender, add_run.clone()), runtime.handle());
            }
        }
        // The thread ends with the last task, once nobody watches any source.
        let run_all_tasks = async move { while tasks.join_next().await.is_some() {} };
        thread::Builder::new().name("watch".into()).spawn(move || runtime.block_on(run_all_tasks))?;
        Ok((Self { further_runs }, runs))
    }

    /// Run of a further engine of a source; `None` if no other one was found since the last call.
    pub fn next_run(&mut self) -> Option<RemoteRun> {
        self.further_runs.try_recv().ok()
    }
}

impl RemoteRun {
    /// Address of the source.
    pub fn address(&self) -> &str {
        &self.target.address
    }

    /// The engine, if the source names it.
    pub fn engine(&self) -> Option<&RemoteEngine> {
        self.target.engine.get()
    }

    /// Name of the engine, if the source has several engines or the user named this one. `None` if the address alone identifies the run.
    pub fn engine_name(&self) -> Option<&str> {
        let is_needed = self.target.is_engine_shown.load(Ordering::Relaxed);
        if is_needed { self.engine().map(|engine| engine.name.as_str()) } else { None }
    }

    /// Address of the run as `HOST:PORT`, or `HOST:PORT/ENGINE`.
    pub fn endpoint(&self) -> String {
        let address = self.address();
        match self.engine_name() {
            Some(engine) => format!("{address}/{engine}"),
            None => address.to_owned(),
        }
    }

    /// Returns the next event, if there is one.
    pub fn poll(&mut self) -> Option<RemoteEvent> {
        // An empty channel and a closed one look the same here.
        self.events.try_recv().ok()
    }
}

impl RunTarget {
    /// The first run of a source, whose engine is known only if the user named it.
    fn for_first_run_of_source(options: &RemoteOptions) -> Self {
        let engine = options.engine.clone().map(|name| RemoteEngine { name, ..RemoteEngine::default() });
        Self {
            address: options.address.clone(),
            token: options.token.clone(),
            engine: Arc::new(engine.map_or_else(OnceLock::new, OnceLock::from)),
            is_engine_shown: Arc::new(AtomicBool::new(options.engine.is_some())),
        }
    }

    /// Path of the recording at the source, of the run's engine if it is known.
    fn recording_path(&self) -> String {
        match self.engine.get() {
            Some(engine) => format!("/recording?engine={}", encode_name(&engine.name)),
            None => "/recording".to_owned(),
        }
    }

    /// The run of another engine of the same source.
    fn of_engine(&self, engine: RemoteEngine) -> Self {
        Self { engine: Arc::new(OnceLock::from(engine)), ..self.clone() }
    }
}

/// Follows all engines of a source until nobody watches the source. A source is a tokengap on any machine. Its first engine belongs to
/// `first_run`, whose events go to `first_run_events`. For each further engine, sends a new run to `further_runs`.
async fn follow_all_engines(
    first_run: RunTarget,
    first_run_events: Sender<RemoteEvent>,
    further_runs: UnboundedSender<RemoteRun>,
) {
    let mut is_first_run_followed = false;
    let mut known_names = BTreeSet::new();
    let mut tasks = JoinSet::new();
    // The channel is closed once nobody watches the source any more.
    while !first_run_events.is_closed() {
        for engine in list_engines(&first_run).await {
            let is_new = add_engine_if_new(&mut known_names, &engine.name, &first_run.address);
            if !is_new {
                continue;
            }
            // A run keeps the first engine that it is given, so this fails for all engines but the first.
            let is_first_engine = first_run.engine.set(engine.clone()).is_ok();
            if is_first_engine {
                continue;
            }
            // With several engines, the address alone does not identify a run any more.
            first_run.is_engine_shown.store(true, Ordering::Relaxed);
            let (sender, events) = channel(WAITING_SECTIONS);
            let target = first_run.of_engine(engine);
            // The send fails once nobody asks for further runs any more.
            if further_runs.send(RemoteRun { target: target.clone(), events }).is_err() {
                return;
            }
            tasks.spawn(follow_run(target, sender));
        }
        // Only after the first list, because a source with several engines must be asked for one of them by name.
        if !is_first_run_followed {
            is_first_run_followed = true;
            tasks.spawn(follow_run(first_run.clone(), first_run_events.clone()));
        }
        sleep(ENGINES_INTERVAL).await;
    }
}

/// The engines that a source lists. Empty for a source that lists none, which has one run, and for one that does not answer in time.
async fn list_engines(target: &RunTarget) -> Vec<RemoteEngine> {
    timeout(RESPONSE_TIMEOUT, fetch_engine_list(target)).await.ok().and_then(Result::ok).unwrap_or_default()
}

/// Adds an engine's name to the known ones of the source at `source_address`. Returns false for a name that is known already, and beyond
/// the maximum. Warns when the maximum is reached.
fn add_engine_if_new(known_names: &mut BTreeSet<String>, engine_name: &str, source_address: &str) -> bool {
    if known_names.len() == MAX_ENGINES || known_names.contains(engine_name) {
        return false;
    }
    known_names.insert(engine_name.to_owned());
    if known_names.len() == MAX_ENGINES {
        tracing::warn!("{source_address} has more than {MAX_ENGINES} engines: the others are not watched");
    }
    true
}

/// Asks the source which engines it watches. Fails for a list that is too long, because the part of it that is read is no valid JSON.
async fn fetch_engine_list(target: &RunTarget) -> anyhow::Result<Vec<RemoteEngine>> {
    // Kept until the body is read: dropping it closes the connection.
    let mut connection = JoinSet::new();
    let mut body = send_request(target, "/healthz", &mut connection).await?.into_body();
    let mut text = Vec::new();
    // Limited, because the source may be any program.
    while text.len() < MAX_LIST_BYTES
        && let Some(part) = next_body_part(&mut body).await
    {
        text.extend_from_slice(&part?);
    }
    let health: Value = serde_json::from_slice(&text)?;
    let engines = health["engines"].as_array().into_iter().flatten();
    Ok(engines.filter_map(RemoteEngine::from_health).collect())
}

/// Connects repeatedly until the receiver of `events` is dropped. Reports the end of each connection with its reason.
async fn follow_run(target: RunTarget, events: Sender<RemoteEvent>) {
    let mut pause = FIRST_PAUSE;
    while !events.is_closed() {
        let ConnectionEnd { was_answered, result } = read_run(&target, &events).await;
        // Only failures in a row make the pause longer.
        if was_answered {
            pause = FIRST_PAUSE;
        }
        let reason = result.map_or_else(|error| error.to_string(), |()| "the source closed the connection".to_owned());
        if events.send(RemoteEvent::Down(reason)).await.is_err() {
            return;
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// How a connection to a run ended.
struct ConnectionEnd {
    /// The source has answered with the recording.
    was_answered: bool,
    /// `Ok` if the source closed the connection, or nobody receives events any more.
    result: anyhow::Result<()>,
}

/// Connects to the run, and passes the sections of its recording to `events` until the connection ends.
async fn read_run(target: &RunTarget, events: &Sender<RemoteEvent>) -> ConnectionEnd {
    // Dropped at the end of this function, which closes the connection.
    let mut connection = JoinSet::new();
    match request_recording(target, &mut connection).await {
        Ok(response) => ConnectionEnd { was_answered: true, result: forward_recording(response, events).await },
        Err(error) => ConnectionEnd { was_answered: false, result: Err(error) },
    }
}

/// Requests the recording of the run. Fails if the source does not answer in time, or with anything else. The response's body arrives only
/// while `connection` exists.
async fn request_recording(
    target: &RunTarget,
    connection: &mut JoinSet<hyper::Result<()>>,
) -> anyhow::Result<Response<Incoming>> {
    let path = target.recording_path();
    let answered = timeout(RESPONSE_TIMEOUT, send_request(target, &path, connection)).await;
    let Ok(response) = answered else { anyhow::bail!("it does not answer") };
    let response = response?;
    check_recording_status(&response, target)?;
    Ok(response)
}

/// Passes the start of the connection, then the sections of the recording, to `events`. `Ok` if the source closed the connection, or nobody
/// receives events any more.
async fn forward_recording(response: Response<Incoming>, events: &Sender<RemoteEvent>) -> anyhow::Result<()> {
    let host = response.headers().get(HOST_HEADER).and_then(|host| host.to_str().ok()).map(str::to_owned);
    // A failed send means that the watcher has ended; then there is nothing to report.
    if events.send(RemoteEvent::Up(host)).await.is_err() {
        return Ok(());
    }
    forward_sections(response.into_body(), events).await
}

/// Splits the body of a response into sections, and passes these to `events` until the body ends or nobody receives them any more.
async fn forward_sections(mut body: Incoming, events: &Sender<RemoteEvent>) -> anyhow::Result<()> {
    let mut splitter = StreamSplitter::default();
    while let Some(part) = next_part_before_timeout(&mut body).await? {
        splitter.add_received_bytes(&part);
        while let Some(section) = splitter.next_section()? {
            if events.send(RemoteEvent::Section(Box::new(section))).await.is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The next part of a recording; `None` at its end. Fails if nothing arrives for too long.
async fn next_part_before_timeout(body: &mut Incoming) -> anyhow::Result<Option<Bytes>> {
    let part = timeout(SILENCE_TIMEOUT, next_body_part(body)).await;
    let part = part.map_err(|_| anyhow::anyhow!("nothing received from it for {} s", SILENCE_TIMEOUT.as_secs()))?;
    part.transpose().map_err(|error| describe_http_error(&error))
}

/// Connects to the target and requests `request_path`. `connection` gets the task that transfers the bytes. The response's body arrives
/// only while `connection` exists.
async fn send_request(
    target: &RunTarget,
    request_path: &str,
    connection: &mut JoinSet<hyper::Result<()>>,
) -> anyhow::Result<Response<Incoming>> {
    let stream = TcpStream::connect(&target.address).await?;
    let (mut sender, io) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // This task transfers the request as well, so it must run before the response is awaited.
    connection.spawn(io);
    let mut request = Request::get(request_path).header(HOST, &target.address);
    if let Some(token) = &target.token {
        request = request.header(AUTHORIZATION, token.bearer_header_value());
    }
    let response = sender.send_request(request.body(String::new())?).await;
    response.map_err(|error| describe_http_error(&error))
}

/// Fails if the response is not the recording. The error has the reason and the remedy.
fn check_recording_status(response: &Response<Incoming>, target: &RunTarget) -> anyhow::Result<()> {
    match response.status() {
        StatusCode::OK => Ok(()),
        StatusCode::UNAUTHORIZED if target.token.is_some() => {
            anyhow::bail!("it refuses the token: use that of its --token-file")
        }
        StatusCode::UNAUTHORIZED => {
            anyhow::bail!("it requires a token: use --token-file with that of its --token-file")
        }
        StatusCode::SERVICE_UNAVAILABLE => anyhow::bail!("it has too many clients"),
        StatusCode::BAD_REQUEST => anyhow::bail!("it watches several engines: name one as HOST:PORT/ENGINE"),
        StatusCode::NOT_FOUND => match target.engine.get() {
            Some(engine) => anyhow::bail!("it watches no engine named {}", engine.name),
            None => anyhow::bail!("it serves no /recording: use the address of tokengap's --metrics"),
        },
        other => anyhow::bail!("it answers with status {other}: use the address of tokengap's --metrics"),
    }
}

/// Describes an error of the connection to a watched run, with its remedy.
fn describe_http_error(error: &hyper::Error) -> anyhow::Error {
    if error.is_parse() {
        anyhow::anyhow!("it does not answer in HTTP: use the address of tokengap's --metrics")
    } else if error.is_incomplete_message() || error.is_body_write_aborted() {
        anyhow::anyhow!("the source closed the connection before its end")
    } else {
        anyhow::anyhow!("the connection failed: {error}")
    }
}
