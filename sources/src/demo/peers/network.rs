//! Connections between the peers: ZMQ sockets, or memory in tests on a virtual clock.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use bytes::Bytes;
use tokio::sync::Notify;
use trace::{FrameId, HopId};
use zeromq::{PullSocket, PushSocket, Socket, SocketRecv, SocketSend};

#[cfg(test)]
use super::memory::{Lane, Memory};
use crate::demo::topology::HopPlan;

/// Transport between peers.
#[derive(Clone)]
pub(in crate::demo) enum Network {
    /// ZMQ sockets through the relay.
    Sockets(InFlight),
    #[cfg(test)]
    Memory(Memory),
}

impl Network {
    /// Connects through ZMQ sockets.
    pub(in crate::demo) fn sockets() -> Self {
        Self::Sockets(InFlight::default())
    }

    /// Inbox of the hop's receiver.
    pub(super) async fn bind(&self, hop: &HopPlan) -> anyhow::Result<Inbox> {
        match self {
            Self::Sockets(in_flight) => Inbox::bind(hop, in_flight.clone()).await,
            #[cfg(test)]
            Self::Memory(memory) => Ok(memory.bind(hop.id)),
        }
    }

    /// Opens a connection for a sender of the hop.
    pub(super) async fn connect(&self, hop: &HopPlan) -> anyhow::Result<Outlet> {
        match self {
            Self::Sockets(in_flight) => Ok(Outlet::Socket(Push::connect(hop, in_flight.clone()).await?)),
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
            Self::Socket(socket) => socket.send(message.into()).await,
            #[cfg(test)]
            Self::Memory(lane) => {
                lane.send(message.into());
                Ok(())
            }
        }
    }
}

/// Messages sent but not received, by hop and connection. A PULL socket does not tell which connection a message came through, but each
/// connection keeps its order. A received message is therefore the oldest of one of them.
#[derive(Clone, Debug, Default)]
pub(in crate::demo) struct InFlight(Arc<Mutex<HashMap<HopId, Vec<LaneInFlight>>>>);

#[derive(Debug, Default)]
struct LaneInFlight {
    messages: VecDeque<Bytes>,
    /// Number of received messages.
    received: u64,
}

impl InFlight {
    /// Adds a connection, and returns its number on the hop.
    fn add_lane(&self, hop: HopId) -> u32 {
        let mut lanes = self.lock();
        let lanes = lanes.entry(hop).or_default();
        lanes.push(LaneInFlight::default());
        lanes.len() as u32 - 1
    }

    fn add_sent(&self, hop: HopId, lane: u32, message: Bytes) {
        if let Some(lane) = self.lock().get_mut(&hop).and_then(|lanes| lanes.get_mut(lane as usize)) {
            lane.messages.push_back(message);
        }
    }

    /// Removes a received message, and returns its connection and its number there, as the relay counts them.
    fn remove_received(&self, hop: HopId, message: &Bytes) -> Option<FrameId> {
        let mut lanes = self.lock();
        for (lane, waiting) in (0..).zip(lanes.get_mut(&hop)?) {
            if waiting.messages.pop_front_if(|oldest| *oldest == *message).is_some() {
                let id = FrameId { hop, lane, seq: waiting.received };
                waiting.received += 1;
                return Some(id);
            }
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<HopId, Vec<LaneInFlight>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
    async fn bind(hop: &HopPlan, in_flight: InFlight) -> anyhow::Result<Self> {
        let mut socket = PullSocket::new();
        socket.bind(&hop.upstream).await.with_context(|| format!("cannot bind {}", hop.upstream))?;
        let (inbox, hop) = (Self::default(), hop.id);
        let filled = inbox.clone();
        tokio::spawn(async move {
            if let Err(error) = filled.pull(socket, hop, &in_flight).await {
                tracing::error!("a demo peer cannot receive: {error:#}");
            }
        });
        Ok(inbox)
    }

    async fn pull(&self, mut socket: PullSocket, hop: HopId, in_flight: &InFlight) -> anyhow::Result<()> {
        loop {
            let parts = socket.recv().await?.into_vec();
            let [message] = <[Bytes; 1]>::try_from(parts).ok().context("a message of several parts")?;
            let id = in_flight.remove_received(hop, &message).context("a message that no demo peer sent")?;
            self.push(id, message);
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

/// A connected PUSH socket.
pub(super) struct Push {
    socket: PushSocket,
    hop: HopId,
    lane: u32,
    in_flight: InFlight,
}

impl Push {
    /// Connects and completes the handshake. Senders connect one after the other, so the relay numbers the connections in the same order.
    async fn connect(hop: &HopPlan, in_flight: InFlight) -> anyhow::Result<Self> {
        let mut socket = PushSocket::new();
        socket.connect(&hop.listen).await.with_context(|| format!("cannot connect to {}", hop.listen))?;
        let lane = in_flight.add_lane(hop.id);
        Ok(Self { socket, hop: hop.id, lane, in_flight })
    }

    async fn send(&mut self, message: Bytes) -> anyhow::Result<()> {
        self.in_flight.add_sent(self.hop, self.lane, message.clone());
        self.socket.send(message.into()).await.context("a demo peer cannot send")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_messages_are_numbered_by_their_connection() {
        let (in_flight, hop) = (InFlight::default(), HopId(2));
        assert_eq!((in_flight.add_lane(hop), in_flight.add_lane(hop)), (0, 1));
        let message = Bytes::from_static;
        for (lane, text) in [(0, b"a"), (0, b"b"), (1, b"c"), (1, b"d")] {
            in_flight.add_sent(hop, lane, message(text));
        }
        let receive = |text| in_flight.remove_received(hop, &message(text)).map(|id| (id.lane, id.seq));
        assert_eq!([receive(b"c"), receive(b"a"), receive(b"d")], [Some((1, 0)), Some((0, 0)), Some((1, 1))]);
        assert_eq!([receive(b"d"), receive(b"b")], [None, Some((0, 1))], "each message is received once");
    }
}
