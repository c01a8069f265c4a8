//! One watcher's connection.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::PublishOptions;
use super::queue::{Queue, TOPIC};
use super::shared::Shared;
use crate::line::{self, Incoming, Outgoing};
use crate::zmtp::{self, Input, Limits, Role, Zmtp};

/// A watcher may only send subscriptions.
const LIMITS: Limits = Limits { message: TOPIC + 1, frames: 1 };
/// TCP keepalive interval. A peer that vanished without closing is noticed after about three intervals.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Kernel send buffer of a watcher, on top of its queue. The kernel's default grows to megabytes.
const KERNEL_BUFFER: usize = 256 << 10;

pub(super) async fn serve(
    stream: TcpStream,
    options: &PublishOptions,
    queue: &Arc<Queue>,
    shared: &Shared,
) -> io::Result<()> {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    let socket = SockRef::from(&stream);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_send_buffer_size(KERNEL_BUFFER)?;
    let mut zmtp = Zmtp::new(Role::Publisher, LIMITS);
    let opened = timeout(options.patience, open(stream, options, &mut zmtp, queue)).await;
    let timed_out = |_| io::Error::new(io::ErrorKind::TimedOut, "its request took too long");
    let (incoming, outgoing) = opened.map_err(timed_out)??;
    shared.queues().push(Arc::clone(queue));
    tokio::select! {
        ended = listen(incoming, &mut zmtp, queue) => ended,
        ended = speak(outgoing, queue) => ended,
    }
}

/// Whether the watcher was refused, as opposed to having disconnected.
pub(super) fn is_refused(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, PermissionDenied, TimedOut};
    matches!(error.kind(), InvalidData | PermissionDenied | TimedOut)
}

/// Performs the handshake, up to the first subscription.
async fn open(
    stream: TcpStream,
    options: &PublishOptions,
    zmtp: &mut Zmtp,
    queue: &Queue,
) -> io::Result<(Incoming, Outgoing)> {
    let line = line::open(stream, options.key.as_ref(), Role::Publisher, options.stall);
    let (mut incoming, mut outgoing) = line.await?;
    outgoing.write(&zmtp::opening(Role::Publisher)).await?;
    while !queue.is_subscribed() {
        process_input(zmtp, queue)?;
        if !queue.is_subscribed() && incoming.read(&mut zmtp.inbox).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok((incoming, outgoing))
}

fn process_input(zmtp: &mut Zmtp, queue: &Queue) -> io::Result<()> {
    let refused = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    while let Some(input) = zmtp.next_input().map_err(|e| refused(e.to_string()))? {
        let accepted = match input {
            Input::Subscribe(topic, subscribe) => queue.subscribe(topic, subscribe),
            Input::Ping(context) => queue.answer(&zmtp::pong(&context)),
            Input::Open | Input::Message(_) => true,
        };
        if !accepted {
            return Err(refused("it requests more topics than a feed has".into()));
        }
    }
    Ok(())
}

async fn listen(mut incoming: Incoming, zmtp: &mut Zmtp, queue: &Queue) -> io::Result<()> {
    loop {
        process_input(zmtp, queue)?;
        if incoming.read(&mut zmtp.inbox).await? == 0 {
            return Ok(());
        }
    }
}

async fn speak(mut outgoing: Outgoing, queue: &Queue) -> io::Result<()> {
    while let Some(message) = queue.next().await {
        outgoing.write(&message).await?;
    }
    Ok(())
}
