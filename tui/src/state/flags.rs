//! Health of what the screen shows, and flags that mark problems of a request in its table row.

use trace::detect::{Severity, Verdict};
use trace::words::{percent, plural};

labelled! {
    /// Health of a component, in ascending order of severity.
    #[derive(Default, PartialOrd, Ord)]
    pub(crate) Health {
        /// No statement is possible.
        #[default]
        Unknown = "unknown",
        /// No problem found.
        Good = "ok",
        /// Worth knowing.
        Info = "info",
        /// Worth investigating.
        Warning = "WARNING",
        /// Affects users.
        Critical = "CRITICAL",
    }
}

impl From<Severity> for Health {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Info => Self::Info,
            Severity::Warning => Self::Warning,
            Severity::Critical => Self::Critical,
        }
    }
}

/// The most severe current finding.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RunVerdict {
    pub(crate) health: Health,
    pub(crate) text: String,
    /// `669 requests`: those that the finding is about; `None` if it counts none.
    pub(crate) requests_hit: Option<String>,
    /// Share of the time to first token that the finding explains; `None` if that is not known.
    pub(crate) ttft_share: Option<String>,
    /// What to do about the finding, or so that more is judged; `None` if nothing is to be done.
    pub(crate) advice: Option<String>,
}

impl RunVerdict {
    /// Removes the advice to observe both servers of a pair, for a server that is observed together with the other one.
    pub(super) fn remove_advice_to_join(&mut self) {
        self.advice = self.advice.take().filter(|advice| !advice.contains(ADVICE_TO_JOIN));
    }
}

/// Words in which [`outputs::report::advise_on_unjudged`] advises to observe both servers of a pair.
const ADVICE_TO_JOIN: &str = "one `tokengap attach` to both";

/// Number of requests that the finding is about: `669 requests`. A finding about a silence of the engine adds the streams that paused: `34
/// requests and 21 streams`. `None` if the finding counts neither.
pub(super) fn describe_requests_hit(verdict: &Verdict) -> Option<String> {
    let late_requests =
        evidence_count(verdict, "requests_late").or_else(|| evidence_count(verdict, "requests_above_warning"));
    // Some findings leave waiting requests out of the late ones, others list fewer than are late. The larger number is the closer one.
    let requests = late_requests.unwrap_or(0).max(verdict.requests.counted());
    let is_about_silence = evidence_count(verdict, "silence_ns").is_some();
    // Only a finding about a silence counts the streams that paused.
    let paused_streams = if is_about_silence { evidence_count(verdict, "streams").unwrap_or(0) } else { 0 };
    let mut hit = Vec::new();
    if requests > 0 {
        hit.push(plural(requests, "request"));
    }
    if paused_streams > 0 {
        hit.push(plural(paused_streams, "stream"));
    }
    if hit.is_empty() { None } else { Some(hit.join(" and ")) }
}

/// A count in the finding's evidence. `None` if the finding has no such count.
fn evidence_count(verdict: &Verdict, name: &str) -> Option<u64> {
    verdict.evidence.get(name)?.as_u64()
}

/// `91 % of the TTFT of 34 requests`; `None` if the finding does not say so.
pub(super) fn describe_ttft_share(verdict: &Verdict) -> Option<String> {
    let share = verdict.evidence.get("ttft_share")?.as_f64()?;
    // Findings about late requests have this number under another name.
    let requests = verdict.evidence.get("ttft_share_requests").or_else(|| verdict.evidence.get("requests_late"))?;
    Some(format!("{} of the TTFT of {}", percent(share), plural(requests.as_u64()?, "request")))
}

labelled! {
    /// A problem of a request, worst first, in the order of the flag column.
    pub(crate) Flag {
        /// Tokens are missing on the wire.
        Loss = "WIRE-LOSS",
        /// Chunks were proven lost between receiver and client.
        Dropped = "DROPPED",
        /// The arguments of a tool call are not those that the engine sent.
        ToolCall = "TOOL-CALL",
        /// Its chunks went to more than one receiver of a hop.
        Moved = "MOVED",
        /// Chunks shared a wakeup on a release that drops all but the last.
        DropPredicted = "DROPPED?",
        /// No chunk arrived for a long time although the request is live.
        Stall = "STALL",
        /// The first token waits, or waited, for a long time.
        Gap = "GAP",
        /// Tokens are counted more than once.
        Inflated = "INFLATE",
        /// The scheduler continued it without a client, or after its abort.
        Abandoned = "ABANDON",
        Aborted = "ABORT",
        Retracted = "RETRACT",
    }
}

impl Flag {
    /// Explanation for the help.
    pub(crate) fn explanation(self) -> &'static str {
        match self {
            Self::Loss => "its frames list fewer tokens than they count: some were lost on the wire",
            Self::Dropped => "its tokens were lost between receiver and client, confirmed by deliveries",
            Self::ToolCall => "the arguments of a tool call are not those that the engine sent",
            Self::Moved => "its chunks went to more than one receiver, which decodes only what it received",
            Self::DropPredicted => "predicted drop: chunks shared a wakeup, and this release keeps only the last",
            Self::Stall => "it is unfinished and has had no new token for long",
            Self::Gap => "its first token waited too long or is still waiting",
            Self::Inflated => "its tokens so far were listed or counted as new ones",
            Self::Abandoned => "the scheduler continued it after its client disconnected or it was aborted",
            Self::Aborted => "it was aborted by the client, the engine or an error",
            Self::Retracted => "the engine removed it from the batch to free memory",
        }
    }

    fn bit(self) -> u16 {
        1 << self as u8
    }
}

/// Set of flags of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlagSet {
    bits: u16,
}

impl FlagSet {
    /// Adds the flag if `is_set`.
    pub(crate) fn set_if(&mut self, flag: Flag, is_set: bool) {
        if is_set {
            self.bits |= flag.bit();
        }
    }

    pub(crate) fn contains(self, flag: Flag) -> bool {
        self.bits & flag.bit() != 0
    }

    /// Flags that are set, worst first.
    pub(crate) fn iter(self) -> impl Iterator<Item = Flag> {
        Flag::ALL.into_iter().filter(move |flag| self.contains(*flag))
    }

    /// Severity, larger for worse. Only the worst flag counts. Aborts are ignored, because nobody waits for their tokens.
    pub(crate) fn severity(self) -> u8 {
        let bits = self.bits & !Flag::Aborted.bit();
        // The worst flag has the lowest bit. Without flags, all 16 bits are zero.
        let worst_index = bits.trailing_zeros().min(Flag::ALL.len() as u32);
        Flag::ALL.len() as u8 - worst_index as u8
    }

    pub(crate) fn is_empty(self) -> bool {
        self.bits == 0
    }
}

#[cfg(test)]
mod tests {
    use outputs::report::{FaultKind, Judgement, advise_on_unjudged};

    use super::*;

    #[test]
    fn the_advice_to_join_has_the_words_by_which_it_is_removed() {
        let judgement =
            |reason: &str| Judgement { fault: FaultKind::LateRequests, judged: false, reason: Some(reason.to_owned()) };
        let advice_on = |reason| advise_on_unjudged(&[judgement(reason)], "attach");
        let to_join = advice_on("requests wait for the other server of a pair");
        assert!(to_join.is_some_and(|advice| advice.contains(ADVICE_TO_JOIN)), "{to_join:?}");
        for (advice, is_left) in [(to_join, false), (advice_on("no response ended"), true)] {
            let mut verdict = RunVerdict { advice: advice.map(str::to_owned), ..RunVerdict::default() };
            verdict.remove_advice_to_join();
            assert_eq!(verdict.advice.is_some(), is_left, "{advice:?}");
        }
    }

    #[test]
    fn the_worst_flag_decides_the_weight() {
        let mut loss = FlagSet::default();
        let mut rest = FlagSet::default();
        loss.set_if(Flag::Loss, true);
        for flag in &Flag::ALL[1..] {
            rest.set_if(*flag, true);
        }
        assert!(loss.severity() > rest.severity());
        assert_eq!(rest.iter().next(), Some(Flag::Dropped));
    }
}
