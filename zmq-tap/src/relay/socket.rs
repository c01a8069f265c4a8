//! A connected stream socket, over a socket file or TCP.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use bytes::BufMut;
use rustix::io::read;
use rustix::net::sockopt::{set_socket_linger, set_socket_send_buffer_size, socket_send_buffer_size};
use rustix::net::{SendFlags, Shutdown, send, shutdown};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{sleep, timeout};

/// Kernel send buffer for a receiver that has not read anything yet. The kernel doubles the number and may enforce a minimum.
const SMALL_SEND_BUFFER: usize = 2 << 10;

/// Time a writer waits when no file descriptor is available for waiting.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Registers a socket with the runtime, so that tasks can wait for `interest`. Needs a runtime's context.
#[allow(unsafe_code)]
fn register_file(file: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` keeps its file open, and its number, until it is dropped.
    Ok(unsafe { AsyncFd::register_with_interest(file, interest) }?)
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Socket {
    /// Registered for reading only. Tokio's sockets also wake up when write space becomes available, which happens once for each message
    /// that the peer receives.
    stream: AsyncFd<OwnedFd>,
    is_tcp: bool,
}

impl Socket {
    /// Takes over a connected socket of Linux's local kind.
    pub(super) fn from_unix(stream: UnixStream) -> io::Result<Self> {
        let is_tcp = false;
        Self::new(stream.into_std()?.into(), is_tcp)
    }

    /// Takes over a connected TCP socket.
    pub(super) fn from_tcp(stream: TcpStream) -> io::Result<Self> {
        // Disables Nagle's algorithm as `libzmq` does on its own sockets; otherwise small frames wait for acknowledgements.
        stream.set_nodelay(true)?;
        let is_tcp = true;
        Self::new(stream.into_std()?.into(), is_tcp)
    }

    /// Registers a connected socket that does not block.
    fn new(stream: OwnedFd, is_tcp: bool) -> io::Result<Self> {
        let stream = register_file(stream, Interest::READABLE)?;
        Ok(Self { stream, is_tcp })
    }

    /// Waits until bytes can be read, or the stream has ended or failed.
    pub(super) async fn readable(&self) -> io::Result<()> {
        // Stays ready until a read finds nothing, so that a busy socket is not waited for.
        self.stream.readable().await.map(|mut guard| guard.retain_ready())
    }

    /// Waits until the socket is writable or the peer is gone. Each wait registers a temporary file descriptor, because the socket is
    /// registered for reading only.
    pub(super) async fn wait_until_writable(&self) -> io::Result<()> {
        let file = self.stream.as_fd().try_clone_to_owned();
        if let Ok(waiting) = file.and_then(|file| register_file(file, Interest::WRITABLE)) {
            waiting.writable().await.map(|mut guard| guard.retain_ready())
        } else {
            // No descriptor is left to wait with, so the caller writes again after a while.
            sleep(RETRY_INTERVAL).await;
            Ok(())
        }
    }

    /// Reads available bytes, up to the room in `buffer`, and returns their number. 0 is the end of the stream; the error is `WouldBlock`
    /// if none are available.
    #[allow(unsafe_code)]
    pub(super) fn try_read<B: BufMut>(&self, buffer: &mut B) -> io::Result<usize> {
        let requested = buffer.remaining_mut();
        let count = self.stream.try_io(Interest::READABLE, |file| {
            // SAFETY: `read` only writes to the slice.
            let spare = unsafe { buffer.chunk_mut().as_uninit_slice_mut() };
            let (bytes, _unfilled) = read(file, spare)?;
            Ok(bytes.len())
        })?;
        // SAFETY: `read` has initialized this many bytes.
        unsafe { buffer.advance_mut(count) };
        if 0 < count && count < requested {
            // A short read means that nothing is left. This closure reports that as `WouldBlock`, so the runtime clears the readiness. A
            // second read, which would return the same error, is saved.
            let _ = self.stream.try_io(Interest::READABLE, |_| io::Result::<()>::Err(io::ErrorKind::WouldBlock.into()));
        }
        Ok(count)
    }

    /// Writes what the kernel accepts at once, and returns that number of bytes. The error is `WouldBlock` if it accepts none.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(&self.stream, bytes, SendFlags::NOSIGNAL)?)
    }

    /// Reduces the kernel's send buffer. Returns the previous size for [`Socket::restore_send_buffer`]. `None` for TCP, where setting a
    /// size disables the kernel's autotuning, or if the kernel refuses.
    pub(super) fn shrink_send_buffer(&self) -> Option<usize> {
        if self.is_tcp {
            return None;
        }
        let size = socket_send_buffer_size(&self.stream).ok()?;
        set_socket_send_buffer_size(&self.stream, SMALL_SEND_BUFFER).ok()?;
        Some(size)
    }

    /// Restores a send buffer of `size` bytes.
    pub(super) fn restore_send_buffer(&self, size: usize) {
        // The kernel doubles the size it is asked for, and reports the doubled size. If this fails, the stream is only slower.
        let _ = set_socket_send_buffer_size(&self.stream, size / 2);
    }

    /// Shuts down writing. Errors are ignored, since a peer that is gone needs no end of stream.
    pub(super) fn end_writing(&self) {
        let _ = shutdown(&self.stream, Shutdown::Write);
    }

    /// Shuts down reading: received bytes can still be read, then the stream ends. The peer of a socket file can no longer write.
    pub(super) fn end_reading(&self) {
        // It fails only if the peer is gone, and then the stream ends anyway.
        let _ = shutdown(&self.stream, Shutdown::Read);
    }

    /// Makes a later close of a TCP socket send a reset. Does nothing for a socket file, which has no reset except the one caused by unread
    /// bytes.
    pub(super) fn reset_on_close(&self) {
        if self.is_tcp {
            // If it is refused, the peer sees an ordinary end of the stream.
            let _ = set_socket_linger(&self.stream, Some(Duration::ZERO));
        }
    }

    /// Whether the peer is known to have closed both directions, without reading. A peer that only stopped sending still waits for its
    /// bytes to arrive; over TCP a full close looks the same.
    pub(super) async fn is_closed_by_peer(&self) -> bool {
        let both_ways = Interest::READABLE | Interest::WRITABLE;
        // `ready` waits only while nothing at all is known about the socket.
        let Ok(Ok(guard)) = timeout(Duration::ZERO, self.stream.ready(both_ways)).await else { return false };
        guard.ready().is_read_closed() && guard.ready().is_write_closed()
    }
}
