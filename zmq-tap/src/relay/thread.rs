//! The relay thread and its file table.
//!
//! A descriptor must be closed in the table where its number is valid. Sockets and listeners are created on the thread and dropped there.
//! The runtime, which other threads wake, is created before the tables separate and is returned.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::GRACE;
use super::endpoint::Endpoint;
use super::error::RelayError;
use super::files::{ListenerReceiver, separate};

/// Objects that are valid in both file tables.
#[derive(Debug)]
struct Transferred {
    runtime: Runtime,
    listener_receiver: ListenerReceiver,
}

/// Handle to a relay thread.
#[derive(Debug)]
pub(super) struct Thread(JoinHandle<Option<Transferred>>);

impl Thread {
    /// Starts the thread, which runs `bind` and then `work` in the context of its runtime. Returns once all listeners are bound.
    pub(super) fn start<B>(
        listener_receiver: ListenerReceiver,
        bind: impl FnOnce() -> Result<(B, Vec<Endpoint>), RelayError> + Send + 'static,
        work: impl AsyncFnOnce(B, &ListenerReceiver) + Send + 'static,
    ) -> Result<(Self, Vec<Endpoint>), RelayError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(RelayError::Thread)?;
        let (sender, receiver) = sync_channel(1);
        let transferred = Transferred { runtime, listener_receiver };
        let thread = std::thread::Builder::new()
            .name("tokengap-relay".into())
            .spawn(move || {
                if let Err(error) = separate(&transferred.listener_receiver) {
                    tracing::debug!("the relay shares its files with the other threads: {error}");
                }
                let relayed = catch_unwind(AssertUnwindSafe(|| {
                    let context = transferred.runtime.enter();
                    let bound = bind().map(|(bound, listening)| (sender.send(Ok(listening)), bound));
                    drop(context);
                    match bound {
                        Ok((_, bound)) => transferred.runtime.block_on(work(bound, &transferred.listener_receiver)),
                        Err(error) => drop(sender.send(Err(error))),
                    }
                }));
                if relayed.is_err() {
                    tracing::error!("the relay's thread panicked");
                }
                transferred.drain()
            })
            .map_err(RelayError::Thread)?;
        let thread = Self(thread);
        match receiver.recv() {
            Ok(Ok(listening)) => Ok((thread, listening)),
            Ok(Err(error)) => {
                thread.join();
                Err(error)
            }
            Err(_) => Err(RelayError::Thread(io::Error::other("it ended before it was listening"))),
        }
    }

    /// Waits until the thread ends.
    pub(super) fn join(self) {
        if let Ok(Some(Transferred { runtime, listener_receiver })) = self.0.join() {
            drop(listener_receiver);
            runtime.shutdown_background();
        }
    }
}

impl Transferred {
    /// Waits until all tasks, and with them their sockets, are gone. Returns `None` if some tasks do not end; their sockets close with the
    /// table.
    fn drain(self) -> Option<Self> {
        let metrics = self.runtime.handle().metrics();
        let all = async {
            while metrics.num_alive_tasks() > 0 {
                yield_now().await;
            }
        };
        let ended = self.runtime.block_on(async { timeout(GRACE, all).await.is_ok() });
        if ended {
            Some(self)
        } else {
            tracing::error!("a connection's task does not end");
            std::mem::forget(self);
            None
        }
    }
}

/// Sender of the stop signal.
#[derive(Debug)]
pub(super) struct Stopper(watch::Sender<bool>);

/// Receiver of the stop signal.
#[derive(Clone, Debug)]
pub(super) struct Stop(watch::Receiver<bool>);

pub(super) fn stop_signal() -> (Stopper, Stop) {
    let (sender, receiver) = watch::channel(false);
    (Stopper(sender), Stop(receiver))
}

impl Stopper {
    pub(super) fn send(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    /// Returns once the signal is sent, or the sender is dropped.
    pub(super) async fn received(&mut self) {
        let _ = self.0.wait_for(|stop| *stop).await;
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
