//! Dynamo's planes, recorded from real runtimes: response streams to frontends, requests, and waits in a frontend.

#[expect(dead_code, reason = "the tests of `responses` use the rest")]
#[path = "../../../responses/tests/recorded/connection.rs"]
mod connection;
mod frontend;
mod plane;
mod requests;

use engines::PROTOCOLS;
use responses::ResponseReader;

use connection::{Connection, Observed, damaged, recorded, recording};

/// A worker's connection to a frontend.
fn worker() -> ResponseReader {
    ResponseReader::default().with_protocols(PROTOCOLS)
}
