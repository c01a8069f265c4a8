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
pub(super) struct Answers {
    wanted: Arc<AtomicBool>,
    latest: watch::Sender<Latest>,
}

/// The endpoint's side.
#[derive(Clone)]
pub(super) struct Questions {
    wanted: Arc<AtomicBool>,
    latest: watch::Receiver<Latest>,
}

/// Creates both sides.
pub(super) fn pair() -> (Answers, Questions) {
    let (sender, latest) = watch::channel(Latest::default());
    let wanted = Arc::<AtomicBool>::default();
    let answers = Answers {
        wanted: Arc::clone(&wanted),
        latest: sender,
    };
    (answers, Questions { wanted, latest })
}

impl Answers {
    /// Returns whether a request is pending.
    pub(super) fn wanted(&self) -> bool {
        self.wanted.swap(false, Ordering::Relaxed)
    }

    /// Publishes metrics; `last` marks the final ones.
    pub(super) fn give(&self, families: Vec<Family>, last: bool) {
        self.latest.send_replace(Latest {
            at: Some(Instant::now()),
            families: Arc::new(families),
            last,
        });
    }
}

impl Questions {
    /// Current metrics; `None` if the run does not answer.
    pub(super) async fn ask(&mut self) -> Option<Arc<Vec<Family>>> {
        let fresh = |latest: &Latest| latest.last || latest.at.is_some_and(|at| at.elapsed() < FRESH);
        let known = self.latest.borrow_and_update().clone();
        if fresh(&known) {
            return Some(known.families);
        }
        self.wanted.store(true, Ordering::Relaxed);
        let answer = tokio::time::timeout(PATIENCE, self.latest.changed()).await;
        matches!(answer, Ok(Ok(()))).then(|| Arc::clone(&self.latest.borrow_and_update().families))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_collects_unasked_and_the_last_numbers_stay() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.expect("a runtime");
        let (answers, mut questions) = pair();
        assert!(!answers.wanted());
        let asker = std::thread::spawn(move || {
            let first = runtime.block_on(questions.ask());
            (first, runtime, questions)
        });
        let began = Instant::now();
        while !answers.wanted() && began.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(1));
        }
        answers.give(Vec::new(), true);
        let (first, runtime, mut questions) = asker.join().expect("no panic");
        assert!(first.is_some());
        std::thread::sleep(2 * FRESH);
        assert!(runtime.block_on(questions.ask()).is_some());
        assert!(!answers.wanted(), "after the last numbers nobody is asked");
    }
}
