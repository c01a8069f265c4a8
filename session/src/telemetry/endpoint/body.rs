//! Body of a response: all at once, or a stream.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::Receiver;

/// Error of a stream that was stopped before its end. The client sees an incomplete response.
#[derive(Debug, thiserror::Error)]
#[error("the stream was stopped")]
pub(super) struct Stopped;

/// Body of a response.
pub(super) struct ReplyBody {
    content: ReplyContent,
    /// Counts the client of the path until the response is sent.
    _permit: Option<OwnedSemaphorePermit>,
}

enum ReplyContent {
    /// Remaining bytes.
    Whole(Bytes),
    /// Parts, and whether the last one was sent.
    Parts(Receiver<Bytes>, Arc<AtomicBool>),
}

impl ReplyBody {
    pub(super) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self { content: ReplyContent::Whole(bytes.into()), _permit: None }
    }

    /// A stream of `parts`. It is complete if `is_complete` is set when they end.
    pub(super) fn stream(parts: Receiver<Bytes>, is_complete: Arc<AtomicBool>) -> Self {
        Self { content: ReplyContent::Parts(parts, is_complete), _permit: None }
    }

    /// Holds `permit` until the response is sent.
    pub(super) fn holding(self, permit: OwnedSemaphorePermit) -> Self {
        Self { _permit: Some(permit), ..self }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Stopped;

    /// Next part of the body. A stream that stops before its end yields an error, so that the client sees an incomplete response.
    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Stopped>>> {
        match &mut self.content {
            // The bytes were sent by an earlier call, or there were none.
            ReplyContent::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            ReplyContent::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            ReplyContent::Parts(parts, is_complete) => parts.poll_recv(cx).map(|part| match part {
                Some(bytes) => Some(Ok(Frame::data(bytes))),
                // The sender sets `is_complete` before it drops its end of the channel.
                None if is_complete.load(Ordering::Acquire) => None,
                None => Some(Err(Stopped)),
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.content, ReplyContent::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            ReplyContent::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            // The length of a stream is not known.
            ReplyContent::Parts(..) => SizeHint::default(),
        }
    }
}
