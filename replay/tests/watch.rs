//! A watcher follows every engine of a source.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use recording::RecordingHeader;
use replay::watch::{RemoteEvent, RemoteOptions, RemoteRun, RemoteRuns};
use session::sink::Sink;
use session::telemetry::{MetricsOptions, Telemetry};
use session::{About, EngineIdentity, NoObserver, RunStage, Session};
use trace::engine::Engines;
use trace::{Config, MonoNs};

/// Longer than any wait of this test should take.
const SOON: Duration = Duration::from_secs(10);

/// An engine that a source watches.
struct WatchedEngine {
    name: &'static str,
    port: u16,
}

impl About for WatchedEngine {
    fn kind(&self) -> &'static str {
        "attach"
    }

    fn engine(&self) -> Option<EngineIdentity> {
        let port = Some(self.port);
        Some(EngineIdentity { name: self.name.to_owned(), port, state: "live", ..EngineIdentity::default() })
    }
}

/// A run that this process serves.
struct ServedRun {
    engine: WatchedEngine,
    session: Session,
}

impl ServedRun {
    fn new(engine: WatchedEngine, telemetry: Telemetry) -> Self {
        let config = Config::default();
        let session = Session::new(&config, Box::new(NoObserver), Sink::none("attach", &config), 10);
        Self { engine, session: session.with_telemetry(telemetry) }
    }

    /// One turn of the run loop, which answers clients.
    fn turn(&mut self) {
        self.session.process_tick(MonoNs::now(), &self.engine);
        self.session.show_run(&self.engine, RunStage::Running);
    }
}

fn header() -> RecordingHeader {
    RecordingHeader::for_source("attach", Config::default())
}

/// Serves the runs until `find` finds something.
fn serve_until<T>(served: &mut [ServedRun], description: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        for run in &mut *served {
            run.turn();
        }
        if let Some(found) = find() {
            return found;
        }
        assert!(began.elapsed() < SOON, "{description}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Next connection or failure of a run; other events are passed over.
fn connection(run: &mut RemoteRun) -> Option<Result<(), String>> {
    match run.poll()? {
        RemoteEvent::Up(_) => Some(Ok(())),
        RemoteEvent::Down(why) => Some(Err(why)),
        RemoteEvent::Section(_) => None,
    }
}

#[test]
fn a_watcher_of_a_machine_gets_each_engine_and_those_that_join() {
    let metrics = MetricsOptions { address: SocketAddr::from(([127, 0, 0, 1], 0)), token: None, past_bytes: 1 << 20 };
    let telemetry = Telemetry::open(Some(metrics), None, &header(), Engines::default()).expect("a free port");
    let address = telemetry.listen_address().expect("it listens").to_string();
    let shared = telemetry.shared();
    let mut served = vec![ServedRun::new(WatchedEngine { name: "sglang:30000", port: 30_000 }, telemetry)];
    served[0].turn();
    let options = RemoteOptions { address: address.clone(), engine: None, token: None };
    let (mut runs, mut first) = RemoteRuns::start(vec![options.clone()]).expect("a thread");
    let first = &mut first[0];
    serve_until(&mut served, "it answers", || connection(first)).expect("a connection");
    assert_eq!((first.engine_name(), first.endpoint()), (None, address.clone()), "the only engine needs no name");
    served.push(ServedRun::new(WatchedEngine { name: "vllm:8000", port: 8_000 }, shared.add_run(&header())));
    let mut second = serve_until(&mut served, "a further run", || runs.next_run());
    serve_until(&mut served, "it answers", || connection(&mut second)).expect("a connection");
    assert_eq!((first.engine_name(), second.engine_name()), (Some("sglang:30000"), Some("vllm:8000")));
    let second_engine = second.engine().expect("it is named");
    assert_eq!((second_engine.port, second_engine.role), (Some(8_000), "single"));
    assert_eq!(second.endpoint(), format!("{address}/vllm:8000"));
    let named = RemoteOptions { engine: Some("sglang:1".to_owned()), ..options };
    let (_named, mut unknown) = RemoteRuns::start(vec![named]).expect("a thread");
    let refused = serve_until(&mut served, "it is refused", || connection(&mut unknown[0]));
    assert_eq!(refused, Err("it watches no engine named sglang:1".to_owned()));
}
