//! Words that must not get out are put into everything that is read, messages whole and broken and the environment, and every
//! output is searched for them: log at its most talkative, report, recording, exports, metrics. Request ids are shown by design.

#![cfg(target_os = "linux")]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// As long as a text of the recorded message, which it replaces.
const TEXT: &[u8; 14] = b" CanaryText007";
const RECORDED_TEXT: &[u8; 14] = b" t65535 t65536";
const BROKEN: &str = "CanaryBroken";
const SECRET: &str = "CanarySecret";
const WORD: &str = "Canary";
/// Token ids of the recorded message.
const IDS: [&str; 2] = ["151643", "199999"];
/// A request of the recorded message.
const RID: &str = "da7231f9ebd455a494d508416fc22d7a";

fn tokengap() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokengap"));
    let headers = format!("authorization=Bearer%20{SECRET}");
    command
        .env("OTEL_EXPORTER_OTLP_HEADERS", headers)
        .env("API_KEY", SECRET)
        .env_remove("TOKENGAP_LOG");
    command
}

/// The recorded message with text that is not to get out.
fn message() -> Vec<u8> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../zmq-tap/fixtures/messages/0.5.19-msgpack/str_delta_3rid.msgpack"
    );
    let mut message = std::fs::read(path).expect("a recorded message");
    let at = message.windows(TEXT.len()).position(|part| part == RECORDED_TEXT);
    let at = at.expect("its text");
    message[at..at + TEXT.len()].copy_from_slice(TEXT);
    message
}

/// What a peer of ZMTP 3.1 says first: the greeting, with NULL for its mechanism, and READY.
fn hello(kind: &str) -> Vec<u8> {
    let mut said = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1];
    said.extend_from_slice(b"NULL");
    said.resize(64, 0);
    let mut ready = b"\x05READY\x0bSocket-Type".to_vec();
    ready.extend_from_slice(&(kind.len() as u32).to_be_bytes());
    ready.extend_from_slice(kind.as_bytes());
    said.extend_from_slice(&[4, ready.len() as u8]);
    said.extend_from_slice(&ready);
    said
}

fn frame(payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2];
    frame.extend_from_slice(&(payload.len() as u64).to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// A port that is free now.
fn port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound").port()
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

/// `output` holds no canary; ids count where they are whole numbers.
fn search(what: &str, output: &[u8]) {
    let text = String::from_utf8_lossy(output);
    assert!(!text.contains(WORD), "{what} holds a canary:\n{text}");
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    assert!(
        !numbers.any(|number| IDS.contains(&number)),
        "{what} holds a token id:\n{text}"
    );
}

/// Lets a tap in `folder` see the messages, and gives back all that it says.
fn tap(folder: &Path) -> Vec<u8> {
    let upstream = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (listen, metrics) = (port(), port());
    let child = tokengap()
        .current_dir(folder)
        .args([
            "-vvv",
            "tap",
            "--headless",
            "--json",
            "--duration",
            "4s",
            "--record",
            "run.tgap",
        ])
        .args(["--listen", &format!("tcp://127.0.0.1:{listen}")])
        .args([
            "--upstream",
            &format!("tcp://{}", upstream.local_addr().expect("bound")),
        ])
        .args(["--metrics", &metrics.to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("tokengap runs");
    let mut sender = connect(listen);
    let (mut receiver, _) = upstream.accept().expect("the relay connects");
    sender.write_all(&hello("PUSH")).expect("said");
    receiver.write_all(&hello("PULL")).expect("said");
    let whole = message();
    let cut = [&whole[..whole.len() / 2], BROKEN.as_bytes()].concat();
    let strange = [b"\x80\x04\x95", BROKEN.as_bytes()].concat();
    for payload in [&whole, &cut, &strange] {
        sender.write_all(&frame(payload)).expect("sent");
    }
    std::thread::sleep(Duration::from_millis(1_500));
    let mut told = Vec::new();
    let mut scrape = connect(metrics);
    write!(scrape, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("asked");
    scrape.read_to_end(&mut told).expect("answered");
    assert!(String::from_utf8_lossy(&told).contains("tokengap_"), "metrics are told");
    sender.shutdown(Shutdown::Both).ok();
    let ended = child.wait_with_output().expect("it ends");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let report = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(
        report.contains(RID),
        "the message was read, and its rid is shown:\n{report}"
    );
    told.extend(ended.stdout);
    told.extend(ended.stderr);
    told
}

#[test]
fn no_text_no_token_id_and_no_secret_gets_out() {
    let folder = tempfile::tempdir().expect("a folder");
    search("the tap", &tap(folder.path()));
    search(
        "the recording",
        &std::fs::read(folder.path().join("run.tgap")).expect("recorded"),
    );
    let made = |args: &[&str]| {
        let out = tokengap().current_dir(folder.path()).arg("-vvv").args(args).output();
        let out = out.expect("tokengap runs");
        assert!(
            out.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&out.stderr)
        );
        search(&args.join(" "), &[out.stdout, out.stderr].concat());
    };
    for format in ["text", "json", "markdown", "html"] {
        made(&["report", "run.tgap", "--format", format]);
    }
    for format in ["perfetto", "otlp", "events", "csv"] {
        made(&["export", "run.tgap", "--format", format]);
    }
    made(&["replay", "run.tgap", "--json"]);
    made(&["diff", "run.tgap", "run.tgap"]);
}

#[test]
fn errors_name_no_content() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = message();
    // Behind the class's name: an unknown class is told by it.
    for cut in [40, 80, 120, 200, whole.len() - 1] {
        let broken = [&whole[..cut], BROKEN.as_bytes(), &whole[cut..]].concat();
        std::fs::write(folder.path().join("broken"), broken).expect("written");
        let out = tokengap()
            .args(["-vvv", "decode"])
            .arg(folder.path().join("broken"))
            .output();
        let out = out.expect("tokengap runs");
        search("decode's errors", &out.stderr);
        for command in ["report", "replay"] {
            let out = tokengap()
                .args(["-vvv", command])
                .arg(folder.path().join("broken"))
                .output();
            search(command, &out.expect("tokengap runs").stderr);
        }
    }
}
