//! The servers of prefill/decode pairs: two recordings, runs of this machine, or watched runs.

use std::path::Path;

use anyhow::{Context, bail};
use outputs::report::{PairReport, PairRequestLine, PrefillName, Report};
use recording::{OpenError, Recording};
use serde_json::Value;
use trace::clock::Anchor;
use trace::pair::{Pair, PairClocks, PairRow, PairSide, PrefillServer};
use trace::{Analysis, MonoNs, ReportInput};
use tui::pods::{PairRequest, ShownRequest};

use crate::progress;
use outputs::report::RunReport;

/// What shows the side of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownSide {
    pub(crate) side: PairSide,
    pub(crate) shown_by: &'static str,
}

impl KnownSide {
    /// The side by `mode_flag`, the value of the server's flag, or else by its messages to the other server; `None` if neither shows it.
    pub(crate) fn find(mode_flag: Option<&str>, analysis: &Analysis) -> Option<Self> {
        if let Some(side) = mode_flag.and_then(PairSide::of_name) {
            return Some(Self { side, shown_by: "--disaggregation-mode" });
        }
        let side = PairSide::of_messages(analysis.ledger())?;
        Some(Self { side, shown_by: "its messages to the other scheduler" })
    }

    /// The side of a server whose peer is known to have the side `peer_side`.
    fn opposite_of(peer_side: PairSide) -> Self {
        let side = match peer_side {
            PairSide::Prefill => PairSide::Decode,
            PairSide::Decode => PairSide::Prefill,
        };
        Self { side, shown_by: "assumed: nothing shows it but the side of the other server" }
    }
}

/// A recorded server.
struct RecordedServer {
    name: String,
    analysis: Analysis,
    input: ReportInput,
    anchor: Anchor,
    side: Option<KnownSide>,
}

impl RecordedServer {
    /// Analyses the recording of one of the two servers, and finds out its side if the recording shows it. Fails if the file is no
    /// recording.
    fn analyse(file: &Path) -> anyhow::Result<Self> {
        let recording = match Recording::open(file) {
            Ok(recording) => recording,
            Err(OpenError::NotARecording { .. }) => {
                bail!("{} is no recording: two recordings are joined, not reports", file.display())
            }
            Err(error) => return Err(error.into()),
        };
        let (analysis, input) = progress::analyse_recording(&recording)?;
        // The value of the server's flag --disaggregation-mode, as recorded with its run.
        let mode = input.wire.as_ref().and_then(|wire| wire.pointer("/disaggregation/mode"));
        let side = KnownSide::find(mode.and_then(Value::as_str), &analysis);
        Ok(Self { name: file.display().to_string(), analysis, input, anchor: recording.header().anchor, side })
    }

    fn side_by(&self) -> &'static str {
        self.side.map_or("", |known| known.shown_by)
    }

    /// This prefill server in the list of those of a pair, with what shows its side.
    fn as_prefill(&self, run_index: usize) -> PrefillName {
        PrefillName { name: self.name.clone(), run_index, side_by: self.side_by().to_owned() }
    }

    fn report(&self, slowest: usize) -> Report {
        Report::of(&self.analysis, &ReportInput { wall: Some(self.anchor), slowest, ..self.input.clone() })
    }
}

/// Report of a decode server with the part of its prefill server, from the recordings of both in any order. The prefill server processes
/// the prompts of the requests, and the decode server generates their tokens.
pub(crate) fn join_recordings_into_report(recordings: [&Path; 2], slowest_count: usize) -> anyhow::Result<Report> {
    /// Index of the prefill server, of which a pair could have several.
    const ONLY_PREFILL: usize = 0;
    let [first, second] = recordings;
    let RecordedPair { prefill, decode } =
        RecordedPair::assign_sides(RecordedServer::analyse(first)?, RecordedServer::analyse(second)?)?;
    // The servers may run on two machines. An anchor gives the time of day for a time of a recording.
    let clocks = PairClocks::of_anchors(prefill.anchor, decode.anchor);
    let pair = Pair::join(vec![PrefillServer { ledger: prefill.analysis.ledger(), clocks }], decode.analysis.ledger());
    let names = [prefill.as_prefill(ONLY_PREFILL)];
    let mut report = decode.report(slowest_count);
    // The report is of the decode server, so times count from the start of its capture.
    let start = report.capture_start();
    let mut joined = PairReport::new(&pair, &names, decode.side_by(), start, slowest_count).with_context(|| {
        format!("no request of {} is in {}: neither a room nor an id is in both", decode.name, prefill.name)
    })?;
    // The report of the pair does not print the slowest requests of the prefill server, so none is listed.
    let slowest_of_prefill = 0;
    let prefill_report = prefill.report(slowest_of_prefill);
    joined.add_prefill_report(ONLY_PREFILL, &prefill_report);
    report.add_pair_report(joined);
    report.add_prefill_findings(&prefill.name, &prefill_report, pair.clock_uses()[ONLY_PREFILL]);
    Ok(report)
}

/// The recordings of the two servers of a pair.
struct RecordedPair {
    prefill: RecordedServer,
    decode: RecordedServer,
}

impl RecordedPair {
    /// Finds out which of the two is the prefill server. If only one shows its side, the other gets the opposite one. Fails if neither
    /// shows a side, or if both show the same.
    fn assign_sides(mut first: RecordedServer, mut second: RecordedServer) -> anyhow::Result<Self> {
        // The side of one server also shows that of the other, because a pair has one of each.
        let Some(known) = first.side.or(second.side) else {
            bail!(
                "neither {} nor {} shows whether it is of a prefill or a decode server: no --disaggregation-mode, and no message between the \
                 schedulers",
                first.name,
                second.name
            )
        };
        let first_side = *first.side.get_or_insert(KnownSide::opposite_of(known.side));
        let second_side = *second.side.get_or_insert(KnownSide::opposite_of(known.side));
        match (first_side.side, second_side.side) {
            (PairSide::Prefill, PairSide::Decode) => Ok(Self { prefill: first, decode: second }),
            (PairSide::Decode, PairSide::Prefill) => Ok(Self { prefill: second, decode: first }),
            (side, _) => bail!("{} and {} are both of a {} server", first.name, second.name, side.as_str()),
        }
    }
}

/// Adds the pairs to the reports of their decode servers.
pub(crate) fn add_pairs_to_reports(finished: &mut [RunReport], pairs: Vec<PairOfRun>) {
    for PairOfRun { run_index: decode_index, mut report } in pairs {
        // Only the reports of its own prefill servers add anything to a pair.
        for (run_index, run) in finished.iter().enumerate() {
            report.add_prefill_report(run_index, &run.report);
        }
        if let Some(decode) = finished.get_mut(decode_index) {
            decode.report.add_pair_report(report);
        }
    }
    note_unjoined_decode_servers(finished);
}

/// Adds a note to the report of each decode server without a pair. It says that none of its requests was found on the watched prefill
/// servers. Does nothing without prefill servers.
fn note_unjoined_decode_servers(finished: &mut [RunReport]) {
    let prefill = finished.iter().filter(|run| is_side_with_requests(run, "prefill"));
    let prefill_names: Vec<String> = prefill.map(|run| run.name.clone()).collect();
    if prefill_names.is_empty() {
        return;
    }
    for run in finished {
        if is_side_with_requests(run, "decode") && run.report.pair.is_none() {
            let why = format!(
                "no pair: none of its requests was found on {}: no room or id is on both",
                prefill_names.join(", ")
            );
            run.report.own.degraded.push(Value::String(why));
        }
    }
}

fn is_side_with_requests(run: &RunReport, side: &str) -> bool {
    run.side == Some(side) && run.report.requests.seen > 0
}

/// A run that may be of a server of a pair.
pub(crate) struct RunningServer<'a> {
    /// Index of the run.
    pub(crate) run_index: usize,
    pub(crate) name: String,
    pub(crate) analysis: &'a Analysis,
    pub(crate) side: Option<KnownSide>,
    /// Its clocks; `None` if it runs on this machine.
    pub(crate) anchor: Option<Anchor>,
}

/// The pair of a decode server.
#[derive(Clone)]
pub(crate) struct PairOfRun {
    /// Index of the decode server's run.
    pub(crate) run_index: usize,
    pub(crate) report: PairReport,
}

/// Joins all requests of each decode server with those of the prefill servers.
pub(crate) fn join_runs(servers: &[RunningServer<'_>], slowest: usize) -> Vec<PairOfRun> {
    join_newest(servers, slowest, usize::MAX, None).pairs
}

/// The pairs among running servers.
#[derive(Default)]
pub(crate) struct JoinedRuns {
    /// The pair of each decode server.
    pub(crate) pairs: Vec<PairOfRun>,
    /// The request that the screen shows; `None` if it is of no pair.
    pub(crate) request: Option<PairRequest>,
}

/// Joins the requests of each decode server with those of the prefill servers. Each decode server with common requests gives a pair. Only
/// the newest `finished_limit` finished requests of each server are joined. Also finds the request that the screen shows, if it is in a
/// pair.
pub(crate) fn join_newest(
    servers: &[RunningServer<'_>],
    slowest_count: usize,
    finished_limit: usize,
    shown_request: Option<&ShownRequest>,
) -> JoinedRuns {
    let names = prefill_names(servers);
    let is_only_decode = servers_of_side(servers, PairSide::Decode).count() == 1;
    let mut joined = JoinedRuns::default();
    for decode in servers_of_side(servers, PairSide::Decode) {
        let prefill_servers = prefill_servers_beside(decode, servers);
        let pair = Pair::join_newest(prefill_servers, decode.analysis.ledger(), finished_limit);
        // Times in the report of the pair count from the start of the capture.
        let start = decode.capture_start();
        if let Some(mut report) = PairReport::new(&pair, &names, decode.side_by(), start, slowest_count) {
            // Requests that only a prefill server has are not reported: another decode server may have them.
            if !is_only_decode {
                report.prefill_only = None;
            }
            joined.pairs.push(PairOfRun { run_index: decode.run_index, report });
        }
        // A prefill server may be in several pairs. The first one that has the request is shown.
        if let Some(shown) = shown_request
            && joined.request.is_none()
        {
            joined.request = find_shown_request(&pair, &names, decode, shown);
        }
    }
    joined
}

/// Finds the request that the screen shows among those of this pair. `None` if it is not there, or if several requests have its id: the
/// wrong one could be shown.
fn find_shown_request(
    pair: &Pair<'_>,
    prefill_servers: &[PrefillName],
    decode: &RunningServer<'_>,
    shown: &ShownRequest,
) -> Option<PairRequest> {
    let mut rows = pair.rows().iter().filter(|row| is_row_of_shown_request(row, prefill_servers, decode, shown));
    let row = rows.next()?;
    let are_several = rows.next().is_some();
    if are_several {
        return None;
    }
    let line = PairRequestLine::new(pair, row, decode.capture_start())?;
    let prefill = prefill_servers.get(row.prefill_server?)?;
    Some(PairRequest { shown: shown.clone(), decode: decode.name.clone(), prefill: prefill.name.clone(), line })
}

/// Whether a row is the request that the screen shows. A row has the parts of a request on both servers, which may know it by different
/// ids. The screen shows the run of either server.
fn is_row_of_shown_request(
    row: &PairRow<'_>,
    prefill_servers: &[PrefillName],
    decode: &RunningServer<'_>,
    shown: &ShownRequest,
) -> bool {
    let is_on_decode = shown.run_index == decode.run_index;
    if is_on_decode && row.decode_rid == shown.rid {
        return true;
    }
    let prefill = row.prefill_server.and_then(|index| prefill_servers.get(index));
    let is_on_prefill = prefill.is_some_and(|server| server.run_index == shown.run_index);
    is_on_prefill && row.prefill_rid == Some(&*shown.rid)
}

/// Names of the prefill servers, with what shows their side.
fn prefill_names(servers: &[RunningServer<'_>]) -> Vec<PrefillName> {
    let named = servers_of_side(servers, PairSide::Prefill).map(|server| PrefillName {
        name: server.name.clone(),
        run_index: server.run_index,
        side_by: server.side_by().to_owned(),
    });
    named.collect()
}

/// The prefill servers, each with the relation of its clocks to those of the decode server.
fn prefill_servers_beside<'a>(decode: &RunningServer<'a>, servers: &[RunningServer<'a>]) -> Vec<PrefillServer<'a>> {
    let prefill = servers_of_side(servers, PairSide::Prefill)
        .map(|server| PrefillServer { ledger: server.analysis.ledger(), clocks: server.clocks_with(decode) });
    prefill.collect()
}

/// The servers known to be of this side.
fn servers_of_side<'s, 'a>(
    servers: &'s [RunningServer<'a>],
    side: PairSide,
) -> impl Iterator<Item = &'s RunningServer<'a>> {
    servers.iter().filter(move |server| server.side.is_some_and(|known| known.side == side))
}

impl RunningServer<'_> {
    /// Start of the capture; the present if nothing was captured.
    fn capture_start(&self) -> MonoNs {
        let ledger = self.analysis.ledger();
        ledger.started().unwrap_or(ledger.now())
    }

    /// How the clocks of this prefill server and of a decode server are related. An anchor gives the time of day for a time on a machine's
    /// clock. The clocks are the same unless both servers have an anchor, because a server without one runs on this machine.
    fn clocks_with(&self, decode: &Self) -> PairClocks {
        match (self.anchor, decode.anchor) {
            (Some(prefill), Some(decode)) => PairClocks::of_anchors(prefill, decode),
            _ => PairClocks::Same,
        }
    }

    fn side_by(&self) -> &'static str {
        self.side.map_or("", |known| known.shown_by)
    }
}

#[cfg(test)]
#[path = "../../../trace/tests/common/pair.rs"]
pub(crate) mod events;

#[cfg(test)]
mod tests {
    use trace::event::Event;
    use trace::{Config, MonoNs};

    use super::events::{MS, Request, server_events};
    use super::*;
    use crate::cmd::live_pairs;

    fn analyse(requests: &[Request<'_>]) -> Analysis {
        analyse_ahead(requests, 0)
    }

    /// The same, of a server whose clock is ahead by some milliseconds.
    fn analyse_ahead(requests: &[Request<'_>], ahead: u64) -> Analysis {
        let mut analysis = Analysis::new(Config::default());
        for (at, what) in server_events(requests, ahead) {
            analysis.apply(&Event::new(MonoNs(at), what));
        }
        analysis
    }

    fn running<'a>(name: &str, flag: Option<&str>, analysis: &'a Analysis) -> RunningServer<'a> {
        RunningServer {
            run_index: 0,
            name: name.to_owned(),
            analysis,
            side: KnownSide::find(flag, analysis),
            anchor: None,
        }
    }

    #[test]
    fn each_decode_server_of_a_machine_has_its_pair() {
        let prefill = analyse(&[Request::of_prefill("a", 1, 0), Request::of_prefill("b", 2, 100)]);
        let first = analyse(&[Request::of_decode("a", 1, 0)]);
        let second = analyse(&[Request::of_decode("b", 2, 100), Request::of_decode("c", 3, 200)]);
        let without_pair = analyse(&[Request { room: None, message: None, ..Request::of_decode("d", 4, 0) }]);
        let mut servers = [
            running("other", None, &without_pair),
            running("first", None, &first),
            running("prefill", Some("prefill"), &prefill),
            running("second", Some("decode"), &second),
            // Its requests are not those of the prefill server.
            running("alone", Some("decode"), &without_pair),
        ];
        for (run_index, server) in servers.iter_mut().enumerate() {
            server.run_index = run_index;
        }
        let joined = join_runs(&servers, 10);
        let found: Vec<_> = joined
            .iter()
            .map(|PairOfRun { run_index, report }| {
                (*run_index, report.requests, report.decode_only, report.prefill_only, &*report.decode_by)
            })
            .collect();
        let expected = [
            (1, 1, Some(0), None, "its messages to the other scheduler"),
            (3, 1, Some(1), None, "--disaggregation-mode"),
        ];
        assert_eq!(found, expected);
        assert!(joined.iter().all(|pair| {
            let prefill = &pair.report.prefill[0];
            prefill.name == "prefill" && prefill.clock == "same"
        }));
    }

    #[test]
    fn a_decode_server_whose_requests_are_on_no_prefill_server_says_so() {
        let run = |name: &str, side, requests: &[Request<'_>]| RunReport {
            name: name.to_owned(),
            endpoint: None,
            side: Some(side),
            port: None,
            model: None,
            state: "ended".to_owned(),
            records_before: None,
            records_missed: None,
            gaps: None,
            report: Report::of(&analyse(requests), &ReportInput::default()),
        };
        let mut finished = [
            run("p", "prefill", &[Request::of_prefill("a", 1, 0)]),
            run("d", "decode", &[Request::of_decode("b", 2, 100)]),
            run("idle", "decode", &[]),
        ];
        add_pairs_to_reports(&mut finished, Vec::new());
        let degraded = finished.map(|run| run.report.own.degraded);
        let expected = Value::from("no pair: none of its requests was found on p: no room or id is on both");
        assert!(degraded[1].contains(&expected), "{:?}", degraded[1]);
        assert!(!degraded[0].contains(&expected) && !degraded[2].contains(&expected));
    }

    #[test]
    fn a_pair_has_a_line_while_it_runs_with_the_numbers_of_its_report() {
        let prefill = analyse(&[Request::of_prefill("a", 1, 0), Request::of_prefill("b", 2, 100)]);
        let decode = analyse(&[Request::of_decode("a", 1, 0), Request::of_decode("b", 2, 100)]);
        let servers = [
            running("near:30000", Some("prefill"), &prefill),
            RunningServer { run_index: 1, ..running("far", None, &decode) },
        ];
        let newest = join_newest(&servers, 0, 100, None).pairs;
        let [PairOfRun { run_index: 1, report: newest }] = &newest[..] else { panic!("one decode server") };
        let line = live_pairs::line_of(&servers, 1, newest);
        let [PairOfRun { run_index: 1, report }] = &join_runs(&servers, 10)[..] else { panic!("one decode server") };
        let expected = format!("near:30000 → far: 2 joined requests; {}", report.headline);
        assert_eq!(line.describe("→"), expected);
        assert!(report.headline.starts_with("most of TTFT: transfer of the cache"), "{}", report.headline);
        assert!(join_newest(&servers[..1], 0, 100, None).pairs.is_empty());
    }

    #[test]
    fn the_shown_request_is_found_on_either_server_unless_its_id_is_that_of_several() {
        let of_prefill =
            [("p", 1, 0), ("b", 2, 100), ("b", 3, 1_000)].map(|(rid, room, at)| Request::of_prefill(rid, room, at));
        let of_decode =
            [("a", 1, 0), ("b", 2, 100), ("c", 3, 1_000)].map(|(rid, room, at)| Request::of_decode(rid, room, at));
        let (prefill, decode) = (analyse(&of_prefill), analyse(&of_decode));
        let servers = [
            running("near:30000", Some("prefill"), &prefill),
            RunningServer { run_index: 1, ..running("far", None, &decode) },
        ];
        let find = |run_index, rid: &str| {
            let shown = ShownRequest { run_index, rid: rid.to_owned() };
            let found = join_newest(&servers, 0, 100, Some(&shown)).request?;
            assert_eq!((&found.shown, &*found.decode, &*found.prefill), (&shown, "far", "near:30000"));
            Some((found.line.decode_rid, found.line.prefill_rid))
        };
        assert_eq!(find(1, "a"), Some(("a".to_owned(), "p".to_owned())));
        assert_eq!(find(0, "p"), find(1, "a"));
        assert_eq!([find(1, "p"), find(0, "a"), find(0, "b"), find(2, "a")], [const { None }; 4]);
    }

    /// Two prefill servers have the same name. One runs on the decode server's host, the other one elsewhere.
    #[test]
    fn each_prefill_server_of_a_decode_server_has_its_own_clock_and_result() {
        let near = analyse_ahead(&[Request::of_prefill("a", 1, 0), Request::of_prefill("x", 9, 300)], 900);
        let far = analyse(&[Request::of_prefill("b", 2, 100)]);
        let decode = [Request::of_decode("a", 1, 0), Request::of_decode("b", 2, 100), Request::of_decode("c", 3, 200)];
        let decode = analyse_ahead(&decode, 900);
        let anchor = |mono: u64| Some(Anchor { mono: MonoNs(mono * MS), wall_ns: 1_000_000 * MS });
        let servers = [
            RunningServer { anchor: anchor(900), ..running("host", None, &near) },
            RunningServer { run_index: 1, anchor: anchor(900), ..running("host", None, &decode) },
            RunningServer { run_index: 2, anchor: anchor(0), ..running("host", None, &far) },
        ];
        let mut joined = join_runs(&servers, 10);
        let [PairOfRun { run_index: 1, report: pair }] = &mut joined[..] else { panic!("one decode server") };
        assert_eq!((pair.requests, pair.decode_only, pair.prefill_only), (2, Some(1), Some(1)));
        for (run_index, prefill) in [(0, &near), (2, &far)] {
            pair.add_prefill_report(run_index, &Report::of(prefill, &ReportInput::default()));
        }
        let servers: Vec<_> = pair
            .prefill
            .iter()
            .map(|server| (server.requests, &*server.clock, server.clock_ahead_ns, server.tokens_sent))
            .collect();
        assert_eq!(servers, [(1, "same", None, Some(2)), (1, "offset", Some(900 * MS as i64), Some(1))]);
        for request in &pair.slowest {
            assert_eq!(request.legs.iter().map(|leg| leg.ns).sum::<u64>(), request.ttft_ns, "{request:?}");
            assert_eq!(
                request.moments["prefill_queued"].map(|ns| ns.rem_euclid(100 * MS as i64)),
                Some(27 * MS as i64),
                "{request:?}"
            );
        }
    }
}
