//! Peers between scheduler and tokenizer: the detokenizer, and the router in front of several. Both are synchronous loops: receive,
//! process, send.

use std::sync::Arc;

use anyhow::Context;
use engines::sglang::wire::{Decoder, Limits};
use trace::event::{self, Chunk, Kind};

use super::Stage;
use super::clock::Busy;
use super::network::{Inbox, InboxMessage, Outlet, Parts};
use super::report::PeerAction;
use super::requests::text_of;
use crate::demo::encode::{BatchRow, Class, DemoEngine, Finish, SglangRelease, encode_batch};
use crate::demo::topology::detokenizer_of;

/// Number of the token from which on a request may stray.
const FIRST_STRAY_TOKEN: u32 = 10;

/// A message to send.
struct Outgoing {
    outlet_index: usize,
    message: Vec<u8>,
}

/// What a forwarder makes of a message.
struct Forwarded {
    /// Number of chunks in the message.
    chunks: u32,
    outgoing: Vec<Outgoing>,
}

/// A peer that forwards messages.
pub(super) struct Forwarder {
    pub(super) stage: Stage,
    pub(super) inbox: Inbox,
    pub(super) role: ForwarderRole,
}

/// A connection to the peer that listens at an endpoint.
pub(super) struct PeerOutlet {
    pub(super) endpoint: Arc<str>,
    pub(super) outlet: Outlet,
}

/// Role of the peer.
pub(super) enum ForwarderRole {
    /// Splits each batch into one message per request. The checksum of the request's worker selects the detokenizer, except for requests
    /// that stray midway.
    Router(Vec<PeerOutlet>),
    /// Converts ids to text. With several workers, sends one message per request to the worker waiting for it.
    Detokenizer(Vec<PeerOutlet>),
}

impl Forwarder {
    /// Forwards messages as long as they arrive.
    pub(super) async fn forward_messages(mut self) -> anyhow::Result<()> {
        let script = &self.stage.script;
        let DemoEngine::Sglang(release) = script.engine else {
            anyhow::bail!("{} has a detokenizer, and vLLM has none", script.name);
        };
        let cost = match self.role {
            ForwarderRole::Router(_) => script.router,
            ForwarderRole::Detokenizer(_) => script.detokenizer,
        };
        let mut decoder = Decoder::new(Limits::default()).with_ids();
        let mut busy = Busy::new();
        let mut wakeup_count = 0;
        loop {
            if self.inbox.is_empty() {
                self.inbox.wait_for_item().await;
                wakeup_count += 1;
            }
            // There is one, because no other task takes messages.
            let Some(InboxMessage { id, parts: message }) = self.inbox.take_oldest() else { continue };
            self.stage.reports.push(PeerAction::Received { id, wakeup: Some(wakeup_count) });
            let Forwarded { chunks, outgoing } = self.transform_message(release, &mut decoder, &message)?;
            // Before the send, as in a real process, whose time delays its output.
            busy.spend_time(cost.for_chunks(chunks)).await;
            for Outgoing { outlet_index, message } in outgoing {
                self.role.outlet_at(outlet_index).send(vec![message.into()]).await?;
            }
            self.stage.reports.push(PeerAction::Processed(id));
        }
    }

    /// Converts a received message into the messages to send. A router splits it into one message for each request. A detokenizer adds the
    /// text, and splits the message only if there are several workers.
    fn transform_message(
        &self,
        release: SglangRelease,
        decoder: &mut Decoder,
        message: &Parts,
    ) -> anyhow::Result<Forwarded> {
        let decoded = decoder.decode(&message[0]).context("a demo peer cannot read a frame")?;
        anyhow::ensure!(
            decoded.shape().kind == Kind::TokenIds,
            "a {} where the scheduler's output was expected",
            decoded.shape().class
        );
        // Kept apart from the rows, which borrow them.
        let texts: Vec<_> = decoded.chunks().iter().map(|chunk| text_of(chunk.ids)).collect();
        let rows: Vec<_> = decoded.chunks().iter().zip(&texts).map(|(chunk, text)| row_of_chunk(chunk, text)).collect();
        let outgoing = match &self.role {
            ForwarderRole::Router(outlets) => self.split_for_detokenizers(release, &rows, outlets.len()),
            ForwarderRole::Detokenizer(workers) if workers.len() > 1 => split_for_workers(release, &rows, workers)?,
            ForwarderRole::Detokenizer(_) => {
                let is_split = false;
                vec![Outgoing { outlet_index: 0, message: encode_batch(release, Class::Text, &rows, is_split) }]
            }
        };
        Ok(Forwarded { chunks: rows.len() as u32, outgoing })
    }

    /// Makes one message per request, for the detokenizer of the request's worker.
    fn split_for_detokenizers(
        &self,
        release: SglangRelease,
        rows: &[BatchRow<'_>],
        detokenizer_count: usize,
    ) -> Vec<Outgoing> {
        let is_split = true;
        let mut outgoing = Vec::new();
        for row in rows {
            let mut detokenizer_index = detokenizer_of(row.worker.unwrap_or_default(), detokenizer_count);
            // A request that strays goes to the next detokenizer.
            if self.stage.script.strays.is_some_and(|every| is_misrouted(row, every)) {
                detokenizer_index += 1;
            }
            let message = encode_batch(release, Class::TokenIds, &[*row], is_split);
            outgoing.push(Outgoing { outlet_index: detokenizer_index % detokenizer_count, message });
        }
        outgoing
    }
}

/// Makes one message per request, for the worker that waits for it. Fails if there is no such worker.
fn split_for_workers(
    release: SglangRelease,
    rows: &[BatchRow<'_>],
    workers: &[PeerOutlet],
) -> anyhow::Result<Vec<Outgoing>> {
    let is_split = true;
    let mut outgoing = Vec::new();
    for row in rows {
        let worker = workers.iter().position(|worker| Some(&*worker.endpoint) == row.worker);
        let outlet_index = worker.context("chunk for an unknown worker")?;
        let row_without_worker = BatchRow { worker: None, ..*row };
        let message = encode_batch(release, Class::Text, &[row_without_worker], is_split);
        outgoing.push(Outgoing { outlet_index, message });
    }
    Ok(outgoing)
}

impl ForwarderRole {
    fn outlet_at(&mut self, index: usize) -> &mut Outlet {
        let (Self::Router(outlets) | Self::Detokenizer(outlets)) = self;
        &mut outlets[index].outlet
    }
}

/// Returns whether the request strays: one in `every` does, from its tenth token on.
fn is_misrouted(row: &BatchRow<'_>, every: u32) -> bool {
    row.completion_tokens >= FIRST_STRAY_TOKEN && crc32fast::hash(row.rid.as_bytes()).is_multiple_of(every)
}

/// Entry for a received chunk in the message that is sent on, with the chunk's text.
fn row_of_chunk<'a>(chunk: &Chunk<'a>, text: &'a str) -> BatchRow<'a> {
    let completion_tokens = chunk.completion_tokens.unwrap_or(0);
    let finish = chunk.finish.map(|finish| match finish {
        event::Finish::Abort => Finish::Abort,
        event::Finish::Stop if let Some(&last_id) = chunk.ids.last() => Finish::Stop(last_id),
        // A stop needs the id of its last token. Without one, and for any other reason, the length is the reason.
        _ => Finish::Length(completion_tokens),
    });
    BatchRow {
        rid: chunk.rid,
        worker: chunk.worker,
        finish,
        ids: chunk.ids,
        text,
        prompt_tokens: chunk.prompt_tokens.unwrap_or(0),
        completion_tokens,
        ..BatchRow::default()
    }
}
