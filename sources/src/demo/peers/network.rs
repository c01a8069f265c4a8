//! Connections between the peers: ZMQ sockets, or memory in tests on a virtual clock.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use bytes::Bytes;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use trace::FrameId;

#[cfg(test)]
use super::memory::{Lane, Memory};
use super::zmtp;
use crate::demo::topology::HopPlan;

/// Transport between peers.
#[derive(Clone)]
pub(in crate::demo) enum Network {
    /// ZMQ sockets through the relay.
    Sockets,
    #[cfg(test)]
    Memory(Memory),
}

impl Network {
    /// Inbox of the hop's receiver.
    pub(super) fn bind(&self, hop: &HopPlan) -> anyhow::Result<Inbox> {
        match self {
            Self::Sockets => Inbox::bind(hop),
            #[cfg(test)]
            Self::Memory(memory) => Ok(memory.bind(hop.id)),
        }
    }

    /// Opens a connection for a sender of the hop.
    pub(super) async fn connect(&self, hop: &HopPlan) -> anyhow::Result<Outlet> {
        match self {
            Self::Sockets => Ok(Outlet::Socket(Push::connect(&hop.listen).await?)),
            #[cfg(test)]
            Self::Memory(memory) => Ok(Outlet::Memory(memory.connect(hop.id)?)),
        }
    }
}

/// Connection of a sender.
pub(super) enum Outlet {
    Socket(Push),
    #[cfg(test)]
    Memory(Lane),
}

impl Outlet {
    pub(super) async fn send(&mut self, message: Vec<u8>) -> anyhow::Result<()> {
        match self {
            Self::Socket(socket) => socket.send(&message).await.context("a demo peer cannot send"),
            #[cfg(test)]
            Self::Memory(lane) => {
                lane.send(message.into());
                Ok(())
            }
        }
    }
}

/// A PULL socket like libzmq's with `RCVHWM=0`: arriving messages are read into memory immediately, so the kernel's queue is empty while
/// hundreds of requests wait. The load bounds it, since clients have a limited number of open requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Inbox(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Each with its number on its connection, as the relay counts them.
    messages: Mutex<VecDeque<(FrameId, Bytes)>>,
    arrived: Notify,
}

impl Inbox {
    /// Binds the hop's upstream, and fills the inbox from it as long as the runtime lives.
    fn bind(hop: &HopPlan) -> anyhow::Result<Self> {
        let listener = path(&hop.upstream).and_then(|path| Ok(UnixListener::bind(path)?));
        let listener = listener.with_context(|| format!("cannot bind {}", hop.upstream))?;
        let (inbox, hop) = (Self::default(), hop.id);
        let filled = inbox.clone();
        tokio::spawn(async move {
            // The senders connect one after the other, so the relay's lanes have the same order.
            for lane in 0.. {
                let stream = match listener.accept().await {
                    Ok((stream, _)) => stream,
                    Err(error) => return tracing::error!("a demo peer cannot accept connections: {error}"),
                };
                let filled = filled.clone();
                tokio::spawn(async move {
                    if let Err(error) = filled.pull(stream, FrameId { hop, lane, seq: 0 }).await {
                        tracing::debug!(%error, "a demo connection ended");
                    }
                });
            }
        });
        Ok(inbox)
    }

    async fn pull(&self, mut stream: UnixStream, mut next: FrameId) -> io::Result<()> {
        stream.write_all(&zmtp::opening("PULL")).await?;
        let mut stream = BufReader::with_capacity(READ_BYTES, stream);
        zmtp::read_opening(&mut stream).await?;
        loop {
            self.push(next, zmtp::read_message(&mut stream).await?);
            next.seq += 1;
        }
    }

    /// Adds an arrived message.
    pub(super) fn push(&self, id: FrameId, message: Bytes) {
        self.messages().push_back((id, message));
        self.0.arrived.notify_one();
    }

    /// Removes the oldest message, like `zmq_msg_recv`.
    pub(super) fn take(&self) -> Option<(FrameId, Bytes)> {
        self.messages().pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages().is_empty()
    }

    /// Waits until there is a message, like a poll.
    pub(super) async fn wait(&self) {
        while self.is_empty() {
            self.0.arrived.notified().await;
        }
    }

    fn messages(&self) -> MutexGuard<'_, VecDeque<(FrameId, Bytes)>> {
        self.0.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes per read.
const READ_BYTES: usize = 64 * 1024;

/// A connected PUSH socket, over a Unix socket.
pub(super) struct Push(UnixStream);

impl Push {
    /// Connects and completes the handshake.
    async fn connect(endpoint: &str) -> anyhow::Result<Self> {
        let opened = async {
            let mut stream = UnixStream::connect(path(endpoint)?).await?;
            stream.write_all(&zmtp::opening("PUSH")).await?;
            // Nothing follows the handshake in this direction.
            zmtp::read_opening(&mut stream).await?;
            anyhow::Ok(Self(stream))
        };
        opened.await.with_context(|| format!("cannot connect to {endpoint}"))
    }

    async fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.0.write_all(&zmtp::message(message)).await
    }
}

fn path(endpoint: &str) -> anyhow::Result<&Path> {
    let path = endpoint.strip_prefix("ipc://").context("the demo's endpoints are ipc://")?;
    Ok(Path::new(path))
}
