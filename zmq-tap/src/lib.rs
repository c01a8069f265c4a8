//! The tap: what SGLang's ZMQ messages say ([`wire`]), where they begin and end in a byte stream ([`zmtp`]), and the
//! relay that lets them pass unchanged ([`relay`]), the two together as events ([`tap`]), and what leaves for the clients
//! ([`egress`]), and [`splice`], which puts the relay in the place of a socket that is in use.

pub mod egress;
#[cfg(target_os = "linux")]
pub mod relay;
#[cfg(target_os = "linux")]
pub mod splice;
#[cfg(target_os = "linux")]
pub mod tap;
pub mod wire;
pub mod zmtp;
