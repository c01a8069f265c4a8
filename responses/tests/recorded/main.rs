//! Recorded responses of real servers, cut at any position, compared with the results of other parsers.

mod connection;
mod grpc;
mod hostile;
mod http2;
mod openai;
mod served;
mod tool_calls;

use responses::{Server, StreamProtocol};
use trace::event::{Chunk, Frame, IdColumn, Kind};
use trace::{FrameId, HopId};

use connection::{Answers, Connection, Observed, damaged, recorded, recording};

/// Only the protocols of this crate.
const PROTOCOLS: &[StreamProtocol] = &[];

/// Frame `n` of a hop.
fn frame<'a>(n: u32, kind: Kind, chunks: &'a [Chunk<'a>]) -> Frame<'a> {
    Frame { id: FrameId::new(HopId(0), 0, n.into()), bytes: 0, forwarded: None, kind, ids: IdColumn::Delta, chunks }
}

/// Passes frame `n`, with one chunk of text, to the server's side.
fn send_text(server: &mut Server, n: u32, chunk: Chunk<'_>) {
    server.record_frame(&frame(n, Kind::Text, &[chunk]), None);
}
