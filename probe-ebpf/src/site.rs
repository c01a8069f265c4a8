//! What a uprobe's attach cookie says: which place in which function of which target it sits on, and where the function
//! keeps its socket and its message there.
//!
//! A trap costs the target 0.3 to 1 us, the program behind it a fraction: so one trap tells as much as it can.

/// What is known when the program counter reaches a probed instruction.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Site {
    /// Entry of `zmq_msg_send(msg, socket, flags)`.
    Send = 1,
    /// Entry of `zmq_send(socket, buffer, length, flags)`.
    BufferSend = 2,
    /// Entry of `zmq_msg_recv(msg, socket, flags)`: the application asks for the next message.
    Recv = 3,
    /// Entry of `zmq_recv(socket, buffer, length, flags)`.
    BufferRecv = 4,
    /// Entry of `zmq_getsockopt(socket, option, ..)`: pyzmq asks for the next message by it.
    Option = 5,
    /// Inside `zmq_msg_recv`, its receive done: the result is in its register, socket and message where [`Cookie`] says.
    Received = 6,
    /// Inside a send, where only a refused one comes: the socket is where [`Cookie`] says.
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
    /// Return of either.
    EpollReturn = 13,
    /// Inside what `zmq_getsockopt` calls, where few options come by and `ZMQ_EVENTS` does not: the option is the second
    /// argument, the socket where [`Cookie`] says.
    OptionAsked = 14,
    /// Inside a receive that may wait and finds nothing: the socket is where [`Cookie`] says.
    Waits = 15,
}

impl Site {
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
            _ => return None,
        })
    }
}

/// A register that functions keep for their caller (System V, x86-64), in which a value survives calls.
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
    /// All of them, by number.
    pub const ALL: [Self; 7] = [
        Self::Rbx,
        Self::Rbp,
        Self::R12,
        Self::R13,
        Self::R14,
        Self::R15,
        Self::Rsp,
    ];
}

/// Where a function keeps one of its arguments at a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kept {
    /// In a register.
    In(Register),
    /// In the word at a register plus an offset.
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
        if raw & Self::MEMORY == 0 {
            (raw & 7, None)
        } else {
            (raw >> 8 & 7, Some(raw as u8 as i8))
        }
    }
}

/// An attach cookie: 8 bits of site, 16 of target, 16 each of where socket and message are, whether a receive that is done
/// says as well that the message before was handled, and whether the return of the call is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cookie(pub u64);

impl Cookie {
    const RETURNS: u64 = 1 << 63;
    const HANDLES: u64 = 1 << 62;

    /// Of a site that finds all it needs in the arguments' registers.
    pub const fn new(site: Site, target: u32) -> Self {
        Self(site as u64 | (target as u16 as u64) << 8)
    }

    /// The same, with a probe on the return of the call.
    #[must_use]
    pub const fn and_return(self) -> Self {
        Self(self.0 | Self::RETURNS)
    }

    /// Of [`Site::Received`].
    pub const fn received(target: u32, socket: Kept, message: Kept) -> Self {
        let places = (socket.encode() as u64) << 24 | (message.encode() as u64) << 40;
        Self(Self::new(Site::Received, target).0 | places)
    }

    /// The same, where no other site sees the application ask for the next message.
    #[must_use]
    pub const fn and_handled(self) -> Self {
        Self(self.0 | Self::HANDLES)
    }

    /// Of [`Site::Refused`], [`Site::OptionAsked`] and [`Site::Waits`].
    pub const fn within(site: Site, target: u32, socket: Kept) -> Self {
        Self(Self::new(site, target).0 | (socket.encode() as u64) << 24)
    }

    /// Whether a receive that is done says that the message before was handled.
    #[inline(always)]
    pub fn handles(self) -> bool {
        self.0 & Self::HANDLES != 0
    }

    /// Whether the return of the call is probed.
    #[inline(always)]
    pub fn returns(self) -> bool {
        self.0 & Self::RETURNS != 0
    }

    /// Which place; `None` when user space is of another build.
    #[inline(always)]
    pub fn site(self) -> Option<Site> {
        Site::of(self.0 as u8)
    }

    /// Index of the process among the targets.
    #[inline(always)]
    pub fn target(self) -> u32 {
        u32::from((self.0 >> 8) as u16)
    }

    /// Number of the register that holds the socket, or, with an offset, points to the word that does.
    #[inline(always)]
    pub fn socket(self) -> (u16, Option<i8>) {
        Kept::decode((self.0 >> 24) as u16)
    }

    /// The same of the message.
    #[inline(always)]
    pub fn message(self) -> (u16, Option<i8>) {
        Kept::decode((self.0 >> 40) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kept() -> impl Strategy<Value = Kept> {
        let register = prop::sample::select(&Register::ALL[..]);
        (register, any::<Option<i8>>()).prop_map(|(register, offset)| match offset {
            Some(offset) => Kept::At(register, offset),
            None => Kept::In(register),
        })
    }

    fn said((register, offset): (u16, Option<i8>)) -> Kept {
        let register = Register::ALL[usize::from(register)];
        offset.map_or(Kept::In(register), |offset| Kept::At(register, offset))
    }

    proptest! {
        #[test]
        fn a_cookie_says_what_it_was_told(target in 0_u32..1 << 16, socket in kept(), message in kept()) {
            let cookie = Cookie::received(target, socket, message);
            prop_assert_eq!((cookie.site(), cookie.target()), (Some(Site::Received), target));
            prop_assert_eq!((said(cookie.socket()), said(cookie.message())), (socket, message));
            prop_assert!(!cookie.returns() && !cookie.handles());
            let handles = cookie.and_handled();
            prop_assert!(handles.handles() && !handles.returns() && handles.message() == cookie.message());
            let refused = Cookie::within(Site::Refused, target, socket);
            prop_assert_eq!((refused.site(), said(refused.socket())), (Some(Site::Refused), socket));
            let entry = Cookie::new(Site::Send, target).and_return();
            prop_assert_eq!((entry.site(), entry.target(), entry.returns()), (Some(Site::Send), target, true));
        }
    }

    #[test]
    fn every_site_has_its_number() {
        let known = (0..=u8::MAX).filter_map(|byte| Some((byte, Site::of(byte)?)));
        assert!(known.clone().all(|(byte, site)| site as u8 == byte));
        assert_eq!(known.count(), 15);
        assert_eq!(Cookie::new(Site::Option, 255).site(), Some(Site::Option));
    }
}
