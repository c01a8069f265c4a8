//! The report of a decode server with its prefill server, as text.

use crate::engine;
use crate::pair_events::{MS, Request, server_events};
use outputs::report::{Clock, PairReport, PrefillName, Report};
use trace::event::Event;
use trace::pair::{Pair, PairClocks, PrefillServer};
use trace::{Analysis, MonoNs, ReportInput};

const RIDS: [&str; 12] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];

/// The analysis of a server with a request every 100 ms.
fn analyse(of: fn(&'static str, u64, u64) -> Request<'static>, ahead: u64) -> Analysis {
    let requests: Vec<Request<'static>> = (1..).zip(RIDS).map(|(number, rid)| of(rid, number, 100 * number)).collect();
    let mut analysis = Analysis::new(engine::config());
    for (at, what) in server_events(&requests, ahead) {
        analysis.apply(&Event::new(MonoNs(at), what));
    }
    analysis
}

/// A prefill server that has all requests but the last, and another one.
fn prefill_request(rid: &'static str, room: u64, from: u64) -> Request<'static> {
    let room = if rid == "l" { 99 } else { room };
    Request::of_prefill(rid, room, from)
}

/// The decode server holds its queue for 400 ms.
fn decode_request(rid: &'static str, room: u64, from: u64) -> Request<'static> {
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
fn the_report_of_a_pair_as_text() {
    let prefill = analyse(prefill_request, 0);
    let decode = analyse(decode_request, 5_000);
    let clocks = PairClocks::ByWallClock { ahead_ns: 5_000 * MS as i64 };
    let pair = Pair::join(vec![PrefillServer { ledger: prefill.ledger(), clocks }], decode.ledger());
    let side_by = "--disaggregation-mode".to_owned();
    let names = [PrefillName { name: "p.tgap".to_owned(), run_index: 0, side_by }];
    let mut report = Report::of(&decode, &ReportInput::for_source("attach"));
    let start = MonoNs(report.window_mono_ns[0]);
    let mut joined = PairReport::new(&pair, &names, "--disaggregation-mode", start, 10).expect("joined");
    joined.add_prefill_report(0, &Report::of(&prefill, &ReportInput::for_source("attach")));
    report.add_pair_report(joined);
    insta::assert_snapshot!("pair_as_text", report.to_text(&Clock::of(&report, None)));
    insta::assert_snapshot!("pair_as_markdown", report.to_markdown(&Clock::of(&report, None)));
}

/// The decode server notices the end of the transfer late, or its clock is ahead by more: without its messages that is not known.
fn request_noticed_late(rid: &'static str, room: u64, from: u64) -> Request<'static> {
    let request = decode_request(rid, room, from);
    Request { message: None, queued: request.queued.map(|at| at + 400), ..request }
}

#[test]
fn the_headline_of_a_pair_is_unknown_if_the_clocks_leave_it_open() {
    let prefill = analyse(prefill_request, 0);
    let decode = analyse(request_noticed_late, 0);
    let side_by = "--disaggregation-mode".to_owned();
    let names = [PrefillName { name: "p.tgap".to_owned(), run_index: 0, side_by }];
    let headlines = [PairClocks::Same, PairClocks::ByWallClock { ahead_ns: 0 }].map(|clocks| {
        let pair = Pair::join(vec![PrefillServer { ledger: prefill.ledger(), clocks }], decode.ledger());
        PairReport::new(&pair, &names, "--disaggregation-mode", MonoNs(0), 10).expect("joined").headline
    });
    let expected = [
        "most of TTFT: until decode noticed its end, 76 % of it (mean 423.0 ms of 560.0 ms over 11 requests)",
        "it is unknown what takes most of TTFT: times of the two servers are compared with unknown error",
    ];
    assert_eq!(headlines, expected);
}
