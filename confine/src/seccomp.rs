//! seccomp: two filters, of which the stricter result counts. One lists forbidden calls. The other lists permitted calls, and all others
//! fail as if they did not exist.

use std::collections::BTreeMap;
use std::env::consts::ARCH;

use libc::c_long;
use seccompiler::SeccompCmpArgLen::Dword;
use seccompiler::SeccompCmpOp::{Eq, MaskedEq, Ne};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCondition, SeccompFilter, SeccompRule, TargetArch, apply_filter_all_threads,
};

use crate::plan::Work;
use crate::syscalls::{
    ALWAYS, FORBIDDEN, FORBIDDEN_FOR_ATTACHER, FORBIDDEN_FOR_FILES, FORBIDDEN_FOR_READERS, FORBIDDEN_LEGACY,
    FORBIDDEN_UNLESS_ATTACHER, FORBIDDEN_UNLESS_MOVE, FORBIDDEN_UNLESS_OBSERVER, FORBIDDEN_UNLESS_OPENER,
    MEMORY_OF_OTHERS, MOVES, PROCESSES, SOCKETS,
};

type SeccompRules = BTreeMap<i64, Vec<SeccompRule>>;
type BuildResult<T> = Result<T, seccompiler::BackendError>;

/// Permitted options of `prctl`: thread names, and the name that a C library gives its heap.
const PRCTL_OPTIONS: [i32; 4] = [libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA, libc::PR_GET_DUMPABLE];
/// Requests that insert input into a terminal: `TIOCSTI` and `TIOCLINUX`. Their types differ between C libraries.
const INPUT_IOCTLS: [u64; 2] = [0x5412, 0x541c];
/// `fcntl` commands that choose the process signalled when a descriptor becomes ready: `F_SETOWN`, `F_SETSIG` and `F_SETOWN_EX`. The
/// kernel sends that signal itself, so the rules for `kill` do not see it.
const OWNER_FCNTLS: [u64; 3] = [8, 10, 15];
/// The same by `ioctl`: `FIOSETOWN` and `SIOCSPGRP`.
const OWNER_IOCTLS: [u64; 2] = [0x8901, 0x8902];

/// Permitted requests of `ioctl` on all kinds of descriptors. They inspect and configure terminals, and query or set bytes in queues,
/// blocking and inheritance. All others are refused: with the right capability, some freeze or shut down a whole file system. The numbers
/// are those of include/uapi/asm-generic/ioctls.h, since the types of the constants differ between C libraries.
const IOCTLS: [u64; 16] = [
    0x5401,      // TCGETS
    0x5402,      // TCSETS
    0x5403,      // TCSETSW
    0x5404,      // TCSETSF
    0x802c_542a, // TCGETS2
    0x402c_542b, // TCSETS2
    0x402c_542c, // TCSETSW2
    0x402c_542d, // TCSETSF2
    0x540b,      // TCFLSH
    0x540f,      // TIOCGPGRP
    0x5411,      // TIOCOUTQ, SIOCOUTQ
    0x5413,      // TIOCGWINSZ
    0x541b,      // FIONREAD, SIOCINQ
    0x5421,      // FIONBIO
    0x5450,      // FIONCLEX
    0x5451,      // FIOCLEX
];
/// Requests for names of network interfaces in addresses: `SIOCGIFNAME` and `SIOCGIFINDEX`.
const INTERFACE_IOCTLS: [u64; 2] = [0x8910, 0x8933];
/// Requests to perf events: to enable, to disable, and to attach a program.
const PERF_IOCTLS: [u64; 3] = [0x2400, 0x2401, 0x4004_2408];

/// Kind of namespace that `setns` may enter.
const NETWORK: u64 = libc::CLONE_NEWNET as u64;

/// Installs the filter of forbidden system calls and the filter of permitted ones on all threads of this process.
pub(crate) fn install_filters(work: Work) -> Result<(), String> {
    let action_if_forbidden = match work {
        // A command that only works on files makes no forbidden call, unless the content of a file has exploited it.
        Work::Files => SeccompAction::KillProcess,
        // Other processes depend on this one or are observed by it. So the run continues, and the caller reports the refused call.
        _ => SeccompAction::Errno(libc::EPERM as u32),
    };
    // A call in neither list fails with the error of a kernel that lacks it. Libraries then fall back to an older call.
    let action_if_in_neither = SeccompAction::Errno(libc::ENOSYS as u32);
    let forbidden_calls = forbidden_rules(work).map_err(|error| error.to_string())?;
    let permitted_calls = permitted_rules(work).map_err(|error| error.to_string())?;
    // The first action is for calls that match none of the rules, the second for those that match.
    let forbidden = compile_filter(forbidden_calls, SeccompAction::Allow, action_if_forbidden)?;
    let permitted = compile_filter(permitted_calls, action_if_in_neither, SeccompAction::Allow)?;
    // The second filter forbids installing filters, so it comes last.
    for program in [forbidden, permitted] {
        apply_filter_all_threads(&program).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Compiles a filter with its results for calls that match none of the rules, and for calls that match one.
fn compile_filter(
    rules: SeccompRules,
    action_without_match: SeccompAction,
    action_on_match: SeccompAction,
) -> Result<BpfProgram, String> {
    let arch = TargetArch::try_from(ARCH).map_err(|error| error.to_string())?;
    let filter =
        SeccompFilter::new(rules, action_without_match, action_on_match, arch).map_err(|error| error.to_string())?;
    BpfProgram::try_from(filter).map_err(|error| error.to_string())
}

/// Commands of `bpf` on maps whose descriptor the process holds.
const MAP_COMMANDS: [u64; 5] = [
    1,  // BPF_MAP_LOOKUP_ELEM
    2,  // BPF_MAP_UPDATE_ELEM
    3,  // BPF_MAP_DELETE_ELEM
    4,  // BPF_MAP_GET_NEXT_KEY
    15, // BPF_OBJ_GET_INFO_BY_FD
];
/// Commands of `bpf` that attach a loaded program whose descriptor the process holds.
const LINK_COMMANDS: [u64; 2] = [
    17, // BPF_RAW_TRACEPOINT_OPEN
    28, // BPF_LINK_CREATE
];

/// Installs the last filter on all threads. It refuses further filters, and all commands of `bpf` except those on maps and loaded programs
/// that this process holds. A program loaded later could write to the memory of other processes.
pub(crate) fn install_final_filter() -> Result<(), String> {
    let permitted_commands = [MAP_COMMANDS.as_slice(), &LINK_COMMANDS].concat();
    let other_command = rule_for_bpf_commands_other_than(&permitted_commands).map_err(|error| error.to_string())?;
    // An empty list of rules matches the call whatever its arguments.
    let refused_calls = SeccompRules::from([(libc::SYS_bpf, vec![other_command]), (libc::SYS_seccomp, Vec::new())]);
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let program = compile_filter(refused_calls, SeccompAction::Allow, refused)?;
    apply_filter_all_threads(&program).map_err(|error| error.to_string())
}

/// Rule that matches if the command of `bpf` is none of these.
fn rule_for_bpf_commands_other_than(permitted_commands: &[u64]) -> BuildResult<SeccompRule> {
    let command_argument = 0;
    // All conditions of a rule must hold.
    let differs_from_each =
        permitted_commands.iter().map(|&command| SeccompCondition::new(command_argument, Dword, Ne, command));
    SeccompRule::new(differs_from_each.collect::<BuildResult<_>>()?)
}

/// Rules for the forbidden calls. One without conditions is forbidden whatever its arguments.
fn forbidden_rules(work: Work) -> BuildResult<SeccompRules> {
    let mut lists: Vec<&[c_long]> = vec![FORBIDDEN, FORBIDDEN_LEGACY];
    if matches!(work, Work::Files | Work::Open | Work::Memory) {
        lists.push(FORBIDDEN_FOR_FILES);
    }
    if !work.observes_processes() {
        lists.push(FORBIDDEN_UNLESS_OBSERVER);
    }
    if !work.attaches_programs() {
        lists.push(FORBIDDEN_UNLESS_ATTACHER);
    }
    if work == Work::Attach {
        lists.push(FORBIDDEN_FOR_ATTACHER);
    }
    if work == Work::Observe {
        lists.push(MEMORY_OF_OTHERS);
    }
    if matches!(work, Work::Open | Work::Memory) {
        lists.push(FORBIDDEN_FOR_READERS);
    }
    if work == Work::Open {
        lists.push(MEMORY_OF_OTHERS);
    } else {
        lists.push(FORBIDDEN_UNLESS_OPENER);
    }
    if work != Work::Move {
        lists.push(FORBIDDEN_UNLESS_MOVE);
    }
    let mut rules = rules_without_conditions(&lists);
    // Connections are queried in the network namespace of a target. No other kind of namespace is entered.
    let mut other_namespaces = Vec::new();
    if work.attaches_programs() {
        let namespace_kind_argument = 1;
        let is_other_kind = SeccompCondition::new(namespace_kind_argument, Dword, Ne, NETWORK)?;
        other_namespaces.push(SeccompRule::new(vec![is_other_kind])?);
    }
    rules.insert(libc::SYS_setns, other_namespaces);
    // New processes, and executable memory.
    rules.insert(libc::SYS_clone, vec![argument_lacks_flag(0, libc::CLONE_THREAD as u64)?]);
    for call in [libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_pkey_mprotect] {
        rules.insert(call, vec![argument_has_flag(2, libc::PROT_EXEC as u64)?]);
    }
    let forbidden_requests = [INPUT_IOCTLS, OWNER_IOCTLS].concat();
    rules.insert(libc::SYS_ioctl, rules_for_argument_in(1, &forbidden_requests)?);
    rules.insert(libc::SYS_fcntl, rules_for_argument_in(1, &OWNER_FCNTLS)?);
    Ok(rules)
}

/// Rules that match each call of these lists, whatever its arguments.
fn rules_without_conditions(lists: &[&[c_long]]) -> SeccompRules {
    let mut rules = SeccompRules::new();
    for call in lists.concat() {
        rules.insert(call, Vec::new());
    }
    rules
}

/// Rules for the permitted calls. One without conditions is permitted whatever its arguments.
fn permitted_rules(work: Work) -> BuildResult<SeccompRules> {
    let mut lists: Vec<&[c_long]> = ALWAYS.to_vec();
    let has_sockets = !matches!(work, Work::Files | Work::Attach | Work::Open | Work::Memory);
    if has_sockets {
        lists.push(SOCKETS);
    }
    if work == Work::Move {
        lists.push(MOVES);
    }
    match work {
        Work::Observe | Work::Attach => lists.push(PROCESSES),
        Work::Move => lists.extend([PROCESSES, MEMORY_OF_OTHERS]),
        Work::Memory => lists.push(MEMORY_OF_OTHERS),
        Work::Open => lists.push(FORBIDDEN_UNLESS_OPENER),
        Work::Files | Work::Network => {}
    }
    let mut rules = rules_without_conditions(&lists);
    let mut requests = IOCTLS.to_vec();
    if work != Work::Files {
        requests.extend(INTERFACE_IOCTLS);
    }
    if work.attaches_programs() {
        rules.insert(libc::SYS_setns, vec![argument_equals(1, NETWORK)?]);
        for call in FORBIDDEN_UNLESS_ATTACHER {
            rules.insert(*call, Vec::new());
        }
        requests.extend(PERF_IOCTLS);
    }
    rules.insert(libc::SYS_ioctl, rules_for_argument_in(1, &requests)?);
    let mut prctl_options = PRCTL_OPTIONS.map(|option| option as u64).to_vec();
    if work == Work::Attach {
        // For `install_final_filter`. Filters can only remove rights.
        rules.insert(libc::SYS_seccomp, vec![argument_equals(0, u64::from(libc::SECCOMP_SET_MODE_FILTER))?]);
        prctl_options.push(libc::PR_SET_NO_NEW_PRIVS as u64);
    }
    rules.insert(libc::SYS_prctl, rules_for_argument_in(0, &prctl_options)?);
    // Only its own limits and signals to itself. `clone3` passes its flags by pointer, where a filter cannot read them, so it fails and
    // a libc uses `clone`.
    let own_pid = u64::from(std::process::id());
    // `prlimit64` also takes 0 for the calling process.
    rules.insert(libc::SYS_prlimit64, rules_for_argument_in(0, &[0, own_pid])?);
    rules.insert(libc::SYS_tgkill, vec![argument_equals(0, own_pid)?]);
    if work != Work::Move {
        rules.insert(libc::SYS_kill, vec![argument_equals(0, own_pid)?]);
    }
    if has_sockets || work == Work::Attach {
        // getaddrinfo queries the machine's addresses by netlink, and probes query sockets.
        let mut families = vec![libc::AF_NETLINK as u64];
        if has_sockets {
            families.extend([libc::AF_UNIX, libc::AF_INET, libc::AF_INET6].map(|family| family as u64));
        }
        rules.insert(libc::SYS_socket, rules_for_argument_in(0, &families)?);
    }
    Ok(rules)
}

/// One rule for each of `values`, which matches if the argument at this index, counted from 0, equals that value.
fn rules_for_argument_in(argument_index: u8, values: &[u64]) -> BuildResult<Vec<SeccompRule>> {
    let mut rules = Vec::with_capacity(values.len());
    for value in values {
        rules.push(argument_equals(argument_index, *value)?);
    }
    Ok(rules)
}

/// Rule that argument `index` equals `value`.
fn argument_equals(index: u8, value: u64) -> BuildResult<SeccompRule> {
    SeccompRule::new(vec![SeccompCondition::new(index, Dword, Eq, value)?])
}

/// Rule that argument `index` has `flag` set.
fn argument_has_flag(index: u8, flag: u64) -> BuildResult<SeccompRule> {
    SeccompRule::new(vec![SeccompCondition::new(index, Dword, MaskedEq(flag), flag)?])
}

/// Rule that argument `index` does not have `flag` set.
fn argument_lacks_flag(index: u8, flag: u64) -> BuildResult<SeccompRule> {
    SeccompRule::new(vec![SeccompCondition::new(index, Dword, MaskedEq(flag), 0)?])
}
