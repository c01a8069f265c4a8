//! Facts about the machine and the engine, read or tested without side effects.

use adapter::discover::Setting;
use probe_user::btf::Btf;
use probe_user::cpu::CpuSampler;
use probe_user::discover::{Engine, Process, Topology};
use probe_user::empty_probes::probe_self_with_multi_uprobe;
use probe_user::examine::filter::{SeccompMode, SystemCall, seccomp_mode};
use probe_user::examine::namespace::{NamespaceKind, clock_offset_ns};
use probe_user::examine::{lockdown_level, read_setting};
use probe_user::library::analyse_libzmq;
use probe_user::{Capability, Feature, Permissions};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
pub(super) struct Fact {
    pub(super) name: String,
    /// `null` if it cannot be determined.
    pub(super) value: Option<String>,
}

/// A fact; without a value if it cannot be determined.
fn named_fact(name: impl Into<String>, value: impl Into<Option<String>>) -> Fact {
    Fact { name: name.into(), value: value.into() }
}

/// Facts that are independent of the engine.
pub(super) fn machine_facts() -> Vec<Fact> {
    let mut facts = vec![
        named_fact("kernel", read_setting("/proc/sys/kernel/osrelease")),
        named_fact("kernel types (BTF)", describe_kernel_types()),
        named_fact("uprobes", describe_uprobe_trial()),
        named_fact("capabilities", capability_summary()),
    ];
    for kind in [NamespaceKind::User, NamespaceKind::Pid, NamespaceKind::Time] {
        let state = kind.is_initial().map(|is_initial| if is_initial { "initial" } else { "separate" });
        facts.push(named_fact(format!("{} namespace", kind.name()), state.map(str::to_owned)));
    }
    facts.push(named_fact("clock", describe_shift_of_clock()));
    facts.push(named_fact("seccomp", describe_seccomp()));
    for (name, path) in [
        ("kernel.unprivileged_bpf_disabled", "/proc/sys/kernel/unprivileged_bpf_disabled"),
        ("kernel.perf_event_paranoid", "/proc/sys/kernel/perf_event_paranoid"),
        ("kernel.yama.ptrace_scope", "/proc/sys/kernel/yama/ptrace_scope"),
    ] {
        facts.push(named_fact(name, read_setting(path)));
    }
    facts.push(named_fact("lockdown", lockdown_level()));
    facts.push(named_fact("locked memory", describe_locked_memory_limit()));
    facts.push(named_fact("cgroups", cgroup_version().map(str::to_owned)));
    facts
}

/// Version of the cgroup hierarchy visible here, from which CPU limits are read; `None` if no hierarchy is mounted.
fn cgroup_version() -> Option<&'static str> {
    let root = std::path::Path::new("/sys/fs/cgroup");
    if root.join("cgroup.controllers").exists() {
        return Some("version 2");
    }
    // Distributions mount the CPU controller alone, or together with the controller for CPU accounting.
    let is_version_1 = ["cpu", "cpu,cpuacct"].iter().any(|folder| root.join(folder).exists());
    if is_version_1 { Some("version 1") } else { None }
}

/// Whether the types of the running kernel (BTF) can be read.
fn describe_kernel_types() -> String {
    let btf = match Btf::read_running_kernel() {
        Ok(btf) => btf,
        Err(error) => return error.to_string(),
    };
    let has_required_fields = btf.probe_offsets().sched();
    let with = if has_required_fields { "with" } else { "without" };
    format!("readable, {with} the required fields of task_struct")
}

/// Sets a uprobe on this process for a moment. Describes the mechanism that worked, or the error.
fn describe_uprobe_trial() -> String {
    match probe_self_with_multi_uprobe() {
        Ok(true) => "set on tokengap itself, with one link for multiple probe points".to_owned(),
        Ok(false) => "set on tokengap itself, with one perf event per probe point".to_owned(),
        Err(error) => error.to_string(),
    }
}

fn join_names(capabilities: impl Iterator<Item = Capability>) -> String {
    let names: Vec<String> = capabilities.map(|capability| capability.to_string()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Capabilities that probes need: the effective ones, and those that only root would have here.
fn capability_summary() -> String {
    let own = Permissions::current();
    let all = Capability::ALL.into_iter();
    let effective = join_names(all.clone().filter(|capability| own.has(*capability)));
    let of_root = join_names(all.filter(|capability| !own.has(*capability) && own.may_have(*capability)));
    let caveat = if own.is_in_user_namespace() { "; from a user namespace, so they do not allow tracing" } else { "" };
    format!("{effective}; root would also have: {of_root}{caveat}")
}

/// Whether `CLOCK_MONOTONIC` of this process is that of the kernel, which a time namespace can shift. `None` if that is unknown.
fn describe_shift_of_clock() -> Option<String> {
    let ahead_ns = clock_offset_ns()?;
    Some(if ahead_ns == 0 {
        "CLOCK_MONOTONIC is the kernel's".to_owned()
    } else {
        format!("CLOCK_MONOTONIC is {:.3} s ahead of the kernel's", ahead_ns as f64 / 1e9)
    })
}

/// Mode of seccomp, and for each system call that tokengap needs whether it is refused. `None` if the mode is unknown.
fn describe_seccomp() -> Option<String> {
    let mut tried = Vec::new();
    for call in SystemCall::ALL {
        tried.push(match call.probe_refusal_errno() {
            None => format!("{} is allowed", call.name()),
            Some(errno) => format!("{} is refused (os error {errno})", call.name()),
        });
    }
    let mode = match seccomp_mode()? {
        SeccompMode::Off => "no filter",
        SeccompMode::Strict => "strict",
        SeccompMode::Filter => "filter active",
    };
    Some(format!("{mode}: {}", tried.join(", ")))
}

/// Limit of locked memory, which BPF maps count against before Linux 5.11.
fn describe_locked_memory_limit() -> String {
    match getrlimit(Resource::Memlock).current {
        Some(bytes) => format!("{bytes} bytes"),
        None => "unlimited".to_owned(),
    }
}

/// Pids of processes that look like a part of an engine but have no connection to another role; `None` if there are none.
pub(super) fn candidate_fact(topology: &Topology) -> Option<Fact> {
    const MAX_SHOWN: usize = 16;
    let pids = topology.candidate_pids();
    let shown: Vec<String> = pids.iter().take(MAX_SHOWN).map(u32::to_string).collect();
    if pids.is_empty() {
        return None;
    }
    let hidden = pids.len().saturating_sub(MAX_SHOWN);
    let rest = if hidden > 0 { format!(" and {hidden} more") } else { String::new() };
    Some(named_fact("candidates without a connection", format!("pids {}{rest}", shown.join(", "))))
}

/// Facts about this engine.
pub(super) fn engine_facts(engine: &Engine) -> Vec<Fact> {
    let mut facts = vec![
        named_fact(engine.kind.map_or("engine", |kind| kind.name()), describe_setting(engine.release(), Clone::clone)),
        named_fact("mode", describe_setting(engine.settings.mode.as_ref(), |mode| format!("{mode:?}").to_lowercase())),
        named_fact(
            "waiter",
            describe_setting(engine.settings.waiter.as_ref(), |waiter| format!("{waiter:?}").to_lowercase()),
        ),
        named_fact(
            "event loop turns before a waiter runs",
            describe_setting(engine.settings.turnaround.as_ref(), ToString::to_string),
        ),
    ];
    for process in &engine.processes {
        let name = format!("{} {}", process.role.word(), process.id.pid);
        facts.push(named_fact(format!("{name}: libzmq"), describe_libzmq(process)));
        facts.push(named_fact(format!("{name}: frames observed by"), describe_frame_observation(process)));
        facts.push(named_fact(format!("{name}: pid"), describe_pid_in_own_namespace(process)));
        facts.push(named_fact(format!("{name}: CPU limit"), describe_throttling_access(process)));
    }
    facts
}

/// A setting with its origin; `None` if the setting is unknown.
fn describe_setting<T>(setting: Option<&Setting<T>>, show: impl Fn(&T) -> String) -> Option<String> {
    setting.map(|setting| format!("{} ({})", show(&setting.value), setting.origin))
}

/// How `attach` observes the frames of the process; `None` if it does not.
fn describe_frame_observation(process: &Process) -> Option<String> {
    if process.inner_server.is_some() {
        return Some("a uprobe on the method that passes them to the server inside the process".to_owned());
    }
    if process.libzmq.is_some() {
        return Some("uprobes on libzmq".to_owned());
    }
    let can_observe_reads = Permissions::current().kernel() >= Feature::SocketReads.oldest_kernel();
    if process.role.answers_clients() && can_observe_reads {
        return Some("socket reads (received frames only)".to_owned());
    }
    None
}

/// Release and path of the process's libzmq, and how it can be probed. `None` without libzmq.
fn describe_libzmq(process: &Process) -> Option<String> {
    let library = process.libzmq.as_ref()?;
    let release = library.release.as_ref().map_or("of unknown release".to_owned(), ToString::to_string);
    let analysis = match analyse_libzmq(process.id.pid, library) {
        Ok(code) => {
            // In code of a known form, a single point inside a function is probed instead of its entry and its returns.
            let probing = if code.has_single_points { "code supported" } else { "probed at entries and returns" };
            let layout = match code.has_known_layout {
                Some(true) => "known message layout",
                Some(false) => "unknown message layout",
                None => "assumed message layout",
            };
            format!("{probing}, {layout}")
        }
        Err(error) => error,
    };
    Some(format!("{release}, {}: {analysis}", library.path.display()))
}

/// Pid of the process in its own pid namespace; `None` if it is unknown.
fn describe_pid_in_own_namespace(process: &Process) -> Option<String> {
    // The list goes from the outermost namespace to the innermost.
    let inner = process.ns_pids.last()?;
    Some(format!("pid {inner}"))
}

/// Whether the throttling of the process by its cgroup can be read; `None` if it cannot.
fn describe_throttling_access(process: &Process) -> Option<String> {
    // One thread is enough: the cgroup is that of the process.
    let sample = CpuSampler::new(process.id.pid, 0..1).and_then(|mut sampler| sampler.sample()).ok()?;
    sample.throttled_ns.map(|_| "cpu.stat of its cgroup is readable".to_owned())
}
