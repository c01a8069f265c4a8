//! The stop signal, received by every task of the relay.

use tokio::sync::watch;

/// Sender of the stop signal.
#[derive(Debug)]
pub(super) struct Stopper(watch::Sender<bool>);

/// Receiver of the stop signal.
#[derive(Clone, Debug)]
pub(super) struct Stop(watch::Receiver<bool>);

pub(super) fn pair() -> (Stopper, Stop) {
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
