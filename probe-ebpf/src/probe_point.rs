//! Attach cookie of a uprobe: the probe point, the target, and where the probed function keeps its socket and message.
//!
//! A trap costs the target 0.3 to 1 us, the BPF program a fraction of that. One trap therefore reports as much as it can.

/// Event that a probed instruction stands for.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProbePoint {
    /// Entry of `zmq_msg_send(msg, socket, flags)`.
    Send = 1,
    /// Entry of `zmq_send(socket, buffer, length, flags)`.
    BufferSend = 2,
    /// Entry of `zmq_msg_recv(msg, socket, flags)`: the application asks for the next message.
    Recv = 3,
    /// Entry of `zmq_recv(socket, buffer, length, flags)`.
    BufferRecv = 4,
    /// Entry of `zmq_getsockopt(socket, option, ..)`, which pyzmq calls before it asks for the next message.
    Option = 5,
    /// Inside `zmq_msg_recv`, after the receive. The result is in its register; [`Cookie`] locates socket and message.
    Received = 6,
    /// Inside a send, on the path of refused messages only. [`Cookie`] locates the socket.
    Refused = 7,
    /// Return of `zmq_msg_recv`.
    RecvReturn = 8,
    /// Return of `zmq_recv`.
    BufferRecvReturn = 9,
    /// Return of a send.
    SendReturn = 10,
    /// Entry of `poll`.
    Poll = 11,
    /// Entry of `epoll_wait` or `epoll_pwait`.
    Epoll = 12,
    /// Return of `epoll_wait` or `epoll_pwait`.
    EpollReturn = 13,
    /// Inside a callee of `zmq_getsockopt`, on a path for few options that excludes `ZMQ_EVENTS`. The option is the second
    /// argument; [`Cookie`] locates the socket.
    OptionAsked = 14,
    /// Inside a blocking receive that found no message. [`Cookie`] locates the socket.
    Waits = 15,
    /// Entry of a method of a `CPython` extension (`METH_FASTCALL`): `method(self, arguments, count, keywords)`. The first argument is a
    /// bytes object with a message.
    Method = 16,
    /// Entry of `SSL_write(ssl, buffer, size)`.
    TlsWrite = 17,
    /// Entry of `SSL_write_ex(ssl, buffer, size, &written)`.
    TlsWriteEx = 18,
    /// Entry of `SSL_free(ssl)`.
    TlsFree = 19,
    /// Return of the method of [`Self::Method`].
    MethodReturn = 20,
    /// Return of `accept` or `accept4`.
    AcceptReturn = 21,
}

impl ProbePoint {
    #[inline(always)]
    fn of(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Send,
            2 => Self::BufferSend,
            3 => Self::Recv,
            4 => Self::BufferRecv,
            5 => Self::Option,
            6 => Self::Received,
            7 => Self::Refused,
            8 => Self::RecvReturn,
            9 => Self::BufferRecvReturn,
            10 => Self::SendReturn,
            11 => Self::Poll,
            12 => Self::Epoll,
            13 => Self::EpollReturn,
            14 => Self::OptionAsked,
            15 => Self::Waits,
            16 => Self::Method,
            17 => Self::TlsWrite,
            18 => Self::TlsWriteEx,
            19 => Self::TlsFree,
            20 => Self::MethodReturn,
            21 => Self::AcceptReturn,
            _ => return None,
        })
    }
}

/// A callee-saved register (System V ABI, x86-64), whose value survives calls.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Register {
    /// `rbx`
    Rbx = 0,
    /// `rbp`
    Rbp = 1,
    /// `r12`
    R12 = 2,
    /// `r13`
    R13 = 3,
    /// `r14`
    R14 = 4,
    /// `r15`
    R15 = 5,
    /// `rsp`, as the base of a stack slot.
    Rsp = 6,
}

impl Register {
    /// All registers, by number.
    pub const ALL: [Self; 7] = [Self::Rbx, Self::Rbp, Self::R12, Self::R13, Self::R14, Self::R15, Self::Rsp];
}

/// Location of a function's argument at a probe point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kept {
    /// In a register.
    In(Register),
    /// In memory, at a register plus an offset.
    At(Register, i8),
}

impl Kept {
    const MEMORY: u16 = 1 << 15;

    const fn encode(self) -> u16 {
        match self {
            Self::In(register) => register as u16,
            Self::At(register, offset) => Self::MEMORY | (register as u16) << 8 | offset as u8 as u16,
        }
    }

    #[inline(always)]
    fn decode(raw: u16) -> (u16, Option<i8>) {
        if raw & Self::MEMORY == 0 { (raw & 7, None) } else { (raw >> 8 & 7, Some(raw as u8 as i8)) }
    }
}

/// An attach cookie: probe point (8 bits), target (16 bits), locations of socket and message (16 bits each), and two flags.
/// The flags: a completed receive marks the previous message as processed, and the call's return is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cookie(pub u64);

impl Cookie {
    const RETURNS: u64 = 1 << 63;
    const MARKS_PROCESSED: u64 = 1 << 62;

    /// Cookie of a probe point that needs only the argument registers.
    pub const fn new(probe_point: ProbePoint, target: u32) -> Self {
        Self(probe_point as u64 | (target as u16 as u64) << 8)
    }

    /// Adds a probe on the call's return.
    #[must_use]
    pub const fn and_return(self) -> Self {
        Self(self.0 | Self::RETURNS)
    }

    /// Cookie of [`ProbePoint::Received`].
    pub const fn received(target: u32, socket: Kept, message: Kept) -> Self {
        let places = (socket.encode() as u64) << 24 | (message.encode() as u64) << 40;
        Self(Self::new(ProbePoint::Received, target).0 | places)
    }

    /// Makes a completed receive mark the previous message as processed, for libraries without another probe point for it.
    #[must_use]
    pub const fn and_processed(self) -> Self {
        Self(self.0 | Self::MARKS_PROCESSED)
    }

    /// Cookie of [`ProbePoint::Refused`], [`ProbePoint::OptionAsked`] or [`ProbePoint::Waits`].
    pub const fn within(probe_point: ProbePoint, target: u32, socket: Kept) -> Self {
        Self(Self::new(probe_point, target).0 | (socket.encode() as u64) << 24)
    }

    /// Whether a completed receive marks the previous message as processed.
    #[inline(always)]
    pub fn marks_processed(self) -> bool {
        self.0 & Self::MARKS_PROCESSED != 0
    }

    /// Whether the call's return is probed.
    #[inline(always)]
    pub fn returns(self) -> bool {
        self.0 & Self::RETURNS != 0
    }

    /// Probe point; `None` if user space is from another build.
    #[inline(always)]
    pub fn probe_point(self) -> Option<ProbePoint> {
        ProbePoint::of(self.0 as u8)
    }

    /// Index of the process among the targets.
    #[inline(always)]
    pub fn target(self) -> u32 {
        u32::from((self.0 >> 8) as u16)
    }

    /// Number of the register that holds the socket; with an offset, the register points to the memory that holds it.
    #[inline(always)]
    pub fn socket(self) -> (u16, Option<i8>) {
        Kept::decode((self.0 >> 24) as u16)
    }

    /// Location of the message, encoded like [`Cookie::socket`].
    #[inline(always)]
    pub fn message(self) -> (u16, Option<i8>) {
        Kept::decode((self.0 >> 40) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_kept() -> impl Strategy<Value = Kept> {
        let register = prop::sample::select(&Register::ALL[..]);
        (register, any::<Option<i8>>()).prop_map(|(register, offset)| match offset {
            Some(offset) => Kept::At(register, offset),
            None => Kept::In(register),
        })
    }

    fn location((register, offset): (u16, Option<i8>)) -> Kept {
        let register = Register::ALL[usize::from(register)];
        offset.map_or(Kept::In(register), |offset| Kept::At(register, offset))
    }

    proptest! {
        #[test]
        fn a_cookie_returns_the_encoded_values(target in 0_u32..1 << 16, socket in any_kept(), message in any_kept()) {
            let cookie = Cookie::received(target, socket, message);
            prop_assert_eq!((cookie.probe_point(), cookie.target()), (Some(ProbePoint::Received), target));
            prop_assert_eq!((location(cookie.socket()), location(cookie.message())), (socket, message));
            prop_assert!(!cookie.returns() && !cookie.marks_processed());
            let marks = cookie.and_processed();
            prop_assert!(marks.marks_processed() && !marks.returns() && marks.message() == cookie.message());
            let refused = Cookie::within(ProbePoint::Refused, target, socket);
            prop_assert_eq!((refused.probe_point(), location(refused.socket())), (Some(ProbePoint::Refused), socket));
            let entry = Cookie::new(ProbePoint::Send, target).and_return();
            prop_assert_eq!((entry.probe_point(), entry.target(), entry.returns()), (Some(ProbePoint::Send), target, true));
        }
    }

    #[test]
    fn every_probe_point_has_its_own_number() {
        let known = (0..=u8::MAX).filter_map(|byte| Some((byte, ProbePoint::of(byte)?)));
        assert!(known.clone().all(|(byte, probe_point)| probe_point as u8 == byte));
        assert_eq!(known.count(), 21);
        assert_eq!(Cookie::new(ProbePoint::Option, 255).probe_point(), Some(ProbePoint::Option));
    }
}
