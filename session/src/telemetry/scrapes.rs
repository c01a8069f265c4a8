//! Passes metrics from the run to the endpoint's thread. They are collected on request, at most four times a second, between two turns of
//! the run loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use trace::metrics::Family;

/// Maximum age of metrics that are served again.
const FRESH: Duration = Duration::from_millis(250);
/// Maximum wait for the run, which normally answers within milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// Metrics collected last.
#[derive(Clone, Debug, Default)]
struct Latest {
    at: Option<Instant>,
    families: Arc<Vec<Family>>,
    /// Set after the end of the run: no newer metrics will follow.
    last: bool,
}

/// The run's side.
pub(super) struct MetricsPublisher {
    requested: Arc<AtomicBool>,
    latest: watch::Sender<Latest>,
}

/// The endpoint's side.
#[derive(Clone)]
pub(super) struct MetricsClient {
    requested: Arc<AtomicBool>,
    latest: watch::Receiver<Latest>,
}

/// Creates both sides.
pub(super) fn pair() -> (MetricsPublisher, MetricsClient) {
    let (sender, latest) = watch::channel(Latest::default());
    let requested = Arc::<AtomicBool>::default();
    let publisher = MetricsPublisher { requested: Arc::clone(&requested), latest: sender };
    (publisher, MetricsClient { requested, latest })
}

impl MetricsPublisher {
    pub(super) fn is_requested(&self) -> bool {
        self.requested.swap(false, Ordering::Relaxed)
    }

    /// Publishes metrics; `last` marks the final ones.
    pub(super) fn publish(&self, families: Vec<Family>, last: bool) {
        self.latest.send_replace(Latest { at: Some(Instant::now()), families: Arc::new(families), last });
    }
}

impl MetricsClient {
    /// Current metrics; `None` if the run does not answer.
    pub(super) async fn fetch(&mut self) -> Option<Arc<Vec<Family>>> {
        let fresh = |latest: &Latest| latest.last || latest.at.is_some_and(|at| at.elapsed() < FRESH);
        let known = self.latest.borrow_and_update().clone();
        if fresh(&known) {
            return Some(known.families);
        }
        self.requested.store(true, Ordering::Relaxed);
        let answer = tokio::time::timeout(PATIENCE, self.latest.changed()).await;
        matches!(answer, Ok(Ok(()))).then(|| Arc::clone(&self.latest.borrow_and_update().families))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_collected_on_request_and_the_final_ones_stay_available() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.expect("a runtime");
        let (publisher, mut client) = pair();
        assert!(!publisher.is_requested());
        let asker = std::thread::spawn(move || {
            let first = runtime.block_on(client.fetch());
            (first, runtime, client)
        });
        let began = Instant::now();
        while !publisher.is_requested() && began.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(1));
        }
        publisher.publish(Vec::new(), true);
        let (first, runtime, mut client) = asker.join().expect("no panic");
        assert!(first.is_some());
        std::thread::sleep(2 * FRESH);
        assert!(runtime.block_on(client.fetch()).is_some());
        assert!(!publisher.is_requested(), "final metrics need no request");
    }
}
