//! Connections between the peers: ZMQ sockets, or memory in tests on a virtual clock.

use anyhow::Context;

use super::inbox::Inbox;
#[cfg(test)]
use super::memory::{Lane, Memory};
use super::socket::Push;
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
            Self::Sockets => Inbox::bind(&hop.upstream),
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

/// A connected PUSH socket.
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
