//! Tests of the relay between real peers: the output must equal the input, whatever happens to either side.

mod bytes;
mod endings;
mod files;
mod http;
mod limits;
mod peers;
mod support;
