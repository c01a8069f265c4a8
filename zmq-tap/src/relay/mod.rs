//! The byte-transparent relay: it sits between senders and a receiver, copies every byte unchanged, and reports the traffic
//! (docs/internals/RELAY.md).
//!
//! ```no_run
//! use zmq_tap::relay::{Observed, Options, Pair, Relay};
//!
//! let pair = Pair { listen: "ipc:///tmp/tapped".parse()?, upstream: "ipc:///tmp/tokenizer".parse()? };
//! let relay = Relay::start(vec![pair], Options::default())?;
//! while let Some(observation) = relay.poll() {
//!     if let Observed::Frame { seq, bytes, .. } = observation.what {
//!         println!("frame {seq}: {bytes} bytes");
//!     }
//! }
//! relay.stop();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod assembly;
mod bytes;
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
mod socket;
mod stats;
mod thread;
mod upstream;
mod watch;
mod window;

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
pub use options::Options;
pub use queue::Observations;
pub use stats::{Counters, Stats};
pub use thread::{Signal, lower_priority};

use claim::Claim;
use connection::Route;
use files::{ListenerReceiver, ListenerSender};
use listener::Listener;
use pool::{Pool, PoolLimits};
use thread::Thread;
use upstream::Upstream;

/// A pair for the relay's thread.
#[derive(Debug)]
struct Joining {
    index: u16,
    pair: Pair,
    gate: Signal,
    upstream: Upstream,
    /// Receives whether the pair is listening.
    ready: Sender<io::Result<()>>,
}

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
    shared: Arc<Shared>,
    stop: Signal,
    thread: Option<Thread>,
    listening: Vec<Endpoint>,
    /// Socket files that the relay made.
    claims: Vec<Claim>,
    /// Pairs for the relay's thread. Their listeners arrive through the [`ListenerReceiver`].
    added: UnboundedSender<Joining>,
    listener_sender: ListenerSender,
}

impl Relay {
    /// Binds the listeners of these pairs before it returns, and relays on a separate thread. [`Relay::add`] adds further pairs.
    pub fn start(pairs: Vec<Pair>, options: Options) -> Result<Self, RelayError> {
        let bound: Vec<_> = pairs.iter().map(listener::bind).collect::<Result<_, _>>()?;
        let shared = Shared::new(options.in_range());
        let stop = Signal::default();
        let (added, joining) = unbounded_channel();
        let (listener_sender, listener_receiver) = files::handover().map_err(RelayError::Thread)?;
        let (task_shared, task_stop) = (shared.clone(), stop.clone());
        let work = async move |receiver: &ListenerReceiver| run(task_shared, joining, receiver, task_stop).await;
        let thread = Some(Thread::start(listener_receiver, work).map_err(RelayError::Thread)?);
        let (listening, claims) = (Vec::new(), Vec::new());
        let mut relay = Self { shared, stop, thread, listening, claims, added, listener_sender };
        for (Pair { upstream: address, .. }, (listener, listen, claim)) in pairs.into_iter().zip(bound) {
            relay.claims.extend(claim);
            let upstream = Upstream::of(&address)?;
            let sockets = PairSockets { listener, upstream: None };
            relay.join(Pair { listen, upstream: address }, &sockets, upstream, Signal::sent())?;
        }
        Ok(relay)
    }

    /// Adds a pair whose listener is already bound. Its connections wait for `gate` before the relay connects them to the upstream.
    #[expect(clippy::needless_pass_by_value, reason = "the caller is done with the sockets")]
    pub fn add(&mut self, pair: Pair, sockets: PairSockets, gate: Signal) -> Result<(), RelayError> {
        let upstream = if sockets.upstream.is_some() { Upstream::default() } else { Upstream::of(&pair.upstream)? };
        self.join(pair, &sockets, upstream, gate)
    }

    fn join(&mut self, pair: Pair, sockets: &PairSockets, upstream: Upstream, gate: Signal) -> Result<(), RelayError> {
        let index = u16::try_from(self.listening.len()).ok().filter(|index| *index < MAX_PAIRS);
        let index = index.ok_or(RelayError::Pairs)?;
        let listen = pair.listen.clone();
        self.listener_sender.send(sockets).map_err(|error| RelayError::Bind(listen.clone(), error))?;
        let (ready, is_ready) = channel();
        self.added.send(Joining { index, pair, gate, upstream, ready }).map_err(|_| RelayError::Stopped)?;
        let registered = is_ready.recv().map_err(|_| RelayError::Stopped)?;
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
        self.end();
    }
}

async fn run(
    shared: Arc<Shared>,
    mut joining: UnboundedReceiver<Joining>,
    listener_receiver: &ListenerReceiver,
    stop: Signal,
) {
    let mut pairs = JoinSet::new();
    loop {
        let Joining { index, pair, gate, upstream, ready } = tokio::select! {
            Some(joining) = joining.recv() => joining,
            () = stop.received() => break,
        };
        let received = listener_receiver.receive().and_then(|sockets| {
            let listener = Listener::new(sockets.listener, &pair.listen)?;
            Ok((listener, sockets.upstream))
        });
        match received {
            Ok((listener, held)) => {
                let route = Route { index, pair, gate, upstream: upstream.held(held) };
                pairs.spawn(listener::serve(shared.clone(), route, listener, stop.clone()));
                let _ = ready.send(Ok(()));
            }
            Err(error) => drop(ready.send(Err(error))),
        }
    }
    let all = async { while pairs.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(shared.options.drain + GRACE, all).await;
}
