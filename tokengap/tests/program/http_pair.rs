//! `tap` with an HTTP pair alone, in front of a server that writes a response as operators posted it (`engines/tests/posted`).

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

const POSTED: &[u8] = include_bytes!("../../../engines/tests/posted/g-no-finish-reason.sse");
const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n";

/// Writes the response to one client.
fn serve(listener: &TcpListener) {
    let (mut stream, _) = listener.accept().expect("the relay connects");
    let mut request = [0; 4096];
    let _ = stream.read(&mut request).expect("a request");
    let head = format!("{HEAD}content-length: {}\r\n\r\n", POSTED.len());
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(POSTED)).expect("written");
}

/// Connects as soon as the relay listens.
fn connect(port: u16) -> TcpStream {
    for _ in 0..500 {
        if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) {
            return stream;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("the relay does not listen at {port}");
}

#[test]
fn a_response_without_an_end_is_the_headline() {
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let upstream = server.local_addr().expect("bound").port();
    let listen = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let tap = Command::new(env!("CARGO_BIN_EXE_tokengap"))
        .args(["tap", "--headless", "--json", "--duration", "5s"])
        .args(["--listen", &format!("http://127.0.0.1:{listen}")])
        .args(["--upstream", &format!("http://127.0.0.1:{upstream}")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("tokengap runs");
    let serving = std::thread::spawn(move || serve(&server));
    let mut client = connect(listen);
    client.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}").expect("asked");
    let mut response = vec![0; 64];
    while !response.ends_with(POSTED) {
        let mut piece = [0; 4096];
        let length = client.read(&mut piece).expect("a response");
        assert!(length > 0, "the response is cut short");
        response.extend_from_slice(&piece[..length]);
    }
    serving.join().expect("it serves");
    let out = tap.wait_with_output().expect("it ends");
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("a report");
    assert_eq!(report["findings"][0]["kind"], "unfinished-responses", "{report}");
    let verdict = report["verdict"].as_str().expect("a verdict");
    assert!(verdict.starts_with("WARNING: 1 response ended with neither a finish reason nor [DONE]"), "{verdict}");
    assert_eq!(report["answers"]["lacking_end"], 1);
}
