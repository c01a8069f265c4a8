//! Tool calls whose arguments are not those that the engine sent.

use super::{DetectContext, Severity, Verdict};
use crate::event::ToolCallOutcome;
use crate::words::{count, plural};

pub(super) fn check(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    let responses = context.ledger.tool_calls();
    let (seen, by_parser) = (&responses.damaged, responses.damaged_by_parser);
    if seen.rids == 0 {
        return;
    }
    let all: u64 = responses.outcomes.values().sum();
    let of = |outcome| responses.outcomes.get(&outcome).copied().unwrap_or_default();
    let (missing, repeated, swapped, garbled) = (
        of(ToolCallOutcome::Missing),
        of(ToolCallOutcome::Repeated),
        of(ToolCallOutcome::Swapped),
        of(ToolCallOutcome::Garbled),
    );
    let kinds = [
        (missing, "missing text"),
        (repeated, "repeated text"),
        (swapped, "swapped text"),
        (garbled, "cut characters"),
    ];
    let kinds = kinds.iter().filter(|(n, _)| *n > 0);
    let kinds: Vec<_> = kinds.map(|(n, kind)| format!("{kind} in {}", count(*n))).collect();
    let summary = format!(
        "the arguments of tool calls in {} of {} are not those that the engine sent: {}",
        count(seen.rids),
        plural(all, "response"),
        kinds.join(", "),
    );
    let place = "the request screen has the place";
    let events = "the serving process loses, repeats or reorders chunks or events";
    let parser = "its tool-call parser changes the arguments";
    let advice = if by_parser == 0 {
        format!("{events}; {place}")
    } else if by_parser == seen.rids {
        format!("{parser} within chunks and events; {place}")
    } else {
        format!("in {} {parser} within chunks and events; in the others {events}; {place}", count(by_parser))
    };
    found.push(
        Verdict::new(Severity::Warning, summary)
            .affected(seen)
            .weight(seen.rids)
            .with("responses", seen.rids)
            .with("responses_missing", missing)
            .with("responses_repeated", repeated)
            .with("responses_swapped", swapped)
            .with("responses_garbled", garbled)
            .with("responses_by_parser", by_parser)
            .with("worst_characters", seen.amount)
            .advice(advice),
    );
}

#[cfg(test)]
mod tests {
    use super::super::scene::Scene;
    use super::*;
    use crate::event::{Answer, ArgumentsPart, ToolCalls, What};

    #[test]
    fn only_damaged_tool_calls_are_reported() {
        let mut scene = Scene::delivering();
        let mut answer = |rid, outcome, whole_chunks| {
            let part =
                ArgumentsPart { at: 3, chars: 7, tokens: [4, 5], whole_chunks, events: [1, 1], whole_events: false };
            let calls = ToolCalls {
                calls: 1,
                absent: 0,
                call: 1,
                outcome,
                reason: None,
                finish: None,
                events: 2,
                part: Some(part),
            };
            let answer = Answer { tool_calls: Some(calls), ..Answer::new(rid, None, None) };
            scene.apply(1, What::Answered(answer));
            scene.check(check, 2)
        };
        assert_eq!(answer("a", ToolCallOutcome::Unfinished, true).len(), 0);
        let found = answer("b", ToolCallOutcome::Missing, false);
        assert_eq!((&*found[0].rid, &found[0].evidence["responses"]), ("b", &1.into()));
        assert!(found[0].advice.as_deref().is_some_and(|advice| advice.contains("parser")));
        assert!(found[0].summary.contains("1 of 2 responses"));
    }
}
