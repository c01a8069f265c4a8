//! Tool calls whose arguments are not those that the engine sent.

use super::{DetectContext, Detector, Severity, Verdict};
use crate::event::ToolCallOutcome;
use crate::words::{count, plural};

pub(super) struct DamagedToolCalls;

impl Detector for DamagedToolCalls {
    fn kind(&self) -> &'static str {
        "damaged-tool-calls"
    }

    fn check(&self, context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
        let responses = context.ledger.tool_calls();
        let (seen, of_chunks) = (&responses.damaged, responses.damaged_chunks);
        if seen.rids == 0 {
            return;
        }
        let all: u64 = responses.outcomes.values().sum();
        let of = |outcome| responses.outcomes.get(&outcome).copied().unwrap_or_default();
        let (missing, repeated, swapped) = (
            of(ToolCallOutcome::Missing),
            of(ToolCallOutcome::Repeated),
            of(ToolCallOutcome::Swapped),
        );
        let summary = format!(
            "the arguments of tool calls in {} of {} are not those that the engine sent: missing text in {}, repeated in {}, swapped in {}",
            count(seen.rids),
            plural(all, "response"),
            count(missing),
            count(repeated),
            count(swapped),
        );
        let place = "the request screen has the place";
        let events = "the serving process or its parser loses or reorders events of a response";
        let parser = "a tool-call parser of the serving process changes the arguments";
        let advice = if of_chunks == seen.rids {
            format!("whole chunks are concerned: {events}; {place}")
        } else if of_chunks == 0 {
            format!("parts of chunks are concerned: {parser}; {place}")
        } else {
            format!(
                "in {} whole chunks are concerned: {events}; in the others parts of chunks: {parser}; {place}",
                count(of_chunks)
            )
        };
        found.push(
            Verdict::new(Severity::Warning, summary)
                .rid(&seen.worst)
                .since(seen.since)
                .weight(seen.rids)
                .with("responses", seen.rids)
                .with("responses_missing", missing)
                .with("responses_repeated", repeated)
                .with("responses_swapped", swapped)
                .with("responses_whole_chunks", of_chunks)
                .with("worst_characters", seen.amount)
                .advice(advice),
        );
    }
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
            let part = ArgumentsPart {
                at: 3,
                chars: 7,
                tokens: [4, 5],
                whole_chunks,
            };
            let calls = ToolCalls {
                calls: 1,
                call: 1,
                outcome,
                finish: None,
                part: Some(part),
            };
            let answer = Answer {
                tool_calls: Some(calls),
                ..Answer::new(rid, None, None)
            };
            scene.apply(1, What::Answered(answer));
            scene.check(&DamagedToolCalls, 2)
        };
        assert_eq!(answer("a", ToolCallOutcome::Unfinished, true).len(), 0);
        let found = answer("b", ToolCallOutcome::Missing, false);
        assert_eq!((&*found[0].rid, &found[0].evidence["responses"]), ("b", &1.into()));
        assert!(
            found[0]
                .advice
                .as_deref()
                .is_some_and(|advice| advice.contains("parser"))
        );
        assert!(found[0].summary.contains("1 of 2 responses"));
    }
}
