//! The reading process, and the process that starts it. Their standard input is a socket to tokengap.

use std::io::{self, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use probe_user::discarded_output;
use probe_user::python::PythonStacks;
use rustix::stdio::stdin;

use super::message::{ReaderStatus, StackMessage, StackRequest, ThreadSamples};

/// Number of times that the reading process is started again.
const MAX_RESTARTS: u32 = 3;
const RESTART_DELAY: Duration = Duration::from_millis(500);
/// Interval at which samples are passed on.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Interval of messages about cost and refusals.
const STATUS_INTERVAL: Duration = Duration::from_millis(200);

/// A duplicate of the socket that is the standard input.
fn socket_on_stdin() -> io::Result<UnixStream> {
    stdin().as_fd().try_clone_to_owned().map(UnixStream::from)
}

/// Starts the process that reads Python stacks, and starts it again if it crashes, which it reports to tokengap. Returns once tokengap has
/// ended, or there were too many crashes.
pub fn supervise_reader() -> anyhow::Result<()> {
    for restart_count in 0..=MAX_RESTARTS {
        let mut command = Command::new("/proc/self/exe");
        command.args(["stacks", "--reader"]).stdin(OwnedFd::from(socket_on_stdin()?)).stdout(discarded_output()?);
        let status = command.status().context("cannot start the process that reads Python stacks")?;
        // The reading process ends without an error only if tokengap has ended.
        if status.success() {
            return Ok(());
        }
        let is_restarted = restart_count < MAX_RESTARTS;
        StackMessage::Ended { reason: describe_exit(status), is_restarted }.write(&mut socket_on_stdin()?)?;
        if is_restarted {
            thread::sleep(RESTART_DELAY);
        }
    }
    Ok(())
}

/// Says why the reading process has ended.
fn describe_exit(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) if signal == rustix::process::Signal::BUS.as_raw() => {
            "SIGBUS (a file of a sampled process was truncated while it was read)".to_owned()
        }
        Some(signal) => match signal_hook::low_level::signal_name(signal) {
            Some(name) => name.to_owned(),
            None => format!("signal {signal}"),
        },
        None => format!("an error ({status})"),
    }
}

/// The reading process: samples the requested processes until tokengap ends.
pub fn serve_samples() -> anyhow::Result<()> {
    let from = socket_on_stdin()?;
    let (sender, requests) = channel();
    thread::Builder::new().name("requests".into()).spawn(move || {
        let mut from = BufReader::new(from);
        while let Ok(Some(request)) = StackRequest::read(&mut from) {
            if sender.send(request).is_err() {
                break;
            }
        }
        // tokengap has ended, and so must this process, even if another of its threads waits for a file of a target.
        std::process::exit(0);
    })?;
    sample_and_send_until_error(&requests, &mut socket_on_stdin()?)
}

/// Samples the processes of the latest request and sends the samples, and the status from time to time. Ends only with an error, such as a
/// closed connection.
fn sample_and_send_until_error(requests: &Receiver<StackRequest>, to: &mut UnixStream) -> anyhow::Result<()> {
    let first = requests.recv()?;
    let stacks = PythonStacks::start(first.hertz).context("cannot start a thread to read stacks")?;
    stacks.sample_processes(&first.pids);
    let mut reported_at: Option<Instant> = None;
    loop {
        // Each request lists all processes, so only the last one counts.
        if let Some(request) = requests.try_iter().last() {
            stacks.sample_processes(&request.pids);
        }
        for samples in take_thread_samples(&stacks) {
            StackMessage::Samples(samples).write(to)?;
        }
        if reported_at.is_none_or(|at| at.elapsed() >= STATUS_INTERVAL) {
            reported_at = Some(Instant::now());
            StackMessage::Status(current_status(&stacks)).write(to)?;
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// The samples of each thread since the last call.
fn take_thread_samples(stacks: &PythonStacks) -> Vec<ThreadSamples> {
    let mut samples = Vec::new();
    stacks.poll(|interval| {
        for thread_stacks in interval.threads {
            samples.push(ThreadSamples {
                pid: interval.pid,
                at_ns: interval.at.0,
                interval_ns: interval.interval_ns,
                stacks: thread_stacks,
            });
        }
    });
    samples
}

/// State of this process, all of whose CPU time is the cost of sampling.
fn current_status(stacks: &PythonStacks) -> ReaderStatus {
    let mut cost = stacks.cost();
    cost.cpu_ns = session::own::cpu_ns();
    let rss_bytes = session::own::rss_bytes();
    ReaderStatus { cost, rss_bytes, refusals: stacks.refused(), notes: stacks.notes() }
}
