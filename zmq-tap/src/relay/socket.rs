//! A connected stream, over a socket file or TCP.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use bytes::BufMut;
use rustix::net::sockopt::{set_socket_linger, set_socket_send_buffer_size, socket_send_buffer_size};
use rustix::net::{SendFlags, Shutdown, send, shutdown};
use tokio::io::Interest;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{sleep, timeout};

/// What the kernel is to hold for a receiver of whom nothing is known yet; it doubles the number, and may have a least of its own.
const NARROW: usize = 2 << 10;

/// How long a writer waits where no file is left to wait with.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Socket {
    /// Tokio's end of a pipe that is read from: it reads as any stream does, and unlike tokio's sockets is woken by bytes that come and
    /// not by room that was made. That would be as often: once for each message that the peer takes.
    stream: Receiver,
    tcp: bool,
}

impl Socket {
    pub(super) fn unix(stream: UnixStream) -> io::Result<Self> {
        Self::new(stream.into_std()?.into(), false)
    }

    /// `libzmq` sets this on its own TCP sockets; without it small frames would wait for acknowledgements.
    pub(super) fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Self::new(stream.into_std()?.into(), true)
    }

    fn new(stream: OwnedFd, tcp: bool) -> io::Result<Self> {
        let stream = Receiver::from_owned_fd_unchecked(stream)?;
        Ok(Self { stream, tcp })
    }

    pub(super) async fn readable(&self) -> io::Result<()> {
        self.stream.readable().await
    }

    /// Waits until something can be written, or the peer is gone. Whoever waits is woken by a file of its own, for as long.
    pub(super) async fn writable(&self) -> io::Result<()> {
        let file = self.stream.as_fd().try_clone_to_owned();
        if let Ok(waiting) = file.and_then(Sender::from_owned_fd_unchecked) {
            waiting.writable().await
        } else {
            sleep(LOOK_AGAIN).await;
            Ok(())
        }
    }

    /// Reads what is there, at most as much as `buffer` has room for.
    pub(super) fn try_read<B: BufMut>(&self, buffer: &mut B) -> io::Result<usize> {
        let asked = buffer.remaining_mut();
        let count = self.stream.try_read_buf(buffer)?;
        if 0 < count && count < asked {
            // Less than asked for: nothing is left, and the read that would say so can be saved.
            let _ = self
                .stream
                .try_io(|| io::Result::<()>::Err(io::ErrorKind::WouldBlock.into()));
        }
        Ok(count)
    }

    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(&self.stream, bytes, SendFlags::NOSIGNAL)?)
    }

    /// Lets the kernel hold little of what is written; gives what it would hold, for [`Socket::widen`]. `None`: TCP, where the kernel
    /// finds its own measure unless it is given one.
    pub(super) fn narrow(&self) -> Option<usize> {
        if self.tcp {
            return None;
        }
        let held = socket_send_buffer_size(&self.stream).ok()?;
        set_socket_send_buffer_size(&self.stream, NARROW).ok()?;
        Some(held)
    }

    /// Lets the kernel hold `held` bytes again.
    pub(super) fn widen(&self, held: usize) {
        // What is asked for is doubled, and told doubled.
        let _ = set_socket_send_buffer_size(&self.stream, held / 2);
    }

    /// Tells the peer that nothing more comes. A peer that is gone need not be told.
    pub(super) fn end_writing(&self) {
        let _ = shutdown(&self.stream, Shutdown::Write);
    }

    /// What has come can still be read, then the stream ends. The peer of a socket file cannot write any more.
    pub(super) fn end_reading(&self) {
        let _ = shutdown(&self.stream, Shutdown::Read);
    }

    /// Makes closing it a reset. A socket file has none but the one that unread bytes cause by themselves.
    pub(super) fn reset_on_close(&self) {
        if self.tcp {
            let _ = set_socket_linger(&self.stream, Some(Duration::ZERO));
        }
    }

    /// Whether the peer is known to have closed both ways, without reading. One that only stopped sending waits for its bytes to
    /// arrive, and over TCP one that closed looks the same.
    pub(super) async fn is_closed_by_peer(&self) -> bool {
        // `ready` waits only while nothing at all is known of the socket.
        let both = Interest::READABLE | Interest::WRITABLE;
        let ready = timeout(Duration::ZERO, self.stream.ready(both)).await;
        matches!(ready, Ok(Ok(ready)) if ready.is_read_closed() && ready.is_write_closed())
    }
}
