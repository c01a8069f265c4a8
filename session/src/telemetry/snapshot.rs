//! Passes a state of the run to the endpoint's thread. It is made on request, at most four times a second, between two turns of the run
//! loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// Maximum age of a snapshot that is served again.
const MAX_AGE: Duration = Duration::from_millis(250);

/// The snapshot made last.
#[derive(Debug)]
struct Latest<T> {
    at: Instant,
    content: Arc<T>,
    /// Set after the end of the run: no newer snapshot will follow.
    is_final: bool,
}

/// The run's side.
pub(super) struct SnapshotPublisher<T> {
    requested: Arc<AtomicBool>,
    latest: watch::Sender<Option<Latest<T>>>,
}

/// The endpoint's side.
pub(super) struct SnapshotClient<T> {
    requested: Arc<AtomicBool>,
    latest: watch::Receiver<Option<Latest<T>>>,
}

impl<T> Clone for SnapshotClient<T> {
    fn clone(&self) -> Self {
        Self { requested: Arc::clone(&self.requested), latest: self.latest.clone() }
    }
}

/// Creates both sides of one kind of snapshot. The run keeps the publisher, and the endpoint the client.
pub(super) fn snapshot_pair<T>() -> (SnapshotPublisher<T>, SnapshotClient<T>) {
    let (sender, latest) = watch::channel(None);
    let requested = Arc::<AtomicBool>::default();
    let publisher = SnapshotPublisher { requested: Arc::clone(&requested), latest: sender };
    (publisher, SnapshotClient { requested, latest })
}

impl<T> SnapshotPublisher<T> {
    /// Whether a client has requested a snapshot since the last call.
    pub(super) fn take_request(&self) -> bool {
        self.requested.swap(false, Ordering::Relaxed)
    }

    /// Publishes a snapshot. After a final one, the run makes no more.
    pub(super) fn publish(&self, content: T, is_final: bool) {
        self.latest.send_replace(Some(Latest { at: Instant::now(), content: Arc::new(content), is_final }));
    }
}

impl<T> SnapshotClient<T> {
    /// Current snapshot. Requests a new one from the run if the latest is too old. `None` if the run does not answer within `max_wait`.
    pub(super) async fn fetch(&self, max_wait: Duration) -> Option<Arc<T>> {
        let mut latest = self.latest.clone();
        // The final snapshot of a run stays valid, whatever its age.
        if let Some(known) = latest.borrow_and_update().as_ref()
            && (known.is_final || known.at.elapsed() < MAX_AGE)
        {
            return Some(Arc::clone(&known.content));
        }
        self.requested.store(true, Ordering::Relaxed);
        let changed_in_time = tokio::time::timeout(max_wait, latest.changed()).await;
        // The outer error means that the run was too slow, the inner one that it is gone.
        changed_in_time.ok()?.ok()?;
        latest.borrow().as_ref().map(|snapshot| Arc::clone(&snapshot.content))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(5);

    #[test]
    fn snapshots_are_made_on_request_and_the_final_one_stays_available() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.expect("a runtime");
        let (publisher, client) = snapshot_pair();
        assert!(!publisher.take_request());
        let asker = std::thread::spawn(move || {
            let first = runtime.block_on(client.fetch(SOON));
            (first, runtime, client)
        });
        let began = Instant::now();
        while !publisher.take_request() && began.elapsed() < SOON {
            std::thread::sleep(Duration::from_millis(1));
        }
        publisher.publish(7, true);
        let (first, runtime, client) = asker.join().expect("no panic");
        assert_eq!(first.as_deref(), Some(&7));
        std::thread::sleep(2 * MAX_AGE);
        assert_eq!(runtime.block_on(client.fetch(SOON)).as_deref(), Some(&7));
        assert!(!publisher.take_request(), "the final snapshot needs no request");
    }
}
