//! Changes in the order of their weight, and the sentence about them.

use trace::detect::Severity;

use super::finding_change::Direction;
use super::{ChangePattern, ChangeVerdict, ComparedMeasure, FindingChange, FindingState, ProblemOutcome, ProblemState};

/// A change of a problem or of a finding, or a critical finding that did not change or cannot be compared.
pub(super) struct RankedChange {
    pub(super) direction: Direction,
    /// Only the second run has it, or it is worse there. Whether it is new may be unknown.
    may_be_worse: bool,
    /// `FIXED`, `NEW CRITICAL`.
    state: String,
    text: String,
}

/// Maximum number of changes in the sentence, which a reader takes in at once.
const MAX_CHANGES: usize = 2;

/// Changes of the sentence, and the others.
struct ShownChanges<'c> {
    shown: Vec<&'c RankedChange>,
    others: Vec<&'c RankedChange>,
}

impl<'c> ShownChanges<'c> {
    /// Shows the first [`MAX_CHANGES`]. If none of them may be for the worse, but a later change may be, that change takes the last place.
    fn select_from_ranked(ranked: &'c [RankedChange]) -> Self {
        let mut changes: Vec<&RankedChange> = ranked.iter().collect();
        let first_worse = changes.iter().position(|change| change.may_be_worse);
        // No sentence may hide that something became worse.
        if let Some(first_worse) = first_worse
            && first_worse >= MAX_CHANGES
        {
            let worse = changes.remove(first_worse);
            changes.insert(MAX_CHANGES - 1, worse);
        }
        let others = changes.split_off(changes.len().min(MAX_CHANGES));
        Self { shown: changes, others }
    }

    /// `; and 3 more`; empty if all are shown.
    fn count_of_others(&self) -> String {
        if self.others.is_empty() { String::new() } else { format!("; and {} more", self.others.len()) }
    }
}

/// Whether the finding is critical in the second run, and new or worse there.
fn became_critical(change: &FindingChange) -> bool {
    change.state.is_worse() && change.b.as_ref().is_some_and(|side| side.severity == Severity::Critical)
}

/// Whether the finding and this outcome of a problem state the same fact.
fn is_about_problem(change: &FindingChange, outcome: &ProblemOutcome) -> bool {
    let problem_name = match change.kind.as_str() {
        "dropped-chunks" | "dropped-chunks-predicted" => "lost tokens",
        "first-token-gap" => "first-token gap",
        "merged-chunks" => "merged chunks",
        _ => return false,
    };
    outcome.name == problem_name
}

/// Whether a problem that changed states the same fact as the finding.
fn is_about_changed_problem(change: &FindingChange, outcomes: &[ProblemOutcome]) -> bool {
    outcomes.iter().any(|outcome| outcome.state.is_change() && is_about_problem(change, outcome))
}

/// Changes in the order of their weight: findings that became critical, critical findings that lasted or cannot be compared, problems, and
/// other findings. A finding is the verdict of one detector. A problem is what users notice, such as lost tokens.
pub(super) fn rank_changes(outcomes: &[ProblemOutcome], findings: &[FindingChange]) -> Vec<RankedChange> {
    let mut ranked = Vec::new();
    for change in findings.iter().filter(|change| became_critical(change)) {
        ranked.push(describe_finding_change(change));
    }
    // Without lasting findings, the sentence about two runs that both lose tokens would report only an improvement elsewhere.
    for change in findings.iter().filter(|change| is_lasting_critical_finding(change, outcomes)) {
        ranked.push(describe_lasting_finding(change, outcomes));
    }
    for outcome in outcomes.iter().filter(|outcome| outcome.state.is_change()) {
        // A finding that became critical may state the same fact.
        if !is_stated_as_critical(outcome, findings) {
            ranked.push(describe_problem_change(outcome));
        }
    }
    for change in findings.iter().filter(|change| is_unstated_change_needing_attention(change, outcomes)) {
        ranked.push(describe_finding_change(change));
    }
    ranked
}

/// Whether a finding that became critical already states the change of this problem.
fn is_stated_as_critical(outcome: &ProblemOutcome, findings: &[FindingChange]) -> bool {
    findings.iter().any(|change| became_critical(change) && is_about_problem(change, outcome))
}

/// Whether the finding changed, needs attention, and is not stated as a critical finding or as a problem.
fn is_unstated_change_needing_attention(change: &FindingChange, outcomes: &[ProblemOutcome]) -> bool {
    let needs_attention = change.severity() > Severity::Info;
    let is_stated = became_critical(change)
        || is_lasting_critical_finding(change, outcomes)
        || is_about_changed_problem(change, outcomes);
    needs_attention && change.state != FindingState::Unchanged && !is_stated
}

/// The change of a problem in the words of the headline.
fn describe_problem_change(outcome: &ProblemOutcome) -> RankedChange {
    let is_worse = outcome.state == ProblemState::Regressed;
    RankedChange {
        direction: if is_worse { Direction::Worse } else { Direction::Better },
        may_be_worse: is_worse,
        state: outcome.state.as_str().to_owned(),
        text: name_with_numbers(outcome),
    }
}

/// Whether it is a critical finding that did not change or cannot be compared. An unchanged one is left out if a changed problem already
/// states it.
fn is_lasting_critical_finding(change: &FindingChange, outcomes: &[ProblemOutcome]) -> bool {
    if change.severity() != Severity::Critical {
        return false;
    }
    match change.state {
        FindingState::Unchanged => !is_about_changed_problem(change, outcomes),
        FindingState::NotComparable => true,
        FindingState::New | FindingState::Worse | FindingState::Better | FindingState::Gone => false,
    }
}

/// A lasting critical finding in the words of the headline. If it is unchanged, the numbers of its problem replace its own text.
fn describe_lasting_finding(change: &FindingChange, outcomes: &[ProblemOutcome]) -> RankedChange {
    let mut ranked = describe_finding_change(change);
    if change.state == FindingState::Unchanged
        && let Some(problem) = outcomes.iter().find(|outcome| is_about_problem(change, outcome))
    {
        ranked.text = name_with_numbers(problem);
    }
    ranked
}

/// The change of a finding in the words of the headline.
fn describe_finding_change(change: &FindingChange) -> RankedChange {
    let mut text = name_finding_with_numbers(change);
    if let Some(note) = &change.note {
        append!(text, " ({note})");
    }
    // A new finding with a note may not be new: the first run could not have shown it.
    let is_uncertain = change.note.is_some() && !became_critical(change);
    let direction = if is_uncertain { Direction::Same } else { change.state.direction() };
    RankedChange { direction, may_be_worse: change.state.is_worse(), state: describe_state_and_severity(change), text }
}

/// Names a finding with its numbers: those of its summary if only one run has it, or else those of both runs.
fn name_finding_with_numbers(change: &FindingChange) -> String {
    let (in_first_run, in_second_run) = (&change.a, &change.b);
    match (in_first_run, in_second_run) {
        (None, Some(new)) => format!("{}: {}", change.kind, keep_first_parts_with_numbers(&new.summary)),
        // Only the first clause: the others explain a finding that is gone.
        (Some(gone), None) => format!("{}: {}", change.kind, split_outside_parentheses(&gone.summary, ": ")[0]),
        _ => format!("{} {}", change.name(), change.numbers).trim_end().to_owned(),
    }
}

/// State and severity of a finding: `WARNING -> CRITICAL`, `STILL CRITICAL`, `NEW WARNING`.
fn describe_state_and_severity(change: &FindingChange) -> String {
    // A run that does not have the finding has no severity of it.
    let before = change.a.as_ref().map(|side| side.severity.as_str().to_uppercase());
    let after = change.b.as_ref().map(|side| side.severity.as_str().to_uppercase());
    if let (Some(before), Some(after)) = (&before, &after)
        && before != after
    {
        return format!("{before} -> {after}");
    }
    let severity = after.or(before).unwrap_or_default();
    let state = if change.state == FindingState::Unchanged { "STILL" } else { change.state.as_str() };
    format!("{state} {severity}")
}

/// Splits a text at the separators outside parentheses. Without such a separator, the whole text is the only part.
fn split_outside_parentheses<'t>(text: &'t str, separator: &str) -> Vec<&'t str> {
    let mut parts = Vec::new();
    let mut part_start = 0;
    for (separator_start, _) in text.match_indices(separator) {
        let part = &text[part_start..separator_start];
        let is_inside_parentheses = part.matches('(').count() > part.matches(')').count();
        if !is_inside_parentheses {
            parts.push(part);
            part_start = separator_start + separator.len();
        }
    }
    parts.push(&text[part_start..]);
    parts
}

/// Cuts a summary before its explanation: keeps the first clause, and the clauses with numbers that directly follow it. Colons separate the
/// clauses. The explanation is in the list of findings below the headline.
fn cut_explanation(summary: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for clause in split_outside_parentheses(summary, ": ") {
        let is_first = kept.is_empty();
        let has_number = clause.contains(|c: char| c.is_ascii_digit());
        if !is_first && !has_number {
            break;
        }
        kept.push(clause);
    }
    kept.join(": ")
}

/// The clauses with numbers at the beginning of a finding's summary. Semicolons separate their parts. Leaves out the parts that would make
/// the text too long.
fn keep_first_parts_with_numbers(summary: &str) -> String {
    /// Maximum length in bytes, which only the first part may exceed.
    const MAX_LENGTH: usize = 110;
    let mut text = String::new();
    for part in split_outside_parentheses(&cut_explanation(summary), "; ") {
        if !text.is_empty() && text.len() + part.len() > MAX_LENGTH {
            break;
        }
        let separator = if text.is_empty() { "" } else { "; " };
        append!(text, "{separator}{part}");
    }
    text
}

/// The headline of the comparison in one sentence: the changes of problems and findings with their causes. If none changed for better or
/// worse, the measures that changed.
pub(super) fn summarise_changes(
    ranked: &[RankedChange],
    outcomes: &[ProblemOutcome],
    measures: &[ComparedMeasure],
    patterns: &[ChangePattern],
) -> String {
    let changes = ShownChanges::select_from_ranked(ranked);
    let stated = join_changes_by_state(&changes.shown) + &changes.count_of_others();
    let has_changes = ranked.iter().any(|change| change.direction != Direction::Same);
    if has_changes {
        let causes = describe_causes_of_stated_problems(&stated, outcomes, patterns);
        return stated + &causes;
    }
    let measures_text = describe_measures_and_unstated_problems(&stated, outcomes, measures);
    let separator = if stated.is_empty() || measures_text.is_empty() { "" } else { "; " };
    format!("{stated}{separator}{measures_text}")
}

/// Changes that the sentence only counts: `REGRESSED: merged chunks 0.0 % -> 30.0 %`; empty without any.
pub(super) fn describe_others(outcomes: &[ProblemOutcome], findings: &[FindingChange]) -> String {
    let ranked = rank_changes(outcomes, findings);
    join_changes_by_state(&ShownChanges::select_from_ranked(&ranked).others)
}

/// Joins changes, with one heading for those of the same state in a row: `FIXED: lost tokens 12 -> 0; NEW WARNING: backlog, queued`.
fn join_changes_by_state(changes: &[&RankedChange]) -> String {
    let mut text = String::new();
    let mut last_state = "";
    for change in changes {
        if change.state == last_state {
            text += ", ";
        } else {
            let separator = if text.is_empty() { "" } else { "; " };
            append!(text, "{separator}{}: ", change.state);
        }
        text += &change.text;
        last_state = &change.state;
    }
    text
}

/// Causes of the changed problems that the sentence states, to be appended to it: `; cause: incremental output was enabled`.
fn describe_causes_of_stated_problems(
    sentence_so_far: &str,
    outcomes: &[ProblemOutcome],
    patterns: &[ChangePattern],
) -> String {
    let mut text = String::new();
    let mut last_explained = None;
    for pattern in patterns {
        // A problem is stated if the sentence contains its name.
        let explains_stated = pattern.explains.iter().any(|name| sentence_so_far.contains(name.as_str()));
        if !explains_stated {
            continue;
        }
        let explained = name_explained_problems(pattern, outcomes);
        // Causes of the same problems share one heading.
        if last_explained.as_ref() == Some(&explained) {
            text += ", ";
        } else {
            append!(text, "; cause{explained}: ");
        }
        text += &pattern.title;
        last_explained = Some(explained);
    }
    text
}

/// Problems that a cause explains, in parentheses; empty if it explains all that changed.
fn name_explained_problems(cause: &ChangePattern, outcomes: &[ProblemOutcome]) -> String {
    let mut changed = outcomes.iter().filter(|outcome| outcome.state.is_change());
    let explains_all = changed.all(|outcome| cause.explains.contains(&outcome.name));
    if explains_all { String::new() } else { format!(" ({})", cause.explains.join(", ")) }
}

/// `lost tokens 12 -> 0`.
fn name_with_numbers(outcome: &ProblemOutcome) -> String {
    format!("{} {}", outcome.name, outcome.numbers).trim_end().to_owned()
}

/// Problems that did not change, by state: `unchanged: lost tokens 0 in both runs; not observed: merged chunks`.
/// Leaves out those that the verdict states.
pub(super) fn describe_unchanged_problems(outcomes: &[ProblemOutcome], verdict: &str) -> String {
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

/// Whether a problem has not enough data for an outcome, or no problem has a known outcome.
fn is_data_lacking(outcomes: &[ProblemOutcome]) -> bool {
    let lacks_data = outcomes.iter().any(|outcome| outcome.state == ProblemState::NotEnoughData);
    let is_any_known =
        outcomes.iter().any(|outcome| outcome.state.is_change() || outcome.state == ProblemState::Unchanged);
    lacks_data || !is_any_known
}

/// State of a comparison in which neither a problem nor a finding changed. A measure that became worse outweighs those that became better.
fn state_of_measures(outcomes: &[ProblemOutcome], measures: &[ComparedMeasure]) -> ProblemState {
    if measures.iter().any(|measure| measure.verdict == ChangeVerdict::Worse) {
        ProblemState::Regressed
    } else if measures.iter().any(|measure| measure.verdict == ChangeVerdict::Better) {
        ProblemState::Improved
    } else if is_data_lacking(outcomes) {
        ProblemState::NotEnoughData
    } else {
        ProblemState::Unchanged
    }
}

/// The measures that became worse, then those that became better, each with its change.
fn describe_changed_measures(measures: &[ComparedMeasure]) -> Vec<String> {
    let worse = measures.iter().filter(|measure| measure.verdict == ChangeVerdict::Worse);
    let better = measures.iter().filter(|measure| measure.verdict == ChangeVerdict::Better);
    let changed = worse.chain(better);
    changed
        .map(|measure| format!("{} {} ({})", measure.name, measure.verdict.as_str(), measure.change_text()))
        .collect()
}

/// Text for two runs without a changed problem or finding: the state of the comparison, and the measures that changed. Adds the problems in
/// the same state that `sentence_so_far` does not name. Empty if that would add nothing to `sentence_so_far`.
fn describe_measures_and_unstated_problems(
    sentence_so_far: &str,
    outcomes: &[ProblemOutcome],
    measures: &[ComparedMeasure],
) -> String {
    if !is_any_compared(measures) {
        return String::from("NOT ENOUGH DATA: no measure has enough slots under load in both runs");
    }
    let state = state_of_measures(outcomes, measures);
    let outcomes_in_state = outcomes.iter().filter(|outcome| outcome.state == state);
    let problems: Vec<String> = outcomes_in_state.map(name_with_numbers).collect();
    let unstated = problems.iter().filter(|problem| !sentence_so_far.contains(problem.as_str())).cloned();
    let mut parts = describe_changed_measures(measures);
    parts.extend(unstated);
    let has_stated_all = parts.is_empty() && !problems.is_empty();
    if has_stated_all {
        return String::new();
    }
    // Without problems in this state, each problem is observed by at most one run.
    if parts.is_empty() {
        let names: Vec<&str> = outcomes.iter().map(|outcome| outcome.name.as_str()).collect();
        parts.push(format!("the runs do not both observe {}", names.join(", ")));
    }
    format!("{}: {}", state.as_str(), join_first_parts(parts))
}

/// Whether both runs have enough data of any measure to compare it.
fn is_any_compared(measures: &[ComparedMeasure]) -> bool {
    let mut verdicts = measures.iter().map(|measure| measure.verdict);
    verdicts.any(|verdict| !matches!(verdict, ChangeVerdict::NotComparable | ChangeVerdict::NotEnoughData))
}

/// Joins the first [`MAX_CHANGES`] parts, and counts the others: `gap, backlog and 2 more`.
fn join_first_parts(mut parts: Vec<String>) -> String {
    let others = parts.len().saturating_sub(MAX_CHANGES);
    parts.truncate(MAX_CHANGES);
    let rest = if others > 0 { format!(" and {others} more") } else { String::new() };
    format!("{}{rest}", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_summary_is_cut_within_parentheses() {
        let thread = "the tokenizer thread was waiting for a CPU 25 % of the time while 35 frames waited on a->b, the oldest for 281.4 ms";
        let summary = format!("{thread} (75 % running; 25 % waiting for a CPU: 0 % asleep); 9 others; and a long rest");
        let whole = format!("{thread} (75 % running; 25 % waiting for a CPU: 0 % asleep)");
        assert_eq!(keep_first_parts_with_numbers(&summary), whole);
        assert_eq!(split_outside_parentheses("a; b (c; d) e; f", "; "), ["a", "b (c; d) e", "f"]);
    }
}
