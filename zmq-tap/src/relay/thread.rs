//! The relay thread and its file table.
//!
//! A descriptor must be closed in the table where its number is valid. The thread drops the sockets that it creates and the listeners that
//! it receives. The runtime, which other threads wake, is created before the tables separate and is returned.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;

use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::GRACE;
use super::files::{ListenerReceiver, separate_file_table};

/// Objects that are valid in both file tables.
#[derive(Debug)]
struct Transferred {
    runtime: Runtime,
    listener_receiver: ListenerReceiver,
}

/// The running thread, to be joined.
#[derive(Debug)]
pub(super) struct RelayThread {
    /// Returns `None` if some of its tasks did not end.
    handle: JoinHandle<Option<Transferred>>,
}

impl RelayThread {
    /// Starts the thread, which runs `work` in a runtime. At its end, the thread returns the runtime and the receiver, which [`Self::join`]
    /// closes in the file table of the process. Without permission for its own file table, the thread shares that of the process.
    pub(super) fn start(
        listener_receiver: ListenerReceiver,
        work: impl AsyncFnOnce(&ListenerReceiver) + Send + 'static,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let transferred = Transferred { runtime, listener_receiver };
        let thread = std::thread::Builder::new().name("tokengap-relay".into()).spawn(move || {
            if let Err(error) = separate_file_table(&transferred.listener_receiver) {
                tracing::debug!("the relay shares its files with the other threads: {error}");
            }
            let run_work = || transferred.runtime.block_on(work(&transferred.listener_receiver));
            // Caught, so that the runtime is returned to the other thread all the same.
            if catch_unwind(AssertUnwindSafe(run_work)).is_err() {
                tracing::error!("the relay's thread panicked");
            }
            transferred.wait_for_tasks()
        })?;
        Ok(Self { handle: thread })
    }

    /// Waits until the thread ends, and closes the files that it leaves in the table of the calling thread. Closes nothing if the thread
    /// panicked, or if some of its tasks did not end.
    pub(super) fn join(self) {
        if let Ok(Some(Transferred { runtime, listener_receiver })) = self.handle.join() {
            drop(listener_receiver);
            runtime.shutdown_background();
        }
    }
}

impl Transferred {
    /// Waits until all tasks, and with them their sockets, are gone. Returns `None` if some tasks do not end; their sockets close with the
    /// table of the thread.
    fn wait_for_tasks(self) -> Option<Self> {
        let metrics = self.runtime.handle().metrics();
        let all_tasks_ended = async {
            while metrics.num_alive_tasks() > 0 {
                yield_now().await;
            }
        };
        let have_ended = self.runtime.block_on(async { timeout(GRACE, all_tasks_ended).await.is_ok() });
        if have_ended {
            Some(self)
        } else {
            tracing::error!("a connection's task does not end");
            // The joining thread has another file table. A drop there would close other files, which have the numbers of these sockets.
            std::mem::forget(self);
            None
        }
    }
}

/// A signal that is sent once. Clones share it, and any number of tasks can wait for it.
#[derive(Clone, Debug, Default)]
pub struct Signal {
    sent: watch::Sender<bool>,
}

impl Signal {
    /// Creates a signal that is already sent.
    pub fn sent() -> Self {
        Self { sent: watch::Sender::new(true) }
    }

    /// Sends the signal.
    pub fn send(&self) {
        self.sent.send_replace(true);
    }

    /// Waits until the signal is sent.
    pub(super) async fn received(&self) {
        // `wait_for` fails only when every sender is dropped, and `self` is one.
        let _ = self.sent.subscribe().wait_for(|sent| *sent).await;
    }
}

/// On a busy machine the relay thread then gets three times the CPU share. A higher value is harmful where the relay thread does not have
/// its own file table. There, a killed process closes its sockets only when its last thread has been scheduled to exit (numbers in
/// docs/internals/RELIABILITY.md).
const NICE: i32 = 5;

/// Lowers the priority of the calling thread, which polls and decodes. When the engine uses all CPUs, observations then wait (within the
/// relay's budget) and messages do not. Needs no privilege and cannot be reversed.
pub fn lower_priority() -> io::Result<()> {
    // For this call Linux takes "this process" to mean the calling thread.
    Ok(rustix::process::setpriority_process(None, NICE)?)
}

#[cfg(test)]
mod tests {
    use rustix::process::getpriority_process;

    #[test]
    fn only_the_calling_thread_is_niced() {
        let before = getpriority_process(None).expect("readable");
        let inside = std::thread::spawn(|| {
            super::lower_priority().expect("needs no privilege");
            getpriority_process(None).expect("readable")
        });
        assert_eq!(inside.join().expect("the thread ends"), before.max(super::NICE));
        assert_eq!(getpriority_process(None).expect("readable"), before);
    }
}
