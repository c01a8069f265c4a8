//! Causes of missed observations. A per-CPU array counts each cause.

/// Cause of a missed observation; its value is the index in the kernel side's `LOSSES` array.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loss {
    /// The ring was full because the reader fell behind. The record is dropped, but its sequence number is used up.
    RingFull = 0,
    /// A `zmq_msg_t` of an unknown type.
    UnknownMessage = 1,
    /// The message's `zmq_msg_t` or length could not be read.
    HeaderFault = 2,
    /// The payload could not be read (page not resident). The record has its length but no bytes.
    PayloadFault = 3,
    /// A thread or call was missing from its map (full, or evicted), such as a return without its entry.
    InFlight = 4,
    /// The map of sockets was full, so the message got no sequence number.
    Channels = 5,
}

impl Loss {
    /// Every cause, in array order.
    pub const ALL: [Self; 6] =
        [Self::RingFull, Self::UnknownMessage, Self::HeaderFault, Self::PayloadFault, Self::InFlight, Self::Channels];

    /// Description for screens and reports.
    pub const fn words(self) -> &'static str {
        match self {
            Self::RingFull => "the ring buffer was full",
            Self::UnknownMessage => "unknown zmq_msg_t type",
            Self::HeaderFault => "the message header was not readable",
            Self::PayloadFault => "the payload was not resident",
            Self::InFlight => "a call's return had no entry",
            Self::Channels => "too many ZMQ sockets",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_indexed_by_cause() {
        for (i, cause) in Loss::ALL.iter().enumerate() {
            assert_eq!(*cause as usize, i);
        }
    }
}
