//! A PULL socket as libzmq with `RCVHWM=0` has it: what arrives is at once taken into memory without a limit, however
//! long the application leaves it there. So the kernel's queue is empty while hundreds of requests wait.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use bytes::Bytes;
use tokio::sync::Notify;
use zeromq::{PullSocket, Socket, SocketRecv, ZmqError};

/// Messages that have arrived and that the application has not taken. The load bounds it: clients have only so many
/// requests open.
#[derive(Clone, Debug, Default)]
pub(super) struct Inbox(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    messages: Mutex<VecDeque<Bytes>>,
    arrived: Notify,
}

impl Inbox {
    /// Binds `endpoint` and fills the inbox from it for as long as the runtime lives.
    pub(super) async fn bind(endpoint: &str) -> anyhow::Result<Self> {
        let mut socket = PullSocket::new();
        socket
            .bind(endpoint)
            .await
            .with_context(|| format!("cannot bind {endpoint}"))?;
        let inbox = Self::default();
        let filled = inbox.clone();
        tokio::spawn(async move {
            loop {
                match socket.recv().await {
                    Ok(message) => message.into_vec().into_iter().for_each(|part| filled.put(part)),
                    Err(ZmqError::NoMessage) => break,
                    // The connection is gone; the sender makes another one.
                    Err(error) => tracing::debug!(%error, "a demo connection ended"),
                }
            }
        });
        Ok(inbox)
    }

    /// A message has arrived.
    pub(super) fn put(&self, message: Bytes) {
        self.0
            .messages
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(message);
        self.0.arrived.notify_one();
    }

    /// `zmq_msg_recv`: the oldest message.
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

    /// The poll: returns when there is a message.
    pub(super) async fn wait(&self) {
        while self.is_empty() {
            self.0.arrived.notified().await;
        }
    }
}
