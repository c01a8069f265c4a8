//! Clients of `/recording` and `/events`: they get the run's past and what follows, and slow ones are dropped.

use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use outputs::export::{self, Format, Options};
use outputs::report::Report;
use recording::{Record, Recording, analyse};
use trace::ReportInput;
use trace::engine::Engines;

use super::hostile_clients::{endpoint_keeping, endpoint_with};
use super::*;

/// Longer than any wait of these tests should take.
const SOON: Duration = Duration::from_secs(10);

/// The recording whose records these tests stream.
fn recorded_run() -> Recording {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recording/fixtures");
    Recording::open(folder.join("2.0-demo-race.tgap")).expect("a recording")
}

/// Streams those records of the recorded run whose numbers are in the range. Returns whether further records follow.
fn stream_records(endpoint: &mut RunEndpoint, numbers: Range<usize>) -> bool {
    let recording = recorded_run();
    let mut reader = recording.reader();
    let mut number = 0;
    while let Some(record) = reader.next().expect("readable") {
        if number >= numbers.end {
            return true;
        }
        match record {
            Record::Event(event) if number >= numbers.start => endpoint.stream.write_event(&event),
            Record::Tick(now) if number >= numbers.start => {
                endpoint.stream.write_tick(now, &|| ReportInput::for_source("demo"));
                // The endpoint's queue is short, and a real run ticks ten times a second.
                thread::sleep(Duration::from_millis(1));
            }
            _ => {}
        }
        number += 1;
    }
    false
}

struct ResponseBody {
    bytes: Vec<u8>,
    /// The chunk of length 0, which ends a body, was read.
    is_complete: bool,
}

/// Reads a response with chunked encoding. If the connection ends early, the body is incomplete.
fn read_chunked(response: impl Read) -> ResponseBody {
    let mut response = BufReader::new(response);
    let mut body = ResponseBody { bytes: Vec::new(), is_complete: false };
    let mut line = String::new();
    // An empty line ends the head.
    while line != "\r\n" {
        line.clear();
        if response.read_line(&mut line).unwrap_or(0) == 0 {
            return body;
        }
    }
    while !body.is_complete {
        line.clear();
        response.read_line(&mut line).ok();
        let Ok(length) = usize::from_str_radix(line.trim(), 16) else { return body };
        // A line end follows each chunk.
        let mut chunk = vec![0; length + 2];
        if response.read_exact(&mut chunk).is_err() {
            return body;
        }
        body.bytes.extend_from_slice(&chunk[..length]);
        body.is_complete = length == 0;
    }
    body
}

/// Sends a request for this path, and returns the connection to read the response from.
fn request(endpoint: &RunEndpoint, path: &str) -> std::net::TcpStream {
    let mut client = endpoint.connect();
    client.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).expect("it reads");
    client
}

/// Waits until the condition is true. Fails with its description if that takes too long.
fn wait_until(description: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < SOON, "{description}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Writes a streamed recording to a file and opens it. The file is removed when dropped.
fn opened(bytes: &[u8]) -> (tempfile::NamedTempFile, Recording) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), bytes).expect("written");
    let recording = Recording::open(file.path()).expect("a recording");
    (file, recording)
}

/// The report on a recording, as JSON.
fn report_of(recording: &Recording) -> String {
    let (analysis, _) = analyse(recording, Engines::default(), &mut |_, _| {}).expect("readable");
    Report::of(&analysis, &ReportInput::for_source("demo")).to_json()
}

#[test]
fn a_stream_is_a_recording_of_the_whole_run_for_early_and_late_clients() {
    let mut endpoint = endpoint_with(None, ENDPOINT_LIMITS);
    let early = request(&endpoint, "/recording");
    let events = request(&endpoint, "/events");
    wait_until("two clients", || endpoint.server.stream_clients().iter().all(|(_, clients)| *clients == 1));
    assert!(stream_records(&mut endpoint, 0..2_000));
    let late = request(&endpoint, "/recording");
    wait_until("three clients", || endpoint.status().clients == 3);
    assert!(!stream_records(&mut endpoint, 2_000..usize::MAX));
    let readers = [early, events, late].map(|client| thread::spawn(move || read_chunked(client)));
    endpoint.stream.send_end(&ReportInput { slowest: 3, ..ReportInput::for_source("demo") });
    endpoint.stream.wait_until_clients_received_end();
    let [early, events, late] = readers.map(|reader| reader.join().expect("no panic"));
    assert!(early.is_complete && events.is_complete && late.is_complete, "every stream is complete");
    assert_eq!(early.bytes, late.bytes);
    let (_file, recording) = opened(&early.bytes);
    assert_eq!(recording.missing(), None);
    assert_eq!(recording.closing().map(|closing| closing.slowest), Some(3));
    assert_eq!(report_of(&recording), report_of(&recorded_run()));
    let mut lines = Vec::new();
    export::export_recording(
        &recording,
        Engines::default(),
        Format::Events,
        Options::default(),
        &mut lines,
        &mut |_, _| {},
    )
    .expect("exported");
    assert!(lines.len() > 100_000, "{} bytes", lines.len());
    assert!(events.bytes == lines, "the stream has the lines of the export");
    assert_eq!(endpoint.server.counts.problems(), Vec::<String>::new());
}

#[test]
fn a_stream_that_begins_late_says_how_many_records_precede_it() {
    let mut endpoint = endpoint_keeping(8_000, None, ENDPOINT_LIMITS);
    stream_records(&mut endpoint, 0..usize::MAX);
    // The endpoint's thread may still encode the last blocks.
    thread::sleep(Duration::from_millis(300));
    let late = request(&endpoint, "/recording");
    wait_until("a client", || endpoint.status().clients == 1);
    endpoint.stream.send_end(&ReportInput::for_source("demo"));
    endpoint.stream.wait_until_clients_received_end();
    let ResponseBody { bytes, is_complete } = read_chunked(late);
    assert!(is_complete && bytes.len() < 20_000, "{} bytes", bytes.len());
    let (_file, recording) = opened(&bytes);
    let missing = recording.missing().expect("it begins late");
    assert!(missing.records_before > 1_000 && missing.records_between == 0, "{missing:?}");
}

#[test]
fn a_client_that_does_not_read_is_dropped_and_does_not_delay_others() {
    let bounds = EndpointLimits { read_timeout: Duration::from_millis(300), ..ENDPOINT_LIMITS };
    let mut endpoint = endpoint_with(None, bounds);
    let _not_reading = [request(&endpoint, "/recording"), request(&endpoint, "/events")];
    let reading = request(&endpoint, "/recording");
    let reader = thread::spawn(move || read_chunked(reading));
    wait_until("three clients", || endpoint.status().clients == 3);
    let began = Instant::now();
    while endpoint.server.counts.dropped_clients_by_path().iter().any(|(_, dropped)| *dropped == 0) {
        stream_records(&mut endpoint, 0..usize::MAX);
        assert!(began.elapsed() < 3 * SOON, "{:?}", endpoint.server.counts.dropped_clients_by_path());
    }
    wait_until("places are free again", || endpoint.status().clients == 1);
    endpoint.stream.send_end(&ReportInput::for_source("demo"));
    endpoint.stream.wait_until_clients_received_end();
    let ResponseBody { bytes, is_complete } = reader.join().expect("no panic");
    assert!(is_complete && bytes.len() > 100_000, "{} bytes", bytes.len());
    assert!(
        endpoint.server.counts.problems()[0].starts_with("metrics: 2 clients of /recording and /events were dropped")
    );
}

#[test]
fn clients_beyond_the_limit_of_a_path_are_refused_and_counted() {
    let endpoint = endpoint_with(None, ENDPOINT_LIMITS);
    let clients: Vec<_> = (0..ServedPath::Events.max_clients()).map(|_| request(&endpoint, "/events")).collect();
    wait_until("all places are taken", || endpoint.status().clients == clients.len() as u64);
    let refused = endpoint.ask("GET /events HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("retry-after"), "{refused}");
    let metrics = endpoint.ask("GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(metrics.starts_with("HTTP/1.1 200 "), "{metrics}");
    assert_eq!(endpoint.server.counts.refused_clients_by_reason()[3], ("over_limit", 1));
    assert!(endpoint.server.counts.problems()[0].starts_with("metrics: 1 requests were refused because the path"));
}
