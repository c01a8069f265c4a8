//! The endpoint of a run: HTTP/1.1 on its own thread, with limits on clients, request size and time. Snapshots of the run are made at most
//! four times a second, regardless of the number of requests; streams read what the endpoint keeps. No client delays the run.

mod answer;
mod body;
mod follow;
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
use tokio::sync::Semaphore;
use tokio::sync::mpsc::Receiver;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use trace::engine::Engines;

pub(super) use self::answer::RunMetrics;
use self::answer::{ConnectionState, RequestHandler};
use self::store::SectionStore;
use super::endpoint_counts::{EndpointCounts, load_count};
use super::health::RunHealth;
use super::served_path::{MAX_CONNECTIONS, ServedPath};
use super::snapshot::{SnapshotPublisher, snapshot_pair};
use super::stream_publisher::{StreamJob, StreamPublisher};
use super::{EndpointStatus, MetricsOptions};

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
/// Maximum time for the clients of streams to receive the end of the run.
const LAST_READ_TIMEOUT: Duration = Duration::from_millis(1_500);

/// A served endpoint.
pub(super) struct RunEndpoint {
    pub(super) metrics: SnapshotPublisher<Vec<Family>>,
    /// Adds the metrics of further runs.
    pub(super) further_metrics: RunMetrics,
    pub(super) report: SnapshotPublisher<Report>,
    pub(super) health: SnapshotPublisher<RunHealth>,
    pub(super) stream: StreamPublisher,
    pub(super) listen_address: SocketAddr,
    pub(super) counts: Arc<EndpointCounts>,
    /// Permits for clients of each path, in the order of [`ServedPath::ALL`].
    client_permits: [Arc<Semaphore>; ServedPath::ALL.len()],
}

impl RunEndpoint {
    /// Starts to serve the run that `header` describes.
    pub(super) fn serve(
        options: MetricsOptions,
        header: &RecordingHeader,
        engines: Engines,
        limits: EndpointLimits,
    ) -> anyhow::Result<Self> {
        let MetricsOptions { address, token, past_bytes } = options;
        let context = || format!("cannot serve metrics at {address}; choose another with --metrics HOST:PORT");
        let listener = StdListener::bind(address).with_context(context)?;
        listener.set_nonblocking(true).with_context(context)?;
        let listen_address = listener.local_addr().with_context(context)?;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().with_context(context)?;
        let packer = StreamPacker::new(header.clone()).with_context(context)?;
        let store = Arc::new(SectionStore::new(packer.start().with_context(context)?.into(), past_bytes));
        let further_metrics = RunMetrics::default();
        let metrics = further_metrics.add_run("");
        let (report, report_client) = snapshot_pair();
        let (health, health_client) = snapshot_pair();
        let counts = Arc::<EndpointCounts>::default();
        let (stream, jobs) = StreamPublisher::new(header.payload, Arc::clone(&counts));
        let client_permits = ServedPath::ALL.map(|path| Arc::new(Semaphore::new(path.max_clients())));
        let server = Arc::new(RequestHandler {
            token,
            counts: Arc::clone(&counts),
            metrics: further_metrics.clone(),
            report: report_client,
            health: health_client,
            store: Arc::clone(&store),
            engines,
            client_permits: client_permits.clone(),
            read_timeout: limits.read_timeout,
        });
        thread::Builder::new()
            .name("metrics".into())
            .spawn(move || {
                runtime.spawn(keep_sections(jobs, packer, store, Arc::clone(&server.counts)));
                if let Err(error) = runtime.block_on(accept_connections(listener, limits, &server)) {
                    tracing::warn!("metrics are no longer served: {error}");
                }
            })
            .with_context(context)?;
        Ok(Self { metrics, further_metrics, report, health, stream, listen_address, counts, client_permits })
    }

    /// Summary for the screen.
    pub(super) fn status(&self) -> EndpointStatus {
        EndpointStatus {
            address: self.listen_address,
            clients: sum_counts(&self.stream_clients()),
            dropped: sum_counts(&self.counts.dropped()),
            refused: sum_counts(&self.counts.refused()),
        }
    }

    /// Summary for the metrics.
    pub(super) fn usage(&self) -> EndpointUse {
        EndpointUse { clients: self.stream_clients(), dropped: self.counts.dropped(), refused: self.counts.refused() }
    }

    fn stream_clients(&self) -> [(&'static str, u64); 2] {
        [ServedPath::Recording, ServedPath::Events]
            .map(|path| (path.name(), RequestHandler::client_count(&self.client_permits, path)))
    }
}

fn sum_counts(counts: &[(&str, u64)]) -> u64 {
    counts.iter().map(|(_, count)| count).sum()
}

/// Keeps the sections of the run, in order, until its end.
async fn keep_sections(
    mut jobs: Receiver<StreamJob>,
    mut packer: StreamPacker,
    store: Arc<SectionStore>,
    counts: Arc<EndpointCounts>,
) {
    while let Some(job) = jobs.recv().await {
        match job.encode(&mut packer) {
            Ok(section) => store.push(section),
            Err(error) => {
                tracing::warn!("metrics: cannot encode a part of the recording: {error}");
                counts.blocks_dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
        if let StreamJob::End(_, done) = job {
            store.end();
            let received = async {
                while load_count(&counts.streaming) > 0 {
                    sleep(Duration::from_millis(10)).await;
                }
            };
            timeout(LAST_READ_TIMEOUT, received).await.ok();
            done.send(()).ok();
            return;
        }
    }
    // The telemetry crashed.
    store.end();
}

async fn accept_connections(
    listener: StdListener,
    limits: EndpointLimits,
    server: &Arc<RequestHandler>,
) -> std::io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    // Connections in progress that do not stream.
    let mut open: VecDeque<(Arc<ConnectionState>, AbortHandle)> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // Out of file descriptors, for now.
            Err(error) => {
                tracing::info!("metrics: cannot accept a connection: {error}");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // The paths of streams have limits of their own.
        open.retain(|(state, task)| !task.is_finished() && !state.is_stream.load(Ordering::Relaxed));
        if open.len() >= limits.connections {
            // An idle client must not block one that sends a request.
            let silent = open.iter().position(|(state, _)| !state.has_request.load(Ordering::Relaxed));
            if let Some((_, oldest)) = open.remove(silent.unwrap_or(0)) {
                oldest.abort();
                server.counts.displaced.fetch_add(1, Ordering::Relaxed);
            }
        }
        let state = Arc::<ConnectionState>::default();
        let task = tokio::spawn(run_connection(stream, limits, Arc::clone(server), Arc::clone(&state)));
        open.push_back((state, task.abort_handle()));
    }
}

/// Serves a connection until it ends, its time is over, or its stream is stopped.
async fn run_connection(
    stream: TcpStream,
    limits: EndpointLimits,
    server: Arc<RequestHandler>,
    state: Arc<ConnectionState>,
) {
    rustix::net::sockopt::set_socket_send_buffer_size(&stream, KERNEL_BUFFER_BYTES).ok();
    let time_limit = async {
        sleep(limits.connection_timeout).await;
        // A stream lasts as long as the run.
        if state.is_stream.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    };
    let _streaming = StreamingCount { counts: &server.counts, connection: &state };
    let has_failed = tokio::select! {
        // A client that disconnects by itself is not counted.
        ended = serve_connection(stream, limits, &server, &state) => {
            ended.is_err_and(|error| error.is_timeout() || error.is_parse())
        }
        () = time_limit => true,
        // The stream has counted the reason.
        () = state.close.notified() => false,
    };
    if has_failed {
        server.counts.failed.fetch_add(1, Ordering::Relaxed);
    }
}

async fn serve_connection(
    stream: TcpStream,
    limits: EndpointLimits,
    server: &RequestHandler,
    state: &ConnectionState,
) -> hyper::Result<()> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_buf_size(limits.request_bytes)
        .keep_alive(false)
        .half_close(true)
        .serve_connection(
            TokioIo::new(stream),
            service_fn(|request| {
                state.has_request.store(true, Ordering::Relaxed);
                server.answer(request, state)
            }),
        )
        .await
}

/// Counts a connection that streams until it ends.
struct StreamingCount<'a> {
    counts: &'a EndpointCounts,
    connection: &'a ConnectionState,
}

impl Drop for StreamingCount<'_> {
    fn drop(&mut self) {
        if self.connection.is_stream.load(Ordering::Relaxed) {
            self.counts.streaming.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod hostile_clients;
#[cfg(test)]
mod stream_clients;
