//! The byte-transparent relay: it stands between senders and a receiver, passes every byte on as it came, and tells what
//! went by (docs/RELAY.md).
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
mod claim;
mod connection;
mod dial;
mod endpoint;
mod error;
mod journal;
mod listener;
mod observation;
mod options;
mod pool;
mod priority;
mod pump;
mod queue;
mod responses;
mod socket;
mod stats;
mod stop;
mod watch;
mod window;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::task::JoinSet;

pub use endpoint::{Endpoint, EndpointError, Pair};
pub use error::RelayError;
pub use observation::{Direction, Ending, NotKept, Observation, Payload, Unread};
pub use options::Options;
pub use priority::step_aside;
pub use queue::Observations;
pub use stats::Stats;

use listener::Listener;
use pool::Pool;
use stats::Counters;
use stop::{Stop, Stopper};

/// Added to `Options::drain` before what is left is cut off.
const GRACE: Duration = Duration::from_millis(500);

/// What all parts of one relay share.
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
            // A connection's end takes up to six places: opened, closed, and two losses each way.
            observations: Arc::new(Observations::new(
                options.queue_frames,
                options.max_connections.saturating_mul(8),
            )),
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
    thread: Option<JoinHandle<()>>,
    listening: Vec<Endpoint>,
}

impl Relay {
    /// Binds every listener now, then relays on a thread of its own.
    pub fn start(pairs: Vec<Pair>, options: Options) -> Result<Self, RelayError> {
        let options = options.sane();
        if pairs.is_empty() || pairs.len() > usize::from(u16::MAX) {
            return Err(RelayError::Pairs(pairs.len()));
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(RelayError::Thread)?;
        let context = runtime.enter();
        let mut listening = Vec::new();
        let mut listeners = Vec::new();
        for (place, pair) in (0_u16..).zip(pairs) {
            if pair.listen == pair.upstream {
                return Err(RelayError::Itself(pair.listen));
            }
            if pair.listen.speaks_http() != pair.upstream.speaks_http() {
                let Pair { listen, upstream } = pair;
                return Err(RelayError::Mixed { listen, upstream });
            }
            let (listener, actual) = Listener::bind(&pair.listen)?;
            listening.push(actual);
            listeners.push((place, pair, listener));
        }
        drop(context);
        let shared = Shared::new(options);
        let (stop, stopped) = stop::pair();
        let (its, drain) = (shared.clone(), shared.options.drain);
        let thread = std::thread::Builder::new()
            .name("tokengap-relay".into())
            .spawn(move || {
                runtime.block_on(run(its, listeners, stopped, drain));
                runtime.shutdown_timeout(GRACE);
            })
            .map_err(RelayError::Thread)?;
        Ok(Self {
            shared,
            stop,
            thread: Some(thread),
            listening,
        })
    }

    /// Where the relay listens, pair by pair; a port that was left to the kernel is filled in.
    pub fn listening(&self) -> &[Endpoint] {
        &self.listening
    }

    /// The queue of observations, to be polled from any thread, also after the relay has stopped.
    pub fn observations(&self) -> Arc<Observations> {
        self.shared.observations.clone()
    }

    /// The next observation, if any. Never blocks.
    pub fn poll(&self) -> Option<Observation> {
        self.shared.observations.poll()
    }

    /// The counters now.
    pub fn stats(&self) -> Stats {
        self.shared.counters.read()
    }

    /// Stops accepting, removes the socket files it made, lets what was already accepted flow out for at most
    /// `Options::drain`, and closes every connection. Senders find their connection closed, as when a receiver restarts.
    pub fn stop(mut self) -> Stats {
        self.end();
        self.stats()
    }

    fn end(&mut self) {
        self.stop.say();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the relay's thread panicked");
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.end();
    }
}

async fn run(shared: Arc<Shared>, listeners: Vec<(u16, Pair, Listener)>, mut stop: Stop, drain: Duration) {
    let mut pairs = JoinSet::new();
    for (place, pair, listener) in listeners {
        pairs.spawn(listener::serve(shared.clone(), place, pair, listener, stop.clone()));
    }
    stop.heard().await;
    let all = async { while pairs.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(drain + GRACE, all).await;
}
