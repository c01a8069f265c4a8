//! A connected stream, over a socket file or TCP.

use std::io;

use bytes::BufMut;
use rustix::net::Shutdown;
use rustix::net::sockopt::{set_socket_send_buffer_size, socket_send_buffer_size};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

/// What the kernel is to hold for a receiver of whom nothing is known yet; it doubles the number.
const NARROW: usize = 16 << 10;

/// One end of a connection.
#[derive(Debug)]
pub(super) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

macro_rules! either {
    ($self:ident, $stream:ident => $do:expr) => {
        match $self {
            Socket::Unix($stream) => $do,
            Socket::Tcp($stream) => $do,
        }
    };
}

impl Socket {
    /// `libzmq` sets this on its own TCP sockets; without it small frames would wait for acknowledgements.
    pub(super) fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }

    pub(super) async fn readable(&self) -> io::Result<()> {
        either!(self, stream => stream.readable().await)
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        either!(self, stream => stream.writable().await)
    }

    /// Reads what is there, at most as much as `buffer` has room for.
    pub(super) fn try_read<B: BufMut>(&self, buffer: &mut B) -> io::Result<usize> {
        let asked = buffer.remaining_mut();
        let count = either!(self, stream => stream.try_read_buf(buffer))?;
        if 0 < count && count < asked {
            // Less than asked for: nothing is left, and the read that would say so can be saved.
            let drained = || io::Result::<()>::Err(io::ErrorKind::WouldBlock.into());
            let _ = either!(self, stream => stream.try_io(Interest::READABLE, drained));
        }
        Ok(count)
    }

    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        either!(self, stream => stream.try_write(bytes))
    }

    /// Lets the kernel hold little of what is written; gives what it would hold, for [`Socket::widen`]. `None`: TCP, where the kernel
    /// finds its own measure unless it is given one.
    pub(super) fn narrow(&self) -> Option<usize> {
        let Self::Unix(stream) = self else {
            return None;
        };
        let held = socket_send_buffer_size(stream).ok()?;
        set_socket_send_buffer_size(stream, NARROW).ok()?;
        Some(held)
    }

    /// Lets the kernel hold `held` bytes again.
    pub(super) fn widen(&self, held: usize) {
        if let Self::Unix(stream) = self {
            // What is asked for is doubled, and told doubled.
            let _ = set_socket_send_buffer_size(stream, held / 2);
        }
    }

    /// Tells the peer that nothing more comes. A peer that is gone need not be told.
    pub(super) fn end_writing(&self) {
        let _ = either!(self, stream => rustix::net::shutdown(stream, Shutdown::Write));
    }

    /// What has come can still be read, then the stream ends. The peer of a socket file cannot write any more.
    pub(super) fn end_reading(&self) {
        let _ = either!(self, stream => rustix::net::shutdown(stream, Shutdown::Read));
    }

    /// Makes closing it a reset. A socket file has none but the one that unread bytes cause by themselves.
    pub(super) fn reset_on_close(&self) {
        if let Self::Tcp(stream) = self {
            let _ = stream.set_zero_linger();
        }
    }

    /// Whether the peer is known to have closed, without reading.
    pub(super) async fn is_closed_by_peer(&self) -> bool {
        let ready = either!(self, stream => {
            // `ready` waits only while nothing at all is known of the socket.
            tokio::time::timeout(std::time::Duration::ZERO, stream.ready(Interest::READABLE)).await
        });
        matches!(ready, Ok(Ok(ready)) if ready.is_read_closed())
    }
}
