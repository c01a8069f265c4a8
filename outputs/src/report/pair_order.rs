//! Order of the findings of a pair and of its servers, and which of two findings about one queue is kept.

use std::cmp::Reverse;

use trace::detect::Severity;
use trace::pair::PairFinding;

use super::FindingLine;

/// Findings of the pair and of its servers, in the order in which those of equal severity are listed. The pair's come before the servers'.
/// Only a stop of a process that is longer than any wait of the pair comes before them, because it may have caused these waits.
pub(super) fn order_pair_and_server_findings(
    pair_findings: Vec<FindingLine>,
    server_findings: Vec<FindingLine>,
) -> Vec<FindingLine> {
    let longest_wait_ns = pair_findings.iter().filter_map(longest_wait_ns).max();
    let (longer_stops, other_findings): (Vec<_>, Vec<_>) =
        server_findings.into_iter().partition(|finding| is_stop_longer_than(finding, longest_wait_ns));
    longer_stops.into_iter().chain(pair_findings).chain(other_findings).collect()
}

/// Sorts the findings that explain time, of any server, so that a small cause does not hide a larger one. The others, such as lost tokens,
/// keep their places.
pub(super) fn sort_by_explained_time(findings: &mut [FindingLine]) {
    let waits = PairWaits::of_findings(findings);
    let indexes: Vec<usize> = (0..findings.len()).filter(|index| findings[*index].explained_ns.is_some()).collect();
    let mut explaining: Vec<FindingLine> = indexes.iter().map(|index| findings[*index].clone()).collect();
    explaining.sort_by_key(|finding| Reverse(waits.ns_explained_by(finding)));
    // The sorted findings take the places that findings with an explained time had before.
    for (index, finding) in indexes.into_iter().zip(explaining) {
        findings[index] = finding;
    }
}

/// Waits of requests, according to the findings of the pair and not of single servers.
struct PairWaits {
    /// Longest wait of a request; `None` without any.
    longest_ns: Option<u64>,
    /// Most time that one of these findings explains.
    explained_ns: u64,
}

impl PairWaits {
    /// Takes the waits from the findings of the pair. `findings` may also have those of single servers.
    fn of_findings(findings: &[FindingLine]) -> Self {
        let of_pair: Vec<&FindingLine> =
            findings.iter().filter(|finding| PairFinding::is_kind(&finding.kind)).collect();
        Self {
            longest_ns: of_pair.iter().filter_map(|finding| longest_wait_ns(finding)).max(),
            explained_ns: of_pair.iter().filter_map(|finding| finding.explained_ns).max().unwrap_or(0),
        }
    }

    /// Time that a finding explains, in nanoseconds.
    fn ns_explained_by(&self, finding: &FindingLine) -> u64 {
        let own_ns = finding.explained_ns.unwrap_or(0);
        // A stop of a process that is longer than any wait of the pair may have caused these waits, so it explains their time too.
        let may_cause_waits = is_stop_longer_than(finding, self.longest_ns);
        if may_cause_waits { own_ns.max(self.explained_ns) } else { own_ns }
    }
}

/// Longest wait of a request, according to a finding of the pair; `None` if it is about something else.
fn longest_wait_ns(finding: &FindingLine) -> Option<u64> {
    finding.evidence.get("longest_ns")?.as_u64()
}

/// Whether the finding is about a stop of a process that lasted longer than this wait.
fn is_stop_longer_than(finding: &FindingLine, wait_ns: Option<u64>) -> bool {
    match (process_stop_ns(finding), wait_ns) {
        (Some(stop_ns), Some(wait_ns)) => stop_ns > wait_ns,
        _ => false,
    }
}

/// Length of the stop of a process; `None` if the finding is about something else.
fn process_stop_ns(finding: &FindingLine) -> Option<u64> {
    let evidence_name = match finding.kind.as_str() {
        "consumer-stopped" | "consumer-frozen" => "oldest_waiting_ns",
        "engine-silent" => "silence_ns",
        _ => return None,
    };
    finding.evidence.get(evidence_name)?.as_u64()
}

/// Kind of a server's own finding about its queue.
const SERVER_QUEUE: &str = "queued";

/// Removes one of two findings about the queue of the same server. One is the pair's, of kind `pair_kind`, and the other the server's own.
/// The more severe one remains. If both are equally severe, the pair's remains.
pub(super) fn remove_milder_queue_finding(
    pair_findings: &mut Vec<FindingLine>,
    pair_kind: &str,
    server_findings: &mut Vec<FindingLine>,
) {
    let pair_severity = problem_severity(pair_findings, pair_kind);
    let server_severity = problem_severity(server_findings, SERVER_QUEUE);
    // A missing severity is less than any other.
    if pair_severity.is_some() && pair_severity >= server_severity {
        server_findings.retain(|finding| finding.kind != SERVER_QUEUE);
    } else if server_severity.is_some() {
        pair_findings.retain(|finding| finding.kind != pair_kind);
    }
}

/// Severity of a problem of this kind that is more than information; `None` without one.
fn problem_severity(findings: &[FindingLine], kind: &str) -> Option<Severity> {
    let problems = findings.iter().filter(|finding| finding.kind == kind && finding.severity > Severity::Info);
    problems.map(|finding| finding.severity).max()
}
