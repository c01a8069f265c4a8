//! The relay between real peers: what comes out is what went in, whatever happens to either side.

mod bytes;
mod endings;
mod files;
mod http;
mod limits;
mod peers;
mod support;
