//! The watcher's end: a connection to one source, re-established whenever it ends.

use std::io;
use std::thread;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{sleep, timeout};

use crate::key::Key;
use crate::line;
use crate::message::{Head, Kind, Message, Topic};
use crate::zmtp::{self, Input, Limits, Role, Zmtp};

/// Messages received but not yet polled. Beyond this limit the connection is not read, and the source sees a slow watcher.
const MESSAGES: usize = 8;
/// Time limit for connecting and the handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Silence after which a source counts as lost. It normally sends ten messages a second.
const SILENT: Duration = Duration::from_secs(15);
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Options of a [`Watcher`].
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// Address as `HOST:PORT`.
    pub address: String,
    /// Pre-shared key of the source, if it has one.
    pub key: Option<Key>,
    /// Largest accepted message in bytes.
    pub max_message: usize,
}

/// Connection events.
#[derive(Debug)]
pub enum WatchEvent {
    /// The source was reached.
    Up,
    /// The connection failed or ended, with the reason. A new attempt follows automatically.
    Down(String),
    /// A message of the stream.
    Message(Box<Message>),
}

/// Connection to one watched source.
#[derive(Debug)]
pub struct Watcher {
    address: String,
    events: Receiver<WatchEvent>,
}

impl Watcher {
    /// Watches all sources on one thread.
    pub fn start(all: Vec<WatchOptions>) -> io::Result<Vec<Self>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (mut watchers, mut tasks) = (Vec::new(), tokio::task::JoinSet::new());
        for options in all {
            let (sender, events) = channel(MESSAGES);
            watchers.push(Self { address: options.address.clone(), events });
            tasks.spawn_on(async move { follow(&options, &sender).await }, runtime.handle());
        }
        let run = move || runtime.block_on(async { while tasks.join_next().await.is_some() {} });
        thread::Builder::new().name("watch".into()).spawn(run)?;
        Ok(watchers)
    }

    /// Address of the source.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the next event, if there is one.
    pub fn poll(&mut self) -> Option<WatchEvent> {
        // An empty channel and a closed one look the same here.
        self.events.try_recv().ok()
    }
}

/// Connects repeatedly until the receiver is dropped.
async fn follow(options: &WatchOptions, events: &Sender<WatchEvent>) {
    let mut pause = FIRST_PAUSE;
    while !events.is_closed() {
        let mut reached = false;
        let ended = connection(options, events, &mut reached).await;
        if reached {
            pause = FIRST_PAUSE;
        }
        let why = ended.map_or_else(|error| error.to_string(), |()| "the source closed the connection".to_owned());
        if events.send(WatchEvent::Down(why)).await.is_err() {
            return;
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn connection(options: &WatchOptions, events: &Sender<WatchEvent>, reached: &mut bool) -> io::Result<()> {
    let timed_out = |what: &'static str| move |_| io::Error::new(io::ErrorKind::TimedOut, what);
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let stream = timeout(HANDSHAKE, TcpStream::connect(&options.address));
    let stream = stream.await.map_err(timed_out("it does not answer"))??;
    let keyed = options.key.is_some();
    let opened = timeout(HANDSHAKE, line::open(stream, options.key.as_ref(), Role::Subscriber, SILENT)).await;
    let opened = opened.map_err(timed_out("no reply to the handshake"))?;
    let (mut incoming, mut outgoing) = opened.map_err(|error| closed(error, keyed))?;
    // A source that refuses may close the connection before the first write.
    for message in [zmtp::opening(Role::Subscriber), zmtp::subscription(Topic::Stream.name())] {
        let written = outgoing.write(&message).await;
        written.map_err(|error| closed(error, keyed))?;
    }
    let mut zmtp = Zmtp::new(Role::Subscriber, Limits { message: options.max_message, frames: 2 });
    loop {
        while let Some(input) = zmtp.next_input().map_err(|e| invalid(e.to_string()))? {
            let event = match input {
                Input::Open => {
                    *reached = true;
                    WatchEvent::Up
                }
                Input::Message(frames) => {
                    let [topic, body] = &frames[..] else {
                        return Err(invalid("a message without a body".into()));
                    };
                    if topic[..] != *Topic::Stream.name().as_bytes() {
                        continue;
                    }
                    let head = Head::read(body).map_err(|e| invalid(e.to_string()))?;
                    // A state may be large: it is decoded when no other message waits.
                    if head.kind == Kind::Start && events.reserve_many(MESSAGES).await.is_err() {
                        return Ok(());
                    }
                    WatchEvent::Message(Box::new(Message::of(head, body).map_err(|e| invalid(e.to_string()))?))
                }
                Input::Ping(context) => {
                    outgoing.write(&zmtp::pong(&context)).await?;
                    continue;
                }
                Input::Subscribe(..) => continue,
            };
            if events.send(event).await.is_err() {
                return Ok(());
            }
        }
        let patience = if *reached { SILENT } else { HANDSHAKE };
        let read = timeout(patience, incoming.read(&mut zmtp.inbox)).await;
        match read.map_err(timed_out("nothing received from it for too long"))? {
            Ok(0) if *reached => return Ok(()),
            Ok(0) => return Err(closed(io::ErrorKind::UnexpectedEof.into(), keyed)),
            Ok(_) => {}
            Err(error) if *reached => return Err(error),
            Err(error) => return Err(closed(error, keyed)),
        }
    }
}

/// Explains a connection that the source closes before it sends anything.
fn closed(error: io::Error, keyed: bool) -> io::Error {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    if !matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe) {
        return error;
    }
    let reason = if keyed { "has a different key, no key, or" } else { "requires a key (--feed-key) or has" };
    let why = "the source closed the connection during the handshake";
    io::Error::new(error.kind(), format!("{why}: it {reason} too many watchers (--feed-watchers)"))
}
