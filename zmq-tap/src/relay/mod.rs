//! The byte-transparent relay: it sits between senders and a receiver, copies every byte unchanged, and reports the traffic
//! (docs/internals/RELAY.md).
//!
//! ```no_run
//! use zmq_tap::relay::{Observation, Options, Pair, Relay};
//!
//! let pair = Pair { listen: "ipc:///tmp/tapped".parse()?, upstream: "ipc:///tmp/tokenizer".parse()? };
//! let relay = Relay::start(vec![pair], Options::default())?;
//! while let Some(observation) = relay.poll() {
//!     if let Observation::Frame { seq, bytes, .. } = observation {
//!         println!("frame {seq}: {bytes} bytes");
//!     }
//! }
//! relay.stop();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod assembly;
pub(crate) mod claim;
mod connection;
mod endpoint;
mod error;
mod files;
mod journal;
mod listener;
mod observation;
mod options;
mod pool;
mod pump;
mod queue;
mod responses;
mod socket;
mod stats;
mod thread;
mod watch;
mod window;

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

pub use connection::Gate;
pub use endpoint::{Endpoint, EndpointError, Pair};
pub use error::RelayError;
pub use observation::{Direction, Ending, NotKept, Observation, Payload, Unread};
pub use options::Options;
pub use queue::Observations;
pub use stats::Stats;
pub use thread::lower_priority;

use connection::Route;
use files::{ListenerReceiver, ListenerSender};
use listener::Listener;
use pool::Pool;
pub(crate) use stats::Counters;

use thread::{Stop, Stopper, Thread, stop_signal};

/// Time beyond `Options::drain` before remaining connections are cut.
const GRACE: Duration = Duration::from_millis(500);
/// Limit of pairs. Each pair has two directions, and hop ids have 16 bits.
const MAX_PAIRS: u16 = u16::MAX / 2;

/// State shared by all parts of one relay.
#[derive(Debug)]
struct Shared {
    options: Options,
    observations: Arc<Observations>,
    counters: Arc<Counters>,
    pool: Arc<Pool>,
}

impl Shared {
    fn new(options: Options) -> Arc<Self> {
        let counters = Arc::new(Counters::default());
        Arc::new(Self {
            // The end of a connection queues up to six observations: opened, closed, and two losses each way.
            observations: Arc::new(Observations::new(options.queue_frames, options.max_connections.saturating_mul(8))),
            pool: Arc::new(Pool::new(options.block_bytes, options.budget_bytes, counters.clone())),
            counters,
            options,
        })
    }
}

/// A running relay. Dropping it stops it, as [`Relay::stop`] does.
#[derive(Debug)]
pub struct Relay {
    shared: Arc<Shared>,
    stop: Stopper,
    thread: Option<Thread>,
    listening: Vec<Endpoint>,
    /// Pairs that join the running relay. Their listeners arrive through the [`ListenerReceiver`].
    added: UnboundedSender<Route>,
    listener_sender: ListenerSender,
    pairs: usize,
}

impl Relay {
    /// Binds every listener before it returns, then relays on a separate thread.
    pub fn start(pairs: Vec<Pair>, options: Options) -> Result<Self, RelayError> {
        if pairs.is_empty() {
            return Err(RelayError::Pairs(0));
        }
        Self::begin(pairs, options)
    }

    /// Starts a relay without pairs; [`Relay::add`] adds them.
    pub fn waiting(options: Options) -> Result<Self, RelayError> {
        Self::begin(Vec::new(), options)
    }

    /// Adds a pair whose listener is already bound. Connections wait at `gate` before the relay connects them to the upstream. Returns the
    /// index of the pair.
    #[expect(clippy::needless_pass_by_value, reason = "the caller is done with the listener")]
    pub fn add(&mut self, pair: Pair, listener: UnixListener, gate: Gate) -> Result<u16, RelayError> {
        // Each pair takes two hop ids of 16 bits.
        let index = u16::try_from(self.pairs).ok().filter(|index| *index < MAX_PAIRS);
        let index = index.ok_or(RelayError::Pairs(self.pairs + 1))?;
        self.listener_sender
            .send(&listener)
            .map_err(|source| RelayError::Bind { endpoint: pair.listen.clone(), source })?;
        self.added.send(Route::new(index, pair, gate)).map_err(|_| RelayError::Stopped)?;
        self.pairs += 1;
        Ok(index)
    }

    fn begin(pairs: Vec<Pair>, options: Options) -> Result<Self, RelayError> {
        let options = options.at_least_minimum();
        if pairs.len() > usize::from(MAX_PAIRS) {
            return Err(RelayError::Pairs(pairs.len()));
        }
        let count = pairs.len();
        let shared = Shared::new(options);
        let (stop, stopped) = stop_signal();
        let (added, joining) = unbounded_channel();
        let (listener_sender, listener_receiver) = files::handover().map_err(RelayError::Thread)?;
        let task_shared = shared.clone();
        let work = async move |listeners, listener_receiver: &ListenerReceiver| {
            run(task_shared, listeners, joining, listener_receiver, stopped).await;
        };
        let (thread, listening) = Thread::start(listener_receiver, move || bind(pairs), work)?;
        Ok(Self { shared, stop, thread: Some(thread), listening, added, listener_sender, pairs: count })
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
    pub(crate) fn counters(&self) -> Arc<Counters> {
        self.shared.counters.clone()
    }

    /// Returns the current counters.
    pub fn stats(&self) -> Stats {
        self.shared.counters.read()
    }

    /// Stops accepting, removes the socket files that the relay made, drains accepted bytes for at most `Options::drain`, and closes every
    /// connection. Senders see a closed connection, as when a receiver restarts.
    pub fn stop(mut self) -> Stats {
        self.end();
        self.stats()
    }

    fn end(&mut self) {
        self.stop.send();
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.end();
    }
}

/// Pairs with their listeners.
type Bound = Vec<(Route, Listener)>;

/// Binds every listener and returns also the endpoint of each. Needs a runtime's context.
fn bind(pairs: Vec<Pair>) -> Result<(Bound, Vec<Endpoint>), RelayError> {
    let mut bound = (Vec::new(), Vec::new());
    for (index, pair) in (0_u16..).zip(pairs) {
        if pair.listen == pair.upstream {
            return Err(RelayError::Itself(pair.listen));
        }
        if pair.listen.speaks_http() != pair.upstream.speaks_http() {
            let Pair { listen, upstream } = pair;
            return Err(RelayError::Mixed { listen, upstream });
        }
        let (listener, actual) = Listener::bind(&pair.listen, &pair.upstream)?;
        bound.0.push((Route::new(index, pair, Gate::open()), listener));
        bound.1.push(actual);
    }
    Ok(bound)
}

async fn run(
    shared: Arc<Shared>,
    listeners: Bound,
    mut joining: UnboundedReceiver<Route>,
    listener_receiver: &ListenerReceiver,
    mut stop: Stop,
) {
    let mut pairs = JoinSet::new();
    for (route, listener) in listeners {
        pairs.spawn(listener::serve(shared.clone(), route, listener, stop.clone()));
    }
    loop {
        let route = tokio::select! {
            Some(route) = joining.recv() => route,
            () = stop.received() => break,
        };
        match listener_receiver.receive().and_then(Listener::from_bound) {
            Ok(listener) => drop(pairs.spawn(listener::serve(shared.clone(), route, listener, stop.clone()))),
            Err(error) => tracing::error!(listen = %route.pair.listen, "cannot be relayed: {error}"),
        }
    }
    let all = async { while pairs.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(shared.options.drain + GRACE, all).await;
}
