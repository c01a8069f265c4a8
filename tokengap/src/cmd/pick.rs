//! `tokengap` without arguments on a terminal: offers running engines, local recordings and demos.

use std::fs::DirEntry;
use std::path::Path;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, SystemTime};

use probe_user::discover::{self, Engine, Watcher};
use session::units::{format_bytes, format_duration};
use sources::demo::Scenario;
use tui::pick::{FoundSources, SourceKind, SourceOffer, pick_source_command};

/// Interval between searches for engines and recordings.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of folder entries read, and of recordings offered (newest first).
const MAX_ENTRIES: usize = 10_000;
const MAX_RECORDINGS: usize = 100;

/// Runs the picker. Returns the arguments to run `tokengap` with, or `None` if the user quits.
pub(crate) fn pick_arguments() -> anyhow::Result<Option<Vec<String>>> {
    let (sender, found) = mpsc::channel();
    thread::Builder::new().name("discovery".into()).spawn(move || search_until_picker_closes(&sender))?;
    pick_source_command(demo_offers().collect(), &found)
}

/// Searches once a second for what tokengap can show: engines, runs that other tokengaps serve, recordings and the demo. Sends the list
/// until the receiver is dropped.
fn search_until_picker_closes(sender: &Sender<FoundSources>) {
    let mut watcher = Watcher::new(discover::DiscoverOptions::new(engines::DISCOVERED));
    loop {
        let mut found = FoundSources { offers: Vec::new(), blind: Vec::new() };
        match &mut watcher {
            Ok(watcher) => {
                // After a failed search, the engines that were found before are still offered.
                let failure = watcher.poll().err();
                let topology = watcher.topology();
                found.offers.extend(topology.engines.iter().filter_map(engine_offer));
                found.blind.extend(topology.blind_spots.iter().map(ToString::to_string));
                found.blind.extend(failure.map(|error| error.to_string()));
            }
            Err(error) => found.blind.push(format!("cannot look for engines: {error}")),
        }
        found.offers.extend(served_run_offers());
        found.offers.extend(recording_offers());
        found.offers.extend(demo_offers());
        // The picker was closed.
        if sender.send(found).is_err() {
            return;
        }
        thread::sleep(SEARCH_INTERVAL);
    }
}

/// The offer to attach to an engine; `None` if its main process is unknown.
fn engine_offer(engine: &Engine) -> Option<SourceOffer> {
    let pid = engine.main_process()?.id.pid;
    let description = engine.to_string();
    let processes = engine.processes.len();
    Some(SourceOffer {
        kind: SourceKind::Engine,
        title: description.lines().next().unwrap_or_default().trim().to_owned(),
        note: format!("attach to its {processes} processes, passively (pid {pid} and others)"),
        command: vec!["attach".into(), "--pid".into(), pid.to_string()],
    })
}

/// Local runs whose command line contains the address they are served at.
#[expect(clippy::disallowed_methods, reason = "/proc/PID/cmdline, a file of the kernel")]
fn served_run_offers() -> Vec<SourceOffer> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut offers = Vec::new();
    for entry in processes.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // Unreadable once the process has exited; then it offers nothing.
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        offers.extend(served_run_offer(pid, &line));
    }
    offers
}

/// Offer of the run that process `pid` serves. `None` if its command line, whose words end with a zero byte, shows no such run.
fn served_run_offer(pid: u32, command_line: &[u8]) -> Option<SourceOffer> {
    let words = command_line.split(|&byte| byte == 0).filter_map(|word| std::str::from_utf8(word).ok());
    let words: Vec<&str> = words.collect();
    let command = watch_arguments(&words)?;
    Some(SourceOffer {
        kind: SourceKind::Served,
        // The address follows the name of the command.
        title: command[1].clone(),
        note: format!("watch it: served by process {pid}"),
        command,
    })
}

/// Value of a flag, given as `--flag value` or `--flag=value`; `None` if the flag is missing or has no value.
fn flag_value<'a>(words: &[&'a str], flag: &str) -> Option<&'a str> {
    for (index, word) in words.iter().enumerate() {
        if *word == flag {
            return words.get(index + 1).copied();
        }
        if let Some(value) = word.strip_prefix(flag).and_then(|rest| rest.strip_prefix('=')) {
            return Some(value);
        }
    }
    None
}

/// Arguments to watch the run served by a tokengap with this command line; `None` if the command line shows no address to connect to.
fn watch_arguments(words: &[&str]) -> Option<Vec<String>> {
    const LOOPBACK: &str = "127.0.0.1";
    if !Path::new(words.first()?).ends_with("tokengap") {
        return None;
    }
    let address = flag_value(words, "--metrics")?;
    // A port alone is one of the loopback address.
    let (host, port) = address.rsplit_once(':').unwrap_or((LOOPBACK, address));
    // For port 0, the command line does not contain the actual port.
    if port.parse::<u16>().ok()? == 0 {
        return None;
    }
    // A run that listens on all addresses is reachable by the loopback address, too.
    let is_any_address = matches!(host, "0.0.0.0" | "[::]");
    let host = if is_any_address { LOOPBACK } else { host };
    let mut command = vec!["watch".to_owned(), format!("{host}:{port}")];
    if let Some(token) = flag_value(words, "--token-file") {
        command.extend(["--token-file".into(), token.into()]);
    }
    Some(command)
}

/// Recordings in the working folder, newest first.
fn recording_offers() -> Vec<SourceOffer> {
    let Ok(folder) = std::fs::read_dir(".") else { return Vec::new() };
    let entries = folder.take(MAX_ENTRIES).filter_map(Result::ok);
    let mut recordings: Vec<FoundRecording> = entries.filter_map(|entry| FoundRecording::read(&entry)).collect();
    // The reverse of their order, which is that of the time of writing.
    recordings.sort_by(|a, b| b.cmp(a));
    recordings.truncate(MAX_RECORDINGS);
    recordings.into_iter().map(FoundRecording::into_offer).collect()
}

/// A recording in a folder. The order is that of the time of writing.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct FoundRecording {
    written_at: SystemTime,
    bytes: u64,
    name: String,
}

impl FoundRecording {
    /// The recording of this entry of a folder; `None` if it is not a readable file with the extension `tgap`.
    fn read(entry: &DirEntry) -> Option<Self> {
        let name = entry.file_name().into_string().ok()?;
        let metadata = entry.metadata().ok()?;
        let is_recording = Path::new(&name).extension().is_some_and(|extension| extension == "tgap");
        if !is_recording || !metadata.is_file() {
            return None;
        }
        let written_at = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        Some(Self { written_at, bytes: metadata.len(), name })
    }

    /// The offer to replay the recording.
    fn into_offer(self) -> SourceOffer {
        let elapsed = self.written_at.elapsed().unwrap_or_default();
        let size = format_bytes(self.bytes);
        let age = format_duration(elapsed.as_nanos() as u64);
        SourceOffer {
            kind: SourceKind::Recording,
            note: format!("replay it: {size}, written {age} ago"),
            command: vec!["replay".into(), self.name.clone()],
            title: self.name,
        }
    }
}

/// All scenarios of the demo.
fn demo_offers() -> impl Iterator<Item = SourceOffer> {
    Scenario::ALL.iter().map(|scenario| SourceOffer {
        kind: SourceKind::Demo,
        title: scenario.as_str().to_owned(),
        note: scenario.about().to_owned(),
        command: vec!["demo".into(), "--scenario".into(), scenario.as_str().to_owned()],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn served_runs_are_found_by_their_command_line() {
        let command = |line: &str| watch_arguments(&line.split(' ').collect::<Vec<_>>()).map(|words| words.join(" "));
        for (line, expected) in [
            ("/usr/bin/tokengap attach --metrics 127.0.0.1:9464", Some("watch 127.0.0.1:9464")),
            ("tokengap demo --metrics=9465 --token-file t", Some("watch 127.0.0.1:9465 --token-file t")),
            ("tokengap demo --metrics 0.0.0.0:9464 --insecure", Some("watch 127.0.0.1:9464")),
            ("tokengap demo --metrics 127.0.0.1:0", None),
            ("tokengap demo", None),
            ("python x.py --metrics 9464", None),
        ] {
            assert_eq!(command(line).as_deref(), expected, "{line}");
        }
    }
}
