//! A libzmq call whose return is probed, between its entry and its return.

/// What its return needs to know of its entry.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// The application's socket; 0 while there is no call.
    pub socket: u64,
    /// The `zmq_msg_t`, or the plain buffer.
    pub place: u64,
    /// Room in the plain buffer.
    pub room: u64,
}

impl Call {
    /// The call that returns; `None` when its entry was before the attach.
    #[inline(always)]
    pub fn returned(&mut self) -> Option<Self> {
        let call = *self;
        self.socket = 0;
        (call.socket != 0).then_some(call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_returns_once() {
        let entered = Call {
            socket: 7,
            place: 8,
            room: 0,
        };
        let mut kept = entered;
        assert_eq!((kept.returned(), kept.returned()), (Some(entered), None));
    }
}
