//! Parser of one connection, whatever its protocol: it finds the elements of responses in the bytes.

use trace::event::UnknownArrival;

use super::event::ResponseElement;
use super::http::HttpParser;
use super::http2::Http2Parser;
use super::{ParseStream, Unreadable};

/// Stream of a connection that carries one response at a time. Only HTTP/2 has others.
pub(super) const SINGLE_STREAM: u32 = 0;

/// Parser of the bytes that a server writes on one connection.
#[derive(Debug)]
pub(super) enum ConnectionParser {
    /// Searching for a readable position. Holds bytes that are too few to decide.
    Seeking(Vec<u8>),
    Http(Box<HttpParser>),
    Http2(Box<Http2Parser>),
    Stream(Box<dyn ParseStream>),
    Unreadable,
}

impl Default for ConnectionParser {
    fn default() -> Self {
        Self::Seeking(Vec::new())
    }
}

impl ConnectionParser {
    /// Parses the next bytes of the connection. Passes each element of a response to `emit`, with the stream of the response. Ignores the
    /// bytes if no readable position is known. After an error, no further byte can be read.
    pub(super) fn parse(
        &mut self,
        bytes: &[u8],
        mut emit: impl FnMut(u32, ResponseElement<'_>),
    ) -> Result<(), Unreadable> {
        match self {
            Self::Http(parser) => parser.parse(bytes, &mut |element| emit(SINGLE_STREAM, element)),
            Self::Http2(parser) => parser.parse(bytes, &mut emit),
            Self::Stream(parser) => parser.parse(bytes, &mut |element| emit(SINGLE_STREAM, element)),
            Self::Seeking(_) | Self::Unreadable => Ok(()),
        }
    }

    /// Ends the connection, which the server has closed. A body without a declared length ends with it.
    pub(super) fn end_at_close_by_server(&mut self, mut emit: impl FnMut(u32, ResponseElement<'_>)) {
        // In the other protocols, each body states its end.
        if let Self::Http(parser) = self {
            parser.end_connection(&mut |element| emit(SINGLE_STREAM, element));
        }
    }

    /// Why the protocol hides which request arrived when. `None` for HTTP/1, which does not.
    pub(super) fn why_arrivals_hidden(&self) -> Option<UnknownArrival> {
        match self {
            Self::Http2(_) => Some(UnknownArrival::Http2),
            Self::Stream(_) => Some(UnknownArrival::Protocol),
            // Without a parser, no response begins.
            Self::Http(_) | Self::Seeking(_) | Self::Unreadable => None,
        }
    }
}
