//! Work on files of other processes, which may never return: a file may be on a file system that does not answer. It runs on a thread that
//! is abandoned when the program ends.

use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use session::{About, Flow, LiveSource, Signals};
use trace::event::Event;

/// Interval of checks for signals.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Time that the start may take in addition to `--duration`, which counts from the attach.
const START_TIME: Duration = Duration::from_secs(5);

/// Work on a thread of its own.
struct Background<T> {
    result: Receiver<T>,
}

/// The work panicked, which has been printed.
#[derive(Debug)]
struct Crashed;

impl fmt::Display for Crashed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a thread of tokengap crashed. Please report this bug.")
    }
}

impl std::error::Error for Crashed {}

impl<T: Send + 'static> Background<T> {
    /// Starts the work on a thread of its own, which is never joined.
    fn start(work: impl FnOnce() -> T + Send + 'static) -> std::io::Result<Self> {
        let (sender, result) = channel();
        thread::Builder::new().name("background".into()).spawn(move || {
            // Fails only if nobody waits for the result any more.
            let _ = sender.send(work());
        })?;
        Ok(Self { result })
    }
}

/// Start of a run, which a signal or the end of `--duration` interrupts.
pub struct StartUp<'a> {
    signals: &'a Signals,
    deadline: Option<Instant>,
}

impl<'a> StartUp<'a> {
    /// A start that begins now.
    pub fn new(signals: &'a Signals, duration: Option<Duration>) -> Self {
        let deadline = duration.and_then(|duration| Instant::now().checked_add(duration.saturating_add(START_TIME)));
        Self { signals, deadline }
    }

    /// Runs this work on a thread of its own and waits for its result. `None` if a signal or the end of `--duration` came first: the
    /// thread then goes on, because the work may never return.
    pub fn run_until_end_requested<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<Option<T>> {
        let background = Background::start(work)?;
        loop {
            // A signal does not end the wait for the channel, so it is looked for in between.
            match background.result.recv_timeout(CHECK_INTERVAL) {
                Ok(result) => return result.map(Some),
                // The thread has ended without a result, so the work has panicked.
                Err(RecvTimeoutError::Disconnected) => return Err(Crashed.into()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.is_end_requested() {
                return Ok(None);
            }
        }
    }

    /// Whether a signal asks for the end, or the time of `--duration` is over.
    fn is_end_requested(&self) -> bool {
        let is_time_over = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        self.signals.end_request_count() > 0 || is_time_over
    }
}

/// A run that ended before it observed an engine.
pub struct Unattached {
    /// Step of the start that had not finished.
    pub unfinished: &'static str,
}

impl About for Unattached {
    fn kind(&self) -> &'static str {
        "attach"
    }

    fn is_attached(&self) -> bool {
        false
    }

    /// Says in the report which step of the start had not finished when the run ended.
    fn degraded_lines(&self) -> Vec<String> {
        vec![format!(
            "engine: nothing was observed: the run ended before tokengap had finished {}; a file of a process may not answer",
            self.unfinished
        )]
    }
}

impl LiveSource for Unattached {
    fn poll(&mut self, _: &mut dyn FnMut(&Event<'_>)) -> Flow {
        Flow::Ended
    }

    fn stop(&mut self) {}

    fn keep_ids(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_never_returns_is_abandoned_at_the_end_of_the_duration() {
        let signals = Signals::none();
        let start_up = StartUp { signals: &signals, deadline: Some(Instant::now() + Duration::from_millis(50)) };
        let begun = Instant::now();
        let result = start_up.run_until_end_requested(|| {
            thread::sleep(Duration::from_mins(10));
            Ok(())
        });
        assert!(matches!(result, Ok(None)), "{result:?}");
        assert!(begun.elapsed() < Duration::from_mins(1));
        assert_eq!(start_up.run_until_end_requested(|| Ok(7)).unwrap(), Some(7));
    }

    #[test]
    fn a_crash_of_the_work_is_an_error() {
        let signals = Signals::none();
        let start_up = StartUp::new(&signals, None);
        let result = start_up.run_until_end_requested(|| -> anyhow::Result<()> { panic!("on purpose") });
        assert!(result.unwrap_err().to_string().contains("crashed"));
    }
}
