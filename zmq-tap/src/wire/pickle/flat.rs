//! The fast path: a batch of list items that need no building.
//!
//! Nine columns in ten are `MARK item... APPENDS` with nothing but numbers, `None`, booleans, strings and references to
//! strings inside. They are measured here and left where they are; a column that is read decodes them in place.

use super::super::arena::{Arena, Node, kinds};
use super::{op, scalar};

/// A batch that stays in the message.
pub(super) struct Flat {
    /// Its first item; the batch ends before the `APPENDS` at `end`.
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) len: u32,
    pub(super) kinds: u8,
}

/// Measures the batch whose first item is at `start`. `None` when an item needs the machine (or the bytes end): the
/// memo is then as it was. `memo_limit` is not exceeded; the machine reports it.
pub(super) fn scan(b: &[u8], start: usize, arena: &mut Arena, memo_limit: usize) -> Option<Flat> {
    let before = arena.memo.len();
    let flat = walk(b, start, &mut arena.memo, memo_limit);
    if flat.is_none() {
        arena.memo.truncate(before);
    }
    flat
}

fn walk(b: &[u8], start: usize, memo: &mut Vec<Node>, memo_limit: usize) -> Option<Flat> {
    let (mut at, mut len, mut set) = (start, 0u32, 0u8);
    loop {
        match *b.get(at)? {
            op::BININT1 => {
                set |= kinds::INT;
                at += 2;
            }
            op::BININT2 => {
                set |= kinds::INT;
                at += 3;
            }
            op::BININT => {
                set |= kinds::INT;
                at += 5;
            }
            op::NONE => {
                set |= kinds::NIL;
                at += 1;
            }
            op::NEWTRUE | op::NEWFALSE => {
                set |= kinds::OTHER;
                at += 1;
            }
            op::BINFLOAT => {
                set |= kinds::OTHER;
                at += 9;
            }
            op::SHORT_BINUNICODE | op::BINUNICODE => {
                let (_, end) = scalar::payload(b, at)?;
                set |= kinds::STR;
                at = remember(b, Node::Str(at as u32), end, memo, memo_limit)?;
            }
            op::BINGET | op::LONG_BINGET => {
                let (slot, next) = slot(b, at)?;
                if slot >= memo.len() {
                    return None;
                }
                set |= kinds::GET;
                at = next;
            }
            op::LONG1 | op::LONG4 => {
                set |= kinds::OTHER;
                at += scalar::int_len(b, at)?;
            }
            op::APPENDS => {
                return Some(Flat {
                    start,
                    end: at,
                    len,
                    kinds: set,
                });
            }
            _ => return None,
        }
        len += 1;
    }
}

/// The memo slot that the `GET` at `at` names, and what follows it.
fn slot(b: &[u8], at: usize) -> Option<(usize, usize)> {
    Some(match *b.get(at)? {
        op::BINGET => (usize::from(*b.get(at + 1)?), at + 2),
        op::LONG_BINGET => (u32::from_le_bytes(*b.get(at + 1..)?.first_chunk()?) as usize, at + 5),
        _ => return None,
    })
}

/// Numbers `node` if the opcode at `at` says so; gives what follows.
fn remember(b: &[u8], node: Node, at: usize, memo: &mut Vec<Node>, memo_limit: usize) -> Option<usize> {
    let (slot, next) = match *b.get(at)? {
        op::MEMOIZE => (memo.len(), at + 1),
        op::BINPUT => (usize::from(*b.get(at + 1)?), at + 2),
        op::LONG_BINPUT => (u32::from_le_bytes(*b.get(at + 1..)?.first_chunk()?) as usize, at + 5),
        _ => return Some(at),
    };
    if slot != memo.len() || slot >= memo_limit {
        return None;
    }
    memo.push(node);
    Some(next)
}

/// The item at `at` of a batch that [`scan`] measured, and what follows it.
pub(in super::super) fn item(b: &[u8], at: usize, memo: &[Node]) -> Option<(Node, usize)> {
    let here = at as u32;
    let (node, next) = match *b.get(at)? {
        op::BININT1 => (Node::Int(here), at + 2),
        op::BININT2 => (Node::Int(here), at + 3),
        op::BININT => (Node::Int(here), at + 5),
        op::LONG1 | op::LONG4 => (Node::Long(here), at + scalar::int_len(b, at)?),
        op::NONE => (Node::Nil, at + 1),
        op::NEWTRUE => (Node::Bool(true), at + 1),
        op::NEWFALSE => (Node::Bool(false), at + 1),
        op::BINFLOAT => (Node::Float(here), at + 9),
        op::SHORT_BINUNICODE | op::BINUNICODE => {
            let end = scalar::payload(b, at)?.1;
            let put = match *b.get(end)? {
                op::MEMOIZE => 1,
                op::BINPUT => 2,
                op::LONG_BINPUT => 5,
                _ => 0,
            };
            (Node::Str(here), end + put)
        }
        _ => {
            let (slot, next) = slot(b, at)?;
            (*memo.get(slot)?, next)
        }
    };
    Some((node, next))
}
