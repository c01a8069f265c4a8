//! Prefill/decode pairs among the runs, joined while they run: for the screen, and for the metrics and the report of the endpoint.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use outputs::report::PairReport;
use session::Running;
use tui::Screen;
use tui::pods::{PairLine, ShownRequest};

use crate::cmd::pair::{self, PairOfRun, RunningServer};

/// Interval of joins while the screen shows pairs.
const SCREEN_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of joins for the endpoint and the push.
const SERVED_INTERVAL: Duration = Duration::from_secs(10);
/// Minimum interval of joins for requests that the user opens one after the other.
const REQUEST_INTERVAL: Duration = Duration::from_millis(300);
/// Joins take at most one part in this many of the time, because the runs wait for them.
const TIME_SHARE: u32 = 100;
/// Maximum interval for that reason. The analysis of a server is limited, and so is the time of a join.
const MAX_INTERVAL: Duration = Duration::from_mins(1);
/// Maximum number of finished requests of each server that a join reads.
const NEWEST_FINISHED: usize = 2_000;

/// Joins the pairs.
pub(crate) struct LivePairs {
    /// `None` without a screen.
    screen: Option<Rc<RefCell<Screen>>>,
    /// Number of slow requests that the served report lists.
    slowest: usize,
    /// `None` before the first.
    last_join: Option<LastJoin>,
}

/// The last join.
struct LastJoin {
    at: Instant,
    /// Time that it took.
    duration: Duration,
    /// Request that the screen showed.
    request: Option<ShownRequest>,
}

impl LastJoin {
    /// Least interval until the next join. One that takes long is repeated less often, because the runs wait for it: joins take one part in
    /// `TIME_SHARE` of the time.
    fn min_interval(&self) -> Duration {
        (self.duration * TIME_SHARE).min(MAX_INTERVAL)
    }
}

impl LivePairs {
    pub(crate) fn new(screen: Option<Rc<RefCell<Screen>>>, slowest: usize) -> Self {
        Self { screen, slowest, last_join: None }
    }

    /// The request that the screen shows, which may be one of a pair; `None` if it shows none.
    fn shown_request(&self) -> Option<ShownRequest> {
        self.screen.as_ref()?.borrow().shown_request()
    }

    /// Whether it is time to join prefill and decode servers into pairs again. `is_served` is whether an endpoint serves the pairs. If
    /// neither the screen nor an endpoint shows them, it never is. A screen that shows them gets shorter intervals.
    fn are_pairs_due(&self, is_served: bool) -> bool {
        let is_shown = self.screen.as_ref().is_some_and(|screen| screen.borrow().shows_pairs());
        if !is_shown && !is_served {
            return false;
        }
        let Some(last) = &self.last_join else { return true };
        let interval = if is_shown { self.interval_on_screen(last) } else { SERVED_INTERVAL };
        last.at.elapsed() >= interval.max(last.min_interval())
    }

    /// Interval of joins for a screen that shows the pairs. It is short if the user has opened another request since the last join, and
    /// waits for what its pair shows about it.
    fn interval_on_screen(&self, last: &LastJoin) -> Duration {
        let has_opened_another = self.shown_request() != last.request;
        if has_opened_another { REQUEST_INTERVAL } else { SCREEN_INTERVAL }
    }

    /// Joins the prefill and decode servers of the runs into pairs, if that is due. Shows the pairs on the screen, and passes each pair to
    /// the run of its decode server. `servers_of` lists the servers that the runs observe.
    pub(crate) fn update_pairs_if_due<S>(
        &mut self,
        runs: &mut [Running<S>],
        servers_of: fn(&[Running<S>]) -> Vec<RunningServer<'_>>,
    ) {
        let is_served = runs.iter().any(|run| run.session.has_telemetry());
        if !self.are_pairs_due(is_served) {
            return;
        }
        let began = Instant::now();
        let joined = self.join_and_show_pairs(&servers_of(runs));
        replace_pairs_of_runs(runs, joined);
        self.last_join = Some(LastJoin { at: began, duration: began.elapsed(), request: self.shown_request() });
    }

    /// Joins the requests of prefill and decode servers into pairs, and returns the pair of each decode server. Shows the pairs on the
    /// screen. If a request of a pair is open there, also shows its parts on both servers.
    fn join_and_show_pairs(&self, servers: &[RunningServer<'_>]) -> Vec<PairOfRun> {
        let shown = self.shown_request();
        let joined = pair::join_newest(servers, self.slowest, NEWEST_FINISHED, shown.as_ref());
        if let Some(screen) = &self.screen {
            let mut screen = screen.borrow_mut();
            let lines = joined.pairs.iter().map(|pair| line_of(servers, pair.run_index, &pair.report));
            screen.set_pairs(lines.collect());
            screen.set_pair_request(joined.request);
        }
        joined.pairs
    }
}

/// Gives each decode server's run its pair, and removes the pairs of all other runs.
pub(crate) fn replace_pairs_of_runs<S>(runs: &mut [Running<S>], pairs: Vec<PairOfRun>) {
    for run in &mut *runs {
        run.session.set_pair(None);
    }
    for PairOfRun { run_index, report } in pairs {
        if let Some(run) = runs.get_mut(run_index) {
            run.session.set_pair(Some(report));
        }
    }
}

/// A line of the screen for the decode server of this run.
pub(crate) fn line_of(servers: &[RunningServer<'_>], run_index: usize, report: &PairReport) -> PairLine {
    let decode = servers.iter().find(|server| server.run_index == run_index);
    PairLine::new(decode.map_or("", |server| server.name.as_str()), report)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpStream};
    use std::thread;

    use recording::RecordingHeader;
    use serde_json::Value;
    use session::sink::Sink;
    use session::telemetry::{MetricsOptions, Telemetry};
    use session::{About, Flow, NoObserver, RunStage, Session, Source};
    use trace::event::Event;
    use trace::{Config, MonoNs};

    use super::*;
    use crate::cmd::pair::KnownSide;
    use crate::cmd::pair::events::{Request, server_events};

    /// A server of a pair. Its events are applied before.
    struct Server;

    impl About for Server {
        fn kind(&self) -> &'static str {
            "attach"
        }
    }

    impl Source for Server {
        fn poll(&mut self, _: &mut Session) -> Flow {
            Flow::Idle
        }

        fn stop(&mut self) {}
    }

    fn run_of(requests: &[Request<'_>], telemetry: Telemetry) -> Running<Server> {
        let config = Config::default();
        let session = Session::new(&config, Box::new(NoObserver), Sink::none("attach", &config), 10);
        let mut session = session.with_telemetry(telemetry);
        for (at, what) in server_events(requests, 0) {
            session.process_event(&Event::new(MonoNs(at), what));
        }
        Running::new(Server, session)
    }

    fn servers_of(runs: &[Running<Server>]) -> Vec<RunningServer<'_>> {
        let numbered = runs.iter().enumerate().map(|(run_index, run)| {
            let analysis = run.session.analysis();
            let side = KnownSide::find(None, analysis);
            RunningServer { run_index, name: format!("server {run_index}"), analysis, side, anchor: None }
        });
        numbered.collect()
    }

    /// Asks the endpoint while the runs answer.
    fn get(runs: &mut [Running<Server>], address: SocketAddr, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        let client = thread::spawn(move || {
            let mut client = TcpStream::connect(address).expect("it listens");
            client.write_all(request.as_bytes()).expect("it reads");
            let mut answer = String::new();
            client.read_to_string(&mut answer).expect("it answers and closes");
            answer
        });
        while !client.is_finished() {
            for Running { source, session, .. } in &mut *runs {
                session.show_run(source, RunStage::Running);
            }
            thread::sleep(Duration::from_millis(1));
        }
        let answer = client.join().expect("no panic");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a response");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        body.to_owned()
    }

    /// The decode server holds its queue for 400 ms.
    fn held_request(rid: &str, room: u64, from: u64) -> Request<'_> {
        let request = Request::of_decode(rid, room, from);
        Request {
            batch: request.batch.map(|at| at + 400),
            frame: request.frame + 400,
            token_received: request.token_received + 400,
            delivered: request.delivered + 400,
            ..request
        }
    }

    #[test]
    fn report_and_metrics_of_a_decode_server_have_its_pair_while_it_runs() {
        const RIDS: [&str; 12] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
        let numbered = || RIDS.into_iter().zip(1..);
        let prefill: Vec<_> = numbered().map(|(rid, room)| Request::of_prefill(rid, room, 100 * room)).collect();
        let decode: Vec<_> = numbered().map(|(rid, room)| held_request(rid, room, 100 * room)).collect();
        let options =
            MetricsOptions { address: SocketAddr::from(([127, 0, 0, 1], 0)), token: None, past_bytes: 1 << 20 };
        let header = RecordingHeader::for_source("attach", Config::default());
        let first = Telemetry::open(Some(options), None, &header, engines::FACTS).expect("a free port");
        let address = first.listen_address().expect("it listens");
        let second = first.shared().add_run(&header);
        let mut runs = vec![run_of(&prefill, first), run_of(&decode, second)];
        let mut pairs = LivePairs::new(None, 10);
        pairs.update_pairs_if_due(&mut runs, servers_of);
        assert!(!pairs.are_pairs_due(true), "the next join is later");
        let report = get(&mut runs, address, "/report");
        let report: Value = serde_json::from_str(&report).expect("JSON");
        let [of_prefill, of_decode] = [0, 1].map(|run| &report["runs"][run]["report"]);
        assert_eq!([&of_prefill["pair"], &of_decode["pair"]["requests"]], [&Value::Null, &Value::from(12)]);
        assert_eq!(of_decode["findings"][0]["kind"], "decode-queue", "{of_decode}");
        let metrics = get(&mut runs, address, "/metrics");
        let active = "tokengap_active_findings{kind=\"decode-queue\",severity=\"warning\"} 1";
        assert_eq!(metrics.matches(active).count(), 1, "{metrics}");
        assert!(!metrics.contains("tokengap_findings_total{kind=\"decode-queue\"}"), "{metrics}");
    }

    #[test]
    fn nobody_reads_the_pairs_of_runs_without_screen_and_endpoint() {
        assert!(!LivePairs::new(None, 10).are_pairs_due(false));
        let slow_join = LastJoin { at: Instant::now(), duration: Duration::from_secs(9), request: None };
        let mut pairs = LivePairs { last_join: Some(slow_join), ..LivePairs::new(None, 10) };
        assert!(!pairs.are_pairs_due(true));
        let long_ago = Instant::now().checked_sub(MAX_INTERVAL).expect("a time");
        pairs.last_join = Some(LastJoin { at: long_ago, duration: Duration::from_secs(9), request: None });
        assert!(pairs.are_pairs_due(true) && !pairs.are_pairs_due(false));
    }
}
