//! Privileges and access that each command drops before it reads untrusted input, and those it keeps.

use std::path::Path;
#[cfg(target_os = "linux")]
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(target_os = "linux")]
use confine::{Capabilities, Plan, PortAccess, Work};
#[cfg(target_os = "linux")]
use zmq_tap::relay::Endpoint;

#[cfg(target_os = "linux")]
use crate::{
    args::LiveArgs,
    broker::{self, Results},
};

/// Set by `--no-confine`.
static OFF: AtomicBool = AtomicBool::new(false);

/// Ports below require `CAP_NET_BIND_SERVICE`.
#[cfg(target_os = "linux")]
const FIRST_FREE_PORT: u16 = 1_024;
/// Proxy variables, which the OTLP client also reads.
#[cfg(target_os = "linux")]
const PROXIES: [&str; 6] = ["ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"];

/// Capabilities to move other users' sockets and restore them, and to end a child that has changed its user.
#[cfg(target_os = "linux")]
pub(crate) const MOVING: Capabilities =
    Capabilities::CHOWN.union(Capabilities::FOWNER).union(Capabilities::DAC_OVERRIDE).union(Capabilities::KILL);

/// Disables the confinement.
pub(crate) fn disable() {
    OFF.store(true, Ordering::Relaxed);
    errln!("tokengap: --no-confine: an exploited defect gains all privileges of this user");
}

/// Confines a command that only processes files: it reads `read` and creates `make`, without access to the network or other processes.
#[cfg(target_os = "linux")]
pub(crate) fn files(read: &[&Path], make: &[Option<&Path>]) {
    let mut plan = Plan::new(Work::Files);
    // `-` is standard input or output.
    let is_named = |path: &Path| path != Path::new("-");
    for path in read.iter().filter(|path| is_named(path)) {
        plan = plan.read(*path);
    }
    for path in make.iter().flatten().filter(|path| is_named(path)) {
        plan = plan.make(path);
    }
    apply(&plan);
}

/// Confinement is only available on Linux.
#[cfg(not(target_os = "linux"))]
pub(crate) fn files(_read: &[&Path], _make: &[Option<&Path>]) {}

/// Confines `tokengap watch`: it connects to `ports`, reads `key` and creates `make`.
#[cfg(target_os = "linux")]
pub(crate) fn watching(ports: impl Iterator<Item = u16>, key: Option<&Path>, make: &[Option<&Path>]) {
    let mut plan = ports.fold(Plan::new(Work::Network), |plan, port| plan.port(PortAccess::Connect(port)));
    if let Some(key) = key {
        plan = plan.read(key);
    }
    for path in make.iter().flatten() {
        plan = plan.make(path);
    }
    apply(&plan);
}

/// Confinement is only available on Linux.
#[cfg(not(target_os = "linux"))]
pub(crate) fn watching(_ports: impl Iterator<Item = u16>, _key: Option<&Path>, _make: &[Option<&Path>]) {}

/// Access that every live run with `args` needs: its files, its feed, its metrics and the working folder of the screen.
#[cfg(target_os = "linux")]
pub(crate) fn live(work: Work, args: &LiveArgs) -> Plan {
    let mut plan = Plan::new(work);
    for path in args.record.record.iter().chain(&args.record.hindsight_file) {
        plan = plan.make(path);
    }
    // A ring without a name, and files created from the screen, go to the working folder.
    if !args.outcome.is_headless() || args.record.hindsight.is_some() {
        plan = plan.write(".");
    }
    // Allow the whole folder: the file may be replaced during the run, as Kubernetes does with mounted files.
    if let Some(folder) = args.config.as_deref().and_then(Path::parent) {
        plan = plan.read(if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
    }
    if let Some(key) = &args.feed.feed_key {
        plan = plan.read(key);
    }
    for address in args.feed.publish.iter().chain(&args.telemetry.metrics) {
        plan = listen(plan, address.port());
    }
    if let Some(url) = &args.telemetry.otlp {
        let proxies = PROXIES.iter().filter_map(|name| std::env::var(name).ok());
        for port in proxies.chain([url.clone()]).filter_map(|url| port(&url)) {
            plan = plan.port(PortAccess::Connect(port));
        }
    }
    // A service manager may listen on an abstract socket, whose name starts with `@`.
    if std::env::var_os("NOTIFY_SOCKET").is_some_and(|name| name.as_encoded_bytes().starts_with(b"@")) {
        plan = plan.abstract_sockets();
    }
    plan
}

/// Adds the access for a relay that listens on `listens` and connects to `upstreams`.
#[cfg(target_os = "linux")]
pub(crate) fn relay(mut plan: Plan, listens: &[Endpoint], upstreams: &[Endpoint]) -> Plan {
    for listen_at in listens {
        plan = match listen_at {
            Endpoint::Path(path) => plan.make(path).keep(Capabilities::DAC_OVERRIDE),
            Endpoint::Abstract(_) => plan,
            Endpoint::Tcp { port, .. } | Endpoint::Http { port, .. } => listen(plan, *port),
        };
    }
    for upstream in upstreams {
        plan = match upstream {
            // The socket may be created later by an engine of another user.
            Endpoint::Path(_) => plan.keep(Capabilities::DAC_OVERRIDE),
            Endpoint::Abstract(_) => plan.abstract_sockets(),
            Endpoint::Tcp { port, .. } | Endpoint::Http { port, .. } => plan.port(PortAccess::Connect(*port)),
        };
    }
    plan
}

/// Files that a live run with `args` may write.
#[cfg(target_os = "linux")]
pub(crate) fn results(args: &LiveArgs) -> Results {
    let named = args.record.record.iter().chain(&args.record.hindsight_file);
    let ring_folders = args.record.hindsight_file.iter().filter_map(|ring| ring.parent().map(Path::to_owned));
    let mut results = Results {
        file: named.cloned().collect(),
        // Dumps of a ring are written beside it.
        folder: ring_folders.collect(),
        force: args.record.force,
    };
    // A ring without a name, and files created from the screen, are written to the working folder.
    if !args.outcome.is_headless() || args.record.hindsight.is_some() {
        results.folder.push(PathBuf::new());
    }
    results
}

/// Confines `attach`: as root it changes to a user without files, and another process creates the files of its results.
#[cfg(target_os = "linux")]
pub(crate) fn attach(args: &LiveArgs) {
    let mut plan = probes(live(Work::Probe, args));
    let why = match confine::can_drop_root() {
        _ if OFF.load(Ordering::Relaxed) => None,
        Ok(false) => None,
        Err(lacking) => Some(format!("it lacks CAP_{lacking}")),
        Ok(true) => {
            let results = results(args);
            let started = if results.is_empty() { Ok(()) } else { broker::start(&results) };
            if started.is_ok() {
                plan = plan.unprivileged();
            }
            started.err().map(|error| format!("{error:#}"))
        }
    };
    if let Some(why) = why {
        tracing::info!("confinement: still running as root: {why}");
    }
    apply(&plan);
}

/// Refuses to load further eBPF programs, once those of the probe are loaded.
#[cfg(target_os = "linux")]
pub(crate) fn refuse_programs() {
    if OFF.load(Ordering::Relaxed) {
        return;
    }
    if let Err(missing) = confine::refuse_programs() {
        tracing::warn!("{missing}");
    }
}

/// Adds the available capabilities that probes on other processes need (docs/internals/PROBE.md).
#[cfg(target_os = "linux")]
pub(crate) fn probes(plan: Plan) -> Plan {
    use probe_user::{Capability, Feature, Permissions};
    let kernel = Permissions::here().kernel();
    let needs = Feature::ALL.iter().flat_map(|feature| feature.needs(kernel));
    let mut keep = needs.fold(Capabilities::empty(), |all, need| all | Capabilities::from_bits_retain(1 << need.bit()));
    // `map_files` is needed to reach a mapped file that was deleted.
    keep |= Capabilities::CHECKPOINT_RESTORE;
    // `CAP_SYS_ADMIN` is needed for targets in other network namespaces, even those that start later, and for uprobes before Linux 6.6.
    keep |= Capabilities::from_bits_retain(1 << Capability::SysAdmin.bit());
    plan.keep(keep)
}

#[cfg(target_os = "linux")]
fn listen(plan: Plan, port: u16) -> Plan {
    let plan = plan.port(PortAccess::Listen(port));
    if (1..FIRST_FREE_PORT).contains(&port) { plan.keep(Capabilities::NET_BIND_SERVICE) } else { plan }
}

#[cfg(target_os = "linux")]
fn port(url: &str) -> Option<u16> {
    let url: ureq::http::Uri = url.parse().ok()?;
    url.port_u16().or(match url.scheme_str() {
        Some("https") => Some(443),
        Some(scheme) if scheme.starts_with("socks") => Some(1_080),
        _ => Some(80),
    })
}

/// Drops everything that `plan` does not keep.
#[cfg(target_os = "linux")]
pub(crate) fn apply(plan: &Plan) {
    if OFF.load(Ordering::Relaxed) {
        return;
    }
    let outcome = plan.apply();
    for missing in &outcome.missing {
        tracing::warn!("{missing}");
    }
    let kept = if outcome.kept.is_empty() {
        String::from("none")
    } else {
        outcome.kept.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
    };
    let word = |on| if on { "on" } else { "off" };
    tracing::info!(
        "confined: user {}, Landlock {}, seccomp {}, capabilities kept: {kept}",
        rustix::process::geteuid().as_raw(),
        word(outcome.landlock),
        word(outcome.seccomp)
    );
}
