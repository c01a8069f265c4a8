//! Events decoded from blocks for any msgpack reader; done only while someone subscribes to them.

use serde::Serialize;
use trace::Event;
use trace::record::{BlockReader, Record};

use crate::message::body;

/// Decodes blocks on the feed's thread, so that the run does not pay for it.
#[derive(Default)]
pub(super) struct EventBodies {
    reader: BlockReader,
    bytes: Vec<u8>,
}

impl EventBodies {
    /// Returns the message body with the events of the block.
    pub(super) fn of(&mut self, block: &[u8]) -> Vec<u8> {
        let Self { reader, bytes } = self;
        bytes.clear();
        let mut count = 0;
        let mut write = |event: &Event<'_>| {
            let start = bytes.len();
            let mut to = rmp_serde::Serializer::new(&mut *bytes).with_struct_map();
            if event.serialize(&mut to).is_ok() {
                count += 1;
            } else {
                bytes.truncate(start);
            }
        };
        let read = reader.read(block, &mut |record| {
            if let Record::Event(event) = record {
                write(&event);
            }
        });
        if let Err(error) = read {
            tracing::warn!("feed: {error}. Please report this bug.");
        }
        body::events(count, bytes)
    }
}
