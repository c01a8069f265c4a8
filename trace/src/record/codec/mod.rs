//! Records to bytes and back, a block at a time and without any I/O.
//!
//! A block stands for itself: its texts, its lanes and what is expected of each request begin anew with it. Writer and reader
//! make the same expectations of every frame, and only what is not as expected is written.

mod bytes;
mod chain;
mod chunk;
mod codes;
mod columns;
mod decoder;
mod delivery;
mod encoder;
mod frame;
mod lane;
mod rare;
mod standing;
mod text;

pub(super) use columns::Columns;
pub(super) use decoder::{Scratch, decode};
pub(super) use encoder::{Content, Encoder};
