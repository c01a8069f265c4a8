//! Instructions in libzmq's functions where a single trap replaces an entry and a return probe.

use iced_x86::{Code, FlowControl, Instruction, Register as Reg};
use probe_ebpf::Kept;

use super::walk::{Code64, State, Value, emulated, writes};

/// Number of instructions after an entry or a call that are examined.
const NEAR: usize = 6;

/// Point where a receive has its result, with the locations of its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) at: u64,
    pub(crate) socket: Kept,
    pub(crate) message: Kept,
}

/// Point that only refused sends reach, or only calls requesting the next message, with the location of the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) at: u64,
    pub(crate) socket: Kept,
}

/// `ZMQ_RCVTIMEO`, which pyzmq reads before each receive.
const RCVTIMEO: i32 = 27;
/// `ZMQ_EVENTS`, which pyzmq reads several times for each receive.
const EVENTS: i32 = 15;
/// Maximum number of functions to which `zmq_getsockopt` may pass an option. libzmq has two.
const INNER: usize = 8;
/// Receive flag: do not block.
const DONTWAIT: i32 = 1;

/// Message and socket are the first two arguments of `zmq_msg_send` and `zmq_msg_recv`.
const ARGUMENTS: [Value; 2] = [Value::Message, Value::Socket];

/// Instruction to probe for a function's entry and return. It is the first one that the kernel can emulate, as long as arguments and stack
/// pointer still have their values from the call. Otherwise it is the very first instruction.
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

/// Function that `SSL_write` and `SSL_write_ex` call, if it has the parameters of the latter. Some releases of OpenSSL insert one.
pub(super) fn tls_write(code: Code64<'_>, write: u64, write_ex: u64) -> Option<u64> {
    const PASSED: [Reg; 4] = [Reg::RDI, Reg::RSI, Reg::RDX, Reg::RCX];
    let inner = first_call(code, write_ex, &PASSED)?;
    code.at(inner)?;
    (first_call(code, write, &PASSED[..2]) == Some(inner)).then_some(inner)
}

/// Target of a function's first call, if no instruction before it writes one of these registers.
fn first_call(code: Code64<'_>, function: u64, kept: &[Reg]) -> Option<u64> {
    let mut ip = function;
    for _ in 0..2 * NEAR {
        let instruction = code.at(ip)?;
        match instruction.flow_control() {
            FlowControl::Call => return Some(instruction.near_branch_target()),
            // A branch to an error of the caller.
            FlowControl::Next | FlowControl::ConditionalBranch => {}
            _ => return None,
        }
        if kept.iter().any(|register| writes(&instruction, *register)) {
            return None;
        }
        ip = instruction.next_ip();
    }
    None
}

/// Point where `zmq_msg_recv` has its result: in the straight-line code after the call that takes the message as an argument. The callee is
/// `s_recvmsg`, or `socket_base_t::recv` if that is inlined.
pub(super) fn received(code: Code64<'_>, function: u64) -> Option<Received> {
    let (call, state) = message_call(code, function, State::entry(&ARGUMENTS))?;
    let (mut ip, mut state) = (call.next_ip(), state.called());
    for _ in 0..NEAR {
        let instruction = code.at(ip)?;
        if emulated(&instruction) {
            return Some(Received { at: ip, socket: state.kept(Value::Socket)?, message: state.kept(Value::Message)? });
        }
        if instruction.flow_control() != FlowControl::Next || writes(&instruction, Reg::RAX) {
            return None;
        }
        state.step(&instruction);
        ip = instruction.next_ip();
    }
    None
}

/// Point where a send has failed: after its call, where -1 becomes the result.
pub(super) fn refused(code: Code64<'_>, function: u64) -> Option<Point> {
    let (call, state) = message_call(code, function, State::entry(&ARGUMENTS))?;
    after_call(code, &call, state).or_else(|| {
        // Not inlined: the call is `s_sendmsg(socket, message, flags)`.
        let inner = State::entry(&[Value::Socket, Value::Message]);
        let (call, state) = message_call(code, call.near_branch_target(), inner)?;
        after_call(code, &call, state)
    })
}

/// Point where `zmq_getsockopt` passes on `ZMQ_RCVTIMEO` but not `ZMQ_EVENTS`. The socket's own function, called by `zmq_getsockopt`,
/// handles a few options itself and calls another function for the rest.
pub(super) fn option_request(code: Code64<'_>, function: u64) -> Option<Point> {
    let called = |option| State::entry(&[Value::Socket, Value::Number(option)]);
    let passes_on =
        |instruction: &Instruction, state: &State| calls(instruction) && state.get(Reg::RSI) == Value::Number(RCVTIMEO);
    let mut inner = Vec::new();
    code.walk(function, called(RCVTIMEO), |instruction, state| {
        if passes_on(instruction, state) {
            inner.push(instruction.near_branch_target());
        }
        None::<()>
    });
    // The validity check of the socket is called first, with the option still in its register.
    inner
        .into_iter()
        .take(INNER)
        .find_map(|inner| first_exclusive(code, inner, called(RCVTIMEO), called(EVENTS), passes_on))
}

/// Point where a blocking receive finds no message and repeatedly processes the socket's commands.
pub(super) fn waits(code: Code64<'_>, function: u64) -> Option<Point> {
    let outer = State::entry(&ARGUMENTS);
    let called = |flags| State::entry(&[Value::Socket, Value::Message, Value::Number(flags)]);
    let on_socket =
        |instruction: &Instruction, state: &State| calls(instruction) && state.get(Reg::RDI) == Value::Socket;
    let in_function = |function| first_exclusive(code, function, called(0), called(DONTWAIT), on_socket);
    let (call, _) = message_call(code, function, outer)?;
    in_function(call.near_branch_target()).or_else(|| {
        // Not inlined: the call is `s_recvmsg(socket, message, flags)`.
        let (call, _) = message_call(code, call.near_branch_target(), called(0))?;
        in_function(call.near_branch_target())
    })
}

/// First matching instruction that is reached from `state` but not from `other_state`.
fn first_exclusive(
    code: Code64<'_>,
    function: u64,
    state: State,
    other_state: State,
    predicate: impl Fn(&Instruction, &State) -> bool,
) -> Option<Point> {
    let other_addresses = code.reached(function, other_state)?;
    code.walk(function, state, |instruction, state| {
        let found = predicate(instruction, state) && !other_addresses.contains(&instruction.ip());
        let socket = found.then(|| state.kept(Value::Socket)).flatten()?;
        Some(Point { at: instruction.ip(), socket })
    })
}

/// Whether it is a call or a tail jump, both of which the kernel emulates.
fn calls(instruction: &Instruction) -> bool {
    matches!(instruction.code(), Code::Call_rel32_64 | Code::Jmp_rel32_64)
}

fn after_call(code: Code64<'_>, call: &Instruction, state: State) -> Option<Point> {
    code.walk(call.next_ip(), state.called(), |instruction, state| {
        let minus_one = instruction.code() == Code::Mov_r32_imm32
            && instruction.op0_register() == Reg::EAX
            && instruction.immediate32() == u32::MAX;
        let socket = minus_one.then(|| state.kept(Value::Socket)).flatten()?;
        // Prefer the jump after it, which the kernel emulates.
        let next =
            code.at(instruction.next_ip()).filter(|next| next.flow_control() == FlowControl::UnconditionalBranch);
        Some(Point { at: next.map_or(instruction.ip(), |next| next.ip()), socket })
    })
}

/// First call with the message as its second argument, with the state before it.
fn message_call(code: Code64<'_>, function: u64, state: State) -> Option<(Instruction, State)> {
    code.walk(function, state, |instruction, state| {
        let passes_on = instruction.code() == Code::Call_rel32_64 && state.get(Reg::RSI) == Value::Message;
        passes_on.then(|| (*instruction, state.clone()))
    })
}
