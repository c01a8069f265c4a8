//! State of a libzmq call between its probed entry and its probed return.

/// Arguments saved at the entry for the probe on the return.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// The application's socket; 0 outside a call.
    pub socket: u64,
    /// Address of the `zmq_msg_t` or of the plain buffer.
    pub place: u64,
    /// Size of the plain buffer in bytes.
    pub room: u64,
}

impl Call {
    /// Returns the saved call and clears it; `None` if the call was entered before the attach.
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
        let entered = Call { socket: 7, place: 8, room: 0 };
        let mut call = entered;
        assert_eq!((call.returned(), call.returned()), (Some(entered), None));
    }
}
