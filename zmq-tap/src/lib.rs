//! The tap and its parts: the traits of an engine's message decoder ([`decode`]), the frame scanner ([`zmtp`]), the byte-transparent relay
//! ([`relay`]), relay and decoder combined into events ([`tap`]), the reader of responses to clients ([`egress`]), and the takeover of a
//! socket that is in use ([`splice`]).

pub mod decode;
pub mod egress;
#[cfg(target_os = "linux")]
pub mod relay;
#[cfg(target_os = "linux")]
pub mod splice;
#[cfg(target_os = "linux")]
pub mod tap;
pub mod zmtp;
