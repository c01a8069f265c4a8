//! A PULL socket like libzmq's with `RCVHWM=0`: arriving messages are read into memory immediately, without limit. The kernel's queue is
//! therefore empty while hundreds of requests wait.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use super::socket;

/// Messages that have arrived but that the application has not received. The load bounds it, since clients have a limited number of open
/// requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Inbox(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    messages: Mutex<VecDeque<Bytes>>,
    arrived: Notify,
}

impl Inbox {
    /// Binds `endpoint` and fills the inbox from it as long as the runtime lives.
    pub(super) fn bind(endpoint: &str) -> anyhow::Result<Self> {
        let inbox = Self::default();
        let filled = inbox.clone();
        socket::bind(endpoint, move |message| filled.push(message))?;
        Ok(inbox)
    }

    /// Adds an arrived message.
    pub(super) fn push(&self, message: Bytes) {
        self.0
            .messages
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(message);
        self.0.arrived.notify_one();
    }

    /// Removes the oldest message, like `zmq_msg_recv`.
    pub(super) fn take(&self) -> Option<Bytes> {
        self.0
            .messages
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0
            .messages
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty()
    }

    /// Waits until there is a message, like a poll.
    pub(super) async fn wait(&self) {
        while self.is_empty() {
            self.0.arrived.notified().await;
        }
    }
}
