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
    /// Target index of the caller. On Linux 6.1, perf events of return probes run in every target with the library, not only in theirs.
    pub target: u32,
    /// Always 0.
    pub reserved: u32,
}

impl Call {
    /// Whether `target` entered the call.
    #[inline(always)]
    pub const fn is_of(&self, target: u32) -> bool {
        self.target == target
    }

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
        let entered = Call { socket: 7, place: 8, ..Call::default() };
        let mut call = entered;
        assert_eq!((call.returned(), call.returned()), (Some(entered), None));
    }

    #[test]
    fn a_returned_call_is_still_of_its_target() {
        let mut call = Call { socket: 7, target: 1, ..Call::default() };
        assert!(call.is_of(1) && !call.is_of(2));
        assert!(call.returned().is_some());
        // The program of another target runs after that of the caller, too.
        assert!(!call.is_of(2));
    }
}
