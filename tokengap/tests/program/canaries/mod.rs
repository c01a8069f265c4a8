//! Searches every output for confidential words.
//!
//! The words are put into all input: complete and broken messages, client requests and responses, and the environment. Searched are the log
//! at its highest level, report, recording, exports, served and pushed data, and the screen. Request ids may appear by design.

mod outlets;

use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// Confidential text. Replaces one of the same length in the recorded message.
const TEXT: &[u8; 14] = b" CanaryText007";
const RECORDED_TEXT: &[u8; 14] = b" t65535 t65536";
const BROKEN: &str = "CanaryBroken";
const SECRET: &str = "CanarySecret";
const WORD: &str = "Canary";
/// Token ids in the recorded message.
const IDS: [&str; 2] = ["151643", "199999"];
/// Request id in the recorded message.
const RID: &str = "da7231f9ebd455a494d508416fc22d7a";

fn tokengap() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokengap"));
    let headers = format!("authorization=Bearer%20{SECRET}");
    command.env("OTEL_EXPORTER_OTLP_HEADERS", headers).env("API_KEY", SECRET).env_remove("TOKENGAP_LOG");
    command
}

/// The recorded message with a confidential text and confidential tool calls.
fn message() -> Vec<u8> {
    let path =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../zmq-tap/fixtures/messages/0.5.19-msgpack/str_delta_3rid.msgpack");
    let mut message = std::fs::read(path).expect("a recorded message");
    let at = message.windows(TEXT.len()).position(|part| part == RECORDED_TEXT);
    let at = at.expect("its text");
    message[at..at + TEXT.len()].copy_from_slice(TEXT);
    // A string of at most 31 bytes has its length in its first byte, a longer one in the byte behind that.
    let short = [b"\xa8", &b" t0 t255"[..]].concat();
    let long = [&[0xd9, outlets::CALLS.len() as u8], outlets::CALLS.as_bytes()].concat();
    let at = message.windows(short.len()).position(|part| part == short);
    let at = at.expect("the text of the request that ends");
    message.splice(at..at + short.len(), long);
    // Counts of completion tokens: this chunk becomes the request's first, so that its text is compared.
    let counts = message.windows(4).position(|part| part == [0x93, 3, 3, 3]);
    message[counts.expect("the counts") + 1] = 2;
    message
}

/// Greeting and READY command of a ZMQ socket.
fn opening(socket_type: &str) -> Vec<u8> {
    let mut bytes = b"\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL".to_vec();
    bytes.resize(64, 0);
    let ready = [b"\x05READY\x0bSocket-Type\0\0\0", &[socket_type.len() as u8][..], socket_type.as_bytes()].concat();
    bytes.extend([&[4, ready.len() as u8], &ready[..]].concat());
    bytes
}

/// A message of one frame.
fn frame(payload: &[u8]) -> Vec<u8> {
    [&[2], &(payload.len() as u64).to_be_bytes()[..], payload].concat()
}

/// A port where nobody listens, different on each call. It lies outside the kernel's ephemeral range, which concurrent tests use. It is
/// found without listening: a process that another thread starts meanwhile would inherit the listener and accept our connection.
fn port() -> u16 {
    const FIRST: u16 = 20_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let place = (std::process::id() % 1_000) as u16 * 10;
    let next = || FIRST + (place + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000;
    let free = |port: &u16| TcpStream::connect(("127.0.0.1", *port)).is_err();
    std::iter::repeat_with(next).take(10_000).find(free).expect("a port")
}

fn connect(port: u16) -> TcpStream {
    for _ in 0..500 {
        if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) {
            return stream;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("nobody listens at {port}");
}

/// Checks that `output` contains no confidential word.
fn search_words(what: &str, output: &[u8]) {
    let text = String::from_utf8_lossy(output);
    let found = text.find(WORD).map(|at| {
        let context = text.get(at.saturating_sub(80)..(at + 80).min(text.len()));
        context.unwrap_or(WORD).to_owned()
    });
    assert_eq!(found, None, "{what} contains a canary");
}

/// Returns whether a token id appears as a whole number.
fn contains_an_id(text: &str) -> bool {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    numbers.any(|number| IDS.contains(&number))
}

/// Checks that `output` contains neither a confidential word nor a token id.
fn search(what: &str, output: &[u8]) {
    search_words(what, output);
    let text = String::from_utf8_lossy(output);
    assert!(!contains_an_id(&text), "{what} contains a token id:\n{text}");
}

/// Runs a tap with the flags `more` in `folder`, sends it the messages and a client's request and response, and searches its outputs.
fn tap(folder: &Path, more: &[&str]) {
    let upstream = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (listen, metrics, clients) = (port(), port(), port());
    let (collector, server) = (outlets::Collector::start(), outlets::server());
    let tcp = |port| format!("tcp://127.0.0.1:{port}");
    let child = tokengap()
        .current_dir(folder)
        .args(["-vvv", "tap", "--headless", "--json", "--duration", "6s", "--record", "run.tgap"])
        .args(["--listen", &tcp(listen), "--upstream", &tcp(upstream.local_addr().expect("bound").port())])
        .args(["--listen", &format!("http://127.0.0.1:{clients}"), "--upstream", &format!("http://127.0.0.1:{server}")])
        .args(["--metrics", &metrics.to_string()])
        .args(["--otlp", &format!("http://127.0.0.1:{}", collector.port)])
        .args(["--otlp-requests", "all", "--otlp-interval", "1s"])
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("tokengap runs");
    let mut sender = connect(listen);
    outlets::wait_for_run(metrics);
    let streams = ["/recording", "/events"].map(|path| outlets::read_path(metrics, path));
    let watcher = tokengap()
        .current_dir(folder)
        .args(["-vvv", "watch", "--headless", "--json", "--record", "watched.tgap", &format!("127.0.0.1:{metrics}")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("tokengap runs");
    let (mut receiver, _) = upstream.accept().expect("the relay connects");
    sender.write_all(&opening("PUSH")).expect("said");
    receiver.write_all(&opening("PULL")).expect("said");
    // Time for the watchers to connect.
    std::thread::sleep(Duration::from_secs(1));
    let whole = message();
    let cut = [&whole[..whole.len() / 2], BROKEN.as_bytes()].concat();
    let strange = [b"\x80\x04\x95", BROKEN.as_bytes()].concat();
    for payload in [&whole, &cut, &strange] {
        sender.write_all(&frame(payload)).expect("sent");
    }
    outlets::ask(clients, "/generate", "CanaryAnswer");
    outlets::ask(clients, "/v1/chat/completions", "CanaryTool");
    std::thread::sleep(Duration::from_millis(1_500));
    let [scraped, reported] = ["/metrics", "/report"].map(|path| outlets::read_path(metrics, path).join());
    let [scraped, reported] = [scraped, reported].map(|read| read.expect("answered"));
    sender.shutdown(Shutdown::Both).ok();
    let all = |child: std::process::Child| {
        let ended = child.wait_with_output().expect("it ends");
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        [ended.stdout, ended.stderr].concat()
    };
    let (tap, watcher, pushed) = (all(child), all(watcher), collector.bodies());
    let [recording, events] = streams.map(|stream| stream.join().expect("it reads to the end"));
    for (what, output, word) in [
        ("the report", &tap, RID),
        ("metrics", &scraped, "tokengap_requests_seen_total"),
        ("pushed telemetry", &pushed, RID),
        ("/report", &reported, RID),
        ("/recording", &recording, "tokengap-host"),
        ("/events", &events, RID),
        ("the watcher's report", &watcher, RID),
        ("the comparison of tool calls", &tap, "damaged-tool-calls"),
    ] {
        let text = String::from_utf8_lossy(output);
        assert!(text.contains(word), "{what} is empty, so the search proves nothing: {text}");
        search(what, output);
    }
}

/// Searches the output of every command that reads the recordings.
fn search_recordings(folder: &Path) {
    for file in ["run.tgap", "watched.tgap"] {
        search(file, &std::fs::read(folder.join(file)).expect("recorded"));
        let made = |args: &[&str]| {
            let out = tokengap().current_dir(folder).arg("-vvv").args(args).output();
            let out = out.expect("tokengap runs");
            assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
            search(&args.join(" "), &[out.stdout, out.stderr].concat());
        };
        for format in ["text", "json", "markdown", "html"] {
            made(&["report", file, "--format", format]);
        }
        for format in ["perfetto", "otlp", "events", "csv"] {
            made(&["export", file, "--format", format]);
        }
        made(&["replay", file, "--json"]);
        made(&["diff", file, file]);
        made(&["report", file, "--bundle", "bundle.tar.zst", "--force"]);
        let packed = std::fs::File::open(folder.join("bundle.tar.zst")).expect("written");
        search(&format!("the bundle of {file}"), &zstd::stream::decode_all(packed).expect("zstd"));
    }
}

#[test]
fn no_text_token_id_or_secret_leaks() {
    let folder = tempfile::tempdir().expect("a folder");
    tap(folder.path(), &[]);
    search_recordings(folder.path());
    if let Some(shown) = outlets::screen(folder.path(), &tokengap()) {
        let text = String::from_utf8_lossy(&shown);
        assert!(text.contains(&RID[..8]), "the request is on the screen: {text}");
        assert!(text.contains("tool call 1 of 2"), "its tool calls are on the screen: {text}");
        search("the screen", &shown);
    }
}

/// Token ids are then recorded, and exported only on a second request; texts and secrets appear nowhere.
#[test]
fn payload_tokens_exports_ids_only_on_a_second_request() {
    let folder = tempfile::tempdir().expect("a folder");
    tap(folder.path(), &["--payload", "tokens"]);
    search_recordings(folder.path());
    let mut export = tokengap();
    export.current_dir(folder.path());
    export.args(["-vvv", "export", "run.tgap", "--format", "events", "--payload", "tokens"]);
    let out = export.output().expect("tokengap runs");
    search_words("the events with their ids", &[&out.stdout[..], &out.stderr].concat());
    assert!(contains_an_id(&String::from_utf8_lossy(&out.stdout)), "the ids that were asked for");
}

#[test]
fn errors_contain_no_message_content() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = message();
    // The cuts lie behind the class name, which errors about unknown classes contain.
    for cut in [40, 80, 120, 200, whole.len() - 1] {
        let broken = [&whole[..cut], BROKEN.as_bytes(), &whole[cut..]].concat();
        std::fs::write(folder.path().join("broken"), broken).expect("written");
        let out = tokengap().args(["-vvv", "decode"]).arg(folder.path().join("broken")).output();
        let out = out.expect("tokengap runs");
        search("decode's errors", &out.stderr);
        for command in ["report", "replay"] {
            let out = tokengap().args(["-vvv", command]).arg(folder.path().join("broken")).output();
            search(command, &out.expect("tokengap runs").stderr);
        }
    }
}
