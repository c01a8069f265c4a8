//! Changes in the order of their weight, and the sentence about them.

use std::fmt::Write as _;

use trace::detect::Severity;

use super::{ChangePattern, ChangeVerdict, ComparedMeasure, FindingChange, FindingState, ProblemOutcome, ProblemState};

/// Kinds of findings about the same fact as a problem's outcome.
const KINDS_OF_PROBLEMS: [(&str, &str); 4] = [
    ("dropped-chunks", "lost tokens"),
    ("dropped-chunks-predicted", "lost tokens"),
    ("first-token-gap", "first-token gap"),
    ("merged-chunks", "merged chunks"),
];

/// A change of a problem or of a finding, or a critical finding that did not change or cannot be compared.
pub(super) struct RankedChange {
    /// `None` if it is no change.
    pub(super) is_worse: Option<bool>,
    /// `FIXED`, `NEW CRITICAL`.
    state: String,
    text: String,
}

fn became_critical(change: &FindingChange) -> bool {
    change.state.is_worse() && change.b.as_ref().is_some_and(|side| side.severity == Severity::Critical)
}

/// Whether the finding is the cause of a problem that changed.
fn is_about_problem(change: &FindingChange, outcome: &ProblemOutcome) -> bool {
    outcome.state.is_change() && problem_of_kind(&change.kind) == Some(outcome.name.as_str())
}

/// The problem that findings of this kind cause.
fn problem_of_kind(kind: &str) -> Option<&'static str> {
    KINDS_OF_PROBLEMS.iter().find(|(known, _)| *known == kind).map(|(_, problem)| *problem)
}

/// Changes by weight: findings that became critical, then problems that users notice, then other findings.
pub(super) fn rank_changes(outcomes: &[ProblemOutcome], findings: &[FindingChange]) -> Vec<RankedChange> {
    let mut ranked = Vec::new();
    for change in findings {
        if became_critical(change) {
            ranked.push(describe_finding_change(change));
        }
    }
    // Without them, the sentence about two runs that lose tokens would be an improvement elsewhere.
    for change in findings {
        let remains = match change.state {
            FindingState::Unchanged => !outcomes.iter().any(|outcome| is_about_problem(change, outcome)),
            state => state == FindingState::NotComparable,
        };
        if remains && change.severity() == Severity::Critical {
            ranked.push(describe_remaining_finding(change, outcomes));
        }
    }
    for outcome in outcomes {
        // A critical finding at the top already states the change of its problem.
        let is_stated = findings.iter().any(|change| became_critical(change) && is_about_problem(change, outcome));
        if outcome.state.is_change() && !is_stated {
            ranked.push(RankedChange {
                is_worse: Some(outcome.state == ProblemState::Regressed),
                state: outcome.state.as_str().to_owned(),
                text: name_with_numbers(outcome),
            });
        }
    }
    for change in findings {
        // Information needs nobody's attention.
        let needs_attention = change.severity() > Severity::Info;
        // One with a note may have been there before.
        let is_change = (change.state.is_worse() || change.state.is_better()) && change.note.is_none();
        let is_stated = became_critical(change) || outcomes.iter().any(|outcome| is_about_problem(change, outcome));
        if needs_attention && is_change && !is_stated {
            ranked.push(describe_finding_change(change));
        }
    }
    ranked
}

/// A critical finding that both runs have, or that cannot be compared. If both have it, the numbers of its problem describe it.
fn describe_remaining_finding(change: &FindingChange, outcomes: &[ProblemOutcome]) -> RankedChange {
    let ranked = describe_finding_change(change);
    let problem = outcomes.iter().find(|outcome| problem_of_kind(&change.kind) == Some(outcome.name.as_str()));
    match problem {
        Some(problem) if change.state == FindingState::Unchanged => {
            RankedChange { text: name_with_numbers(problem), ..ranked }
        }
        _ => ranked,
    }
}

/// The change of a finding in the words of the headline.
fn describe_finding_change(change: &FindingChange) -> RankedChange {
    let before = change.a.as_ref().map(|side| side.severity.as_str().to_uppercase());
    let after = change.b.as_ref().map(|side| side.severity.as_str().to_uppercase());
    let state = match (before, after) {
        (Some(before), Some(after)) if before != after => format!("{before} -> {after}"),
        (_, Some(after)) if change.state == FindingState::Unchanged => format!("STILL {after}"),
        (before, after) => format!("{} {}", change.state.as_str(), after.or(before).unwrap_or_default()),
    };
    let text = match (&change.a, &change.b) {
        (None, Some(new)) => format!("{}: {}", change.kind, numbers_of_summary(&new.summary)),
        (Some(gone), None) => format!("{}: {}", change.kind, gone.summary.split(": ").next().unwrap_or_default()),
        _ if change.numbers.is_empty() => change.name(),
        _ => format!("{} {}", change.name(), change.numbers),
    };
    let note = change.note.as_ref().map_or_else(String::new, |note| format!(" ({note})"));
    let is_change = change.state.is_worse() || change.state.is_better();
    RankedChange { is_worse: is_change.then(|| change.state.is_worse()), state, text: text + &note }
}

/// The clauses of a summary up to the first without a number, which explains and can be read below.
fn numbers_of_summary(summary: &str) -> String {
    let clauses = summary.split(": ").enumerate();
    let with_numbers =
        clauses.take_while(|(index, clause)| *index == 0 || clause.contains(|c: char| c.is_ascii_digit()));
    with_numbers.map(|(_, clause)| clause).collect::<Vec<_>>().join(": ")
}

/// One sentence for an incident: what changed, and the cause.
pub(super) fn summarise(
    ranked: &[RankedChange],
    outcomes: &[ProblemOutcome],
    measures: &[ComparedMeasure],
    patterns: &[ChangePattern],
) -> String {
    let mut sentence = String::new();
    let mut last_state = "";
    let is_unchanged = ranked.iter().all(|change| change.is_worse.is_none());
    let unchanged = if is_unchanged { describe_measures(outcomes, measures) } else { String::new() };
    for change in ranked.iter().filter(|change| !unchanged.contains(&change.text)) {
        if change.state == last_state {
            sentence += ", ";
        } else {
            let separator = if sentence.is_empty() { "" } else { "; " };
            let _ = write!(sentence, "{separator}{}: ", change.state);
        }
        sentence += &change.text;
        last_state = &change.state;
    }
    if is_unchanged {
        let separator = if sentence.is_empty() { "" } else { "; " };
        return sentence + separator + &unchanged;
    }
    let mut last_explained = None;
    for pattern in patterns.iter().filter(|pattern| !pattern.explains.is_empty()) {
        let mut changed = outcomes.iter().filter(|outcome| outcome.state.is_change());
        // A cause of one change may have nothing to do with the others.
        let explained = if changed.any(|outcome| !pattern.explains.contains(&outcome.name)) {
            format!(" ({})", pattern.explains.join(", "))
        } else {
            String::new()
        };
        let separator =
            if last_explained.as_ref() == Some(&explained) { ", " } else { &format!("; cause{explained}: ") };
        sentence += separator;
        sentence += &pattern.title;
        last_explained = Some(explained);
    }
    sentence
}

/// `lost tokens 12 -> 0`.
fn name_with_numbers(outcome: &ProblemOutcome) -> String {
    format!("{} {}", outcome.name, outcome.numbers).trim_end().to_owned()
}

/// Problems that did not change, by state: `unchanged: lost tokens 0 -> 0; not observed: merged chunks`. Those of the verdict are not repeated.
pub(super) fn describe_unchanged(outcomes: &[ProblemOutcome], verdict: &str) -> String {
    let mut parts = Vec::new();
    for state in [ProblemState::Unchanged, ProblemState::NotEnoughData, ProblemState::NotObserved] {
        let of_state = outcomes.iter().filter(|outcome| outcome.state == state).map(name_with_numbers);
        let names: Vec<String> = of_state.filter(|name| !verdict.contains(name.as_str())).collect();
        if !names.is_empty() {
            parts.push(format!("{}: {}", state.as_str().to_lowercase(), names.join(", ")));
        }
    }
    parts.join("; ")
}

/// State of a comparison in which neither a problem nor a finding changed, by its measures, with the first few that changed.
fn describe_measures(outcomes: &[ProblemOutcome], measures: &[ComparedMeasure]) -> String {
    let mut judged = measures.iter().map(|measure| measure.verdict);
    if judged.all(|verdict| matches!(verdict, ChangeVerdict::NotComparable | ChangeVerdict::NotEnoughData)) {
        return String::from("NOT ENOUGH DATA: no measure has enough slots under load in both runs");
    }
    let worse: Vec<_> = measures.iter().filter(|measure| measure.verdict == ChangeVerdict::Worse).collect();
    let better: Vec<_> = measures.iter().filter(|measure| measure.verdict == ChangeVerdict::Better).collect();
    let lacks_data = outcomes.iter().any(|outcome| outcome.state == ProblemState::NotEnoughData);
    let is_nothing_known =
        outcomes.iter().all(|outcome| !outcome.state.is_change() && outcome.state != ProblemState::Unchanged);
    let state = if !worse.is_empty() {
        ProblemState::Regressed
    } else if !better.is_empty() {
        ProblemState::Improved
    } else if lacks_data || is_nothing_known {
        ProblemState::NotEnoughData
    } else {
        ProblemState::Unchanged
    };
    let mut parts = Vec::new();
    for measure in worse.into_iter().chain(better).take(3) {
        parts.push(format!("{} {} ({})", measure.name, measure.verdict.as_str(), measure.change_text()));
    }
    for outcome in outcomes.iter().filter(|outcome| outcome.state == state) {
        parts.push(name_with_numbers(outcome));
    }
    if parts.is_empty() {
        let names: Vec<&str> = outcomes.iter().map(|outcome| outcome.name.as_str()).collect();
        parts.push(format!("the runs do not both observe {}", names.join(", ")));
    }
    format!("{}: {}", state.as_str(), parts.join(", "))
}
