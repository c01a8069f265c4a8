//! The instructions of libzmq's functions where one trap tells as much as an entry and a return do.

use iced_x86::{Code, FlowControl, Instruction, Register as Reg};
use probe_ebpf::Kept;

use super::walk::{Code64, State, Value, emulated, writes};

/// How many instructions behind an entry or a call are looked at.
const NEAR: usize = 6;

/// Where a receive is done, and where its arguments are kept there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) at: u64,
    pub(crate) socket: Kept,
    pub(crate) message: Kept,
}

/// Where a refused send comes by, and no other, and where its socket is kept there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) at: u64,
    pub(crate) socket: Kept,
}

/// Message and socket are the first two arguments of `zmq_msg_send` and `zmq_msg_recv`.
const ARGUMENTS: [Value; 2] = [Value::Message, Value::Socket];

/// The instruction to probe for a function's entry and for its return: the first one that the kernel emulates, as long as
/// arguments and stack pointer are as they were at the call; else the very first.
pub(super) fn entry(code: Code64<'_>, function: u64) -> u64 {
    const PASSED: [Reg; 5] = [Reg::RDI, Reg::RSI, Reg::RDX, Reg::RCX, Reg::RSP];
    let mut ip = function;
    for _ in 0..NEAR {
        let Some(instruction) = code.at(ip) else { break };
        if emulated(&instruction) {
            return ip;
        }
        if instruction.flow_control() != FlowControl::Next || PASSED.iter().any(|passed| writes(&instruction, *passed))
        {
            break;
        }
        ip = instruction.next_ip();
    }
    function
}

/// Where `zmq_msg_recv` has its result: on the straight line behind the call that was given the message (`s_recvmsg`, or
/// `socket_base_t::recv` where that is inlined).
pub(super) fn received(code: Code64<'_>, function: u64) -> Option<Received> {
    let (call, state) = message_call(code, function, State::entry(&ARGUMENTS))?;
    let (mut ip, mut state) = (call.next_ip(), state.called());
    for _ in 0..NEAR {
        let instruction = code.at(ip)?;
        if emulated(&instruction) {
            return Some(Received {
                at: ip,
                socket: state.kept(Value::Socket)?,
                message: state.kept(Value::Message)?,
            });
        }
        if instruction.flow_control() != FlowControl::Next || writes(&instruction, Reg::RAX) {
            return None;
        }
        state.step(&instruction);
        ip = instruction.next_ip();
    }
    None
}

/// Where a send has failed: behind its call, where -1 becomes its result.
pub(super) fn refused(code: Code64<'_>, function: u64) -> Option<Refused> {
    let (call, state) = message_call(code, function, State::entry(&ARGUMENTS))?;
    behind(code, &call, state).or_else(|| {
        // Not inlined: the call is `s_sendmsg(socket, message, flags)`.
        let inner = State::entry(&[Value::Socket, Value::Message]);
        let (call, state) = message_call(code, call.near_branch_target(), inner)?;
        behind(code, &call, state)
    })
}

fn behind(code: Code64<'_>, call: &Instruction, state: State) -> Option<Refused> {
    code.walk(call.next_ip(), state.called(), |instruction, state| {
        let minus_one = instruction.code() == Code::Mov_r32_imm32
            && instruction.op0_register() == Reg::EAX
            && instruction.immediate32() == u32::MAX;
        let socket = minus_one.then(|| state.kept(Value::Socket)).flatten()?;
        // The jump behind it is emulated.
        let next = code
            .at(instruction.next_ip())
            .filter(|next| next.flow_control() == FlowControl::UnconditionalBranch);
        Some(Refused {
            at: next.map_or(instruction.ip(), |next| next.ip()),
            socket,
        })
    })
}

/// The first call that is given the message as its second argument, and what is known before it.
fn message_call(code: Code64<'_>, function: u64, state: State) -> Option<(Instruction, State)> {
    code.walk(function, state, |instruction, state| {
        let hands_on = instruction.code() == Code::Call_rel32_64 && state.get(Reg::RSI) == Value::Message;
        hands_on.then(|| (*instruction, state.clone()))
    })
}
