//! A pickle machine without side effects: classes are names, calls are records, and nothing is resolved or executed.
//!
//! Supports protocols 2 to 5. docs/internals/WIRE.md describes the objects that SGLang pickles. The opcodes are those of Python's
//! `pickletools`.

mod array;
mod build;
mod flat;
mod nested;
mod op;
mod request_walk;
mod scalar;
#[cfg(test)]
mod tests;
mod vm;
mod writer;

pub(super) use flat::{read_item as flat_item, read_short_int as flat_int, read_string as flat_string};
pub(crate) use request_walk::{
    PickleWalk, RequestField, WalkItem, count_ids_at, field_int_at, is_true_at, read_text_list, text_at,
};
pub use writer::{PickleStyle, Pickler};

pub(super) use scalar::{payload_range, read_float, read_int, text_equals};

use super::arena::{Arena, Node};
use super::{Limits, Undecoded};
use vm::PickleMachine;

/// Memory of the machine that is kept between messages.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    stack: Vec<Node>,
    /// Stack length at each open `MARK`.
    marks: Vec<u32>,
}

/// Memory for a pickle inside a message of another codec.
#[derive(Debug, Default)]
pub(super) struct NestedPickle {
    arena: Arena,
    scratch: Scratch,
}

impl NestedPickle {
    /// The pickled value, with the arena that has its parts; `None` if it cannot be read.
    pub(super) fn load(&mut self, pickled: &[u8], limits: &Limits) -> Option<(Node, &Arena)> {
        let (value, _) = load(pickled, &mut self.arena, &mut self.scratch, limits).ok()?;
        Some((value, &self.arena))
    }
}

/// Reads the whole message into `arena`. Returns the pickled value and the protocol.
pub(super) fn load(
    message: &[u8],
    arena: &mut Arena,
    scratch: &mut Scratch,
    limits: &Limits,
) -> Result<(Node, u8), Undecoded> {
    arena.clear();
    let protocol = match message {
        [op::PROTO, protocol @ 2..=5, ..] => *protocol,
        _ => return Err(super::not_a_codec(message)),
    };
    let value = PickleMachine::new(message, arena, scratch, limits)?.execute()?;
    Ok((value, protocol))
}
