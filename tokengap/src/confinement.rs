//! Privileges and access that each command drops before it reads untrusted input, and those it keeps.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail, ensure};
use confine::{Account, Capabilities, Plan, PortAccess, Work};
use probe_user::discover::hides_processes;
use probe_user::examine::filter;
use probe_user::{Capability, Feature, Permissions, helper, opener_client};
use session::telemetry::receiver_port;
use zmq_tap::relay::Endpoint;

use crate::args::LiveArgs;
use crate::broker::{self, ResultFiles, or_working_folder};
use crate::spawn::spawn_with_socket;

/// Set by `--no-confine`.
static IS_DISABLED: AtomicBool = AtomicBool::new(false);

/// Ports below require `CAP_NET_BIND_SERVICE`.
const FIRST_UNPRIVILEGED_PORT: u16 = 1_024;

/// Disables the confinement.
pub(crate) fn disable() {
    IS_DISABLED.store(true, Ordering::Relaxed);
    errln!("tokengap: --no-confine: an exploited defect gains all privileges of this user");
}

/// Whether `--no-confine` was given.
pub(crate) fn is_disabled() -> bool {
    IS_DISABLED.load(Ordering::Relaxed)
}

/// Confines a command that only processes files: it reads `inputs` and creates `results`, without access to the network or other processes.
pub(crate) fn confine_to_files(inputs: &[&Path], results: &[Option<&Path>]) {
    let mut plan = Plan::new(Work::Files);
    // `-` is standard input or output.
    let standard = Path::new("-");
    plan.read.extend(inputs.iter().filter(|path| **path != standard).map(PathBuf::from));
    for path in results.iter().flatten().filter(|path| **path != standard) {
        plan.permit_creation(path);
    }
    apply_plan(&plan);
}

/// Confines `tokengap watch`: it connects to `ports` and creates the files `results`.
pub(crate) fn confine_watch(ports: impl Iterator<Item = u16>, results: &[Option<&Path>]) {
    let mut plan = Plan::new(Work::Network);
    plan.ports.extend(ports.map(PortAccess::Connect));
    for path in results.iter().flatten() {
        plan.permit_creation(path);
    }
    apply_plan(&plan);
}

/// Access that every live run with `args` needs: its files, its endpoint and the working folder of the screen.
pub(crate) fn confinement_plan_of_run(work: Work, args: &LiveArgs) -> Plan {
    let mut plan = confinement_plan_without_results(work, args);
    allow_results(&mut plan, &result_files(args));
    plan
}

fn allow_results(plan: &mut Plan, results: &ResultFiles) {
    results.file.iter().for_each(|path| plan.permit_creation(path));
    plan.write.extend(results.folder.iter().map(|folder| or_working_folder(folder).to_owned()));
}

/// Access that every live run with `args` needs, apart from the files that it writes: its configuration, its endpoint, the receiver of its
/// telemetry and the service manager.
pub(crate) fn confinement_plan_without_results(work: Work, args: &LiveArgs) -> Plan {
    let mut plan = Plan::new(work);
    // Allow the whole folder: the file may be replaced during the run, as Kubernetes does with mounted files.
    let configuration = args.config.as_deref().and_then(Path::parent);
    plan.read.extend(configuration.map(|folder| or_working_folder(folder).to_owned()));
    if let Some(address) = args.telemetry.metrics {
        allow_listening(&mut plan, address.port());
    }
    let receiver = args.telemetry.otlp.as_deref().and_then(receiver_port);
    plan.ports.extend(receiver.map(PortAccess::Connect));
    // A service manager may listen on an abstract socket, whose name starts with `@`.
    let service = std::env::var_os("NOTIFY_SOCKET");
    plan.abstract_sockets = service.is_some_and(|name| name.as_encoded_bytes().starts_with(b"@"));
    plan
}

/// Adds the access for a relay that listens on `listens` and connects to `upstreams`.
pub(crate) fn permit_relay_endpoints(plan: &mut Plan, listens: &[Endpoint], upstreams: &[Endpoint]) {
    for listen_at in listens {
        match listen_at {
            Endpoint::Path(path) => plan.permit_creation(path),
            // An abstract socket is in no folder.
            Endpoint::Abstract(_) => {}
            Endpoint::Tcp { port, .. } => allow_listening(plan, *port),
        }
    }
    for upstream in upstreams {
        match upstream {
            // A plan restricts no connections to socket files.
            Endpoint::Path(_) => {}
            Endpoint::Abstract(_) => plan.abstract_sockets = true,
            Endpoint::Tcp { port, .. } => plan.ports.push(PortAccess::Connect(*port)),
        }
    }
}

/// Files and folders that a live run with `args` may write: recordings, and the hindsight ring, a file with the recent past of the run.
fn result_files(args: &LiveArgs) -> ResultFiles {
    let named = args.record.record.iter().chain(&args.record.hindsight_file);
    let ring_folders = args.record.hindsight_file.iter().filter_map(|ring| ring.parent().map(Path::to_owned));
    let mut results = ResultFiles {
        file: named.cloned().collect(),
        // Dumps of a ring are written beside it.
        folder: ring_folders.collect(),
        force: args.record.force,
    };
    // A ring that the user did not name, and files created from the screen, are written to the working folder (the empty path).
    let has_unnamed_ring = args.record.hindsight.is_some() && args.record.hindsight_file.is_none();
    if !args.outcome.is_headless() || has_unnamed_ring {
        results.folder.push(PathBuf::new());
    }
    results
}

/// Confines a relay to the access in `plan`, and reduces its rights to those of the user `account`. Does nothing if the user has turned
/// confinement off.
pub(crate) fn confine_as_user(account: Account, mut plan: Plan, args: &LiveArgs) -> anyhow::Result<()> {
    if is_disabled() {
        return Ok(());
    }
    let results = result_files(args);
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        allow_results(&mut plan, &results);
    } else if !results.is_empty() {
        // `account` may not be able to write the results of root, so another process, the broker, creates them.
        broker::start_broker(&results)?;
    }
    change_account_and_confine(account, plan)
}

/// Fails if this process, which runs as `own_user`, cannot change to `socket_user`, the owner of the sockets.
fn check_user_can_change(own_user: u32, socket_user: u32) -> anyhow::Result<()> {
    match confine::can_change_user() {
        Ok(true) => Ok(()),
        Ok(false) => bail!(
            "the sockets belong to user {socket_user}, and tokengap runs as user {own_user}: run it as user {socket_user}, or use tokengap attach"
        ),
        Err(lacking) => bail!(
            "the sockets belong to user {socket_user}, and root without CAP_{lacking} cannot change to that user: run tokengap as user {socket_user}, or add the capability"
        ),
    }
}

/// Confines this process with `plan` and the rights of `account`. Fails if not all threads could change to that user. Does nothing with
/// `--no-confine`.
pub(crate) fn change_account_and_confine(account: Account, mut plan: Plan) -> anyhow::Result<()> {
    if is_disabled() {
        return Ok(());
    }
    let own_user = rustix::process::geteuid();
    if account.user != own_user.as_raw() {
        check_user_can_change(own_user.as_raw(), account.user)?;
    }
    plan.account = Some(account);
    apply_plan(&plan);
    let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    let has_this_thread_changed = rustix::process::geteuid().as_raw() == account.user;
    // On Linux, each thread has its own user. The change is only that of this thread.
    let have_others_same_user = threads == 1 || account.user == own_user.as_raw();
    ensure!(
        has_this_thread_changed && have_others_same_user,
        "cannot change all {threads} threads to user {}, who owns the sockets: run tokengap as that user",
        account.user
    );
    Ok(())
}

/// Options of the processes that `attach` starts.
pub(crate) struct HelperOptions {
    pub(crate) prober_arguments: Vec<String>,
    /// Processes and files that the user named.
    pub(crate) named_pids: Vec<u32>,
    pub(crate) named_files: Vec<PathBuf>,
}

/// Confines `attach`. Other processes attach its probes, open files of the engine's processes, and create the files of its results. A
/// process of root changes to a user without files. Only two capabilities may remain: one for a port below 1024, and one for a `/proc` with
/// `hidepid`.
pub(crate) fn confine_attach(args: &LiveArgs, helpers: &HelperOptions) -> anyhow::Result<()> {
    if IS_DISABLED.load(Ordering::Relaxed) {
        return Ok(());
    }
    // Both calls remember their first result. They come first, so that they see the rights that tokengap was started with.
    Permissions::current();
    filter::calls_refused_by_seccomp();
    let prober = start_prober(args, &helpers.prober_arguments)?;
    // Capabilities are given up below. Another process keeps them, and opens files for this one.
    if has_capabilities() {
        start_opener(args, helpers)?;
    }
    let mut plan = confinement_plan_of_run(Work::Observe, args);
    plan.keep |= capabilities_to_list_processes();
    let why_still_root = give_up_root_or_explain(&mut plan, &result_files(args))?;
    // Opens the ring buffer of the prober's programs, which needs system calls that the plan forbids.
    helper::connect_helper(prober).context("cannot connect to the process that attaches probes")?;
    if let Some(why) = why_still_root {
        tracing::info!("confinement: still running as root: {why}");
    }
    apply_plan(&plan);
    Ok(())
}

/// Lets `plan` give up root, if this process is root and can do so. Then starts the broker, the process that creates the results. Returns
/// why this process stays root. `None` if it gives up root, or is not root.
fn give_up_root_or_explain(plan: &mut Plan, results: &ResultFiles) -> anyhow::Result<Option<String>> {
    match confine::can_drop_root() {
        // This process is not root.
        Ok(false) => Ok(None),
        Ok(true) => {
            let broker_start = if results.is_empty() { Ok(()) } else { broker::start_broker(results) };
            // Without the broker, only root could create the results.
            plan.unprivileged = broker_start.is_ok();
            Ok(broker_start.err().map(|error| format!("{error:#}")))
        }
        Err(lacking) => {
            // A path in /proc leads through another process, which needs a right that does not remain here. So the broker creates these
            // results.
            let mut result_paths = results.file.iter().chain(&results.folder);
            let is_any_in_proc = result_paths.any(|path| path.starts_with("/proc"));
            if is_any_in_proc {
                broker::start_broker(results)?;
            }
            Ok(Some(format!("it lacks CAP_{lacking}")))
        }
    }
}

/// Starts the process that attaches probes for this one ([`probe_user::prober`]). Returns the socket for requests.
fn start_prober(args: &LiveArgs, prober_arguments: &[String]) -> anyhow::Result<OwnedFd> {
    let mut command = Command::new("/proc/self/exe");
    pass_log_level(&mut command, args);
    command.arg("prober").args(prober_arguments);
    spawn_with_socket(command, "the process that attaches probes")
}

/// Starts the process that starts the analyses of libraries ([`probe_user::locator`]). Returns the socket for requests.
pub(crate) fn start_locator() -> anyhow::Result<OwnedFd> {
    let mut command = Command::new("/proc/self/exe");
    command.arg("locator");
    spawn_with_socket(command, "the process that analyses libraries")
}

/// Drops, as root, what the analyses of libraries do not need. Each opens one library of any user and then drops the rest.
pub(crate) fn drop_rights_beyond_analysis() {
    // Another user may have capabilities from the service manager or from the program's file. They are needed to start that file again, so
    // they are not dropped.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let keep = Capabilities::DAC_READ_SEARCH | Capabilities::SETUID | Capabilities::SETGID;
    if let Err(missing) = confine::drop_all_capabilities_but(keep) {
        tracing::warn!("{missing}");
    }
}

/// Confines the analysis of one library, which is open.
pub(crate) fn confine_analysis() {
    let mut plan = Plan::new(Work::Files);
    plan.unprivileged = confine::can_drop_root() == Ok(true);
    apply_plan(&plan);
}

/// Starts the process that opens files of other processes for this one ([`probe_user::opener`]), and connects to it.
fn start_opener(args: &LiveArgs, helpers: &HelperOptions) -> anyhow::Result<()> {
    let mut command = Command::new("/proc/self/exe");
    pass_log_level(&mut command, args);
    command.arg("opener").args(helpers.named_pids.iter().map(|pid| format!("--pid={pid}")));
    for file in &helpers.named_files {
        command.arg("--file").arg(file);
    }
    let socket = spawn_with_socket(command, "the process that opens files of other processes")?;
    opener_client::connect_opener(socket, helpers.named_files.clone());
    Ok(())
}

/// Makes the process that `command` starts log debug messages, if this process does so and has no screen.
fn pass_log_level(command: &mut Command, args: &LiveArgs) {
    if args.outcome.is_headless() && tracing::enabled!(tracing::Level::DEBUG) {
        command.arg("-vv");
    }
}

/// Whether this process has rights that its user has not.
fn has_capabilities() -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| !sets.permitted.is_empty())
}

/// Confines the process that opens files of other processes.
pub(crate) fn confine_opener() {
    let mut plan = Plan::new(Work::Open);
    plan.keep = Capabilities::SYS_PTRACE | Capabilities::DAC_READ_SEARCH | Capabilities::CHECKPOINT_RESTORE;
    // Files that a process chose are opened with the rights of its user.
    plan.keep |= Capabilities::SETUID | Capabilities::SETGID;
    plan.unprivileged = confine::can_drop_root() == Ok(true);
    apply_plan(&plan);
}

/// Confines the process that attaches probes. It must be able to load programs until [`refuse_programs`].
pub(crate) fn confine_prober() {
    let mut plan = Plan::new(Work::Attach);
    plan.keep = probe_capabilities() | Capabilities::DAC_READ_SEARCH;
    plan.unprivileged = confine::can_drop_root() == Ok(true);
    apply_plan(&plan);
}

/// Confines the process that reads Python stacks: it reads the memory of other processes, and nothing else.
#[cfg(feature = "python-stacks")]
pub(crate) fn confine_stacks() {
    let mut plan = Plan::new(Work::Memory);
    plan.keep = Capabilities::DAC_READ_SEARCH;
    let kernel = Permissions::current().kernel();
    for need in Feature::PythonStacks.required_capabilities(kernel) {
        plan.keep |= flag_of(*need);
    }
    plan.unprivileged = confine::can_drop_root() == Ok(true);
    apply_plan(&plan);
}

/// Refuses to load further eBPF programs, once those of the probe are loaded.
pub(crate) fn refuse_programs() {
    if IS_DISABLED.load(Ordering::Relaxed) {
        return;
    }
    if let Err(missing) = confine::refuse_programs() {
        tracing::warn!("{missing}");
    }
}

/// Capabilities that `attach` keeps on some machines: the right to trace processes, if `/proc` hides those of other users.
fn capabilities_to_list_processes() -> Capabilities {
    let mut keep = Capabilities::empty();
    if hides_processes() {
        tracing::info!(
            "confinement: /proc is mounted with hidepid, so the right to trace processes is kept to list them"
        );
        keep |= Capabilities::SYS_PTRACE;
    }
    keep
}

/// Capabilities to attach probes to other processes (docs/internals/PROBE.md).
pub(crate) fn probe_capabilities() -> Capabilities {
    let kernel = Permissions::current().kernel();
    let mut keep = Capabilities::empty();
    for need in Feature::ALL.iter().flat_map(|feature| feature.required_capabilities(kernel)) {
        keep |= flag_of(*need);
    }
    // `map_files` is needed to reach a mapped file that was deleted.
    keep |= Capabilities::CHECKPOINT_RESTORE;
    // `CAP_SYS_ADMIN` is needed for targets in other network namespaces, even those that start later, and for uprobes before Linux 6.6.
    keep | flag_of(Capability::SysAdmin)
}

/// Set of this capability alone.
fn flag_of(capability: Capability) -> Capabilities {
    Capabilities::from_bits_retain(1 << capability.bit_number())
}

/// Permits listening on a port, and keeps the capability that a privileged port needs.
fn allow_listening(plan: &mut Plan, port: u16) {
    plan.ports.push(PortAccess::Listen(port));
    if (1..FIRST_UNPRIVILEGED_PORT).contains(&port) {
        plan.keep |= Capabilities::NET_BIND_SERVICE;
    }
}

/// Drops everything that `plan` does not keep.
pub(crate) fn apply_plan(plan: &Plan) {
    if IS_DISABLED.load(Ordering::Relaxed) {
        return;
    }
    let outcome = plan.apply();
    // A restriction that the kernel does not offer is missing. The other restrictions hold nevertheless.
    for missing in &outcome.missing {
        tracing::warn!("{missing}");
    }
    let kept = if outcome.kept.is_empty() {
        String::from("none")
    } else {
        outcome.kept.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
    };
    tracing::info!(
        "confined: user {}, Landlock {}, seccomp {}, capabilities kept: {kept}",
        rustix::process::geteuid().as_raw(),
        on_or_off(outcome.landlock),
        on_or_off(outcome.seccomp)
    );
}

fn on_or_off(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}
