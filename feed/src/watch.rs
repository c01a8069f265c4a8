//! The watcher's end: a connection to one source that is made again whenever it ends.

use std::io;
use std::thread;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{sleep, timeout};

use crate::key::Key;
use crate::line;
use crate::message::{Message, Topic};
use crate::zmtp::{self, Input, Limits, Role, Zmtp};

/// Messages read and not yet taken; beyond it the connection is not read, and the source sees a slow watcher.
const MESSAGES: usize = 8;
/// How long a connection and its handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// A source sends ten messages a second. One that is silent this long is taken to be gone.
const SILENT: Duration = Duration::from_secs(15);
const AGAIN: Duration = Duration::from_millis(250);
const AGAIN_MOST: Duration = Duration::from_secs(5);

/// Whom to watch.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// `HOST:PORT`.
    pub address: String,
    /// The source's key, where it has one.
    pub key: Option<Key>,
    /// Longest message that is taken.
    pub max_message: usize,
}

/// What happens on a connection.
#[derive(Debug)]
pub enum News {
    /// The source was reached.
    Up,
    /// It was not, or not any more: why. It is tried again by itself.
    Down(String),
    /// A message of the stream.
    Message(Box<Message>),
}

/// One source being watched.
#[derive(Debug)]
pub struct Watcher {
    address: String,
    news: Receiver<News>,
}

impl Watcher {
    /// Watches all of these on one thread.
    pub fn start(all: Vec<WatchOptions>) -> io::Result<Vec<Self>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let (mut watchers, mut tasks) = (Vec::new(), Vec::new());
        for options in all {
            let (sender, news) = channel(MESSAGES);
            watchers.push(Self {
                address: options.address.clone(),
                news,
            });
            tasks.push((options, sender));
        }
        thread::Builder::new().name("watch".into()).spawn(move || {
            runtime.block_on(async {
                let mut running = tokio::task::JoinSet::new();
                for (options, sender) in tasks {
                    running.spawn(async move { follow(&options, &sender).await });
                }
                while running.join_next().await.is_some() {}
            });
        })?;
        Ok(watchers)
    }

    /// Whom.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// What has happened, if anything has.
    pub fn poll(&mut self) -> Option<News> {
        // Nothing yet, or nothing any more.
        self.news.try_recv().ok()
    }
}

/// Connects again and again, until nobody listens any more.
async fn follow(options: &WatchOptions, news: &Sender<News>) {
    let mut again = AGAIN;
    while !news.is_closed() {
        let mut reached = false;
        let ended = connection(options, news, &mut reached).await;
        if reached {
            again = AGAIN;
        }
        let why = match ended {
            Ok(()) => "the source closed the connection".to_owned(),
            Err(error) => error.to_string(),
        };
        if news.send(News::Down(why)).await.is_err() {
            return;
        }
        sleep(again).await;
        again = (again * 2).min(AGAIN_MOST);
    }
}

async fn connection(options: &WatchOptions, news: &Sender<News>, reached: &mut bool) -> io::Result<()> {
    let late = |what: &'static str| move |_| io::Error::new(io::ErrorKind::TimedOut, what);
    let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let stream = timeout(HANDSHAKE, TcpStream::connect(&options.address));
    let stream = stream.await.map_err(late("it does not answer"))??;
    let keyed = options.key.is_some();
    let opened = timeout(
        HANDSHAKE,
        line::open(stream, options.key.as_ref(), Role::Subscriber, SILENT),
    )
    .await;
    let opened = opened.map_err(late("it does not answer the handshake"))?;
    let (mut incoming, mut outgoing) = opened.map_err(|error| closed(error, keyed))?;
    // A source that refuses may have closed before it is spoken to.
    for words in [
        zmtp::opening(Role::Subscriber),
        zmtp::subscription(Topic::Stream.name()),
    ] {
        let written = outgoing.write(&words).await;
        written.map_err(|error| closed(error, keyed))?;
    }
    let mut zmtp = Zmtp::new(
        Role::Subscriber,
        Limits {
            message: options.max_message,
            frames: 2,
        },
    );
    loop {
        while let Some(input) = zmtp.next().map_err(|e| wrong(e.to_string()))? {
            let said = match input {
                Input::Open => {
                    *reached = true;
                    News::Up
                }
                Input::Message(frames) => {
                    let [topic, body] = &frames[..] else {
                        return Err(wrong("a message without a body".into()));
                    };
                    if topic[..] != *Topic::Stream.name().as_bytes() {
                        continue;
                    }
                    News::Message(Box::new(Message::read(body).map_err(|e| wrong(e.to_string()))?))
                }
                Input::Ping(context) => {
                    outgoing.write(&zmtp::pong(&context)).await?;
                    continue;
                }
                Input::Subscribe(..) => continue,
            };
            if news.send(said).await.is_err() {
                return Ok(());
            }
        }
        let patience = if *reached { SILENT } else { HANDSHAKE };
        let read = timeout(patience, incoming.read(&mut zmtp.inbox)).await;
        match read.map_err(late("nothing has come from it for too long"))? {
            Ok(0) if *reached => return Ok(()),
            Ok(0) => return Err(closed(io::ErrorKind::UnexpectedEof.into(), keyed)),
            Ok(_) => {}
            Err(error) if *reached => return Err(error),
            Err(error) => return Err(closed(error, keyed)),
        }
    }
}

/// What it means that a source closes before anything was said.
fn closed(error: io::Error, keyed: bool) -> io::Error {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    if !matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe) {
        return error;
    }
    io::Error::new(
        error.kind(),
        if keyed {
            "it closed the connection in the handshake: it has another key or none, or too many watchers (--feed-watchers)"
        } else {
            "it closed the connection in the handshake: it wants a key (--feed-key), or has too many watchers (--feed-watchers)"
        },
    )
}
