//! One direction of a connection: read, write, observe. The next read waits for the write, which propagates back-pressure.

use std::io;

use trace::MonoNs;

use super::socket::Socket;
use super::watch::Observer;
use super::window::Window;

/// Bytes after which a busy direction yields to the others.
const YIELD_BYTES: usize = 1 << 20;

/// Bytes a receiver must accept before the kernel may buffer its usual amount for it. Until then the buffer stays small, since bytes
/// buffered for a receiver that never reads cannot be recovered.
const TRUSTED: u64 = 128 << 10;

/// Size of a read before that point. Together with the small kernel buffer it is less than the 8 KiB that libzmq writes at once of a
/// longer message. The relay therefore frees no room for further data at the sender.
const UNTRUSTED: usize = 2 << 10;

/// How a direction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The source ended its stream, and all of it was relayed.
    Finished,
    /// The source failed.
    Source {
        kind: io::ErrorKind,
        /// Messages had come from the source, so the sink received an ordinary end of stream behind them. If false, a reset can report the
        /// failure.
        relayed: bool,
    },
    /// The sink failed.
    Sink(io::ErrorKind),
}

/// Copies until the source ends or one of the two sockets fails. An ordinary end is passed to the sink as a shutdown.
pub(super) async fn pump(from: &Socket, to: &Socket, watch: &mut impl Observer, mut window: Window) -> End {
    let mut since_yield = 0;
    let mut saved_size = to.shrink_send_buffer();
    if saved_size.is_some() {
        window.limit_reads(UNTRUSTED);
    }
    loop {
        if let Err(error) = from.readable().await {
            return source_failed(&error, to, watch);
        }
        let kept = window.reserve(watch.keep());
        if !kept {
            watch.forget();
        }
        let count = match from.try_read(&mut window.spare()) {
            Ok(0) => {
                to.end_writing();
                return End::Finished;
            }
            Ok(count) => count,
            Err(error) if is_retryable(&error) => {
                window.settle(watch.keep().start);
                continue;
            }
            Err(error) => return source_failed(&error, to, watch),
        };
        watch.read(window.appended(count), MonoNs::now(), kept);
        while !window.unwritten().is_empty() {
            match to.try_write(window.unwritten()) {
                Ok(written) => {
                    window.wrote(written);
                    watch.wrote(&mut window, written, MonoNs::now());
                    if window.written() >= TRUSTED
                        && let Some(size) = saved_size.take()
                    {
                        to.restore_send_buffer(size);
                        window.limit_reads(usize::MAX);
                    }
                }
                Err(error) if is_retryable(&error) => {
                    watch.short_writes();
                    if let Err(error) = to.writable().await {
                        return End::Sink(error.kind());
                    }
                }
                Err(error) => return End::Sink(error.kind()),
            }
        }
        window.settle(watch.keep().start);
        since_yield += count;
        if since_yield >= YIELD_BYTES {
            since_yield = 0;
            tokio::task::yield_now().await;
        }
    }
}

fn source_failed(error: &io::Error, to: &Socket, watch: &impl Observer) -> End {
    let relayed = watch.has_relayed();
    if relayed {
        // The end of the stream stays in order, behind the bytes that the kernel still holds for the sink.
        to.end_writing();
    }
    End::Source { kind: error.kind(), relayed }
}

fn is_retryable(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
