//! Instructions in libzmq's functions where a single trap replaces an entry and a return probe.

use iced_x86::{Code, FlowControl, Instruction, Register as Reg};
use probe_ebpf::Kept;
use serde::{Deserialize, Serialize};

use super::machine_state::{MachineCode, MachineState, TrackedValue, is_emulated, writes_register};
use crate::kernel_types::KeptMessage;

/// Number of instructions after an entry or a call that are examined.
const MAX_NEARBY: usize = 6;
/// Number of instructions from a function's entry to its first call that are examined.
const MAX_BEFORE_CALL: usize = 2 * MAX_NEARBY;

/// Instruction where a receive has its result, with the locations of its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReceivedPoint {
    /// Address, or offset in the file.
    pub(crate) at: u64,
    #[serde(with = "KeptMessage")]
    pub(crate) socket: Kept,
    #[serde(with = "KeptMessage")]
    pub(crate) message: Kept,
}

/// Instruction that only refused sends reach, or only calls requesting the next message, with the location of the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SocketPoint {
    pub(crate) at: u64,
    #[serde(with = "KeptMessage")]
    pub(crate) socket: Kept,
}

/// `ZMQ_RCVTIMEO`, which pyzmq reads before each receive.
const RCVTIMEO: i32 = 27;
/// `ZMQ_EVENTS`, which pyzmq reads several times for each receive.
const EVENTS: i32 = 15;
/// Maximum number of functions to which `zmq_getsockopt` may pass an option. libzmq has two.
const MAX_INNER_FUNCTIONS: usize = 8;
/// Receive flag: do not block.
const DONTWAIT: i32 = 1;
/// Receive flags of a call that blocks.
const BLOCKING: i32 = 0;

/// The first two arguments of `zmq_msg_send` and `zmq_msg_recv`.
const MESSAGE_AND_SOCKET: [TrackedValue; 2] = [TrackedValue::Message, TrackedValue::Socket];

/// Address of the instruction to probe for a function's entry and return. A probe costs less at an instruction that the kernel can emulate.
/// So the first such instruction is chosen at which the arguments and the stack pointer still have their values from the call. If none is
/// near, the first instruction of the function is chosen.
pub(super) fn find_entry_probe_address(code: MachineCode<'_>, function_address: u64) -> u64 {
    // The registers of the first four arguments, and the stack pointer.
    const PASSED: [Reg; 5] = [Reg::RDI, Reg::RSI, Reg::RDX, Reg::RCX, Reg::RSP];
    let mut ip = function_address;
    for _ in 0..MAX_NEARBY {
        let Some(instruction) = code.decode_at(ip) else { break };
        if is_emulated(&instruction) {
            return ip;
        }
        // After such a write, a probe would read another value than the caller passed.
        let changes_argument = PASSED.iter().any(|passed| writes_register(&instruction, *passed));
        let continues_with_next = instruction.flow_control() == FlowControl::Next;
        if changes_argument || !continues_with_next {
            break;
        }
        ip = instruction.next_ip();
    }
    function_address
}

/// Address of the inner function that both `SSL_write` and `SSL_write_ex` call in some releases of OpenSSL. One probe there replaces two.
/// The inner function must have the parameters of `SSL_write_ex`. `None` if there is none.
pub(super) fn find_inner_tls_write_address(
    code: MachineCode<'_>,
    write_address: u64,
    write_ex_address: u64,
) -> Option<u64> {
    // The registers of the four arguments of `SSL_write_ex`.
    const PASSED: [Reg; 4] = [Reg::RDI, Reg::RSI, Reg::RDX, Reg::RCX];
    let inner = first_call_target_address(code, write_ex_address, &PASSED)?;
    // The target must be in the examined code.
    code.decode_at(inner)?;
    // `SSL_write` passes on only the connection and the buffer unchanged, in the first two registers.
    let passed_by_write = &PASSED[..2];
    let is_common = first_call_target_address(code, write_address, passed_by_write) == Some(inner);
    is_common.then_some(inner)
}

/// Address of the function that the one at `function_address` calls first. `None` if there is no call nearby, or if an instruction before
/// the call writes one of the `unchanged_registers`. The called function must receive these as they were at the entry.
fn first_call_target_address(code: MachineCode<'_>, function_address: u64, unchanged_registers: &[Reg]) -> Option<u64> {
    let mut ip = function_address;
    for _ in 0..MAX_BEFORE_CALL {
        let instruction = code.decode_at(ip)?;
        match instruction.flow_control() {
            FlowControl::Call => return Some(instruction.near_branch_target()),
            // A conditional branch is not followed, because it leads to the code for an error of the caller.
            FlowControl::Next | FlowControl::ConditionalBranch => {}
            _ => return None,
        }
        if unchanged_registers.iter().any(|register| writes_register(&instruction, *register)) {
            return None;
        }
        ip = instruction.next_ip();
    }
    None
}

/// Finds an instruction at which `zmq_msg_recv` has its result. One probe there replaces those at its entry and return. The instruction is
/// in the straight-line code after the call to which the message is passed. The called function is `s_recvmsg`, or `socket_base_t::recv` if
/// that is inlined. `None` if the code has no such instruction.
pub(super) fn find_received_point(code: MachineCode<'_>, function_address: u64) -> Option<ReceivedPoint> {
    let CallSite { call, state } =
        find_call_with_message(code, function_address, MachineState::at_entry(&MESSAGE_AND_SOCKET))?;
    let mut ip = call.next_ip();
    let mut state = state.after_call();
    for _ in 0..MAX_NEARBY {
        let instruction = code.decode_at(ip)?;
        // A probe at an instruction that the kernel emulates costs one trap instead of two.
        if is_emulated(&instruction) {
            let socket = state.preserved_location(TrackedValue::Socket)?;
            let message = state.preserved_location(TrackedValue::Message)?;
            return Some(ReceivedPoint { at: ip, socket, message });
        }
        // RAX has the result of the receive.
        let overwrites_result = writes_register(&instruction, Reg::RAX);
        let continues_with_next = instruction.flow_control() == FlowControl::Next;
        if overwrites_result || !continues_with_next {
            return None;
        }
        state.execute(&instruction);
        ip = instruction.next_ip();
    }
    None
}

/// Finds an instruction that only failed sends reach. It is the first one after the call of the send that sets the result to -1. `None` if
/// the code has no such instruction.
pub(super) fn find_refused_point(code: MachineCode<'_>, function_address: u64) -> Option<SocketPoint> {
    let outer = find_call_with_message(code, function_address, MachineState::at_entry(&MESSAGE_AND_SOCKET))?;
    if let Some(point) = find_error_return_after(code, &outer.call, outer.state) {
        return Some(point);
    }
    // Where `s_sendmsg(socket, message, flags)` is not inlined, this is its call, and the send is called in it.
    let at_entry = MachineState::at_entry(&[TrackedValue::Socket, TrackedValue::Message]);
    let inner = find_call_with_message(code, outer.call.near_branch_target(), at_entry)?;
    find_error_return_after(code, &inner.call, inner.state)
}

/// Finds the call by which `zmq_getsockopt` passes on `ZMQ_RCVTIMEO`. pyzmq reads this option once before each receive, so a probe there
/// shows that the next message is requested. The call is in the socket's own function. Reads of `ZMQ_EVENTS`, which pyzmq makes more often,
/// must not reach it. `None` if the code has another form.
pub(super) fn find_option_request_point(code: MachineCode<'_>, function_address: u64) -> Option<SocketPoint> {
    let with_rcvtimeo = MachineState::at_entry(&[TrackedValue::Socket, TrackedValue::Number(RCVTIMEO)]);
    let with_events = MachineState::at_entry(&[TrackedValue::Socket, TrackedValue::Number(EVENTS)]);
    let callees = callees_given_rcvtimeo(code, function_address, with_rcvtimeo.clone());
    // The first callee may be the check of the socket's validity, which is called while the option is still in its register.
    callees.into_iter().take(MAX_INNER_FUNCTIONS).find_map(|callee| {
        find_point_only_first_state_reaches(
            code,
            callee,
            with_rcvtimeo.clone(),
            with_events.clone(),
            passes_on_rcvtimeo,
        )
    })
}

/// Addresses of the functions that the one at `function_address` calls with `ZMQ_RCVTIMEO` as their second argument.
fn callees_given_rcvtimeo(code: MachineCode<'_>, function_address: u64, at_entry: MachineState) -> Vec<u64> {
    let mut callees = Vec::new();
    code.find_on_paths(function_address, at_entry, |instruction, state| {
        if passes_on_rcvtimeo(instruction, state) {
            callees.push(instruction.near_branch_target());
        }
        // No result, so that all paths are followed.
        None::<()>
    });
    callees
}

/// Whether the instruction calls a function with `ZMQ_RCVTIMEO` as its second argument.
fn passes_on_rcvtimeo(instruction: &Instruction, state: &MachineState) -> bool {
    is_call_or_tail_jump(instruction) && state.register(Reg::RSI) == TrackedValue::Number(RCVTIMEO)
}

/// Finds an instruction that is reached only by a receive that must wait. Such a receive has found no message, and processes the socket's
/// commands until one comes. `function_address` is that of `zmq_msg_recv`. `None` if the code has another form.
pub(super) fn find_wait_point(code: MachineCode<'_>, function_address: u64) -> Option<SocketPoint> {
    let outer = find_call_with_message(code, function_address, MachineState::at_entry(&MESSAGE_AND_SOCKET))?;
    let callee = outer.call.near_branch_target();
    if let Some(point) = find_wait_in_receive(code, callee) {
        return Some(point);
    }
    // Where `s_recvmsg(socket, message, flags)` is not inlined, this is its call, and the receive is called in it.
    let inner = find_call_with_message(code, callee, called_with_flags(BLOCKING))?;
    find_wait_in_receive(code, inner.call.near_branch_target())
}

/// State at the entry of a function with the parameters `socket, message, flags`.
fn called_with_flags(flags: i32) -> MachineState {
    MachineState::at_entry(&[TrackedValue::Socket, TrackedValue::Message, TrackedValue::Number(flags)])
}

/// First call of a method of the socket that only a blocking receive reaches. `None` if there is none.
fn find_wait_in_receive(code: MachineCode<'_>, receive: u64) -> Option<SocketPoint> {
    let blocking = called_with_flags(BLOCKING);
    let non_blocking = called_with_flags(DONTWAIT);
    find_point_only_first_state_reaches(code, receive, blocking, non_blocking, calls_socket_method)
}

/// Whether the instruction calls a function with the socket as its first argument.
fn calls_socket_method(instruction: &Instruction, state: &MachineState) -> bool {
    is_call_or_tail_jump(instruction) && state.register(Reg::RDI) == TrackedValue::Socket
}

/// First instruction of a function that `matches` and that only one of two states reaches. The function executes it when entered with
/// `state`, and never when entered with `other_state`. Returns it with the location of the socket there. `None` if there is none.
fn find_point_only_first_state_reaches(
    code: MachineCode<'_>,
    function_address: u64,
    state: MachineState,
    other_state: MachineState,
    matches: fn(&Instruction, &MachineState) -> bool,
) -> Option<SocketPoint> {
    let other_addresses = code.reachable_addresses(function_address, other_state)?;
    code.find_on_paths(function_address, state, |instruction, state| {
        let is_reached_by_other_state = other_addresses.contains(&instruction.ip());
        if is_reached_by_other_state || !matches(instruction, state) {
            return None;
        }
        Some(SocketPoint { at: instruction.ip(), socket: state.preserved_location(TrackedValue::Socket)? })
    })
}

/// Whether it is a call or a tail jump, both of which the kernel emulates.
fn is_call_or_tail_jump(instruction: &Instruction) -> bool {
    matches!(instruction.code(), Code::Call_rel32_64 | Code::Jmp_rel32_64)
}

/// First instruction after a call that a function reaches only if it fails. It sets the function's result to -1, which is `mov eax, -1` in
/// libzmq. If a jump follows, the jump is returned instead. The result has the location of the socket there, too. `state_before_call` is
/// the state before the call. `None` if there is none.
fn find_error_return_after(
    code: MachineCode<'_>,
    call: &Instruction,
    state_before_call: MachineState,
) -> Option<SocketPoint> {
    code.find_on_paths(call.next_ip(), state_before_call.after_call(), |instruction, state| {
        let sets_result_to_minus_one = instruction.code() == Code::Mov_r32_imm32
            && instruction.op0_register() == Reg::EAX
            && instruction.immediate32() == u32::MAX;
        if !sets_result_to_minus_one {
            return None;
        }
        let socket = state.preserved_location(TrackedValue::Socket)?;
        // A probe at the jump costs less, because the kernel emulates it.
        let next = code.decode_at(instruction.next_ip());
        let jump = next.filter(|next| next.flow_control() == FlowControl::UnconditionalBranch);
        Some(SocketPoint { at: jump.map_or(instruction.ip(), |jump| jump.ip()), socket })
    })
}

/// A call, with the state before it.
struct CallSite {
    call: Instruction,
    state: MachineState,
}

/// First call with the message as its second argument, and the state before it. `None` if no call has it.
fn find_call_with_message(code: MachineCode<'_>, function_address: u64, state: MachineState) -> Option<CallSite> {
    code.find_on_paths(function_address, state, |instruction, state| {
        let is_call = instruction.code() == Code::Call_rel32_64;
        let passes_message = state.register(Reg::RSI) == TrackedValue::Message;
        (is_call && passes_message).then(|| CallSite { call: *instruction, state: state.clone() })
    })
}
