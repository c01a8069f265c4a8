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
const FAR: usize = 400;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Unknown,
    Socket,
    Message,
    /// An `int` argument of the analysed call. It decides branches.
    Number(i32),
    /// An address in the function's frame, as byte offset from the return address.
    Frame(i64),
}

impl Value {
    const fn size(self) -> i64 {
        if matches!(self, Self::Number(_)) { 4 } else { 8 }
    }
}

/// Known values before an instruction.
#[derive(Clone, Debug)]
pub(super) struct State {
    registers: [Value; 16],
    /// Words of the frame by their offset.
    slots: BTreeMap<i64, Value>,
    /// The two numbers whose comparison set the flags.
    compared: Option<(i32, i32)>,
}

/// Code of a function, as stored in the library's file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Code64<'a> {
    /// Bytes from `at` on; may extend beyond the function.
    pub(super) bytes: &'a [u8],
    /// Virtual address of the first byte.
    pub(super) at: u64,
}

impl Code64<'_> {
    /// Decodes the instruction at `ip`; `None` outside of the bytes or if it is invalid.
    pub(super) fn at(&self, ip: u64) -> Option<Instruction> {
        let offset = usize::try_from(ip.checked_sub(self.at)?).ok()?;
        let bytes = self.bytes.get(offset..).filter(|bytes| !bytes.is_empty())?;
        let instruction = Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE).decode();
        (!instruction.is_invalid()).then_some(instruction)
    }

    /// All instructions of the function that can be reached from `state`; `None` if the limit was reached.
    pub(super) fn reached(&self, from: u64, state: State) -> Option<BTreeSet<u64>> {
        let mut reached = BTreeSet::new();
        self.walk(from, state, |instruction, _| {
            reached.insert(instruction.ip());
            None::<()>
        });
        (reached.len() < FAR).then_some(reached)
    }

    /// Visits all instructions on every path that `state` permits, each once, until `visit` returns a result.
    pub(super) fn walk<T>(
        &self,
        from: u64,
        state: State,
        mut visit: impl FnMut(&Instruction, &State) -> Option<T>,
    ) -> Option<T> {
        let (mut open, mut been) = (vec![(from, state)], BTreeSet::new());
        while let Some((ip, mut state)) = open.pop() {
            if been.len() == FAR || !been.insert(ip) {
                continue;
            }
            let Some(instruction) = self.at(ip) else { continue };
            if let Some(found) = visit(&instruction, &state) {
                return Some(found);
            }
            state.step(&instruction);
            let next = instruction.next_ip();
            match instruction.flow_control() {
                FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => open.push((next, state)),
                FlowControl::UnconditionalBranch => open.push((instruction.near_branch_target(), state)),
                FlowControl::ConditionalBranch => {
                    let jumps = state.jumps(&instruction);
                    if jumps != Some(false) {
                        open.push((instruction.near_branch_target(), state.clone()));
                    }
                    if jumps != Some(true) {
                        open.push((next, state));
                    }
                }
                _ => {}
            }
        }
        None
    }
}

/// Whether the kernel emulates the instruction instead of single-stepping it.
pub(super) fn emulated(instruction: &Instruction) -> bool {
    matches!(
        instruction.code(),
        Code::Nopd | Code::Push_r64 | Code::Call_rel32_64 | Code::Jmp_rel8_64 | Code::Jmp_rel32_64
    ) || instruction.is_jcc_short_or_near()
}

/// Whether the instruction writes `register` or a part of it.
pub(super) fn writes(instruction: &Instruction, register: Reg) -> bool {
    let mut factory = InstructionInfoFactory::new();
    let used = factory.info(instruction).used_registers().iter();
    used.filter(|used| is_write(used.access())).any(|used| used.register().full_register() == register)
}

fn is_write(access: OpAccess) -> bool {
    use OpAccess::{CondWrite, ReadCondWrite, ReadWrite, Write};
    matches!(access, Write | CondWrite | ReadWrite | ReadCondWrite)
}

impl State {
    /// State at a function's entry, with `arguments` in their registers.
    pub(super) fn entry(arguments: &[Value]) -> Self {
        let mut state = Self { registers: [Value::Unknown; 16], slots: BTreeMap::new(), compared: None };
        let passed = [Reg::RDI, Reg::RSI, Reg::RDX, Reg::RCX];
        for (register, value) in passed.into_iter().zip(arguments) {
            state.set(register, *value);
        }
        state.set(Reg::RSP, Value::Frame(0));
        state
    }

    pub(super) fn get(&self, register: Reg) -> Value {
        self.registers[register.full_register().number()]
    }

    /// A location that still holds `value` after further calls.
    pub(super) fn kept(&self, value: Value) -> Option<Kept> {
        const REGISTERS: [(Reg, Register); 7] = [
            (Reg::RBX, Register::Rbx),
            (Reg::RBP, Register::Rbp),
            (Reg::R12, Register::R12),
            (Reg::R13, Register::R13),
            (Reg::R14, Register::R14),
            (Reg::R15, Register::R15),
            (Reg::RSP, Register::Rsp),
        ];
        let stored = REGISTERS.iter().find(|(register, _)| self.get(*register) == value);
        if let Some((_, register)) = stored {
            return Some(Kept::In(*register));
        }
        let slots = || self.slots.iter().filter(|(_, stored)| **stored == value).map(|(at, _)| *at);
        [(Reg::RBP, Register::Rbp), (Reg::RSP, Register::Rsp)]
            .into_iter()
            .filter_map(|(register, name)| match self.get(register) {
                Value::Frame(base) => Some((base, name)),
                _ => None,
            })
            .find_map(|(base, name)| slots().find_map(|at| Some(Kept::At(name, i8::try_from(at - base).ok()?))))
    }

    fn set(&mut self, register: Reg, value: Value) {
        self.registers[register.full_register().number()] = value;
    }

    /// Frame offset of a memory operand.
    fn place(&self, instruction: &Instruction) -> Option<i64> {
        let plain = instruction.memory_index() == Reg::None && instruction.segment_prefix() == Reg::None;
        match self.get_base(instruction.memory_base()) {
            Value::Frame(base) if plain => Some(base.wrapping_add(instruction.memory_displacement64() as i64)),
            _ => None,
        }
    }

    fn get_base(&self, base: Reg) -> Value {
        if base.is_gpr64() { self.get(base) } else { Value::Unknown }
    }

    fn forget(&mut self, at: i64, size: i64) {
        self.slots.retain(|slot, stored| *slot + stored.size() <= at || *slot >= at + size);
    }

    fn push(&mut self, value: Value) {
        if let Value::Frame(top) = self.get(Reg::RSP) {
            let top = top.wrapping_sub(8);
            self.set(Reg::RSP, Value::Frame(top));
            self.forget(top, 8);
            self.slots.insert(top, value);
        }
    }

    fn pop(&mut self) -> Value {
        let Value::Frame(top) = self.get(Reg::RSP) else {
            return Value::Unknown;
        };
        self.set(Reg::RSP, Value::Frame(top.wrapping_add(8)));
        self.slots.remove(&top).unwrap_or(Value::Unknown)
    }

    pub(super) fn called(mut self) -> Self {
        self.clobber();
        self
    }

    /// Whether a conditional branch is taken, if known numbers decide it.
    fn jumps(&self, branch: &Instruction) -> Option<bool> {
        let (left, right) = self.compared?;
        let (below, order) = ((left as u32) < right as u32, left.cmp(&right));
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

    /// Value of a 32-bit operand.
    fn number(&self, instruction: &Instruction, operand: u32) -> Option<i32> {
        let value = match instruction.op_kind(operand) {
            OpKind::Register => self.get(instruction.op_register(operand)),
            OpKind::Memory => *self.slots.get(&self.place(instruction)?)?,
            OpKind::Immediate8 | OpKind::Immediate8to32 | OpKind::Immediate32 => {
                return Some(instruction.immediate(operand) as i32);
            }
            _ => return None,
        };
        match value {
            Value::Number(number) => Some(number),
            _ => None,
        }
    }

    /// The two numbers that a 32-bit instruction compares, and the new value of its first operand if that changes.
    fn compares(&self, instruction: &Instruction) -> Option<((i32, i32), Option<i32>)> {
        let both = || Some((self.number(instruction, 0)?, self.number(instruction, 1)?));
        match instruction.code() {
            Code::Cmp_rm32_imm8 | Code::Cmp_rm32_imm32 | Code::Cmp_EAX_imm32 => Some((both()?, None)),
            Code::Test_rm32_r32 | Code::Test_rm32_imm32 | Code::Test_EAX_imm32 => {
                let (left, right) = both()?;
                Some(((left & right, 0), None))
            }
            Code::And_rm32_imm8 | Code::And_rm32_imm32 | Code::And_EAX_imm32
                if instruction.op0_kind() == OpKind::Register =>
            {
                let (left, right) = both()?;
                Some(((left & right, 0), Some(left & right)))
            }
            _ => None,
        }
    }

    /// Forgets registers and flags that a callee may change in the System V ABI.
    fn clobber(&mut self) {
        self.compared = None;
        for register in [Reg::RAX, Reg::RCX, Reg::RDX, Reg::RSI, Reg::RDI] {
            self.set(register, Value::Unknown);
        }
        self.registers[8..12].fill(Value::Unknown);
    }

    pub(super) fn step(&mut self, instruction: &Instruction) {
        if instruction.rflags_modified() != 0 {
            self.compared = None;
        }
        if let Some((compared, result)) = self.compares(instruction) {
            self.compared = Some(compared);
            if let Some(result) = result {
                self.set(instruction.op0_register(), Value::Number(result));
            }
            return;
        }
        match instruction.code() {
            Code::Push_r64 => return self.push(self.get(instruction.op0_register())),
            Code::Pop_r64 => {
                let value = self.pop();
                return self.set(instruction.op0_register(), value);
            }
            Code::Leaveq => {
                self.set(Reg::RSP, self.get(Reg::RBP));
                let value = self.pop();
                return self.set(Reg::RBP, value);
            }
            Code::Mov_r64_rm64 | Code::Mov_rm64_r64 | Code::Lea_r64_m => return self.moves(instruction),
            Code::Mov_r32_rm32 | Code::Mov_rm32_r32 => {
                let moved = self.number(instruction, 1).map_or(Value::Unknown, Value::Number);
                return self.put(instruction, moved, 4);
            }
            Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32 | Code::Add_rm64_imm8 | Code::Add_rm64_imm32
                if instruction.op0_register() == Reg::RSP =>
            {
                let by = instruction.immediate(1) as i64;
                let by = if instruction.mnemonic() == Mnemonic::Sub { by.wrapping_neg() } else { by };
                if let Value::Frame(top) = self.get(Reg::RSP) {
                    self.set(Reg::RSP, Value::Frame(top.wrapping_add(by)));
                }
                return;
            }
            _ => {}
        }
        if matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall) {
            return self.clobber();
        }
        let mut factory = InstructionInfoFactory::new();
        let info = factory.info(instruction);
        for used in info.used_registers().iter().filter(|used| is_write(used.access())) {
            if used.register().is_gpr() {
                self.set(used.register(), Value::Unknown);
            }
        }
        if info.used_memory().iter().any(|used| is_write(used.access()))
            && let Some(at) = self.place(instruction)
        {
            self.forget(at, instruction.memory_size().size() as i64);
        }
    }

    fn moves(&mut self, instruction: &Instruction) {
        let place = self.place(instruction);
        let from = match (instruction.op1_kind(), place) {
            (OpKind::Register, _) => self.get(instruction.op1_register()),
            (_, Some(at)) if instruction.mnemonic() == Mnemonic::Lea => Value::Frame(at),
            (_, Some(at)) => self.slots.get(&at).copied().unwrap_or(Value::Unknown),
            _ => Value::Unknown,
        };
        self.put(instruction, from, 8);
    }

    /// Sets the instruction's first operand, of `size` bytes, to `value`.
    fn put(&mut self, instruction: &Instruction, value: Value, size: i64) {
        match (instruction.op0_kind(), self.place(instruction)) {
            (OpKind::Register, _) => self.set(instruction.op0_register(), value),
            (_, Some(at)) => {
                self.forget(at, size);
                self.slots.insert(at, value);
            }
            _ => {}
        }
    }
}
