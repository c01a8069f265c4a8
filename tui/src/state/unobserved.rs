//! Numbers, flags and states that the run does not observe, with the reason. A filter on one finds nothing.

use trace::MonoNs;
use trace::columns::Number;
use trace::path;
use trace::words::plural;

use super::Model;
use super::filter::{Condition, NamedFinding, RequestFilter, WaitOnHop};
use super::flags::Flag;
use super::request_row::RequestState;

impl Model {
    /// Whether a receiver of output is known. Before, nothing shows whether its receives are observed.
    pub(crate) fn knows_receiver(&self) -> bool {
        self.output_hops().any(|hop| &*hop.ends.to != path::UNKNOWN)
    }

    /// Names the requests that may wait now without being counted. A request is known from its dispatch on or, if dispatches are not
    /// observed, from its first token on.
    pub(crate) fn describe_uncounted_requests(&self) -> &'static str {
        // Dispatches are the frames on the hop to the scheduler.
        let observes_dispatches = self.hops.iter().any(|hop| hop.carries_requests);
        if observes_dispatches {
            "requests before dispatch are not observed"
        } else {
            "requests before their first token are not observed"
        }
    }

    /// Why nothing is known of receives.
    pub(crate) fn explain_unobserved_receives(&self) -> &'static str {
        if self.knows_receiver() { "receives are not observed" } else { "nothing received yet" }
    }

    /// Why nothing is known of deliveries.
    pub(crate) fn explain_unobserved_deliveries(&self) -> &'static str {
        if self.knows_receiver() { "deliveries are not observed" } else { "nothing delivered yet" }
    }

    /// Why nothing is known after an observation has ended.
    pub(crate) fn describe_observation_end(&self, end: MonoNs) -> String {
        format!("not observed since {}", self.format_moment(end.since(self.started_at)))
    }

    /// Explains the first term of the filter that is about something this run does not show; `None` without one. No request matches such a
    /// term, and each request matches its negation.
    pub(crate) fn explain_unobserved_term(&self, filter: &RequestFilter) -> Option<String> {
        filter.conditions().find_map(|condition| match *condition {
            Condition::Number { head, number_of, .. } => self.explain_missing_number(head, number_of),
            Condition::Flag(flag) => self.explain_impossible_flag(flag),
            Condition::State(state) => self.explain_empty_state(state),
            Condition::Waited(ref wait) => self.explain_unknown_waits(wait),
            Condition::OfFinding(ref named) => explain_unknown_finding_requests(named),
            Condition::Rid(_) | Condition::InFlight(_) | Condition::InFlightDuring(_) | Condition::BegunSince(_) => {
                None
            }
        })
    }

    /// Why nothing is known of first-token gaps, which need both ends.
    pub(crate) fn explain_unobserved_gaps(&self) -> &'static str {
        if self.tokens.received.is_some() { "sends are not observed" } else { self.explain_unobserved_receives() }
    }

    /// Why this run does not show the number in the column with this heading; `None` if it could.
    fn explain_unshown_number(&self, heading: &str) -> Option<&'static str> {
        match heading {
            "gap" if self.gap.waiting.is_none() => Some(self.explain_unobserved_gaps()),
            "recv" if self.tokens.received.is_none() => Some(self.explain_unobserved_receives()),
            "deliv" | "merged" | "drop" | "lost" if self.chunks.delivered.is_none() => {
                Some(self.explain_unobserved_deliveries())
            }
            // Deliveries are observed, but not their tokens.
            "deliv" if self.tokens.delivered.is_none() => Some("responses carry text only"),
            "ttft" if self.ttft.is_none() => {
                Some("no request was seen from its arrival or dispatch to its first token")
            }
            // Any run may show the others.
            _ => None,
        }
    }

    /// Explains why a filter for this state lists no request: the run does not show which requests have the state. `None` if the filter
    /// lists some, or if the run shows all that have the state.
    fn explain_empty_state(&self, state: RequestState) -> Option<String> {
        // Any run shows the other states.
        if state != RequestState::Waiting {
            return None;
        }
        let Some(waiting) = self.gap.waiting else {
            return Some(format!("state:waiting is not observed in this run: {}", self.explain_unobserved_gaps()));
        };
        let lists_some = waiting.requests > 0 || self.unanswered_requests > 0;
        if lists_some {
            return None;
        }
        // A dispatched request gets its row when its first token is sent.
        let unlisted = match self.gap.without_token {
            Some(waiting) if waiting.requests > 0 => {
                format!("{} have none yet and are not listed, ", plural(waiting.requests, "dispatched request"))
            }
            _ => String::new(),
        };
        Some(format!("state:waiting has requests with a first token: {unlisted}{}", self.describe_uncounted_requests()))
    }

    /// Why no request can have this flag; `None` if one could.
    fn explain_impossible_flag(&self, flag: Flag) -> Option<String> {
        let reason = match flag {
            Flag::Gap => self.explain_unshown_number("gap"),
            Flag::Dropped => self.explain_unshown_number("drop"),
            Flag::ToolCall if self.chunks.delivered.is_none() => Some(self.explain_unobserved_deliveries()),
            Flag::DropPredicted if self.chunks.dropped_predicted.is_none() => {
                Some("frames per wakeup or the behaviour of this release are not known")
            }
            _ => None,
        };
        reason.map(|reason| format!("{} is not observed in this run: {reason}", flag.label()))
    }

    /// Why waits on a hop are not known; `None` if they are.
    fn explain_unknown_waits(&self, wait: &WaitOnHop) -> Option<String> {
        let Some(hop) = self.hops.iter().find(|hop| wait.is_on(&hop.name)) else {
            let names: Vec<String> = self.hops.iter().map(|hop| hop.name.replace(' ', "_")).collect();
            return Some(format!("no hop is named {}: the hops are {}", wait.hop, names.join(", ")));
        };
        // Only observed receives show a backlog and waits.
        let is_unobserved = hop.backlog_max_frames.is_none();
        is_unobserved.then(|| format!("waits on {} are not observed in this run", hop.name))
    }

    /// Why no request has this number; `None` if one has it.
    fn explain_missing_number(&self, head: &str, number: Number) -> Option<String> {
        if self.table.has_number(number) {
            return None;
        }
        Some(match self.explain_unshown_number(head) {
            Some(reason) => format!("{head} is not observed in this run: {reason}"),
            None => format!("{head} is not known of any request{}", hint_on_missing_number(head)),
        })
    }
}

/// Why the requests of a finding are not known; `None` if the finding counts some.
fn explain_unknown_finding_requests(named: &NamedFinding) -> Option<String> {
    let kind = named.kind;
    match &named.requests {
        None => Some(format!("the run has no finding {kind}")),
        Some(requests) if requests.counted() == 0 => Some(format!(
            "which requests {kind} counts is not kept: `f` on the finding lists those that its time and place show"
        )),
        Some(_) => None,
    }
}

/// Why no request has this number, as the end of a sentence; empty if nothing is known of that.
fn hint_on_missing_number(head: &str) -> &'static str {
    match head {
        "worker" => ": the engine has one receiver",
        "silence" => ": none has sent two chunks",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::super::request_row::number_columns;

    /// A misspelt name would never have a reason.
    #[test]
    fn the_numbers_with_reasons_are_columns() {
        for head in ["gap", "recv", "deliv", "merged", "drop", "lost", "ttft", "worker", "silence"] {
            assert!(number_columns().any(|number| number.on_screen.head == head), "{head}");
        }
    }
}
