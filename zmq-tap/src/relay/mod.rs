//! The byte-transparent relay.
