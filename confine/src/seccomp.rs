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
    ALWAYS, MOVES, NEVER, NEVER_OLDER, NEVER_WITH_FILES, NEVER_WITHOUT_MOVES, NEVER_WITHOUT_PROBE, OPTIONS, PROCESSES,
    SOCKETS,
};

type Rules = BTreeMap<i64, Vec<SeccompRule>>;
type Built<T> = Result<T, seccompiler::BackendError>;

/// Permitted options of `prctl`: thread names, and the name that a C library gives its heap.
const OF_ITSELF: [i32; 4] = [
    libc::PR_SET_NAME,
    libc::PR_GET_NAME,
    libc::PR_SET_VMA,
    libc::PR_GET_DUMPABLE,
];
/// Requests that insert input into a terminal: `TIOCSTI` and `TIOCLINUX`. Their types differ between C libraries.
const TYPING: [u64; 2] = [0x5412, 0x541c];
/// Commands that choose the process signalled when a descriptor becomes ready: `fcntl` with `F_SETOWN`, `F_SETSIG` and `F_SETOWN_EX`. The kernel sends
/// that signal itself, so the rules for `kill` do not see it.
const OWNERS: [u64; 3] = [8, 10, 15];
/// The same by `ioctl`: `FIOSETOWN` and `SIOCSPGRP`.
const OWNERS_BY_IOCTL: [u64; 2] = [0x8901, 0x8902];

/// Kind of namespace that `setns` may enter.
const NETWORK: u64 = libc::CLONE_NEWNET as u64;

/// Installs both filters on all threads.
pub(crate) fn install(work: Work) -> Result<(), String> {
    let arch = TargetArch::try_from(ARCH).map_err(|error| error.to_string())?;
    let refused = match work {
        Work::Files => SeccompAction::KillProcess,
        // Traffic passes through the process, or it observes a target: the caller reports the refused call, and the run continues.
        Work::Network | Work::Probe | Work::Move => SeccompAction::Errno(libc::EPERM as u32),
    };
    let unknown = SeccompAction::Errno(libc::ENOSYS as u32);
    let build = |rules: Built<Rules>, otherwise, matched| -> Built<BpfProgram> {
        SeccompFilter::new(rules?, otherwise, matched, arch)?.try_into()
    };
    let never = build(never(work), SeccompAction::Allow, refused).map_err(|error| error.to_string())?;
    let done = build(done(work), unknown, SeccompAction::Allow).map_err(|error| error.to_string())?;
    // The second filter forbids installing filters, so it comes last.
    apply_filter_all_threads(&never).map_err(|error| error.to_string())?;
    apply_filter_all_threads(&done).map_err(|error| error.to_string())
}

/// Commands of `bpf` that use programs and maps of this process. All others are refused by [`install_final`]: loading programs, which could
/// write to the memory of other processes, and opening programs and maps of others.
const OWN_BPF: [u64; 7] = [
    1,  // BPF_MAP_LOOKUP_ELEM
    2,  // BPF_MAP_UPDATE_ELEM
    3,  // BPF_MAP_DELETE_ELEM
    4,  // BPF_MAP_GET_NEXT_KEY
    15, // BPF_OBJ_GET_INFO_BY_FD
    17, // BPF_RAW_TRACEPOINT_OPEN
    28, // BPF_LINK_CREATE
];

/// Installs a further filter on all threads, which refuses `bpf` other than [`OWN_BPF`], and further filters.
pub(crate) fn install_final() -> Result<(), String> {
    let arch = TargetArch::try_from(ARCH).map_err(|error| error.to_string())?;
    let build = || -> Built<BpfProgram> {
        let others = OWN_BPF
            .iter()
            .map(|&command| SeccompCondition::new(0, Dword, Ne, command));
        let others = SeccompRule::new(others.collect::<Built<_>>()?)?;
        let rules = Rules::from([(libc::SYS_bpf, vec![others]), (libc::SYS_seccomp, Vec::new())]);
        let refused = SeccompAction::Errno(libc::EPERM as u32);
        SeccompFilter::new(rules, SeccompAction::Allow, refused, arch)?.try_into()
    };
    let program = build().map_err(|error| error.to_string())?;
    apply_filter_all_threads(&program).map_err(|error| error.to_string())
}

/// Rules of the forbidden calls.
fn never(work: Work) -> Built<Rules> {
    let mut rules = Rules::new();
    let mut all: Vec<&[c_long]> = vec![NEVER, NEVER_OLDER];
    if work == Work::Files {
        all.push(NEVER_WITH_FILES);
    }
    if !work.watches() {
        all.push(NEVER_WITHOUT_PROBE);
    }
    if work != Work::Move {
        all.push(NEVER_WITHOUT_MOVES);
    }
    for call in all.concat() {
        rules.insert(call, Vec::new());
    }
    // Connections are queried in the network namespace of a target. No other kind of namespace is entered.
    let elsewhere = match work {
        Work::Probe | Work::Move => vec![SeccompRule::new(vec![SeccompCondition::new(1, Dword, Ne, NETWORK)?])?],
        Work::Files | Work::Network => Vec::new(),
    };
    rules.insert(libc::SYS_setns, elsewhere);
    // New processes, and executable memory.
    rules.insert(libc::SYS_clone, vec![flag(0, libc::CLONE_THREAD as u64, false)?]);
    for call in [libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_pkey_mprotect] {
        rules.insert(call, vec![flag(2, libc::PROT_EXEC as u64, true)?]);
    }
    let requests = TYPING.iter().chain(&OWNERS_BY_IOCTL).map(|&request| only(1, request));
    rules.insert(libc::SYS_ioctl, requests.collect::<Built<_>>()?);
    let owners = OWNERS.iter().map(|&command| only(1, command));
    rules.insert(libc::SYS_fcntl, owners.collect::<Built<_>>()?);
    Ok(rules)
}

/// Rules of the permitted calls.
fn done(work: Work) -> Built<Rules> {
    let mut rules = Rules::new();
    let mut all: Vec<&[c_long]> = ALWAYS.to_vec();
    all.push(OPTIONS);
    if work != Work::Files {
        all.push(SOCKETS);
    }
    if work == Work::Move {
        all.push(MOVES);
    }
    if work.watches() {
        all.push(PROCESSES);
        rules.insert(libc::SYS_setns, vec![only(1, NETWORK)?]);
    }
    for call in all.concat() {
        rules.insert(call, Vec::new());
    }
    // The other filter checks their arguments.
    for call in [libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_ioctl, libc::SYS_clone] {
        rules.insert(call, Vec::new());
    }
    if work == Work::Probe {
        // For `install_final`. Filters can only remove rights.
        rules.insert(
            libc::SYS_seccomp,
            vec![only(0, u64::from(libc::SECCOMP_SET_MODE_FILTER))?],
        );
    }
    let own = u64::from(std::process::id());
    let also = (work == Work::Probe).then_some(libc::PR_SET_NO_NEW_PRIVS);
    let of_itself = OF_ITSELF.iter().chain(&also).map(|&option| only(0, option as u64));
    rules.insert(libc::SYS_prctl, of_itself.collect::<Built<_>>()?);
    // Only its own limits and signals to itself. `clone3` passes its flags by pointer, where a filter cannot read them, so it fails and
    // a libc uses `clone`.
    rules.insert(libc::SYS_prlimit64, vec![only(0, 0)?, only(0, own)?]);
    rules.insert(libc::SYS_tgkill, vec![only(0, own)?]);
    if work != Work::Move {
        rules.insert(libc::SYS_kill, vec![only(0, own)?]);
    }
    if work != Work::Files {
        let mut families = vec![libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];
        // getaddrinfo queries the machine's addresses, and probes query sockets.
        families.push(libc::AF_NETLINK);
        let families = families.into_iter().map(|family| only(0, family as u64));
        rules.insert(libc::SYS_socket, families.collect::<Built<_>>()?);
    }
    Ok(rules)
}

/// Rule that argument `index` equals `value`.
fn only(index: u8, value: u64) -> Built<SeccompRule> {
    SeccompRule::new(vec![SeccompCondition::new(index, Dword, Eq, value)?])
}

/// Rule that argument `index` has `flag` set or unset.
fn flag(index: u8, flag: u64, set: bool) -> Built<SeccompRule> {
    let value = if set { flag } else { 0 };
    SeccompRule::new(vec![SeccompCondition::new(index, Dword, MaskedEq(flag), value)?])
}
