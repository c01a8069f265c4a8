//! PUSH and PULL sockets of the peers, over Unix sockets.

use std::io;
use std::path::Path;

use anyhow::Context;
use bytes::Bytes;
use feed::zmtp::{self, Input, Limits, Role, Zmtp};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

/// Every message of the demo is one frame. The largest holds a chunk of thousands of requests.
const LIMITS: Limits = Limits {
    message: 64 << 20,
    frames: 1,
};
/// Bytes per read.
const READ: usize = 64 * 1024;

/// A connected PUSH socket.
pub(super) struct Push(UnixStream);

impl Push {
    /// Connects and completes the handshake.
    pub(super) async fn connect(endpoint: &str) -> anyhow::Result<Self> {
        let opened = async {
            let mut connection = Connection::open(UnixStream::connect(path(endpoint)?).await?, Role::Push).await?;
            while connection.read().await? != Some(Input::Open) {}
            anyhow::Ok(Self(connection.stream))
        };
        opened.await.with_context(|| format!("cannot connect to {endpoint}"))
    }

    pub(super) async fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.0.write_all(&zmtp::message(&[message])).await
    }
}

/// Binds a PULL socket and calls `received` with every message, as long as the runtime lives.
pub(super) fn bind(endpoint: &str, received: impl Fn(Bytes) + Clone + Send + 'static) -> anyhow::Result<()> {
    let listener = path(endpoint).and_then(|path| Ok(UnixListener::bind(path)?));
    let listener = listener.with_context(|| format!("cannot bind {endpoint}"))?;
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let received = received.clone();
                    tokio::spawn(async move {
                        if let Err(error) = pull(stream, received).await {
                            tracing::debug!(%error, "a demo connection ended");
                        }
                    });
                }
                Err(error) => return tracing::error!("a demo peer cannot accept connections: {error}"),
            }
        }
    });
    Ok(())
}

async fn pull(stream: UnixStream, received: impl Fn(Bytes)) -> io::Result<()> {
    let mut connection = Connection::open(stream, Role::Pull).await?;
    loop {
        if let Some(Input::Message(frames)) = connection.read().await? {
            frames.into_iter().for_each(&received);
        }
    }
}

struct Connection {
    stream: UnixStream,
    zmtp: Zmtp,
}

impl Connection {
    async fn open(mut stream: UnixStream, role: Role) -> io::Result<Self> {
        stream.write_all(&zmtp::opening(role)).await?;
        let zmtp = Zmtp::new(role, LIMITS);
        Ok(Self { stream, zmtp })
    }

    /// Returns the next input; `None` if more must be read. The end of the stream is an error.
    async fn read(&mut self) -> io::Result<Option<Input>> {
        let input = self.zmtp.next_input().map_err(io::Error::other)?;
        if input.is_none() {
            self.zmtp.inbox.reserve(READ);
            if self.stream.read_buf(&mut self.zmtp.inbox).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(input)
    }
}

fn path(endpoint: &str) -> anyhow::Result<&Path> {
    let path = endpoint
        .strip_prefix("ipc://")
        .context("the demo's endpoints are ipc://")?;
    Ok(Path::new(path))
}
