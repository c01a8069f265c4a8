//! The feed's thread: accepts watchers, encodes the run's jobs, and queues them for the watchers.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use rmp_serde::to_vec_named;
use serde::Serialize;
use serde_bytes::ByteBuf;
use tokio::sync::mpsc::Receiver;
use tokio::task::{AbortHandle, JoinSet};
use trace::Event;
use trace::record::{BlockPacker, BlockReader, Record};

use super::queue::Queue;
use super::shared::{Job, Shared, State};
use super::{PublishOptions, peer};
use crate::message::{self, About, Block, Kind, Start, Topic, events_body};
use crate::zmtp;

/// Time limit for emptying the queues at the end.
const LAST: Duration = Duration::from_millis(1_500);

pub(super) async fn serve(
    listener: TcpListener,
    options: PublishOptions,
    shared: Arc<Shared>,
    mut jobs: Receiver<Job>,
) {
    let started = tokio::net::TcpListener::from_std(listener).and_then(|l| Ok((l, BlockPacker::new()?)));
    let (listener, packer) = match started {
        Ok(started) => started,
        Err(error) => return shared.report_problem(format!("feed: cannot serve: {error}")),
    };
    let mut sender =
        Sender { shared: Arc::clone(&shared), packer, events: EventBodies::default(), seq: [0; Topic::ALL.len()] };
    let (options, mut peers) = (Arc::new(options), JoinSet::new());
    let mut open = Vec::new();
    loop {
        tokio::select! {
            job = jobs.recv() => match job {
                Some(Job::End(last, done)) => {
                    sender.end(*last);
                    drop(listener);
                    tokio::time::timeout(LAST, async { while peers.join_next().await.is_some() {} }).await.ok();
                    done.send(()).ok();
                    return;
                }
                Some(job) => sender.job(job),
                None => return,
            },
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) => {
                    let Ok(evicted) = make_room(&mut open, options.watchers) else {
                        shared.refuse(format_args!("{from}: the limit of {} watchers is reached (--feed-watchers)", options.watchers));
                        continue;
                    };
                    if let Some(oldest) = evicted {
                        shared.refuse(format_args!("{oldest}: replaced by a newer connection before it sent its request (--feed-watchers)"));
                    }
                    let queue = Arc::new(Queue::new(options.queue_bytes));
                    let (options, shared, peer_queue) = (Arc::clone(&options), Arc::clone(&shared), Arc::clone(&queue));
                    let task = peers.spawn(async move {
                        let served = peer::serve(stream, &options, &peer_queue, &shared).await;
                        shared.left(&peer_queue);
                        match served {
                            Ok(()) => tracing::info!("feed: the watcher at {from} disconnected"),
                            Err(error) if peer::is_refused(&error) => shared.refuse(format_args!("{from}: {error}")),
                            Err(error) => tracing::info!("feed: the watcher at {from}: {error}"),
                        }
                    });
                    open.push(Connection { from, queue, task });
                }
                Err(error) => {
                    // Probably out of file descriptors: pause, or the same error would repeat at once.
                    tracing::warn!("feed: cannot accept: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = peers.join_next() => {}
        }
    }
}

/// A message's body as msgpack.
type Body = Result<Vec<u8>, rmp_serde::encode::Error>;

struct Sender {
    shared: Arc<Shared>,
    packer: BlockPacker,
    events: EventBodies,
    /// Number of the last message of each topic.
    seq: [u64; Topic::ALL.len()],
}

impl Sender {
    fn job(&mut self, job: Job) {
        match job {
            Job::Block(block) => match self.packer.pack(&block).map(Bytes::copy_from_slice) {
                Ok(packed) => {
                    let block = Block { block: ByteBuf::from(&packed[..]) };
                    self.send(Topic::Stream, Kind::Block, to_vec_named(&block));
                    if self.shared.any(|queue| queue.wants(Topic::Events)) {
                        let events = self.events.of(&packed);
                        self.send(Topic::Events, Kind::Events, Ok(events));
                    }
                }
                Err(error) => self.failed(&error),
            },
            Job::Start(state) => self.start(*state),
            Job::About(closing) => self.send(Topic::Stream, Kind::About, to_vec_named(&About { closing: *closing })),
            Job::Report(report) => self.send(Topic::Report, Kind::Report, to_vec_named(&*report)),
            Job::End(..) => {}
        }
    }

    fn start(&mut self, state: State) {
        if let Some(message) = self.state(state) {
            self.shared.queues().iter().for_each(|q| q.start(&message));
        }
        self.shared.started.fetch_add(1, Ordering::Release);
    }

    fn end(&mut self, last: State) {
        let closing = last.closing.clone();
        let state = self.state(last);
        let end = self.next(Topic::Stream, Kind::End, to_vec_named(&About { closing }));
        for queue in &*self.shared.queues() {
            queue.end(state.as_ref(), end.as_ref());
        }
    }

    fn state(&self, state: State) -> Option<Bytes> {
        let packed = |image: Option<crate::Image>| image.and_then(|i| i.pack().ok()).map(ByteBuf::from);
        let header = &self.shared.header;
        let start = Start {
            tokengap: header.tokengap.clone(),
            source: header.source.clone(),
            config: header.config,
            payload: header.payload,
            record: state.record,
            closing: state.closing,
            image: packed(state.image),
            history: packed(state.history),
        };
        self.message(Topic::Stream, Kind::Start, to_vec_named(&start))
    }

    fn send(&mut self, topic: Topic, kind: Kind, body: Body) {
        if let Some(message) = self.next(topic, kind, body) {
            for queue in &*self.shared.queues() {
                match topic {
                    Topic::Stream => queue.stream(&message),
                    Topic::Report | Topic::Events => queue.offer(topic, &message),
                }
            }
        }
    }

    /// Encodes a message with the next number.
    fn next(&mut self, topic: Topic, kind: Kind, body: Body) -> Option<Bytes> {
        self.seq[topic as usize] += 1;
        self.message(topic, kind, body)
    }

    fn message(&self, topic: Topic, kind: Kind, body: Body) -> Option<Bytes> {
        let head = self.shared.head(kind, self.seq[topic as usize]);
        let encoded = body.and_then(|body| message::encode(&head, &body)).map_err(io::Error::other);
        let bytes = encoded.inspect_err(|error| self.failed(error)).ok()?;
        Some(zmtp::message(&[topic.name().as_bytes(), &bytes]))
    }

    fn failed(&self, error: &io::Error) {
        self.shared.report_problem(format!("feed: cannot encode a message: {error}"));
        self.shared.skip();
    }
}

/// Decodes the events of blocks for any msgpack reader, on the feed's thread and only while someone subscribes to them.
#[derive(Default)]
struct EventBodies {
    reader: BlockReader,
    bytes: Vec<u8>,
}

impl EventBodies {
    /// Returns the message body with the events of the block.
    fn of(&mut self, block: &[u8]) -> Vec<u8> {
        let Self { reader, bytes } = self;
        bytes.clear();
        let mut count = 0;
        let mut write = |event: &Event<'_>| {
            let start = bytes.len();
            let mut to = rmp_serde::Serializer::new(&mut *bytes).with_struct_map();
            if event.serialize(&mut to).is_ok() {
                count += 1;
            } else {
                bytes.truncate(start);
            }
        };
        let read = reader.read(block, &mut |record| {
            if let Record::Event(event) = record {
                write(&event);
            }
        });
        if let Err(error) = read {
            tracing::warn!("feed: {error}. Please report this bug.");
        }
        events_body(count, bytes)
    }
}

struct Connection {
    from: SocketAddr,
    queue: Arc<Queue>,
    task: AbortHandle,
}

impl Connection {
    fn is_pending(&self) -> bool {
        !self.queue.is_subscribed()
    }

    /// Address of the peer, or its network of 64 bits, of which one machine can use every address.
    fn source(&self) -> IpAddr {
        match self.from.ip().to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
            address @ IpAddr::V4(_) => address,
        }
    }
}

/// Makes room for a new connection among the `open` ones, which are in the order of their age. At the limit, one without a subscription is
/// closed and its peer returned; an error if all have subscriptions. It is the oldest of the source with most of them, so that a flood from
/// one source displaces only itself.
fn make_room(open: &mut Vec<Connection>, limit: usize) -> Result<Option<SocketAddr>, ()> {
    open.retain(|connection| !connection.task.is_finished());
    if open.iter().filter(|connection| connection.queue.is_subscribed()).count() >= limit {
        return Err(());
    }
    if open.len() < limit {
        return Ok(None);
    }
    let mut pending_by_source: HashMap<IpAddr, usize> = HashMap::new();
    for connection in open.iter().filter(|connection| connection.is_pending()) {
        *pending_by_source.entry(connection.source()).or_default() += 1;
    }
    let most = pending_by_source.values().copied().max().ok_or(())?;
    let is_of_busiest =
        |connection: &Connection| connection.is_pending() && pending_by_source[&connection.source()] == most;
    // This peer has not joined, and its task does not run before the abort takes effect: no other state refers to it.
    let oldest = open.remove(open.iter().position(is_of_busiest).ok_or(())?);
    oldest.task.abort();
    Ok(Some(oldest.from))
}
