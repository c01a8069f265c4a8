//! One direction of a connection: read, write, observe. The next read waits for the write, which propagates back-pressure.

use std::io;

use trace::MonoNs;

use super::socket::Socket;
use super::stream_window::StreamWindow;
use super::zmtp_watch::StreamObserver;

/// Bytes after which a busy direction yields to the others.
const YIELD_BYTES: usize = 1 << 20;

/// Bytes a receiver must accept before the kernel may buffer its usual amount for it. Until then the buffer stays small, since bytes
/// buffered for a receiver that never reads cannot be recovered.
const TRUST_AFTER_BYTES: u64 = 128 << 10;

/// Size of a read before that point. Together with the small kernel buffer it is less than the 8 KiB that libzmq writes at once of a
/// longer message. The relay therefore frees no room for further data at the sender.
const UNTRUSTED_READ_BYTES: usize = 2 << 10;

/// How a direction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DirectionEnd {
    /// The source ended its stream, and all of it was relayed.
    Finished,
    /// The source failed.
    Source {
        kind: io::ErrorKind,
        /// Messages had come from the source, so the sink received an ordinary end of stream behind them. If false, a reset can report the
        /// failure.
        has_relayed: bool,
    },
    /// The sink failed.
    Sink(io::ErrorKind),
}

/// Copies bytes from one socket to the other until the source ends or one of the two fails. An ordinary end is passed to the sink as a
/// shutdown. `watch` observes the bytes, which `window` holds until they are written, and longer if a message is incomplete.
pub(super) async fn copy_until_end(
    from: &Socket,
    to: &Socket,
    watch: &mut impl StreamObserver,
    mut window: StreamWindow,
) -> DirectionEnd {
    let mut bytes_since_yield = 0;
    // Taken when the receiver is trusted; `None` for TCP, whose buffer is left as it is.
    let mut usual_buffer_bytes = to.shrink_send_buffer();
    if usual_buffer_bytes.is_some() {
        window.limit_reads(UNTRUSTED_READ_BYTES);
    }
    loop {
        if let Err(error) = from.readable().await {
            return end_after_source_error(&error, to, watch);
        }
        let is_kept = window.reserve_space_or_discard(watch.message_to_keep());
        if !is_kept {
            watch.note_discarded_message();
        }
        let count = match from.try_read(&mut window.spare_buffer()) {
            Ok(0) => {
                to.end_writing();
                return DirectionEnd::Finished;
            }
            Ok(count) => count,
            Err(error) if is_retryable(&error) => {
                // Nothing was read, so an idle connection gives its block back.
                window.discard_relayed_and_release_if_empty(watch.message_to_keep().start);
                continue;
            }
            Err(error) => return end_after_source_error(&error, to, watch),
        };
        watch.observe_read(window.record_read_and_get_bytes(count), MonoNs::now(), is_kept);
        while !window.unwritten().is_empty() {
            match to.try_write(window.unwritten()) {
                Ok(written) => {
                    window.record_written(written);
                    watch.observe_written(&mut window, written, MonoNs::now());
                    // The receiver has accepted enough to be trusted to read what the kernel buffers for it.
                    if window.written() >= TRUST_AFTER_BYTES
                        && let Some(size) = usual_buffer_bytes.take()
                    {
                        to.restore_send_buffer(size);
                        window.limit_reads(usize::MAX);
                    }
                }
                Err(error) if is_retryable(&error) => {
                    watch.note_short_write();
                    if let Err(error) = to.wait_until_writable().await {
                        return DirectionEnd::Sink(error.kind());
                    }
                }
                Err(error) => return DirectionEnd::Sink(error.kind()),
            }
        }
        window.discard_relayed_and_release_if_empty(watch.message_to_keep().start);
        bytes_since_yield += count;
        if bytes_since_yield >= YIELD_BYTES {
            // A busy connection must not keep the thread from the others.
            bytes_since_yield = 0;
            tokio::task::yield_now().await;
        }
    }
}

/// Ends the copy after an error of the source. If bytes were relayed, passes an end of stream to `sink`. If none were, the
/// connection is closed by a reset, which reports the failure.
fn end_after_source_error(error: &io::Error, sink: &Socket, watch: &impl StreamObserver) -> DirectionEnd {
    let has_relayed = watch.has_relayed();
    if has_relayed {
        // The end of the stream stays in order, behind the bytes that the kernel still holds for the sink.
        sink.end_writing();
    }
    DirectionEnd::Source { kind: error.kind(), has_relayed }
}

/// Whether a read or write that failed with this error changed nothing, and can be made again after a wait.
fn is_retryable(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
