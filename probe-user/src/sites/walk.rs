//! Follows a few instructions of a function and knows where it keeps its arguments: enough of x86-64 for how compilers
//! begin and end small functions, and "unknown" for the rest.
//!
//! A probed instruction that the kernel can emulate (`nop`, `push`, `call`, `jmp`, `jcc`: arch/x86/kernel/uprobes.c) costs
//! one trap, any other a second one for the single step, which under a hypervisor may be ten times as dear.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::Register as Reg;
use iced_x86::{
    Code, ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind,
};
use probe_ebpf::{Kept, Register};

/// Instructions looked at in one function.
const FAR: usize = 400;

/// What a register or a word of the stack holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Unknown,
    Socket,
    Message,
    /// An `int` of the call that is followed: it decides branches.
    Number(i32),
    /// An address in the function's frame: bytes from where its return address is.
    Frame(i64),
}

impl Value {
    /// Bytes of it in memory.
    const fn size(self) -> i64 {
        if matches!(self, Self::Number(_)) { 4 } else { 8 }
    }
}

/// Everything that is known before an instruction.
#[derive(Clone, Debug)]
pub(super) struct State {
    registers: [Value; 16],
    /// Words of the frame, by their place in it.
    slots: BTreeMap<i64, Value>,
    /// The two numbers that the flags are the comparison of.
    compared: Option<(i32, i32)>,
}

/// The code of one function as the library has it in its file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Code64<'a> {
    /// Bytes from `at` on; may go on past the function.
    pub(super) bytes: &'a [u8],
    /// The address that the library gives to the first of them.
    pub(super) at: u64,
}

impl Code64<'_> {
    /// The instruction at `ip`; `None` outside of the bytes or where there is none.
    pub(super) fn at(&self, ip: u64) -> Option<Instruction> {
        let offset = usize::try_from(ip.checked_sub(self.at)?).ok()?;
        let bytes = self.bytes.get(offset..).filter(|bytes| !bytes.is_empty())?;
        let instruction = Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE).decode();
        (!instruction.is_invalid()).then_some(instruction)
    }

    /// Every instruction of the function that a call which begins in `state` may come by; `None` if they are too many to know.
    pub(super) fn reached(&self, from: u64, state: State) -> Option<BTreeSet<u64>> {
        let mut reached = BTreeSet::new();
        self.walk(from, state, |instruction, _| {
            reached.insert(instruction.ip());
            None::<()>
        });
        (reached.len() < FAR).then_some(reached)
    }

    /// Goes through the function from `from` on, every way that `state` may take, each instruction once, until `look` finds
    /// something.
    pub(super) fn walk<T>(
        &self,
        from: u64,
        state: State,
        mut look: impl FnMut(&Instruction, &State) -> Option<T>,
    ) -> Option<T> {
        let (mut open, mut been) = (vec![(from, state)], BTreeSet::new());
        while let Some((ip, mut state)) = open.pop() {
            if been.len() == FAR || !been.insert(ip) {
                continue;
            }
            let Some(instruction) = self.at(ip) else { continue };
            if let Some(found) = look(&instruction, &state) {
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

/// Whether it changes `register`, or a part of it.
pub(super) fn writes(instruction: &Instruction, register: Reg) -> bool {
    let mut factory = InstructionInfoFactory::new();
    let used = factory.info(instruction).used_registers().iter();
    used.filter(|used| is_write(used.access()))
        .any(|used| used.register().full_register() == register)
}

fn is_write(access: OpAccess) -> bool {
    use OpAccess::{CondWrite, ReadCondWrite, ReadWrite, Write};
    matches!(access, Write | CondWrite | ReadWrite | ReadCondWrite)
}

impl State {
    /// At a function's entry, with `arguments` in their registers.
    pub(super) fn entry(arguments: &[Value]) -> Self {
        let mut state = Self {
            registers: [Value::Unknown; 16],
            slots: BTreeMap::new(),
            compared: None,
        };
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

    /// Where `value` will still be when calls have gone by.
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
        let held = REGISTERS.iter().find(|(register, _)| self.get(*register) == value);
        if let Some((_, register)) = held {
            return Some(Kept::In(*register));
        }
        let slots = || self.slots.iter().filter(|(_, held)| **held == value).map(|(at, _)| *at);
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

    /// The place in the frame that a memory operand names.
    fn place(&self, instruction: &Instruction) -> Option<i64> {
        let plain = instruction.memory_index() == Reg::None && instruction.segment_prefix() == Reg::None;
        match self.get_base(instruction.memory_base()) {
            Value::Frame(base) if plain => Some(base.wrapping_add(instruction.memory_displacement64() as i64)),
            _ => None,
        }
    }

    fn get_base(&self, base: Reg) -> Value {
        if base.is_gpr64() {
            self.get(base)
        } else {
            Value::Unknown
        }
    }

    fn forget(&mut self, at: i64, size: i64) {
        self.slots
            .retain(|slot, held| *slot + held.size() <= at || *slot >= at + size);
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

    /// The same behind a call.
    pub(super) fn called(mut self) -> Self {
        self.clobber();
        self
    }

    /// Whether a conditional branch is taken, where that is decided by a number that is known.
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

    /// The number that an operand of 32 bits is.
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

    /// What an instruction on two operands of 32 bits compares, and what its first is behind it, if it is another.
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

    /// Forgets what System V lets a callee change.
    fn clobber(&mut self) {
        self.compared = None;
        for register in [Reg::RAX, Reg::RCX, Reg::RDX, Reg::RSI, Reg::RDI] {
            self.set(register, Value::Unknown);
        }
        self.registers[8..12].fill(Value::Unknown);
    }

    /// What is known after `instruction`.
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
                let by = if instruction.mnemonic() == Mnemonic::Sub {
                    by.wrapping_neg()
                } else {
                    by
                };
                if let Value::Frame(top) = self.get(Reg::RSP) {
                    self.set(Reg::RSP, Value::Frame(top.wrapping_add(by)));
                }
                return;
            }
            _ => {}
        }
        if matches!(
            instruction.flow_control(),
            FlowControl::Call | FlowControl::IndirectCall
        ) {
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

    /// A move of a whole word.
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

    /// The instruction's first operand, of `size` bytes, is `value` now.
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
