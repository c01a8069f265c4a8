//! The tap: what SGLang's ZMQ messages say ([`wire`]), where they begin and end in a byte stream ([`zmtp`]), and the
//! relay that lets them pass unchanged ([`relay`]), and the two together as events ([`tap`]).

pub mod relay;
pub mod tap;
pub mod wire;
pub mod zmtp;
