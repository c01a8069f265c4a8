//! A run under observation, published to whoever watches it from elsewhere: events and the state they go on from.
//!
//! [`Publisher`] is a ZMQ PUB socket of our own: every watcher has a queue of fixed size, so that a slow one costs the run neither time
//! nor memory, and what it missed is counted. [`Watcher`] is the other end. docs/reference/feed.md describes what is sent.

#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod image;
mod key;
mod line;
mod message;
mod publish;
mod watch;
mod zmtp;

pub use image::{Image, ImageError};
pub use key::{Key, KeyError};
pub use message::{Body, Head, Message, MessageError, SCHEMA, Start};
pub use publish::{PublishError, PublishOptions, Published, Publisher, Telling};
pub use watch::{News, WatchOptions, Watcher};
