//! Symbolic execution of a few instructions that tracks where a function keeps its arguments. Covers the part of x86-64 that compilers use
//! at the beginning and end of small functions; anything else yields an unknown value.
//!
//! A probed instruction that the kernel can emulate (`nop`, `push`, `call`, `jmp`, `jcc`: arch/x86/kernel/uprobes.c) costs one trap. Any
//! other costs a second trap for the single step, which can be ten times as expensive under a hypervisor.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::Register as Reg;
use iced_x86::{
    Code, ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind,
};
use probe_ebpf::{Kept, Register};

/// Maximum number of instructions examined in one function.
const MAX_INSTRUCTIONS: usize = 400;
/// Size of a 64-bit register, and of what `push` stores.
const WORD_BYTES: i64 = 8;
/// Size of an `int`.
const INT_BYTES: i64 = 4;
/// Indices of an instruction's operands.
const FIRST_OPERAND: u32 = 0;
const SECOND_OPERAND: u32 = 1;
/// Mode of the processor in which the code runs.
const CODE_BITS: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrackedValue {
    Unknown,
    Socket,
    Message,
    /// An `int` argument of the analysed call. It decides branches.
    Number(i32),
    /// An address in the function's frame, as byte offset from the return address.
    Frame(i64),
}

impl TrackedValue {
    /// Size of the value in memory, in bytes.
    const fn size(self) -> i64 {
        if matches!(self, Self::Number(_)) { INT_BYTES } else { WORD_BYTES }
    }
}

/// Known values before an instruction.
#[derive(Clone, Debug)]
pub(super) struct MachineState {
    registers: [TrackedValue; 16],
    /// Values in the frame by their offset.
    frame_slots: BTreeMap<i64, TrackedValue>,
    /// The comparison that set the flags.
    last_comparison: Option<ComparedOperands>,
}

/// Two numbers whose comparison sets the flags.
#[derive(Clone, Copy, Debug)]
struct ComparedOperands {
    left: i32,
    right: i32,
}

/// Code of a function, as stored in the library's file.
#[derive(Clone, Copy, Debug)]
pub(super) struct MachineCode<'a> {
    /// May extend beyond the function.
    pub(super) bytes: &'a [u8],
    /// Virtual address of the first byte.
    pub(super) address: u64,
}

/// Adds the addresses at which a path may go on after an instruction, with the state there. A path ends at a return, and at a jump to an
/// unknown target.
fn push_successors(pending: &mut Vec<(u64, MachineState)>, instruction: &Instruction, state: MachineState) {
    let next = instruction.next_ip();
    match instruction.flow_control() {
        // Callees are not entered.
        FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => pending.push((next, state)),
        FlowControl::UnconditionalBranch => pending.push((instruction.near_branch_target(), state)),
        FlowControl::ConditionalBranch => {
            // If the condition is unknown, both ways are followed.
            let known_condition = state.branch_condition(instruction);
            if known_condition != Some(false) {
                pending.push((instruction.near_branch_target(), state.clone()));
            }
            if known_condition != Some(true) {
                pending.push((next, state));
            }
        }
        _ => {}
    }
}

impl MachineCode<'_> {
    /// Decodes the instruction at `ip`; `None` outside of the bytes or if it is invalid.
    pub(super) fn decode_at(&self, ip: u64) -> Option<Instruction> {
        let offset = usize::try_from(ip.checked_sub(self.address)?).ok()?;
        let bytes = self.bytes.get(offset..)?;
        if bytes.is_empty() {
            return None;
        }
        let instruction = Decoder::with_ip(CODE_BITS, bytes, ip, DecoderOptions::NONE).decode();
        if instruction.is_invalid() { None } else { Some(instruction) }
    }

    /// Addresses of all instructions that can be reached from `state` at `start`; `None` if there are too many.
    pub(super) fn reachable_addresses(&self, start: u64, state: MachineState) -> Option<BTreeSet<u64>> {
        let mut reached = BTreeSet::new();
        self.find_on_paths(start, state, |instruction, _| {
            reached.insert(instruction.ip());
            // No result, so that all paths are followed.
            None::<()>
        });
        // At the limit, more may be reachable.
        (reached.len() < MAX_INSTRUCTIONS).then_some(reached)
    }

    /// Follows every path from `start` that `state` permits, and visits each instruction once. Stops when `visit` returns a result, and
    /// returns it. `None` if there was none.
    pub(super) fn find_on_paths<T>(
        &self,
        start: u64,
        state: MachineState,
        mut visit: impl FnMut(&Instruction, &MachineState) -> Option<T>,
    ) -> Option<T> {
        let mut pending = vec![(start, state)];
        let mut visited = BTreeSet::new();
        while let Some((ip, mut state)) = pending.pop() {
            // The limit bounds the work on hostile code. Once it is reached, the pending instructions are dropped.
            let is_limit_reached = visited.len() == MAX_INSTRUCTIONS;
            // Where two paths meet, the instructions are visited with the state of the first one only.
            if is_limit_reached || !visited.insert(ip) {
                continue;
            }
            // The path leaves the code.
            let Some(instruction) = self.decode_at(ip) else { continue };
            if let Some(found) = visit(&instruction, &state) {
                return Some(found);
            }
            state.execute(&instruction);
            push_successors(&mut pending, &instruction, state);
        }
        None
    }
}

/// Whether the kernel emulates the instruction instead of single-stepping it, see arch/x86/kernel/uprobes.c.
pub(super) fn is_emulated(instruction: &Instruction) -> bool {
    matches!(
        instruction.code(),
        Code::Nopd | Code::Push_r64 | Code::Call_rel32_64 | Code::Jmp_rel8_64 | Code::Jmp_rel32_64
    ) || instruction.is_jcc_short_or_near()
}

/// Whether the instruction writes `register` or a part of it.
pub(super) fn writes_register(instruction: &Instruction, register: Reg) -> bool {
    let mut factory = InstructionInfoFactory::new();
    let used = factory.info(instruction).used_registers().iter();
    used.filter(|used| is_write(used.access())).any(|used| used.register().full_register() == register)
}

/// Whether it is an `and` that changes a 32-bit register.
fn is_and_with_register(instruction: &Instruction) -> bool {
    matches!(instruction.code(), Code::And_rm32_imm8 | Code::And_rm32_imm32 | Code::And_EAX_imm32)
        && instruction.op0_kind() == OpKind::Register
}

fn is_write(access: OpAccess) -> bool {
    use OpAccess::{CondWrite, ReadCondWrite, ReadWrite, Write};
    matches!(access, Write | CondWrite | ReadWrite | ReadCondWrite)
}

impl MachineState {
    /// State at a function's entry, with `arguments` in their registers.
    pub(super) fn at_entry(arguments: &[TrackedValue]) -> Self {
        // x86-64 has 16 general-purpose registers.
        let mut state =
            Self { registers: [TrackedValue::Unknown; 16], frame_slots: BTreeMap::new(), last_comparison: None };
        let passed = [Reg::RDI, Reg::RSI, Reg::RDX, Reg::RCX];
        for (register, value) in passed.into_iter().zip(arguments) {
            state.set_register(register, *value);
        }
        // It points to the return address, from which the offsets in the frame count.
        state.set_register(Reg::RSP, TrackedValue::Frame(0));
        state
    }

    pub(super) fn register(&self, register: Reg) -> TrackedValue {
        self.registers[register.full_register().number()]
    }

    /// A location of `value` that a callee preserves: a register, or a word of the frame at a distance from a register. `None` if there is
    /// none.
    pub(super) fn preserved_location(&self, value: TrackedValue) -> Option<Kept> {
        self.preserved_register(value).map(Kept::In).or_else(|| self.reachable_frame_word(value))
    }

    /// A register that holds `value` and still does after a call, because callees preserve it. `None` if there is none.
    fn preserved_register(&self, value: TrackedValue) -> Option<Register> {
        // The registers that a callee restores in the System V ABI.
        const REGISTERS: [(Reg, Register); 7] = [
            (Reg::RBX, Register::Rbx),
            (Reg::RBP, Register::Rbp),
            (Reg::R12, Register::R12),
            (Reg::R13, Register::R13),
            (Reg::R14, Register::R14),
            (Reg::R15, Register::R15),
            (Reg::RSP, Register::Rsp),
        ];
        let stored = REGISTERS.iter().find(|(register, _)| self.register(*register) == value);
        stored.map(|(_, register)| *register)
    }

    /// Location of a word with `value` in the stack frame: its distance from the frame pointer or the stack pointer. `None` if there is no
    /// such word, or if it is too far away.
    fn reachable_frame_word(&self, value: TrackedValue) -> Option<Kept> {
        for (base, name) in [(Reg::RBP, Register::Rbp), (Reg::RSP, Register::Rsp)] {
            // Only a register that points into the frame reaches its words.
            let TrackedValue::Frame(base_offset) = self.register(base) else { continue };
            for (slot_offset, _) in self.frame_slots.iter().filter(|(_, stored)| **stored == value) {
                // The kernel side has 8 bits for the distance, so a word that is too far away is skipped.
                if let Ok(distance) = i8::try_from(slot_offset - base_offset) {
                    return Some(Kept::At(name, distance));
                }
            }
        }
        None
    }

    fn set_register(&mut self, register: Reg, value: TrackedValue) {
        self.registers[register.full_register().number()] = value;
    }

    /// Offset in the stack frame of the memory that an instruction addresses. `None` if it is not known to be in the frame.
    fn memory_frame_offset(&self, instruction: &Instruction) -> Option<i64> {
        // An index or a segment would add an unknown distance.
        let has_only_base = instruction.memory_index() == Reg::None && instruction.segment_prefix() == Reg::None;
        if !has_only_base {
            return None;
        }
        let TrackedValue::Frame(base) = self.base_register(instruction.memory_base()) else {
            return None;
        };
        Some(base.wrapping_add(instruction.memory_displacement64() as i64))
    }

    /// Value of the base register of a memory operand; unknown if it is no 64-bit register, such as the instruction pointer.
    fn base_register(&self, base: Reg) -> TrackedValue {
        if base.is_gpr64() { self.register(base) } else { TrackedValue::Unknown }
    }

    /// Forgets the values that overlap `size` bytes of the frame.
    fn forget_slots(&mut self, offset: i64, size: i64) {
        self.frame_slots.retain(|slot, stored| *slot + stored.size() <= offset || *slot >= offset + size);
    }

    /// Applies `push` of this value. Does nothing if the stack pointer is unknown.
    fn push_value(&mut self, value: TrackedValue) {
        if let TrackedValue::Frame(top) = self.register(Reg::RSP) {
            let new_top = top.wrapping_sub(WORD_BYTES);
            self.set_register(Reg::RSP, TrackedValue::Frame(new_top));
            self.forget_slots(new_top, WORD_BYTES);
            self.frame_slots.insert(new_top, value);
        }
    }

    /// Applies `pop`. Returns the value that this function has pushed before, if it is known.
    fn pop_value(&mut self) -> TrackedValue {
        let TrackedValue::Frame(top) = self.register(Reg::RSP) else {
            return TrackedValue::Unknown;
        };
        self.set_register(Reg::RSP, TrackedValue::Frame(top.wrapping_add(WORD_BYTES)));
        self.frame_slots.remove(&top).unwrap_or(TrackedValue::Unknown)
    }

    /// State after a call returns.
    pub(super) fn after_call(mut self) -> Self {
        self.forget_changed_by_callee();
        self
    }

    /// Whether a conditional branch is taken, which the last comparison decides. `None` if that was no comparison of known numbers.
    fn branch_condition(&self, branch: &Instruction) -> Option<bool> {
        let ComparedOperands { left, right } = self.last_comparison?;
        // Below and above compare the numbers without their signs, unlike less and greater.
        let below = (left as u32) < right as u32;
        let order = left.cmp(&right);
        Some(match branch.condition_code() {
            ConditionCode::e => order.is_eq(),
            ConditionCode::ne => order.is_ne(),
            ConditionCode::l => order.is_lt(),
            ConditionCode::le => order.is_le(),
            ConditionCode::g => order.is_gt(),
            ConditionCode::ge => order.is_ge(),
            ConditionCode::b => below,
            ConditionCode::ae => !below,
            ConditionCode::be => below || order.is_eq(),
            ConditionCode::a => !below && order.is_ne(),
            _ => return None,
        })
    }

    /// Number in the 32-bit operand with this index; `None` if it is unknown.
    fn operand_number(&self, instruction: &Instruction, index: u32) -> Option<i32> {
        let value = match instruction.op_kind(index) {
            OpKind::Register => self.register(instruction.op_register(index)),
            OpKind::Memory => *self.frame_slots.get(&self.memory_frame_offset(instruction)?)?,
            OpKind::Immediate8 | OpKind::Immediate8to32 | OpKind::Immediate32 => {
                return Some(instruction.immediate(index) as i32);
            }
            _ => return None,
        };
        if let TrackedValue::Number(number) = value { Some(number) } else { None }
    }

    /// The two numbers that a 32-bit instruction compares to set the flags, on which later branches depend. `None` if it compares none, or
    /// if a number is unknown.
    fn compared_operands(&self, instruction: &Instruction) -> Option<ComparedOperands> {
        let is_compare = matches!(instruction.code(), Code::Cmp_rm32_imm8 | Code::Cmp_rm32_imm32 | Code::Cmp_EAX_imm32);
        let is_test = matches!(instruction.code(), Code::Test_rm32_r32 | Code::Test_rm32_imm32 | Code::Test_EAX_imm32);
        if !is_compare && !is_test && !is_and_with_register(instruction) {
            return None;
        }
        let left = self.operand_number(instruction, FIRST_OPERAND)?;
        let right = self.operand_number(instruction, SECOND_OPERAND)?;
        if is_compare {
            return Some(ComparedOperands { left, right });
        }
        // `test` and `and` compare the common bits with zero.
        Some(ComparedOperands { left: left & right, right: 0 })
    }

    /// Forgets registers and flags that a callee may change in the System V ABI.
    fn forget_changed_by_callee(&mut self) {
        self.last_comparison = None;
        for register in [Reg::RAX, Reg::RCX, Reg::RDX, Reg::RSI, Reg::RDI] {
            self.set_register(register, TrackedValue::Unknown);
        }
        // R8 to R11, the other registers that the ABI does not preserve.
        self.registers[8..12].fill(TrackedValue::Unknown);
    }

    /// Updates the known values of registers, of the stack frame and of the last comparison as the instruction does. After an instruction
    /// of a kind that is not modelled here, all that it writes is unknown.
    pub(super) fn execute(&mut self, instruction: &Instruction) {
        // Once the flags have changed, they no longer show the last comparison.
        let changes_flags = instruction.rflags_modified() != 0;
        if changes_flags {
            self.last_comparison = None;
        }
        if let Some(comparison) = self.compared_operands(instruction) {
            self.last_comparison = Some(comparison);
            // Unlike a comparison, `and` keeps its result.
            if is_and_with_register(instruction) {
                self.set_register(instruction.op0_register(), TrackedValue::Number(comparison.left));
            }
            return;
        }
        let is_call = matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
        match instruction.code() {
            Code::Push_r64 => self.push_value(self.register(instruction.op0_register())),
            Code::Pop_r64 => self.pop_into(instruction.op0_register()),
            // `mov rsp, rbp` and `pop rbp`.
            Code::Leaveq => {
                self.set_register(Reg::RSP, self.register(Reg::RBP));
                self.pop_into(Reg::RBP);
            }
            Code::Mov_r64_rm64 | Code::Mov_rm64_r64 | Code::Lea_r64_m => self.execute_move(instruction),
            Code::Mov_r32_rm32 | Code::Mov_rm32_r32 => self.execute_number_move(instruction),
            Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32 | Code::Add_rm64_imm8 | Code::Add_rm64_imm32
                if instruction.op0_register() == Reg::RSP =>
            {
                self.move_stack_pointer(instruction);
            }
            _ if is_call => self.forget_changed_by_callee(),
            _ => self.forget_values_written_by(instruction),
        }
    }

    /// Takes the top word from the stack into a register.
    fn pop_into(&mut self, register: Reg) {
        let value = self.pop_value();
        self.set_register(register, value);
    }

    /// Applies a move of 32 bits, which only a number survives.
    fn execute_number_move(&mut self, instruction: &Instruction) {
        let moved_number = self.operand_number(instruction, SECOND_OPERAND);
        let moved = moved_number.map_or(TrackedValue::Unknown, TrackedValue::Number);
        self.store_first_operand(instruction, moved, INT_BYTES);
    }

    /// Applies an addition to the stack pointer, which releases room in the frame, or a subtraction, which reserves room.
    fn move_stack_pointer(&mut self, instruction: &Instruction) {
        let amount = instruction.immediate(SECOND_OPERAND) as i64;
        let change = if instruction.mnemonic() == Mnemonic::Sub { amount.wrapping_neg() } else { amount };
        if let TrackedValue::Frame(top) = self.register(Reg::RSP) {
            self.set_register(Reg::RSP, TrackedValue::Frame(top.wrapping_add(change)));
        }
    }

    /// Forgets the values in the registers and the words of the stack frame that this instruction writes. Its effect is not modelled.
    fn forget_values_written_by(&mut self, instruction: &Instruction) {
        let mut factory = InstructionInfoFactory::new();
        let info = factory.info(instruction);
        for used in info.used_registers().iter().filter(|used| is_write(used.access())) {
            if used.register().is_gpr() {
                self.set_register(used.register(), TrackedValue::Unknown);
            }
        }
        // A write whose address is not known is assumed not to reach the frame.
        if info.used_memory().iter().any(|used| is_write(used.access()))
            && let Some(offset) = self.memory_frame_offset(instruction)
        {
            self.forget_slots(offset, instruction.memory_size().size() as i64);
        }
    }

    /// Applies a move of 64 bits, or the calculation of an address.
    fn execute_move(&mut self, instruction: &Instruction) {
        let moved = self.second_operand_value(instruction);
        self.store_first_operand(instruction, moved, WORD_BYTES);
    }

    /// Value of the second operand of a move. For `lea`, this is the address that the operand names.
    fn second_operand_value(&self, instruction: &Instruction) -> TrackedValue {
        if instruction.op1_kind() == OpKind::Register {
            return self.register(instruction.op1_register());
        }
        match self.memory_frame_offset(instruction) {
            Some(offset) if instruction.mnemonic() == Mnemonic::Lea => TrackedValue::Frame(offset),
            Some(offset) => self.frame_slots.get(&offset).copied().unwrap_or(TrackedValue::Unknown),
            None => TrackedValue::Unknown,
        }
    }

    /// Sets the instruction's first operand, of `size_bytes` bytes, to `value`.
    fn store_first_operand(&mut self, instruction: &Instruction, value: TrackedValue, size_bytes: i64) {
        if instruction.op0_kind() == OpKind::Register {
            self.set_register(instruction.op0_register(), value);
        } else if let Some(offset) = self.memory_frame_offset(instruction) {
            self.forget_slots(offset, size_bytes);
            self.frame_slots.insert(offset, value);
        }
    }
}
