//! The byte-transparent relay: it sits between senders and a receiver, copies every byte unchanged, and reports the traffic
//! (docs/internals/RELAY.md).
//!
//! ```no_run
//! use zmq_tap::relay::{Observed, Pair, Relay, RelayOptions};
//!
//! let pair = Pair { listen: "ipc:///tmp/tapped".parse()?, upstream: "ipc:///tmp/tokenizer".parse()? };
//! let relay = Relay::start(vec![pair], RelayOptions::default())?;
//! while let Some(observation) = relay.poll() {
//!     if let Observed::Frame { seq, bytes, .. } = observation.what {
//!         println!("frame {seq}: {bytes} bytes");
//!     }
//! }
//! relay.stop();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod assembly;
mod byte_watch;
mod connection;
mod endpoint;
mod error;
mod files;
mod journal;
mod listener;
mod observation;
mod pool;
mod pump;
mod queue;
mod relay_options;
mod socket;
pub(crate) mod socket_claim;
mod stats;
mod stream_window;
mod thread;
mod upstream;
mod zmtp_watch;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

pub use endpoint::{Endpoint, EndpointError, Pair};
pub use error::RelayError;
pub use files::PairSockets;
pub use observation::{Direction, Ending, NotKept, Observation, Observed, Payload, Unread};
pub use queue::Observations;
pub use relay_options::RelayOptions;
pub use stats::{Counters, RelayStats};
pub use thread::{Signal, lower_priority};

use connection::RelayRoute;
use files::{ListenerReceiver, ListenerSender};
use listener::Listener;
use pool::{Pool, PoolLimits};
use socket_claim::SocketClaim;
use thread::RelayThread;
use upstream::UpstreamSocket;

/// A pair for the relay's thread.
#[derive(Debug)]
struct AddedPair {
    index: u16,
    pair: Pair,
    gate: Signal,
    upstream: UpstreamSocket,
    /// Receives whether the pair is listening.
    ready: Sender<io::Result<()>>,
}

/// Time beyond `RelayOptions::drain` before remaining connections are cut.
const GRACE: Duration = Duration::from_millis(500);
/// Observations of one connection that may wait beyond the queue. Its end queues up to six: opened, closed, and two losses each way.
const LATE_PER_CONNECTION: usize = 8;
/// Limit of pairs. Each pair has two directions, and hop ids have 16 bits.
const MAX_PAIRS: u16 = u16::MAX / 2;

/// State shared by all parts of one relay.
#[derive(Debug)]
struct RelayState {
    options: RelayOptions,
    observations: Arc<Observations>,
    counters: Arc<Counters>,
    pool: Arc<Pool>,
}

impl RelayState {
    /// State of a relay that has no connections yet.
    fn new(options: RelayOptions) -> Arc<Self> {
        let counters = Arc::new(Counters::default());
        let max_late_observations = options.max_connections.saturating_mul(LATE_PER_CONNECTION);
        Arc::new(Self {
            observations: Arc::new(Observations::new(options.queue_frames, max_late_observations)),
            pool: Arc::new(Pool::new(
                PoolLimits {
                    block_bytes: options.block_bytes,
                    budget_bytes: options.budget_bytes,
                    shared_bytes: options.shared_bytes(),
                },
                counters.clone(),
            )),
            counters,
            options,
        })
    }
}

/// A running relay. Dropping it stops it, as [`Relay::stop`] does.
#[derive(Debug)]
pub struct Relay {
    shared: Arc<RelayState>,
    stop: Signal,
    thread: Option<RelayThread>,
    listening: Vec<Endpoint>,
    /// Socket files that the relay made.
    claims: Vec<SocketClaim>,
    /// Pairs for the relay's thread. Their listeners arrive through the [`ListenerReceiver`].
    pair_sender: UnboundedSender<AddedPair>,
    listener_sender: ListenerSender,
}

impl Relay {
    /// Binds the listeners of these pairs before it returns, and relays on a separate thread. [`Relay::add_bound_pair`] adds further pairs.
    pub fn start(pairs: Vec<Pair>, options: RelayOptions) -> Result<Self, RelayError> {
        // All before the thread starts, so that a failure leaves no pair half served.
        let bound: Vec<_> = pairs.iter().map(listener::bind_listener).collect::<Result<_, _>>()?;
        let shared = RelayState::new(options.with_limits_in_range());
        let stop = Signal::default();
        let (pair_sender, pair_receiver) = unbounded_channel();
        let (listener_sender, listener_receiver) = files::listener_channel().map_err(RelayError::Thread)?;
        let task_shared = shared.clone();
        let task_stop = stop.clone();
        let work = async move |receiver: &ListenerReceiver| {
            relay_pairs(task_shared, pair_receiver, receiver, task_stop).await;
        };
        let thread = Some(RelayThread::start(listener_receiver, work).map_err(RelayError::Thread)?);
        let mut relay =
            Self { shared, stop, thread, listening: Vec::new(), claims: Vec::new(), pair_sender, listener_sender };
        for (pair, bound) in pairs.into_iter().zip(bound) {
            relay.claims.extend(bound.claim);
            let upstream = UpstreamSocket::with_current_owners(&pair.upstream)?;
            let sockets = PairSockets { listener: bound.socket, upstream: None };
            // The bound endpoint, since the kernel may have chosen the port.
            let pair = Pair { listen: bound.endpoint, upstream: pair.upstream };
            // Sent already, so that no connection waits for it.
            let gate = Signal::sent();
            relay.pass_pair_to_thread(pair, &sockets, upstream, gate)?;
        }
        Ok(relay)
    }

    /// Adds a pair whose listener is already bound. Its connections wait for `gate` before the relay connects them to the upstream.
    #[expect(clippy::needless_pass_by_value, reason = "the caller is done with the sockets")]
    pub fn add_bound_pair(&mut self, pair: Pair, sockets: PairSockets, gate: Signal) -> Result<(), RelayError> {
        let upstream = if sockets.upstream.is_some() {
            // The relay connects to this open file, whoever owns its path.
            UpstreamSocket::default()
        } else {
            UpstreamSocket::with_current_owners(&pair.upstream)?
        };
        self.pass_pair_to_thread(pair, &sockets, upstream, gate)
    }

    /// Passes a pair of a listener and an upstream to the relay's thread, and waits until that thread listens. Connections are relayed once
    /// `gate` is sent.
    fn pass_pair_to_thread(
        &mut self,
        pair: Pair,
        sockets: &PairSockets,
        upstream: UpstreamSocket,
        gate: Signal,
    ) -> Result<(), RelayError> {
        // The ids of hops, one for each direction of a pair, contain the index and have 16 bits.
        let index = match u16::try_from(self.listening.len()) {
            Ok(index) if index < MAX_PAIRS => index,
            _ => return Err(RelayError::Pairs),
        };
        let listen = pair.listen.clone();
        // Sent before the pair: the thread reads them, without waiting, as soon as it gets the pair.
        self.listener_sender.send_sockets(sockets).map_err(|error| RelayError::Bind(listen.clone(), error))?;
        // Sending the pair and receiving the result fail if the thread has ended.
        let (ready, registration_result) = channel();
        self.pair_sender.send(AddedPair { index, pair, gate, upstream, ready }).map_err(|_| RelayError::Stopped)?;
        let registered = registration_result.recv().map_err(|_| RelayError::Stopped)?;
        registered.map_err(|error| RelayError::Bind(listen.clone(), error))?;
        self.listening.push(listen);
        Ok(())
    }

    /// Actual listening endpoint of each pair, with any port that the kernel chose.
    pub fn listening(&self) -> &[Endpoint] {
        &self.listening
    }

    /// The queue of observations. Any thread may poll it, even after the relay has stopped.
    pub fn observations(&self) -> Arc<Observations> {
        self.shared.observations.clone()
    }

    /// Returns the next observation, if any. Never blocks.
    pub fn poll(&self) -> Option<Observation> {
        self.shared.observations.poll()
    }

    /// The counters, which can be read even after the relay has stopped.
    pub fn counters(&self) -> Arc<Counters> {
        self.shared.counters.clone()
    }

    /// Returns the current counters.
    pub fn stats(&self) -> RelayStats {
        self.shared.counters.read()
    }

    /// Stops accepting, removes the socket files that the relay made, drains accepted bytes for at most `RelayOptions::drain`, and closes
    /// every connection. Senders see a closed connection, as when a receiver restarts.
    pub fn stop(mut self) -> RelayStats {
        self.stop_and_join();
        self.stats()
    }

    /// Stops the relay, and waits until its connections have drained. Does nothing the second time.
    fn stop_and_join(&mut self) {
        // Remove the socket files before closing the listeners, so that no peer finds a file that refuses connections.
        self.claims.clear();
        self.stop.send();
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop_and_join();
    }
}

/// Work of the relay's thread: accepts connections of each pair that it receives, until `stop` is sent. Then waits a limited time until the
/// connections have drained.
async fn relay_pairs(
    shared: Arc<RelayState>,
    mut pair_receiver: UnboundedReceiver<AddedPair>,
    listener_receiver: &ListenerReceiver,
    stop: Signal,
) {
    let mut pairs = JoinSet::new();
    loop {
        let AddedPair { index, pair, gate, upstream, ready } = tokio::select! {
            Some(added) = pair_receiver.recv() => added,
            () = stop.received() => break,
        };
        // The open files of a pair arrive apart, because they must be passed to the file table of this thread.
        let registered = listener_receiver.receive_sockets().and_then(|sockets| {
            let listener = Listener::new(sockets.listener, &pair.listen)?;
            let route = RelayRoute { index, pair, gate, upstream: upstream.with_held_file(sockets.upstream) };
            pairs.spawn(listener::accept_connections(shared.clone(), route, listener, stop.clone()));
            Ok(())
        });
        // The caller waits for the result, unless its thread has panicked.
        let _ = ready.send(registered);
    }
    let all_drained = async { while pairs.join_next().await.is_some() {} };
    // Connections that have not ended by then are cut, by dropping their tasks.
    let _ = tokio::time::timeout(shared.options.drain + GRACE, all_drained).await;
}
