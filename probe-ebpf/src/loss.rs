//! Why an observation was not made. Each cause has its counter in a per-CPU array; none is ever silent.

/// Causes, and their index in the kernel side's `LOSSES` array.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loss {
    /// The ring was full: the reader fell behind. The record is gone, its sequence number is not.
    RingFull = 0,
    /// A `zmq_msg_t` of a type this version does not know. It is counted, never guessed.
    UnknownMessage = 1,
    /// The message's own header or length could not be read.
    HeaderFault = 2,
    /// The payload could not be read (a page not resident): the record carries its length and no bytes.
    PayloadFault = 3,
    /// A thread was not in the map, or was evicted from it: a call's return without its entry.
    InFlight = 4,
    /// The map of sockets was full: a message without a sequence number.
    Channels = 5,
}

impl Loss {
    /// Every cause, in the order of the array.
    pub const ALL: [Self; 6] = [
        Self::RingFull,
        Self::UnknownMessage,
        Self::HeaderFault,
        Self::PayloadFault,
        Self::InFlight,
        Self::Channels,
    ];

    /// The cause in words, for screens and reports.
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
    fn the_array_is_in_the_order_of_the_causes() {
        for (i, cause) in Loss::ALL.iter().enumerate() {
            assert_eq!(*cause as usize, i);
        }
    }
}
