//! Counterparts of tokengap: a collector, a client of the endpoint, a client with its server, and a terminal.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{RID, SECRET, connect};

/// Accepts any POST request.
pub(crate) struct Collector {
    pub(crate) port: u16,
    bodies: Arc<Mutex<Vec<u8>>>,
}

impl Collector {
    pub(crate) fn start() -> Self {
        let bodies = Arc::<Mutex<Vec<u8>>>::default();
        let for_thread = Arc::clone(&bodies);
        let port = serve(move |stream| {
            while let Some((_, body)) = request(&mut BufReader::new(&stream)) {
                for_thread.lock().expect("whole").extend(body);
                let response = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
                if (&stream).write_all(response).is_err() {
                    return;
                }
            }
        });
        Self { port, bodies }
    }

    pub(crate) fn bodies(&self) -> Vec<u8> {
        self.bodies.lock().expect("whole").clone()
    }
}

/// Passes each connection to `handle` and returns the port. The threads end with the test.
fn serve(handle: impl Fn(TcpStream) + Clone + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let handle = handle.clone();
            thread::spawn(move || handle(stream));
        }
    });
    port
}

/// Reads the head and body of the next request.
fn request(from: &mut impl BufRead) -> Option<(String, Vec<u8>)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if from.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    let mut body = vec![0; length.unwrap_or(0)];
    from.read_exact(&mut body).ok()?;
    Some((head, body))
}

const ANSWER: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
const EVENT: &str = "data: {\"text\":\"CanaryAnswer\",\"output_ids\":[151643],\"meta_info\":{\"id\":\"5b92c0ffee\",\
                     \"completion_tokens\":COUNT,\"finish_reason\":null}}\n\n";

/// Tool calls of the recorded message; the response lacks a part of the first.
pub(crate) const CALLS: &str = "{\"name\": \"CanaryTool\", \"arguments\": {\"CanaryKey\": \"CanaryValue\"}}\n\
                                {\"name\": \"CanaryOther\", \"arguments\": {}}";
const WRITTEN_CALLS: [(&str, &str); 2] = [("CanaryTool", "{\"CanaryKey\": \"Canary\"}"), ("CanaryOther", "{}")];

/// Events of a chat with these tool calls.
fn call_events() -> String {
    let event = |choice: serde_json::Value| {
        let event = serde_json::json!({"id": RID, "object": "chat.completion.chunk", "choices": [choice]});
        format!("data: {event}\n\n")
    };
    let calls = (0..).zip(WRITTEN_CALLS).map(|(index, (name, arguments))| {
        let call = serde_json::json!({"index": index, "function": {"name": name, "arguments": arguments}});
        event(serde_json::json!({"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": null}))
    });
    let end = event(serde_json::json!({"index": 0, "delta": {}, "finish_reason": "tool_calls"}));
    calls.chain([end]).collect()
}

/// HTTP server of an engine, which streams a response.
pub(crate) fn server() -> u16 {
    serve(|mut stream| {
        let Some((head, _)) = request(&mut BufReader::new(&stream)) else { return };
        assert!(head.contains(SECRET), "the relay has changed the request: {head}");
        let events: String = if head.contains("/v1/chat/completions") {
            call_events()
        } else {
            (1..=3).map(|count| EVENT.replace("COUNT", &count.to_string())).collect()
        };
        let response = format!("{ANSWER}{events}data: [DONE]\n\n");
        stream.write_all(response.as_bytes()).ok();
    })
}

/// A client with a key and a prompt, whose response has this word.
pub(crate) fn ask(port: u16, path: &str, word: &str) {
    let mut stream = connect(port);
    let body = "{\"text\":\"CanaryPrompt\",\"stream\":true}";
    write!(
        stream,
        "POST {path}?key={SECRET} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET}\r\nCookie: {SECRET}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    assert!(answer.contains(word), "{answer}");
}

/// Reads a path of the endpoint until it ends.
pub(crate) fn read_path(port: u16, path: &str) -> JoinHandle<Vec<u8>> {
    let mut stream = connect(port);
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("asked");
    thread::spawn(move || {
        let mut all = Vec::new();
        // A reset also ends the connection.
        stream.read_to_end(&mut all).ok();
        all
    })
}

/// Waits until the endpoint has a run. It listens before, and then answers 503.
pub(crate) fn wait_for_run(port: u16) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while read_path(port, "/report").join().expect("answered").starts_with(b"HTTP/1.1 503") {
        assert!(Instant::now() < deadline, "the endpoint has no run");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Output to a terminal while every page of the recording is shown. Returns `None`, with a message, if `script` is not installed.
pub(crate) fn screen(folder: &Path, tokengap: &Command) -> Option<Vec<u8>> {
    let line = format!("stty cols 200 rows 50; exec {} replay run.tgap", tokengap.get_program().to_string_lossy());
    let child = Command::new("script")
        .current_dir(folder)
        .args(["-qec", &line, "/dev/null"])
        .envs(tokengap.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .env("TERM", "xterm-256color")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        eprintln!("SKIPPED: there is no script(1), so the screen was not searched");
        return None;
    };
    let mut keys = child.stdin.take().expect("piped");
    // The first input answers the cursor position query sent to every terminal.
    for key in ["\x1b[1;1R", "1", "2", "/", &RID[..8], "\r", "\r", "3", "4", "5", "?", "?", "2", "q"] {
        thread::sleep(Duration::from_millis(500));
        keys.write_all(key.as_bytes()).ok();
    }
    let ended = child.wait_with_output().expect("it ends");
    Some([ended.stdout, ended.stderr].concat())
}
