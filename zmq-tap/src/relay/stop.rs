//! The word to stop, heard by every task of the relay.

use tokio::sync::watch;

/// Says it.
#[derive(Debug)]
pub(super) struct Stopper(watch::Sender<bool>);

/// Hears it.
#[derive(Clone, Debug)]
pub(super) struct Stop(watch::Receiver<bool>);

pub(super) fn pair() -> (Stopper, Stop) {
    let (say, hear) = watch::channel(false);
    (Stopper(say), Stop(hear))
}

impl Stopper {
    pub(super) fn say(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    /// Returns once it was said, or nobody is left to say it.
    pub(super) async fn heard(&mut self) {
        let _ = self.0.wait_for(|stop| *stop).await;
    }
}
