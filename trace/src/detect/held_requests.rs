//! Requests whose time to first token a finding about a process or a hop explains: those that waited for it while the problem lasted.

use serde_json::Value;

use super::consumer::round_share;
use super::explained_ttft::{describe_part, describe_place_of_request};
use super::finding::{Finding, HopTarget, is_about_receiver};
use super::{DetectContext, Severity, Verdict};
use crate::clock::MonoNs;
use crate::ledger::{Hop, Ledger, ProcessWait, TtftMoment, TtftPart};

use TtftMoment::{Arrived, Dispatched, FirstSent, Read};

/// Maximum number of times of a problem to which waits are compared; the oldest is dropped.
const MAX_SPANS: usize = 64;
/// The waits are known of most requests if at most one in this many has no streamed response.
const MIN_JUDGED_PER_UNSTREAMED: u64 = 10;

/// When a problem lasted, and with which process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProblemSpan {
    from: MonoNs,
    to: MonoNs,
    /// `None` if the finding is about a hop, whatever its receivers are.
    pid: Option<u64>,
}

impl ProblemSpan {
    /// Whether the problem explains a wait for this process. It does if it lasted for more than half of the wait, and is about this process
    /// or about no particular one.
    fn explains_wait(&self, wait: &ProcessWait, waited_for_pid: Option<u32>) -> bool {
        let is_of_process = self.pid.is_none() || self.pid == waited_for_pid.map(u64::from);
        // 0 if they do not overlap.
        let common_ns = self.to.min(wait.to).since(self.from.max(wait.from));
        is_of_process && common_ns > wait.ns() / 2
    }
}

/// The requests that one finding held up.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldRequests {
    kind: &'static str,
    hop: String,
    spans: Vec<ProblemSpan>,
    /// Their waits.
    pub(super) part: TtftPart,
    /// Begins of the legs on which they waited, in path order.
    legs: Vec<TtftMoment>,
    last_request: Option<u64>,
    /// What was added to the summary of the finding.
    added: String,
    /// Severity of the finding before it was limited.
    own_severity: Option<Severity>,
}

/// A wait with the names of the hop and the process that explain it.
struct NamedWait<'a> {
    wait: &'a ProcessWait,
    /// Group of its hop; `None` before the dispatch.
    hop: Option<&'a str>,
    /// Process for which it waited; `None` if unknown.
    pid: Option<u32>,
}

impl<'a> NamedWait<'a> {
    /// A wait with the name of its hop and the process for which it waited, as far as they are known.
    fn new(context: &DetectContext<'a>, wait: &'a ProcessWait) -> Self {
        let ledger = context.ledger;
        let Some(hop_id) = wait.hop else {
            // A wait without a hop is before the dispatch. The request then waits for the process that reads the sockets.
            return Self { wait, hop: None, pid: pid_of_socket_reader(ledger) };
        };
        let hop = ledger.hop(hop_id);
        Self {
            wait,
            hop: hop.map(|hop| &*ledger.groups()[hop.group].name),
            pid: hop.and_then(Hop::receiving_thread).map(|thread| thread.pid),
        }
    }
}

impl HeldRequests {
    pub(super) fn new(kind: &'static str, hop: &str) -> Self {
        Self { kind, hop: hop.to_owned(), ..Self::default() }
    }

    /// Whether these are the requests of the finding.
    pub(super) fn are_of_finding(&self, kind: &str, hop: &str) -> bool {
        self.kind == kind && self.hop == hop
    }

    /// Records that the problem exists at `now`, as a span from its start until `now`. Later, the waits of requests are compared with these
    /// spans.
    pub(super) fn record_problem_span(&mut self, verdict: &Verdict, now: MonoNs) {
        let pid = verdict.evidence.get("pid").and_then(Value::as_u64);
        let span = ProblemSpan { from: verdict.since.unwrap_or(now), to: now, pid };
        // The same process still has the problem, so its last span is extended.
        if let Some(last) = self.spans.last_mut()
            && last.pid == pid
            && span.from <= last.to
        {
            last.from = last.from.min(span.from);
            last.to = now;
            return;
        }
        // The oldest span is dropped, so that memory is bounded.
        if self.spans.len() >= MAX_SPANS {
            self.spans.remove(0);
        }
        self.spans.push(span);
    }

    /// Whether a request waited for the process or the hop of the finding. The moment at which the wait begins, `leg_from`, says where the
    /// request waited.
    fn is_about_wait(&self, context: &DetectContext<'_>, named_wait: &NamedWait<'_>) -> bool {
        let leads_to_tokenizer = || context.hop_target(&self.hop) == HopTarget::Tokenizer;
        match named_wait.wait.leg_from {
            // It waited on a hop, for the process behind it.
            Dispatched | FirstSent => named_wait.hop == Some(self.hop.as_str()),
            // It waited in the server's socket. The thread of the tokenizer that receives frames also reads the sockets.
            Arrived => is_about_receiver(self.kind) && leads_to_tokenizer(),
            // It waited in the tokenizer, which prepares the requests that it has read. Only a thread that cannot run stops this.
            Read => is_suspended(self.kind) && leads_to_tokenizer(),
            // No process waits are recorded for the other legs.
            _ => false,
        }
    }

    /// Adds the wait of a request if the problem explains it: the wait is within a span of the problem, and is about the same process or
    /// hop.
    fn add_wait_if_explained(&mut self, context: &DetectContext<'_>, named: &NamedWait<'_>) {
        let wait = named.wait;
        let is_in_span = self.spans.iter().any(|span| span.explains_wait(wait, named.pid));
        if !is_in_span || !self.is_about_wait(context, named) {
            return;
        }
        // A request counts once. Its waits follow each other in the list, so a comparison with the last request is enough.
        let is_first_wait = self.last_request != Some(wait.request);
        self.last_request = Some(wait.request);
        self.part.add_wait(wait.ns(), wait.ttft_ns, is_first_wait);
        // Each leg, a part of the path, is listed once, in path order, by the moment with which it begins.
        if let Err(insert_at) = self.legs.binary_search(&wait.leg_from) {
            self.legs.insert(insert_at, wait.leg_from);
        }
    }

    /// Removes from a finding what [`Self::add_ttft_share_and_limit_severity`] added: its last words, and the limit of its severity.
    pub(super) fn remove_ttft_share_and_severity_limit(&mut self, finding: &mut Finding) {
        // The added words are the end of the summary.
        let own_length = finding.verdict.summary.strip_suffix(&self.added).map(str::len);
        if let Some(own_length) = own_length {
            finding.verdict.summary.truncate(own_length);
        }
        self.added.clear();
        if let Some(own) = self.own_severity.take() {
            finding.verdict.severity = own;
        }
    }

    /// Adds to the finding the share of the time to first token for which its problem held up requests. Lowers the finding's severity to
    /// `limit`, if that is lower.
    pub(super) fn add_ttft_share_and_limit_severity(
        &mut self,
        context: &DetectContext<'_>,
        finding: &mut Finding,
        limit: Option<Severity>,
    ) {
        let verdict = &mut finding.verdict;
        if let Some(limit) = limit.filter(|limit| *limit < verdict.severity) {
            // Kept, because `remove_ttft_share_and_severity_limit` restores it before the detectors run again.
            self.own_severity = Some(verdict.severity);
            verdict.severity = limit;
        }
        // Without held-up requests, there is no share to add.
        if self.part.requests == 0 {
            return;
        }
        // A leg is a part of the path of a request, named by the moment with which it begins.
        let places: Vec<String> =
            self.legs.iter().map(|from| describe_place_of_request(context.facts(), *from)).collect();
        self.added = format!("; {}", describe_part(context.ledger.ttft(), self.part, &places.join(" and ")));
        verdict.summary.push_str(&self.added);
        verdict.with("ttft_share", round_share(self.part.share())).with("ttft_share_requests", self.part.requests);
    }
}

/// Whether the process of such a finding does not run at all.
fn is_suspended(kind: &str) -> bool {
    kind == "consumer-stopped" || kind == "consumer-frozen"
}

/// Process that reads the sockets: the last hop of the path leads to it. `None` if it is not known, or is not the only one.
fn pid_of_socket_reader(ledger: &Ledger) -> Option<u32> {
    let mut readers = ledger.hops().iter().filter(|hop| hop.last).filter_map(|hop| ledger.only_receiver(hop));
    readers.next().map(|reader| reader.pid)
}

/// Adds each new wait of a request to the problems that explain it. `held_requests` has an entry for each problem. The first `seen_waits`
/// waits of the run are not new.
pub(super) fn add_new_waits_to_held_requests(
    context: &DetectContext<'_>,
    held_requests: &mut [HeldRequests],
    seen_waits: u64,
) {
    if held_requests.is_empty() {
        return;
    }
    for wait in context.ledger.process_waits_since(seen_waits) {
        let named = NamedWait::new(context, wait);
        for requests in held_requests.iter_mut() {
            requests.add_wait_if_explained(context, &named);
        }
    }
}

/// Whether it is known for most requests how long they waited for the receivers of this hop, a connection between two processes.
pub(super) fn are_most_waits_known(context: &DetectContext<'_>, hop_name: &str) -> bool {
    let ttft = context.ledger.ttft();
    let judged = ttft.judged().requests;
    // Requests whose output is not streamed are not judged, so there must be few of them.
    let are_most_streamed = judged > 0 && ttft.not_streamed <= judged / MIN_JUDGED_PER_UNSTREAMED;
    let is_at_end_of_path = context.hop_target(hop_name) != HopTarget::Other;
    // The waits are known on the first and on the last output hop. With two output hops, these are all.
    let has_two_hops = context.ledger.output_groups().count() == 2;
    are_most_streamed && (is_at_end_of_path || has_two_hops)
}
