//! Encodes and decodes records, one block at a time and without any I/O.
//!
//! A block is self-contained: its texts, its lanes and the predictions for each request start from scratch. Writer and reader make the same
//! predictions for every frame, and only differences are written.

mod block;
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

pub(super) use block::{Content, DecodedBlock, Encoder};
pub(super) use bytes::Malformed;
pub(super) use columns::Columns;
pub(super) use decoder::Scratch;
