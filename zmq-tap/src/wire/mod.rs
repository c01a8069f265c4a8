//! Bytes to types: what one ZMQ message of `SGLang` says. No I/O.
