//! Thresholds and severities of the detectors. docs/reference/report.md has this table, and no verdict of a test has another severity.

use Severity::{Critical, Info, Warning};

use super::super::thresholds::{
    BACKLOG_CRITICAL_FRAMES, BACKLOG_FRAMES, BURST_FRAMES, CPU_BOUND_SHARE, GAP_CRITICAL_NS, GAP_WARNING_NS, LATE_NS,
    STALLED_NS, STARVED_SHARE, THROTTLED_SHARE,
};
use super::super::{consumer_away, drops, late, late_frames, merging, own, ttft, wire, worker_imbalance};
use super::{ALL, Severity};
use crate::ledger::stages::ABANDONED_NS;
use crate::ledger::{MIN_OTHERS, MIN_STREAMS, MIN_TIMES_OTHERS, MIN_TIMES_USUAL, PREFILL_NS_PER_TOKEN, UNANSWERED_NS};
use crate::words::{count, duration, percent};

/// When detectors report, and with which severity.
struct Rule {
    kinds: &'static [&'static str],
    found: String,
    /// Possible severities, each with its condition, which is empty for the usual one.
    severities: Vec<(Severity, String)>,
}

fn rule(kinds: &'static [&'static str], found: impl Into<String>, severity: Severity) -> Rule {
    Rule { kinds, found: found.into(), severities: vec![(severity, String::new())] }
}

impl Rule {
    fn or(mut self, severity: Severity, condition: impl Into<String>) -> Self {
        self.severities.push((severity, condition.into()));
        self
    }

    /// Another condition for the same finding.
    fn or_found(mut self, condition: &str) -> Self {
        self.found = format!("{}; {condition}", self.found);
        self
    }

    /// Severity of tokens that wait.
    fn or_critical_wait(self) -> Self {
        self.or(Critical, format!("from {}", duration(GAP_CRITICAL_NS)))
    }

    fn row(&self) -> String {
        let kinds: Vec<_> = self.kinds.iter().map(|kind| format!("`{kind}`")).collect();
        let severities: Vec<_> = (self.severities.iter())
            .map(|(severity, condition)| format!("{} {condition}", severity.as_str()).trim_end().to_owned())
            .collect();
        format!("| {} | {} | {} |\n", kinds.join(", "), self.found, severities.join("; "))
    }
}

/// All rules, in the order of the table.
fn rules() -> Vec<Rule> {
    let wait = duration(GAP_WARNING_NS);
    let minor = format!(
        "below {} of its TTFT, or {} of all TTFT around it",
        percent(ttft::MIN_LATE_SHARE),
        percent(ttft::MIN_WHOLE_SHARE)
    );
    let per_mille = |share: f64| format!("{:.1} %", 100.0 * share);
    let consumer = |kinds, state: &str, share| {
        let queued = duration(LATE_NS);
        let found = format!("{state} for {} of the wait of a frame, from {queued}", percent(share));
        let critical = format!("from {} frames or {}", count(BACKLOG_CRITICAL_FRAMES), duration(GAP_CRITICAL_NS));
        rule(kinds, found, Warning).or(Critical, critical)
    };
    vec![
        rule(&["dropped-chunks"], "lost tokens, proven by deliveries", Warning)
            .or(Critical, format!("from {} of judged chunks", per_mille(drops::CRITICAL_SHARE))),
        rule(&["dropped-chunks-predicted"], "predicted drops; deliveries are not observed", Warning)
            .or(Info, "where clients are sent text"),
        rule(&["short-answers"], "a response with fewer tokens than its last event counts", Critical),
        rule(&["repeated-ids"], "a response with more ids than its last event counts", Warning),
        rule(&["unfinished-responses"], "a stream that ends with neither a finish reason nor `[DONE]`", Warning),
        rule(&["finish-mismatch"], "a response that ends with `stop` where the engine's frames have `length`, or the reverse", Warning),
        rule(&["damaged-tool-calls"], "arguments that the engine did not send", Warning),
        rule(&["wire-loss"], "tokens missing on the wire", Warning)
            .or(Critical, format!("from {} tokens", wire::CRITICAL_TOKENS)),
        rule(&["first-token-gap"], format!("a first token that waits for {wait}"), Warning)
            .or_critical_wait()
            .or(Info, minor.clone()),
        rule(
            &["engine-silent"],
            format!(
                "no frame for {wait} and {MIN_TIMES_USUAL} times the usual interval of a stream's chunks, with {MIN_STREAMS} open streams"
            ),
            Warning,
        )
        .or(
            Critical,
            format!("from {}, unless the engine may have been asked to pause", duration(GAP_CRITICAL_NS)),
        ),
        rule(
            &["late-delivery"],
            format!(
                "a first token that waits for {wait} in its receiver, or a response that pauses as long, and {} times as long as the engine",
                late::MIN_TIMES_LONGER
            ),
            Warning,
        )
        .or_critical_wait(),
        rule(
            &["late-read", "late-receive", "late-intake", "queued"],
            format!("a request that waits there for {wait} before its first token"),
            Warning,
        )
        .or_critical_wait()
        .or(Info, minor.clone()),
        rule(
            &["late-dispatch"],
            format!("a request whose first bytes were read {wait} before its dispatch"),
            Warning,
        )
        .or_critical_wait()
        .or(
            Info,
            format!(
                "{minor}, in fewer than {} requests at once, or if its process ran, or waited for a CPU, less than {} of that time",
                ttft::MIN_LATE_DISPATCHES,
                percent(ttft::MIN_PREPARING_SHARE)
            ),
        ),
        rule(
            &["slow-prefill"],
            format!(
                "a prefill of {wait} and {MIN_TIMES_OTHERS} times as long as 90 % of at least {MIN_OTHERS} others with as many tokens to \
                 compute"
            ),
            Warning,
        )
        .or_critical_wait()
        .or(Info, minor.clone()),
        rule(
            &["slow-first-token"],
            format!(
                "a request that waits for {wait} in several legs measured as one; if its prefill is one of them, {} more for each token of its \
                 prompt",
                duration(PREFILL_NS_PER_TOKEN)
            ),
            Warning,
        )
        .or_critical_wait()
        .or(Info, format!("{minor}, or with the time before its dispatch")),
        rule(&["late-send", "late-frontend"], format!("tokens that wait there for {wait}"), Warning).or_critical_wait(),
        consumer(&["consumer-stopped", "consumer-frozen"], "not allowed to run", STARVED_SHARE)
            .or_found(&format!("a scheduler, also for {wait} while it has requests")),
        consumer(&["consumer-blocked", "consumer-asleep"], "in a system call or asleep", consumer_away::MIN_SHARE),
        consumer(&["consumer-cpu-bound"], "on a CPU, with shorter times waiting for a CPU if it receives nothing,", CPU_BOUND_SHARE),
        consumer(&["consumer-throttled"], "over its quota", THROTTLED_SHARE),
        consumer(&["consumer-starved"], "waiting for a CPU", STARVED_SHARE),
        consumer(&["io-thread-starved"], "libzmq's I/O thread waiting for a CPU and the receiver asleep", STARVED_SHARE),
        rule(
            &["consumer-cpu-logged"],
            format!("a log with {} of a core, and a gap of {wait} or none known", percent(CPU_BOUND_SHARE)),
            Warning,
        )
        .or_critical_wait(),
        rule(
            &["backlog"],
            format!(
                "{BACKLOG_FRAMES} frames, not falling for {} s, the oldest queued for {}",
                crate::ledger::MIN_RISING_SECONDS,
                duration(LATE_NS)
            ),
            Warning,
        )
        .or(Critical, format!("from {} frames", count(BACKLOG_CRITICAL_FRAMES))),
        rule(
            &["late-frames"],
            format!(
                "{BURST_FRAMES} frames that waited {} on a hop about which no finding says more",
                duration(LATE_NS)
            ),
            Info,
        )
        .or(Warning, format!("from {wait}, or if all are late for {}", duration(late_frames::LONG_STRETCH_NS)))
        .or_critical_wait(),
        rule(&["burst"], format!("{BURST_FRAMES} frames received without a wait for one"), Info),
        rule(&["merged-chunks"], "merged chunks", Info)
            .or(Warning, format!("from {} of chunks, or if the engine logs them", percent(merging::WARNING_SHARE))),
        rule(&["would-drop"], "chunks replaced in cumulative mode", Info),
        rule(
            &["worker-imbalance"],
            format!(
                "{} times an even share of at least {} chunks",
                worker_imbalance::MIN_UNEVEN_RATIO,
                count(worker_imbalance::MIN_JUDGED_CHUNKS)
            ),
            Info,
        )
        .or(Warning, format!("from a backlog of {BACKLOG_FRAMES} frames")),
        rule(&["rid-changed-worker", "out-of-order"], "any", Warning),
        rule(&["inflation"], "a consumer that takes all ids so far for new ones", Warning)
            .or(Critical, "if its own count shows it"),
        rule(&["summed-counts", "mode-mix"], "any", Warning),
        rule(&["wire-arithmetic"], "any", Info),
        rule(
            &["unanswered-requests"],
            format!(
                "a request overtaken by a later one, then without a chunk for {0} and {MIN_TIMES_USUAL} times the usual wait; by a health check \
                 {0} later, if nothing else runs",
                duration(UNANSWERED_NS)
            ),
            Warning,
        ),
        rule(
            &["abandoned-requests"],
            format!("a request that continues for {} without a client, or after its abort", duration(ABANDONED_NS)),
            Warning,
        ),
        rule(
            &["aborted-retries"],
            "an attempt that ends at its client at the moment when SGLang aborts an earlier attempt with the same rid",
            Warning,
        ),
        rule(&["stalled-stream"], format!("an unfinished request without a token for {}", duration(STALLED_NS)), Warning),
        rule(&["engine-ended"], "any", Warning),
        rule(&["engine-failed", "health-check-failed"], "any", Critical),
        rule(&["undecoded"], "frames that cannot be read", Info)
            .or(Warning, format!("from {}", per_mille(own::WARNING_SHARE)))
            .or(Critical, format!("from {}", percent(own::CRITICAL_SHARE))),
        rule(&["missed-observations"], "any", Warning),
        rule(&["limit-reached"], "any", Warning).or(Info, "if only a list is incomplete"),
    ]
}

#[test]
fn the_documented_thresholds_are_those_of_the_detectors() {
    let rules = rules();
    let mut documented: Vec<&str> = rules.iter().flat_map(|rule| rule.kinds).copied().collect();
    let mut kinds: Vec<&str> = ALL.iter().map(|detector| detector.kind).collect();
    documented.sort_unstable();
    kinds.sort_unstable();
    assert_eq!(documented, kinds);
    let rows: String = rules.iter().map(Rule::row).collect();
    let table = format!("\n| finding | found if | severity |\n|---|---|---|\n{rows}\n");
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/report.md");
    let page = std::fs::read_to_string(page).expect("the page");
    assert!(page.contains(&table), "docs/reference/report.md lacks this table:\n{table}");
}

/// Whether the table has this severity of the finding.
pub(super) fn is_documented(kind: &str, severity: Severity) -> bool {
    let rules = rules();
    let rule = rules.iter().find(|rule| rule.kinds.contains(&kind)).expect("a rule");
    rule.severities.iter().any(|(documented, _)| *documented == severity)
}
