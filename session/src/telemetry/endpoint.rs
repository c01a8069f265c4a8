//! The endpoint of the runs of a process: HTTP/1.1 on its own thread, with limits on clients, request size and time. Snapshots of a run are
//! made at most four times a second, regardless of the number of requests; streams read what the endpoint keeps. No client delays the run.

mod answer;
mod body;
mod follow;
mod served_runs;
mod store;

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use outputs::metrics::{EndpointUse, Family};
use outputs::report::Report;
use recording::{RecordingHeader, StreamPacker};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::Receiver;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use trace::engine::Engines;

use self::answer::{ConnectionState, RequestHandler};
pub use self::served_runs::encode_name;
use self::served_runs::{ServedRun, ServedRuns};
use self::store::{PastLimit, SectionStore};
use super::endpoint_counts::{EndpointCounts, load_count};
use super::health::RunHealth;
use super::served_path::{MAX_CONNECTIONS, ServedPath};
use super::snapshot::{SnapshotPublisher, snapshot_pair};
use super::stream_publisher::{StreamJob, StreamPublisher};
use super::{EndpointStatus, MetricsOptions};
use crate::about::EngineIdentity;
use crate::units::format_count;

/// Limits of the endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndpointLimits {
    /// Concurrent connections that do not stream. A new one displaces the oldest that has not sent a request, else the oldest.
    connections: usize,
    /// Maximum size of a request head.
    request_bytes: usize,
    /// Maximum time to receive a request head.
    head_timeout: Duration,
    /// Maximum lifetime of a connection that does not stream, including the response.
    connection_timeout: Duration,
    /// Maximum time that the client of a stream may take to read anything.
    read_timeout: Duration,
}

pub(super) const ENDPOINT_LIMITS: EndpointLimits = EndpointLimits {
    connections: MAX_CONNECTIONS,
    request_bytes: 16 * 1024,
    head_timeout: Duration::from_secs(5),
    connection_timeout: Duration::from_secs(30),
    read_timeout: Duration::from_secs(30),
};

/// Send buffer of the kernel for a client, in bytes. The default grows to megabytes.
const KERNEL_BUFFER_BYTES: usize = 64 << 10;
/// Pause after a connection could not be accepted, for example because no file descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Interval of checks whether clients still stream the run.
const STREAM_CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum time for the clients of streams to receive the end of the run.
const LAST_READ_TIMEOUT: Duration = Duration::from_millis(1_500);

/// The server of an endpoint, which all runs of this process share.
pub(super) struct EndpointServer {
    pub(super) listen_address: SocketAddr,
    pub(super) counts: Arc<EndpointCounts>,
    runs: ServedRuns,
    past_limit: Arc<PastLimit>,
    /// Permits for clients of each path, in the order of [`ServedPath::ALL`].
    client_permits: [Arc<Semaphore>; ServedPath::ALL.len()],
    runtime: Handle,
}

/// A run at its endpoint.
pub(super) struct RunEndpoint {
    pub(super) metrics: SnapshotPublisher<Vec<Family>>,
    pub(super) report: SnapshotPublisher<Report>,
    pub(super) health: SnapshotPublisher<RunHealth>,
    pub(super) stream: StreamPublisher,
    pub(super) server: Arc<EndpointServer>,
    run: Arc<ServedRun>,
    /// Whether it reports what concerns all runs.
    pub(super) is_first: bool,
}

impl EndpointServer {
    /// Binds the address, and starts the thread that serves it. Runs are added later. An error names the address.
    fn start(options: MetricsOptions, engines: Engines, limits: EndpointLimits) -> anyhow::Result<Arc<Self>> {
        let MetricsOptions { address, token, past_bytes } = options;
        let context = || format!("cannot serve metrics at {address}; choose another with --metrics HOST:PORT");
        // Bound on this thread, so that an address in use ends the command with an error.
        let listener = bind_for_tokio(address).with_context(context)?;
        let listen_address = listener.local_addr().with_context(context)?;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().with_context(context)?;
        let client_permits = ServedPath::ALL.map(|path| Arc::new(Semaphore::new(path.max_clients())));
        let server = Arc::new(Self {
            listen_address,
            counts: Arc::default(),
            runs: ServedRuns::default(),
            // Limits what new clients of a stream get of the past.
            past_limit: Arc::new(PastLimit::new(past_bytes)),
            client_permits,
            runtime: runtime.handle().clone(),
        });
        let handler = Arc::new(RequestHandler {
            token,
            counts: Arc::clone(&server.counts),
            runs: server.runs.clone(),
            engines,
            client_permits: server.client_permits.clone(),
            read_timeout: limits.read_timeout,
        });
        serve_on_thread(runtime, listener, limits, handler).with_context(context)?;
        Ok(server)
    }

    /// Serves a further run, which `header` describes: its metrics, report and health as snapshots, and its recording as a stream.
    pub(super) fn add_run(self: &Arc<Self>, header: &RecordingHeader) -> anyhow::Result<RunEndpoint> {
        let packer = StreamPacker::new(header.clone()).context("cannot start a recording for /recording")?;
        let recording_start = packer.preamble_and_header().context("cannot start a recording for /recording")?;
        let store = Arc::new(SectionStore::new(recording_start.into(), Arc::clone(&self.past_limit)));
        let (metrics, metrics_client) = snapshot_pair();
        let (report, report_client) = snapshot_pair();
        let (health, health_client) = snapshot_pair();
        // The run writes its recording to `stream`. The endpoint's thread reads it from `jobs`, encodes it with `packer` and keeps it in
        // `store` for the clients.
        let (stream, jobs) = StreamPublisher::new(header.payload, Arc::clone(&store.blocks_dropped));
        self.runtime.spawn(encode_and_store_sections(jobs, packer, Arc::clone(&store)));
        let run = Arc::new(ServedRun::new(metrics_client, report_client, health_client, store));
        let runs_before = self.runs.add_run(Arc::clone(&run));
        if runs_before > 0 {
            // The limit of clients is for one run. A watcher of the whole machine needs a stream for each.
            let permits = &self.client_permits[ServedPath::Recording as usize];
            permits.add_permits(ServedPath::Recording.max_clients());
        }
        Ok(RunEndpoint { metrics, report, health, stream, server: Arc::clone(self), run, is_first: runs_before == 0 })
    }

    /// Paths of streams, each with the number of its clients.
    fn stream_clients(&self) -> [(&'static str, u64); 2] {
        [ServedPath::Recording, ServedPath::Events]
            .map(|path| (path.name(), RequestHandler::client_count(&self.client_permits, path, self.runs.count())))
    }
}

impl RunEndpoint {
    /// Opens an endpoint, and serves the run that `header` describes as its first.
    pub(super) fn serve(
        options: MetricsOptions,
        header: &RecordingHeader,
        engines: Engines,
        limits: EndpointLimits,
    ) -> anyhow::Result<Self> {
        EndpointServer::start(options, engines, limits)?.add_run(header)
    }

    /// Sets the engine of the run.
    pub(super) fn set_engine(&self, engine: Option<EngineIdentity>) {
        self.run.set_engine(engine);
    }

    /// Summary for the screen.
    pub(super) fn status(&self) -> EndpointStatus {
        let server = &self.server;
        EndpointStatus {
            address: server.listen_address,
            clients: sum_counts(&server.stream_clients()),
            dropped: sum_counts(&server.counts.dropped_clients_by_path()),
            refused: sum_counts(&server.counts.refused_clients_by_reason()),
        }
    }

    /// Summary for the metrics; `None` if this is not the first run, because all runs share the endpoint.
    pub(super) fn usage_if_first_run(&self) -> Option<EndpointUse> {
        let server = &self.server;
        self.is_first.then(|| EndpointUse {
            clients: server.stream_clients(),
            dropped: server.counts.dropped_clients_by_path(),
            refused: server.counts.refused_clients_by_reason(),
        })
    }

    /// Problems for the report: parts of the recording that clients miss. The first run also reports problems of all clients.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = if self.is_first { self.server.counts.problems() } else { Vec::new() };
        let blocks_dropped = load_count(&self.run.store.blocks_dropped);
        if blocks_dropped > 0 {
            problems.push(format!(
                "metrics: {} blocks are missing in /recording and /events because this machine was too busy",
                format_count(blocks_dropped)
            ));
        }
        problems
    }
}

fn sum_counts(counts: &[(&str, u64)]) -> u64 {
    counts.iter().map(|(_, count)| count).sum()
}

/// Encodes what the run has queued as sections of its recording, and stores them in order, until the run ends. Then waits a limited time
/// for the clients to receive the end, and wakes the run, which waits for that.
async fn encode_and_store_sections(mut jobs: Receiver<StreamJob>, mut packer: StreamPacker, store: Arc<SectionStore>) {
    while let Some(job) = jobs.recv().await {
        match job.encode_section(&mut packer) {
            Ok(section) => store.add_section(section),
            Err(error) => {
                tracing::warn!("metrics: cannot encode a part of the recording: {error}");
                store.blocks_dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
        if let StreamJob::End(_, done) = job {
            store.mark_end();
            // A client that reads too slowly does not hold up the end of the run.
            timeout(LAST_READ_TIMEOUT, wait_until_no_connection_streams(&store)).await.ok();
            // Wakes the run. Fails if the run waits no longer.
            done.send(()).ok();
            return;
        }
    }
    // The run's side is gone without an end: the telemetry crashed.
    store.mark_end();
}

/// Waits until no connection streams the run any more.
async fn wait_until_no_connection_streams(store: &SectionStore) {
    while load_count(&store.streaming_connections) > 0 {
        sleep(STREAM_CHECK_INTERVAL).await;
    }
}

/// A connection in progress, with the task that serves it.
struct OpenConnection {
    state: Arc<ConnectionState>,
    task: AbortHandle,
}

/// Binds the address. The listener does not block, as Tokio requires.
fn bind_for_tokio(address: SocketAddr) -> std::io::Result<StdListener> {
    let listener = StdListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Starts the thread that accepts connections and answers their requests.
fn serve_on_thread(
    runtime: Runtime,
    listener: StdListener,
    limits: EndpointLimits,
    handler: Arc<RequestHandler>,
) -> std::io::Result<()> {
    thread::Builder::new().name("metrics".into()).spawn(move || {
        if let Err(error) = runtime.block_on(accept_connections(listener, limits, &handler)) {
            tracing::warn!("metrics are no longer served: {error}");
        }
    })?;
    Ok(())
}

/// Waits for the next connection. `None`, after a pause, if it cannot be accepted, for example because all file descriptors are in use.
async fn accept_connection_or_pause(listener: &TcpListener) -> Option<TcpStream> {
    match listener.accept().await {
        Ok((stream, _)) => Some(stream),
        Err(error) => {
            tracing::info!("metrics: cannot accept a connection: {error}");
            sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

/// Accepts connections for ever, each in a task. At the limit, a new connection replaces the oldest that has not sent a request. If all
/// have sent one, it replaces the oldest.
async fn accept_connections(
    listener: StdListener,
    limits: EndpointLimits,
    handler: &Arc<RequestHandler>,
) -> std::io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    // Connections that do not stream, the oldest first.
    let mut open_connections: VecDeque<OpenConnection> = VecDeque::new();
    loop {
        let Some(stream) = accept_connection_or_pause(&listener).await else { continue };
        // The paths of streams have limits of their own.
        open_connections.retain(|connection| !connection.task.is_finished() && !connection.state.is_stream());
        if open_connections.len() >= limits.connections {
            displace_silent_or_oldest_connection(&mut open_connections, &handler.counts);
        }
        let state = Arc::<ConnectionState>::default();
        let task = tokio::spawn(run_connection(stream, limits, Arc::clone(handler), Arc::clone(&state)));
        open_connections.push_back(OpenConnection { state, task: task.abort_handle() });
    }
}

/// Closes the oldest of these connections that has not sent a request, because an idle client must not block one that sends a request. If
/// all have sent one, closes the oldest.
fn displace_silent_or_oldest_connection(open_connections: &mut VecDeque<OpenConnection>, counts: &EndpointCounts) {
    let silent = open_connections.iter().position(|connection| !connection.state.has_request.load(Ordering::Relaxed));
    if let Some(displaced) = open_connections.remove(silent.unwrap_or(0)) {
        displaced.task.abort();
        counts.displaced.fetch_add(1, Ordering::Relaxed);
    }
}

/// Serves a connection until it ends, its time is over, or its stream is stopped. Counts a connection that failed.
async fn run_connection(
    stream: TcpStream,
    limits: EndpointLimits,
    handler: Arc<RequestHandler>,
    state: Arc<ConnectionState>,
) {
    // If this fails, the kernel's own limit holds.
    rustix::net::sockopt::set_socket_send_buffer_size(&stream, KERNEL_BUFFER_BYTES).ok();
    // Its drop reduces the run's count of streams when the connection ends. A drop also runs if this task is aborted, unlike code below.
    let _streaming = StreamingCount { connection: &state };
    let has_failed = tokio::select! {
        // Counts slow and malformed requests only. A client that disconnects by itself causes another error.
        served = serve_connection(stream, limits, &handler, &state) => {
            served.is_err_and(|error| error.is_timeout() || error.is_parse())
        }
        () = wait_for_time_limit(&state, limits.connection_timeout) => true,
        // Not counted here, because the stream has counted its end.
        () = state.close.notified() => false,
    };
    if has_failed {
        handler.counts.failed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Waits for the time limit of a connection. If the connection streams by then, waits for ever, because a stream lasts as long as the run.
async fn wait_for_time_limit(state: &ConnectionState, limit: Duration) {
    sleep(limit).await;
    if state.is_stream() {
        std::future::pending::<()>().await;
    }
}

/// Answers the only request of a connection, which is not kept alive.
async fn serve_connection(
    stream: TcpStream,
    limits: EndpointLimits,
    handler: &RequestHandler,
    state: &ConnectionState,
) -> hyper::Result<()> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_buf_size(limits.request_bytes)
        .keep_alive(false)
        // A client may close its sending side after the request.
        .half_close(true)
        .serve_connection(
            TokioIo::new(stream),
            service_fn(|request| {
                // At the limit of connections, those without a request are closed first.
                state.has_request.store(true, Ordering::Relaxed);
                handler.answer_request(request, state)
            }),
        )
        .await
}

/// When dropped, subtracts the connection from the count of those that stream its run.
struct StreamingCount<'a> {
    connection: &'a ConnectionState,
}

impl Drop for StreamingCount<'_> {
    /// Subtracts the connection from the count of those that stream its run. Does nothing if it has streamed none.
    fn drop(&mut self) {
        if let Some(run) = self.connection.streamed_run.get() {
            run.store.streaming_connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod hostile_clients;
#[cfg(test)]
mod several_runs;
#[cfg(test)]
mod stream_clients;
