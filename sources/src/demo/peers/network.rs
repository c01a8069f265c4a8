//! Connections between the peers: ZMQ sockets, or memory in tests on a virtual clock.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use bytes::Bytes;
use tokio::sync::Notify;
use trace::{FrameId, HopId};
use zeromq::{PullSocket, PushSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

#[cfg(test)]
use super::memory::{Memory, MemoryLane};
use crate::demo::topology::HopPlan;

/// A message: its parts.
pub(in crate::demo) type Parts = Vec<Bytes>;

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

    /// Binds the upstream of a hop, and returns the inbox of its receiver.
    pub(super) async fn bind(&self, hop: &HopPlan) -> anyhow::Result<Inbox> {
        match self {
            Self::Sockets(in_flight) => Inbox::bind(hop, in_flight.clone()).await,
            #[cfg(test)]
            Self::Memory(memory) => Ok(memory.inbox_of(hop.id)),
        }
    }

    /// Opens a connection for a sender of the hop.
    pub(super) async fn connect(&self, hop: &HopPlan) -> anyhow::Result<Outlet> {
        match self {
            Self::Sockets(in_flight) => Ok(Outlet::Socket(Push::connect(hop, in_flight.clone()).await?)),
            #[cfg(test)]
            Self::Memory(memory) => Ok(Outlet::Memory(memory.open_lane(hop.id)?)),
        }
    }
}

/// Connection of a sender.
pub(super) enum Outlet {
    Socket(Push),
    #[cfg(test)]
    Memory(MemoryLane),
}

impl Outlet {
    /// Sends a message to the receiver of the hop.
    pub(super) async fn send(&mut self, message: Parts) -> anyhow::Result<()> {
        match self {
            Self::Socket(socket) => socket.send(message).await,
            #[cfg(test)]
            Self::Memory(lane) => {
                lane.send(message);
                Ok(())
            }
        }
    }
}

/// Messages sent but not received, by hop and connection. A PULL socket does not tell which connection a message came through, but each
/// connection keeps its order. A received message is therefore the oldest of one of them.
#[derive(Clone, Debug, Default)]
pub(in crate::demo) struct InFlight {
    lanes: Arc<Mutex<HashMap<HopId, Vec<LaneInFlight>>>>,
}

#[derive(Debug, Default)]
struct LaneInFlight {
    messages: VecDeque<Parts>,
    /// Number of received messages.
    received: u64,
}

impl InFlight {
    /// Adds a connection, and returns its number on the hop.
    fn add_lane(&self, hop: HopId) -> u32 {
        let mut by_hop = self.lock();
        let lanes = by_hop.entry(hop).or_default();
        lanes.push(LaneInFlight::default());
        lanes.len() as u32 - 1
    }

    /// Remembers a message of a lane until it is received.
    fn add_sent(&self, hop: HopId, lane: u32, message: Parts) {
        if let Some(lane) = self.lock().get_mut(&hop).and_then(|lanes| lanes.get_mut(lane as usize)) {
            lane.messages.push_back(message);
        }
    }

    /// Removes a received message, and returns its id: the number of its connection (lane), and its own number there, as the relay counts
    /// them. `None` if no sender of the hop has sent it.
    fn remove_received_and_identify(&self, hop: HopId, message: &Parts) -> Option<FrameId> {
        let mut by_hop = self.lock();
        // The connections of a hop are numbered from 0.
        for (lane, waiting) in (0..).zip(by_hop.get_mut(&hop)?) {
            // Only the oldest message of a connection can be the next one received.
            if waiting.messages.pop_front_if(|oldest| *oldest == *message).is_some() {
                let id = FrameId { hop, lane, seq: waiting.received };
                waiting.received += 1;
                return Some(id);
            }
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<HopId, Vec<LaneInFlight>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A queue whose receiver can wait. The load bounds it, since clients have a limited number of open requests.
#[derive(Debug)]
pub(super) struct Queue<T> {
    state: Arc<QueueState<T>>,
}

#[derive(Debug)]
struct QueueState<T> {
    items: Mutex<VecDeque<T>>,
    has_items: Notify,
}

/// A PULL socket like libzmq's with `RCVHWM=0`: arriving messages are read into memory immediately, so the kernel's queue is empty while
/// hundreds of requests wait.
pub(super) type Inbox = Queue<InboxMessage>;

/// A message with its number on its connection, as the relay counts them.
#[derive(Debug)]
pub(super) struct InboxMessage {
    pub(super) id: FrameId,
    pub(super) parts: Parts,
}

impl Inbox {
    /// Binds the hop's upstream, and fills the inbox from it as long as the runtime lives.
    async fn bind(hop: &HopPlan, in_flight: InFlight) -> anyhow::Result<Self> {
        let mut socket = PullSocket::new();
        socket.bind(&hop.upstream).await.with_context(|| format!("cannot bind {}", hop.upstream))?;
        let inbox = Self::default();
        let inbox_to_fill = inbox.clone();
        let hop_id = hop.id;
        tokio::spawn(async move {
            if let Err(error) = inbox_to_fill.pull_messages(socket, hop_id, &in_flight).await {
                tracing::error!("a demo peer cannot receive: {error:#}");
            }
        });
        Ok(inbox)
    }

    /// Moves messages from the socket to the inbox until the socket fails. The socket does not show through which connection a message
    /// came, so its sender's copy is looked up.
    async fn pull_messages(&self, mut socket: PullSocket, hop: HopId, in_flight: &InFlight) -> anyhow::Result<()> {
        loop {
            let parts = socket.recv().await?.into_vec();
            let id = in_flight.remove_received_and_identify(hop, &parts).context("a message that no demo peer sent")?;
            self.push(InboxMessage { id, parts });
        }
    }
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { state: Arc::new(QueueState { items: Mutex::default(), has_items: Notify::new() }) }
    }
}

impl<T> Clone for Queue<T> {
    fn clone(&self) -> Self {
        Self { state: Arc::clone(&self.state) }
    }
}

impl<T> Queue<T> {
    pub(super) fn push(&self, item: T) {
        self.items().push_back(item);
        self.state.has_items.notify_one();
    }

    /// Removes the oldest item, like `zmq_msg_recv`; `None` if there is none.
    pub(super) fn take_oldest(&self) -> Option<T> {
        self.items().pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items().is_empty()
    }

    /// Waits until there is an item, like a poll.
    pub(super) async fn wait_for_item(&self) {
        while self.is_empty() {
            self.state.has_items.notified().await;
        }
    }

    fn items(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.state.items.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Sends a message through the socket.
    async fn send(&mut self, message: Parts) -> anyhow::Result<()> {
        // Before the send: the receiver looks for it at once.
        self.in_flight.add_sent(self.hop, self.lane, message.clone());
        let message = ZmqMessage::try_from(message).ok().context("a message without parts")?;
        self.socket.send(message).await.context("a demo peer cannot send")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_messages_are_numbered_by_their_connection() {
        let (in_flight, hop) = (InFlight::default(), HopId(2));
        assert_eq!((in_flight.add_lane(hop), in_flight.add_lane(hop)), (0, 1));
        let message = |text| vec![Bytes::from_static(text)];
        for (lane, text) in [(0, b"a"), (0, b"b"), (1, b"c"), (1, b"d")] {
            in_flight.add_sent(hop, lane, message(text));
        }
        let receive = |text| in_flight.remove_received_and_identify(hop, &message(text)).map(|id| (id.lane, id.seq));
        assert_eq!([receive(b"c"), receive(b"a"), receive(b"d")], [Some((1, 0)), Some((0, 0)), Some((1, 1))]);
        assert_eq!([receive(b"d"), receive(b"b")], [None, Some((0, 1))], "each message is received once");
    }
}
