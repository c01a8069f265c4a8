//! Connections between the peers: ZMQ sockets, or memory in tests on a virtual clock.

use anyhow::Context;
use zeromq::{PushSocket, Socket, SocketSend};

use super::inbox::Inbox;
#[cfg(test)]
use super::memory::{Lane, Memory};
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
    pub(super) async fn bind(&self, hop: &HopPlan) -> anyhow::Result<Inbox> {
        match self {
            Self::Sockets => Inbox::bind(&hop.upstream).await,
            #[cfg(test)]
            Self::Memory(memory) => Ok(memory.bind(hop.id)),
        }
    }

    /// Opens a connection for a sender of the hop.
    pub(super) async fn connect(&self, hop: &HopPlan) -> anyhow::Result<Outlet> {
        match self {
            Self::Sockets => Outlet::connect(&hop.listen).await,
            #[cfg(test)]
            Self::Memory(memory) => Ok(Outlet::Memory(memory.connect(hop.id)?)),
        }
    }
}

/// A connected PUSH socket.
pub(super) enum Outlet {
    Socket(PushSocket),
    #[cfg(test)]
    Memory(Lane),
}

impl Outlet {
    async fn connect(endpoint: &str) -> anyhow::Result<Self> {
        let mut socket = PushSocket::new();
        socket
            .connect(endpoint)
            .await
            .with_context(|| format!("cannot connect to {endpoint}"))?;
        Ok(Self::Socket(socket))
    }

    pub(super) async fn send(&mut self, message: Vec<u8>) -> anyhow::Result<()> {
        match self {
            Self::Socket(socket) => socket.send(message.into()).await.context("a demo peer cannot send"),
            #[cfg(test)]
            Self::Memory(lane) => {
                lane.send(message.into());
                Ok(())
            }
        }
    }
}
