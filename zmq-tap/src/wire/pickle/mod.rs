//! A pickle machine that reads and never acts: classes are names, calls are records, nothing is resolved or run.
//!
//! Protocols 2 to 5. What SGLang pickles is in docs/internals/WIRE.md; the opcodes are those of Python's `pickletools`.

mod array;
mod build;
mod flat;
mod nested;
mod op;
mod scalar;
#[cfg(test)]
mod tests;
mod vm;

pub(super) use flat::{item as flat_item, short_int as flat_int, string as flat_string};
pub(super) use scalar::{float, int, payload, says};

use super::arena::{Arena, Node};
use super::{Limits, Undecoded};
use vm::Vm;

/// The machine's own memory, kept between messages.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    stack: Vec<Node>,
    /// Lengths of the stack at each open `MARK`.
    marks: Vec<u32>,
}

/// Reads the whole message into `arena`; gives the value it pickles and its protocol.
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
    let value = Vm::new(message, arena, scratch, limits)?.run()?;
    Ok((value, protocol))
}
