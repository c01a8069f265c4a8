//! The real binary on a real terminal: tests press keys in tmux and read the pane.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::pair_recordings::events::Request;
use crate::pair_recordings::{RIDS, record, requests};

/// Timeout of any step, generous enough for a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// A tmux server for one test, stopped on drop.
struct Tmux {
    folder: tempfile::TempDir,
}

impl Tmux {
    /// Runs `tokengap` with `args` in an 80x24 pane. Returns `None`, with a message, if tmux is not installed.
    fn run(args: &str) -> Option<Self> {
        if Command::new("tmux").arg("-V").output().is_err() {
            eprintln!("SKIPPED: tmux is not installed, so the screen was not tested on a terminal");
            return None;
        }
        let tmux = Self { folder: tempfile::tempdir().expect("a folder") };
        let command = format!("cd {}; exec {} {args}", tmux.folder.path().display(), env!("CARGO_BIN_EXE_tokengap"));
        tmux.command(&["new-session", "-d", "-x", "80", "-y", "24", "exec sh"]);
        tmux.command(&["set-option", "-g", "remain-on-exit", "on"]);
        tmux.command(&["respawn-pane", "-k", "-e", "LC_ALL=C.UTF-8", &command]);
        Some(tmux)
    }

    fn command(&self, args: &[&str]) -> String {
        let socket = self.folder.path().join("tmux");
        let output = Command::new("tmux").arg("-S").arg(&socket).args(["-f", "/dev/null"]).args(args).output();
        let output = output.expect("tmux runs");
        assert!(output.status.success(), "tmux {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn pane(&self) -> String {
        self.command(&["capture-pane", "-p"])
    }

    /// Content of the pane including tmux's scrollback.
    fn whole_pane(&self) -> String {
        self.command(&["capture-pane", "-p", "-S", "-"])
    }

    fn value(&self, name: &str) -> String {
        self.command(&["display-message", "-p", &format!("#{{{name}}}")]).trim().to_owned()
    }

    fn press(&self, keys: &[&str]) {
        self.command(&[&["send-keys"], keys].concat());
    }

    fn wait_for(&self, text: &str) -> String {
        self.wait(&format!("{text:?} on the screen"), || self.pane().contains(text));
        self.pane()
    }

    fn wait(&self, what: &str, condition: impl Fn() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !condition() {
            assert!(Instant::now() < end, "timed out waiting for {what}; the pane shows:\n{}", self.pane());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the run is at least this old. A busy machine may show none of its screens for seconds.
    fn wait_until_live_for(&self, seconds: u64) {
        self.wait(&format!("{seconds} s of the live run"), || live_seconds(&self.pane()) >= Some(seconds));
    }

    /// Waits for the exit and checks that the terminal is restored.
    fn wait_for_end(&self) {
        self.wait("the end", || self.value("pane_dead") == "1");
        for (mode, name) in [("alternate_on", "the alternate screen"), ("mouse_any_flag", "the mouse")] {
            assert_ne!(self.value(mode), "1", "{name} was not restored");
        }
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let socket = self.folder.path().join("tmux");
        // The server may have exited with its pane.
        let _ = Command::new("tmux").arg("-S").arg(socket).arg("kill-server").output();
    }
}

/// The age of the run in the header: 68 for `live 1:08`.
fn live_seconds(pane: &str) -> Option<u64> {
    let (minutes, seconds) = pane.split_once("live ")?.1.split_whitespace().next()?.split_once(':')?;
    Some(minutes.parse::<u64>().ok()? * 60 + seconds.parse::<u64>().ok()?)
}

fn exported(folder: &Path) -> Option<String> {
    let names = std::fs::read_dir(folder).expect("the folder").filter_map(|e| e.ok()?.file_name().into_string().ok());
    let name = names.into_iter().find(|name| name.starts_with("tokengap-report-"))?;
    std::fs::read_to_string(folder.join(name)).ok()
}

#[test]
fn the_race_demo_shows_the_loss_and_its_request() {
    let Some(tmux) = Tmux::run("demo --scenario race") else { return };
    let overview = tmux.wait_for("CRITICAL");
    assert!(overview.contains("scheduler ─") && overview.contains("self+demo: cpu"), "{overview}");

    tmux.press(&["2"]);
    tmux.wait_for("flags▼");
    tmux.press(&["/"]);
    tmux.press(&["-l", "drop>0 state:live"]);
    tmux.press(&["Enter"]);
    tmux.wait_for("filter: drop>0 state:live");
    tmux.wait_for("DROPPED");

    tmux.press(&["Enter"]);
    let request = tmux.wait_for("first_output_stream");
    assert!(request.contains("lost tokens"), "{request}");
    tmux.press(&["n"]);
    tmux.wait_for("DROPPED");

    tmux.press(&["4"]);
    tmux.wait_for("frames by queue wait");
    tmux.press(&["5"]);
    tmux.wait_for("dropped-chunks");
    tmux.press(&["?"]);
    tmux.wait_for("help: lines");
    tmux.press(&["Escape"]);
    // Sent together, Escape and a letter would be read as Alt and the letter.
    tmux.wait_for("worst rid");
    tmux.press(&["e"]);
    tmux.wait_for("JSON report");
    tmux.press(&["j"]);
    tmux.wait_for("wrote the JSON report so far to");
    let report = exported(tmux.folder.path()).expect("the file that the screen names");
    assert!(report.contains("tokengap.report/2"), "{report}");

    tmux.press(&["q"]);
    tmux.wait_for_end();
    assert!(tmux.whole_pane().contains("never delivered"), "the report follows: {}", tmux.whole_pane());
}

/// A recording made from the screen shows the same loss, found with a key.
#[test]
fn a_recording_made_from_the_screen_can_be_replayed() {
    let Some(tmux) = Tmux::run("demo --scenario race") else { return };
    tmux.wait_until_live_for(2);
    tmux.press(&["r"]);
    tmux.wait_for("REC tokengap-");
    tmux.wait_until_live_for(8);
    tmux.press(&["r"]);
    tmux.wait_for("recorded to tokengap-");
    tmux.press(&["q"]);
    tmux.wait_for_end();

    let command =
        format!("cd {}; exec {} replay tokengap-*.tgap", tmux.folder.path().display(), env!("CARGO_BIN_EXE_tokengap"));
    tmux.command(&["respawn-pane", "-k", "-e", "LC_ALL=C.UTF-8", &command]);
    tmux.wait_for("demo replay");
    tmux.press(&["}"]);
    tmux.wait_for("is first seen here");
    tmux.wait_for("PAUSED 1x");
    tmux.press(&["$"]);
    tmux.wait_for("END");
    tmux.wait_for("CRITICAL");
    tmux.press(&["t"]);
    tmux.press(&["-l", "0:02"]);
    tmux.press(&["Enter"]);
    tmux.wait_for("replay 0:02");
    tmux.press(&["q"]);
    tmux.wait_for_end();
}

#[test]
fn without_a_command_the_terminal_shows_the_start_menu() {
    let Some(tmux) = Tmux::run("") else { return };
    tmux.wait_for("engines running on this machine");
    tmux.press(&["End"]);
    tmux.wait_for("runs: tokengap demo --scenario abandoned");
    tmux.press(&["Enter"]);
    tmux.wait_for("demo live");
    tmux.press(&["q"]);
    tmux.wait_for_end();
}

#[test]
fn a_signal_restores_the_terminal() {
    let Some(tmux) = Tmux::run("demo --scenario healthy") else { return };
    tmux.wait_for(" live of ");
    assert_eq!(tmux.value("alternate_on"), "1");
    let pid = tmux.value("pane_pid");
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs").success());
    tmux.wait_for_end();
}

/// Reading a closed terminal returns end of input forever, which must not keep the run in a loop that ignores signals.
#[test]
fn a_closed_terminal_ends_the_run() {
    let Some(tmux) = Tmux::run("demo --scenario healthy") else { return };
    tmux.wait_for(" live of ");
    let process = format!("/proc/{}", tmux.value("pane_pid"));
    assert!(Path::new(&process).exists(), "{process} is the demo");
    tmux.command(&["kill-server"]);
    let end = Instant::now() + PATIENCE;
    while Path::new(&process).exists() {
        assert!(Instant::now() < end, "{process} still runs without a terminal");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Serves a recording as a run. Returns the address. The thread ends with the process.
fn serve(recording: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            let mut head = [0; 4_096];
            let length = connection.read(&mut head).unwrap_or(0);
            let body = if head[..length].starts_with(b"GET /recording") { &recording[..] } else { b"{}" };
            let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            let _ = connection.write_all(response.as_bytes()).and_then(|()| connection.write_all(body));
        }
    });
    address
}

#[test]
fn a_pair_is_in_the_list_of_runs_before_their_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let prefill = record(folder.path(), "p.tgap", &requests(Request::of_prefill, false), 0, Some("prefill"));
    let decode = record(folder.path(), "d.tgap", &requests(Request::of_decode, true), 0, Some("decode"));
    let [prefill, decode] = [prefill, decode].map(|file| serve(std::fs::read(file).expect("the recording")));
    let Some(tmux) = Tmux::run(&format!("watch {prefill} {decode}")) else { return };
    tmux.wait_for("joined requests");
    let words = tmux.pane().split_whitespace().collect::<Vec<_>>().join(" ");
    let expected = format!(
        "pair {prefill} → {decode}: {} joined requests; most of TTFT: transfer of the cache, 91 % of it",
        RIDS.len()
    );
    assert!(words.contains(&expected) && words.contains("WARNING transfer-slow: "), "{expected} in {words}");
    // A request of the first run, the prefill server, with its legs on both.
    tmux.press(&["3"]);
    tmux.wait_for("on both");
    let words = tmux.pane().split_whitespace().collect::<Vec<_>>().join(" ");
    let servers = format!("pair {prefill} → {decode}, room ");
    assert!(words.contains(&servers) && words.contains("TTFT 660 ms on both"), "{servers} in {words}");
    assert!(words.contains("91 % transfer"), "{words}");
    tmux.press(&["q"]);
    tmux.wait_for_end();
}
