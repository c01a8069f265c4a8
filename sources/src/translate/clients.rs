//! Clients of a server: the bytes that they are sent, and the frames that these are compared with.

use adapter::decode::ReadResponseId;
use responses::Server;
use trace::event::Frame;

/// All clients of a server.
#[derive(Debug, Default)]
pub struct Clients {
    /// Reads the responses.
    pub server: Server,
    /// Set if the bytes to at least one client are observed.
    pub is_observed: bool,
    /// How responses name their requests. `None` for a relay, which learns it from the format of the messages.
    pub response_id: Option<ReadResponseId>,
}

impl Clients {
    /// Returns whether the token ids of frames are needed: to match streams by their tokens, or to compare text.
    pub(crate) fn needs_ids(&self) -> bool {
        self.server.content.is_enabled() || self.server.texts.detokenizer.is_some()
    }

    /// Returns whether the text of frames is compared with that of responses.
    pub(crate) fn compares_text(&self) -> bool {
        self.is_observed && !self.server.content.is_enabled()
    }

    /// Keeps the text and token ids of a sent frame, with which the responses to clients are compared. Call this before the frame reaches
    /// the process that responds. Does nothing if no response is observed. `format_reader` reads the id of a request from a response, if
    /// the format of the frame's message has one.
    pub fn record_frame(&mut self, frame: &Frame<'_>, format_reader: Option<ReadResponseId>) {
        if !self.is_observed {
            return;
        }
        // If texts are not compared, the responses go to a frontend and name requests by its ids, not as the format does.
        let format_reader = if self.compares_text() { format_reader } else { None };
        self.server.record_frame(frame, self.response_id.or(format_reader));
    }

    /// Records that messages were missed or not decoded, so that later text is not compared with theirs.
    pub(crate) fn record_missed_frames(&mut self) {
        self.server.texts.record_missed_frames();
    }
}
