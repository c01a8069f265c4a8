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

/// Passes frame `n`, with one chunk of text, to the server's side.
fn send_text(server: &mut Server, n: u32, chunk: Chunk<'_>) {
    let (id, kind, ids) = (FrameId::new(HopId(0), 0, n.into()), Kind::Text, IdColumn::Delta);
    server.texts.sent(&Frame { id, bytes: 0, forwarded: None, kind, ids, chunks: &[chunk] });
}
