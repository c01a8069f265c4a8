//! One endpoint for the runs of several engines: clients choose one, or get all.

use std::time::Instant;

use trace::clock::Anchor;
use trace::{Analysis, Config, MonoNs, ReportInput};

use super::hostile_clients::endpoint_with;
use super::*;
use crate::telemetry::access_token::AccessToken;
use crate::telemetry::health::TokenFlow;

/// Longer than any wait of these tests should take.
const SOON: Duration = Duration::from_secs(10);

/// Sets the engine of a run. Its port is the last part of its name, behind a colon.
fn name_engine(run: &RunEndpoint, name: &str) {
    let port = name.rsplit(':').next().and_then(|port| port.parse().ok());
    let engine = EngineIdentity { name: name.to_owned(), port, state: "live", ..EngineIdentity::default() };
    run.set_engine(Some(engine));
}

/// Publishes final health, report and metrics, so that no run has to answer.
fn publish(run: &RunEndpoint, is_running: bool) {
    let is_final = true;
    let now = Anchor { mono: MonoNs(1), wall_ns: 1 };
    run.health.publish(RunHealth { is_running, is_attached: true, flow: TokenFlow::default(), now }, is_final);
    run.report.publish(Report::of(&Analysis::new(Config::default()), &ReportInput::for_source("attach")), is_final);
    let aborted = outputs::metrics::ALL.iter().find(|one| one.name == "tokengap.requests.aborted").expect("a metric");
    let points = vec![outputs::metrics::Point { labels: Vec::new(), value: outputs::metrics::Value::Int(3) }];
    run.metrics.publish(vec![Family { definition: aborted, points }], is_final);
}

/// Two engines at one endpoint, in the order of the names.
fn two_engines(token: Option<AccessToken>) -> [RunEndpoint; 2] {
    let first = endpoint_with(token, ENDPOINT_LIMITS);
    let second =
        first.server.add_run(&RecordingHeader::for_source("attach", Config::default())).expect("a further run");
    name_engine(&first, "sglang:30000");
    name_engine(&second, "vllm:8000");
    let runs = [first, second];
    for run in &runs {
        let is_running = true;
        publish(run, is_running);
    }
    runs
}

/// Requests a path, and returns the whole response.
fn get(run: &RunEndpoint, path: &str) -> String {
    run.ask(&format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n"))
}

#[test]
fn a_client_gets_all_engines_or_the_one_that_it_names() {
    let [first, second] = two_engines(None);
    let all = get(&first, "/report");
    assert!(all.contains("\"schema\":\"tokengap.watch/2\""), "{all}");
    assert!(all.contains("\"name\":\"sglang:30000\"") && all.contains("\"port\":8000"), "{all}");
    let one = get(&first, "/report?engine=vllm:8000");
    assert!(one.starts_with("HTTP/1.1 200 ") && one.contains("\"schema\":\"tokengap.report/2\""), "{one}");
    let metrics = get(&first, "/metrics");
    for line in [
        "tokengap_requests_aborted_total{engine=\"sglang:30000\",port=\"30000\"} 3",
        "tokengap_requests_aborted_total{engine=\"vllm:8000\",port=\"8000\"} 3",
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
    for path in ["/recording", "/events"] {
        let refused = get(&first, path);
        assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");
        assert!(refused.ends_with(&format!("{path}?engine=sglang:30000\n{path}?engine=vllm:8000\n")), "{refused}");
    }
    for path in ["/report", "/metrics", "/recording", "/events"] {
        let refused = get(&first, &format!("{path}?engine=sglang:1"));
        assert!(refused.starts_with("HTTP/1.1 404 ") && refused.contains("no engine is named sglang:1;"), "{refused}");
    }
    // A run whose analysis failed has no answer; the others are served.
    drop(second);
    let failed =
        first.server.add_run(&RecordingHeader::for_source("attach", Config::default())).expect("a further run");
    name_engine(&failed, "sglang:40000");
    drop(failed);
    assert!(get(&first, "/metrics").contains("engine=\"sglang:30000\""));
    let report = get(&first, "/report");
    assert!(report.starts_with("HTTP/1.1 200 ") && report.contains("\"no_answer\":[\"sglang:40000\"]"), "{report}");
    assert!(report.contains("\"name\":\"sglang:30000\"") && !all.contains("no_answer"), "{report}");
    assert!(get(&first, "/report?engine=sglang:40000").starts_with("HTTP/1.1 503 "));
}

#[test]
fn health_names_engines_only_to_clients_with_access() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "secret").expect("written");
    let [first, second] = two_engines(Some(AccessToken::read(file.path()).expect("a token")));
    let open = get(&first, "/healthz");
    assert!(open.starts_with("HTTP/1.1 200 ") && open.contains("\"engines\":[{"), "{open}");
    assert!(!open.contains("vllm"), "{open}");
    let with_token = first.ask("GET /healthz HTTP/1.1\r\nhost: x\r\nauthorization: Bearer secret\r\n\r\n");
    assert!(with_token.contains("\"engine\":\"vllm:8000\"") && with_token.contains("\"port\":8000"), "{with_token}");
    let is_running = false;
    publish(&second, is_running);
    let dead = get(&first, "/healthz");
    assert!(dead.starts_with("HTTP/1.1 503 ") && dead.contains("{\"alive\":true,"), "{dead}");
}

#[test]
fn the_end_of_a_run_does_not_wait_for_the_clients_of_others() {
    let [mut first, mut second] = two_engines(None);
    let mut client = first.connect();
    std::io::Write::write_all(&mut client, b"GET /recording?engine=vllm:8000 HTTP/1.1\r\nhost: x\r\n\r\n")
        .expect("sent");
    let began = Instant::now();
    while second.status().clients == 0 {
        assert!(began.elapsed() < SOON, "a client of the second");
        thread::sleep(Duration::from_millis(5));
    }
    let began = Instant::now();
    first.stream.send_end(&ReportInput::for_source("attach"));
    first.stream.wait_until_clients_received_end();
    assert!(began.elapsed() < LAST_READ_TIMEOUT, "{:?}", began.elapsed());
    second.stream.send_end(&ReportInput::for_source("attach"));
    second.stream.wait_until_clients_received_end();
    let mut stream = Vec::new();
    std::io::Read::read_to_end(&mut client, &mut stream).expect("it ends");
    assert!(stream.ends_with(b"0\r\n\r\n"), "the stream is complete");
}
