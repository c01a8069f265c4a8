//! Publishes a running analysis to remote watchers: its state, then the events that follow.
//!
//! [`Publisher`] is a ZMQ PUB socket. Every watcher has a queue of fixed size, so a slow one costs the run neither time nor memory, and its
//! dropped messages are counted. [`Watcher`] is the receiving end. docs/reference/feed.md describes the messages.

mod cost;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod image;
mod key;
mod line;
mod message;
#[cfg_attr(not(feature = "encryption"), path = "no_noise.rs")]
mod noise;
mod publish;
mod watch;
pub mod zmtp;

pub use image::{Image, ImageError};
pub use key::Key;
pub use message::{Body, Head, Message, MessageError, SCHEMA, Start};
pub use publish::{Past, PublishOptions, Published, Publisher};
pub use watch::{WatchEvent, WatchOptions, Watcher};
