//! Filter of the request table: `gap>1s drop>0 rid:5b92 state:live -flag:abort`. All terms must match.
//!
//! An unobservable number matches no comparison, neither `gap>1s` nor `gap<1s`.

use std::fmt;

use session::playback::Position;
use trace::columns::Number;

use super::flags::Flag;
use super::request_row::{RequestRow, RequestState, number_columns};
use super::run_time::{RunClock, RunSpan, TypedTime};

/// A parsed filter, identified by its text. The empty filter matches every row.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestFilter {
    pub(crate) text: String,
    terms: Vec<FilterTerm>,
}

impl PartialEq for RequestFilter {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

#[derive(Clone, Debug)]
struct FilterTerm {
    /// First character in the text.
    position: usize,
    is_negated: bool,
    condition: Condition,
}

#[derive(Clone, Debug)]
pub(super) enum Condition {
    /// The rid contains this text, ignoring case.
    Rid(String),
    State(RequestState),
    Flag(Flag),
    Number {
        /// Name of its column.
        head: &'static str,
        of: Number,
        compare: NumberComparison,
        value: u64,
    },
    /// The request was in flight at this moment, as the number of live requests counts it.
    InFlight(TypedTime),
    /// The request was in flight at some time from `from` to the end of the second or decimal `to`.
    InFlightDuring {
        from: TypedTime,
        to: TypedTime,
    },
    /// The request began at this time or later.
    BegunSince(TypedTime),
}

/// Other names of columns.
const COLUMN_ALIASES: [(&str, &str); 4] =
    [("tokens", "sent"), ("received", "recv"), ("delivered", "deliv"), ("dropped", "drop")];

type NumberComparison = fn(u64, u64) -> bool;

/// Signs between a name and a value; a longer sign precedes its own prefix.
const COMPARISONS: [(&str, NumberComparison); 6] = [
    (">=", |n, value| n >= value),
    ("<=", |n, value| n <= value),
    (">", |n, value| n > value),
    ("<", |n, value| n < value),
    ("=", |n, value| n == value),
    (":", |n, value| n == value),
];

/// A syntax error in a filter, with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FilterSyntaxError {
    /// First wrong character, counted from 0.
    pub(crate) position: usize,
    /// Description of the error and of the expected input.
    pub(crate) message: String,
}

impl fmt::Display for FilterSyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {}: {}", self.position + 1, self.message)
    }
}

/// Terms with their meaning, for the help.
pub(crate) fn syntax_help() -> impl Iterator<Item = (&'static str, String)> {
    let numbers = format!("numbers: {}", number_names().join(" "));
    [
        ("5b92", "the rid contains 5b92 (also rid:5b92)"),
        ("gap>1s", &*numbers),
        ("", "with > >= < <= = ; durations in ns us ms s m h, counts with k or M"),
        ("at:14:59:08", "in flight at that moment (UTC), also at:3.9s from the start; at:14:59 in that minute"),
        ("at:1:20..1:30", "in flight at any time of that span, also at:14:59:00..14:59:10"),
        ("since:14:59", "it began then or later"),
        ("ttft>1s", "a span of a number has two terms: ttft>1s ttft<=5s"),
        ("worker:1", "it goes to receiver 1"),
        ("state:live", "waiting, live, finished, aborted or orphaned"),
        ("flag:dropped", &Flag::ALL.map(Flag::label).join(" ")),
        ("-state:finished", "`-` negates a term; all terms must match"),
    ]
    .map(|(term, what)| (term, what.to_owned()))
    .into_iter()
}

/// Names by which a filter can refer to numbers.
fn number_names() -> Vec<&'static str> {
    number_columns().map(|number| number.on_screen.head).collect()
}

impl RequestFilter {
    pub(crate) fn parse(text: &str) -> Result<Self, FilterSyntaxError> {
        let mut terms = Vec::new();
        let mut position = 0;
        for word in text.split(' ') {
            if !word.is_empty() {
                terms.push(parse_term(word, position)?);
            }
            // In characters, as the cursor counts.
            position += word.chars().count() + 1;
        }
        Ok(Self { text: text.trim_matches(' ').to_owned(), terms })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Reads times that have two readings by the run.
    pub(crate) fn settle_times(&mut self, span: RunSpan) {
        for term in &mut self.terms {
            match &mut term.condition {
                Condition::InFlight(time) => time.settle(span),
                Condition::InFlightDuring { from, to } => {
                    from.settle(span);
                    to.settle(span);
                }
                Condition::BegunSince(since) => since.settle(span),
                _ => {}
            }
        }
    }

    /// Refuses times that a recording does not cover, because no request can match them.
    pub(crate) fn check_times(&self, recording: &Position) -> Result<(), FilterSyntaxError> {
        let wall_start_ns = recording.start_wall_ns();
        for term in &self.terms {
            let begin_ns = match term.condition {
                Condition::InFlightDuring { from, to } => from.first_ns(wall_start_ns).min(to.first_ns(wall_start_ns)),
                Condition::InFlight(time) | Condition::BegunSince(time) => time.first_ns(wall_start_ns),
                _ => continue,
            };
            if begin_ns > recording.whole_ns {
                return Err(FilterSyntaxError { position: term.position, message: recording.outside_message() });
            }
        }
        Ok(())
    }

    /// Parts of rids that the filter requires.
    pub(crate) fn required_rid_parts(&self) -> impl Iterator<Item = &str> {
        self.required_conditions().filter_map(|condition| match condition {
            Condition::Rid(part) => Some(part.as_str()),
            _ => None,
        })
    }

    /// Conditions of the terms that are not negated.
    pub(super) fn required_conditions(&self) -> impl Iterator<Item = &Condition> {
        self.terms.iter().filter(|term| !term.is_negated).map(|term| &term.condition)
    }

    pub(crate) fn matches(&self, row: &RequestRow, clock: RunClock) -> bool {
        self.terms.iter().all(|term| term.condition.holds(row, clock) != term.is_negated)
    }
}

/// Parses one word of a filter, which starts at `position`.
fn parse_term(word: &str, position: usize) -> Result<FilterTerm, FilterSyntaxError> {
    let body = word.strip_prefix('-').unwrap_or(word);
    let is_negated = body.len() < word.len();
    let position = position + usize::from(is_negated);
    if body.is_empty() {
        return Err(FilterSyntaxError { position, message: "missing term after the minus sign".into() });
    }
    // The first sign ends the name; later ones belong to the value.
    let (name, rest) = body.split_at(body.find([':', '<', '>', '=']).unwrap_or(body.len()));
    let comparison = COMPARISONS.iter().find_map(|&(sign, compare)| Some((sign, compare, rest.strip_prefix(sign)?)));
    let Some((sign, compare, value)) = comparison else {
        // A word without a sign is part of a rid.
        if let Some(message) = refuse_word(body) {
            return Err(FilterSyntaxError { position, message });
        }
        return Ok(FilterTerm { position, is_negated, condition: Condition::Rid(body.to_lowercase()) });
    };
    let sign_position = position + name.chars().count();
    let value_position = sign_position + sign.len();
    if value.is_empty() {
        let message = format!("{name} needs a value after {sign:?}");
        return Err(FilterSyntaxError { position: value_position, message });
    }
    let condition = match name.to_lowercase().as_str() {
        "rid" => Condition::Rid(value.to_lowercase()),
        "state" => {
            let state = parse_label(value, value_position, "state", &RequestState::ALL, RequestState::label)?;
            Condition::State(state)
        }
        "flag" => Condition::Flag(parse_label(value, value_position, "flag", &Flag::ALL, Flag::label)?),
        "at" => parse_time_in_flight(value, value_position)?,
        "since" => Condition::BegunSince(parse_time(value, value_position)?),
        lower_name => {
            let alias = COLUMN_ALIASES.iter().find(|alias| alias.0 == lower_name);
            let head = alias.map_or(lower_name, |alias| alias.1);
            let Some(number) = number_columns().find(|number| number.on_screen.head == head) else {
                return Err(FilterSyntaxError { position, message: unknown_name(name) });
            };
            let units = if number.column.is_duration { &DURATION_UNITS } else { &COUNT_UNITS };
            let value = parse_amount(value, value_position, units)?;
            let condition = Condition::Number { head: number.on_screen.head, of: number.column.of, compare, value };
            return Ok(FilterTerm { position, is_negated, condition });
        }
    };
    // Only numbers have an order; their term has returned above.
    if sign != "=" && sign != ":" {
        let message = format!("{name} cannot be compared; use {name}:{value}");
        return Err(FilterSyntaxError { position: sign_position, message });
    }
    Ok(FilterTerm { position, is_negated, condition })
}

/// Parses a moment, or a range of two.
fn parse_time_in_flight(value: &str, position: usize) -> Result<Condition, FilterSyntaxError> {
    let Some((from, to)) = value.split_once("..") else {
        return Ok(Condition::InFlight(parse_time(value, position)?));
    };
    let to_position = position + value.chars().count() - to.chars().count();
    let from = parse_time(from, position)?;
    let to = parse_time(to, to_position)?;
    if from.is_after(to) {
        let message = String::from("the end is before the start");
        return Err(FilterSyntaxError { position: to_position, message });
    }
    Ok(Condition::InFlightDuring { from, to })
}

fn parse_time(text: &str, position: usize) -> Result<TypedTime, FilterSyntaxError> {
    TypedTime::parse(text).ok_or_else(|| FilterSyntaxError {
        position,
        message: String::from("expected a time, for example 14:59:08, 1:23 or 3.9s"),
    })
}

fn unknown_name(name: &str) -> String {
    let mut names = vec!["rid", "state", "flag", "at", "since"];
    names.extend(number_names());
    let nearest = nearest_name(name, &names).unwrap_or_default();
    format!("unknown name {name:?}; did you mean {nearest}? Names: {}", names.join(" "))
}

/// Refuses a word that is meant as something else than text of a rid; `rid:` searches for it as text.
fn refuse_word(word: &str) -> Option<String> {
    let as_text = format!("rid:{word} searches the rid");
    if ["or", "and", "not", "||", "&&", "!"].contains(&word.to_lowercase().as_str()) {
        return Some(format!("{word} is no term: all terms must match, and `-` negates one; {as_text}"));
    }
    let alias = COLUMN_ALIASES.iter().find(|(alias, _)| alias.eq_ignore_ascii_case(word));
    let head = alias.map_or(word, |(_, head)| head);
    if let Some(number) = number_columns().find(|number| number.on_screen.head.eq_ignore_ascii_case(head)) {
        let amount = if number.column.is_duration { "1s" } else { "0" };
        return Some(format!("{word} needs a comparison, for example {word}>{amount}; {as_text}"));
    }
    let states = RequestState::ALL.map(|state| ("state", state.label()));
    let flags = Flag::ALL.map(|flag| ("flag", flag.label()));
    if let Some((kind, label)) = states.into_iter().chain(flags).find(|(_, label)| label.eq_ignore_ascii_case(word)) {
        return Some(format!("did you mean {kind}:{label}? {as_text}"));
    }
    if word.contains(['*', '?']) {
        return Some(format!("no wildcards: a rid contains the text; use rid:{}", word.replace(['*', '?'], "")));
    }
    if word.contains('|') {
        return Some(format!("no alternatives: all terms must match; {as_text}"));
    }
    word.contains('@').then(|| format!("a saved filter stands alone; {as_text}"))
}

/// The name that takes the fewest insertions, deletions and replacements of characters.
pub(crate) fn nearest_name<'n>(typed: &str, names: &[&'n str]) -> Option<&'n str> {
    let typed = typed.to_lowercase();
    names.iter().copied().min_by_key(|name| edit_distance(&typed, &name.to_lowercase()))
}

fn edit_distance(a: &str, b: &str) -> usize {
    // One row of the table of distances between their beginnings; `costs[n]` is for the first `n` characters of `a`.
    let mut costs: Vec<usize> = (0..=a.chars().count()).collect();
    for (row, of_b) in b.chars().enumerate() {
        let mut diagonal = costs[0];
        costs[0] = row + 1;
        for (column, of_a) in a.chars().enumerate() {
            let replaced = diagonal + usize::from(of_a != of_b);
            diagonal = costs[column + 1];
            costs[column + 1] = replaced.min(diagonal + 1).min(costs[column] + 1);
        }
    }
    costs[costs.len() - 1]
}

/// The one of `all` with this label, ignoring case.
fn parse_label<T: Copy>(
    value: &str,
    position: usize,
    name: &str,
    all: &[T],
    label: fn(T) -> &'static str,
) -> Result<T, FilterSyntaxError> {
    if let Some(found) = all.iter().find(|one| label(**one).eq_ignore_ascii_case(value)) {
        return Ok(*found);
    }
    let labels: Vec<&str> = all.iter().map(|one| label(*one)).collect();
    Err(FilterSyntaxError { position, message: format!("{value:?} is not a {name}: use one of {}", labels.join(" ")) })
}

/// Units of an amount.
struct AmountUnits {
    /// Names with their factors.
    factors: &'static [(&'static str, f64)],
    /// Description of an amount, with an example.
    expected: &'static str,
}

const COUNT_UNITS: AmountUnits =
    AmountUnits { factors: &[("", 1.0), ("k", 1e3), ("m", 1e6)], expected: "a count, for example 0, 250 or 10k" };
const DURATION_UNITS: AmountUnits = AmountUnits {
    factors: &[("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 6e10), ("h", 3.6e12)],
    expected: "a duration, for example 250ms, 1s or 2m",
};

/// Parses an amount with a unit; durations become nanoseconds.
fn parse_amount(text: &str, position: usize, units: &AmountUnits) -> Result<u64, FilterSyntaxError> {
    let message = format!("expected {}", units.expected);
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (amount, unit) = text.split_at(digits);
    let Ok(amount) = amount.parse::<f64>() else {
        return Err(FilterSyntaxError { position, message });
    };
    let Some((_, factor)) = units.factors.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)) else {
        return Err(FilterSyntaxError { position: position + digits, message });
    };
    Ok((amount * factor).round() as u64)
}

impl Condition {
    fn holds(&self, row: &RequestRow, clock: RunClock) -> bool {
        match self {
            Self::Rid(part) => contains_ignoring_case(&row.rid, part),
            Self::State(state) => row.state == *state,
            Self::Flag(flag) => row.flags.contains(*flag),
            Self::InFlight(time) => {
                let begin = clock.at(time.first_ns(clock.wall_start_ns));
                // `14:59` names no moment.
                let end = if time.is_minute() { clock.at(time.last_ns(clock.wall_start_ns)) } else { begin };
                row.began_at() <= end && row.last_at >= begin
            }
            Self::InFlightDuring { from, to } => {
                // The end is part of the time: `..14:59:10` is the whole second.
                let end = clock.at(to.last_ns(clock.wall_start_ns));
                // A time of day before the start of the run is read as one of the next day.
                let begin = clock.at(from.first_ns(clock.wall_start_ns));
                let begin = if begin <= end { begin } else { clock.started };
                row.began_at() <= end && row.last_at >= begin
            }
            Self::BegunSince(since) => row.began_at() >= clock.at(since.first_ns(clock.wall_start_ns)),
            Self::Number { of, compare, value, .. } => of(row).is_some_and(|number| compare(number, *value)),
        }
    }
}

/// Returns whether `text` contains `lower`, which is lower case. ASCII text needs no allocation.
fn contains_ignoring_case(text: &str, lower: &str) -> bool {
    if !text.is_ascii() || !lower.is_ascii() {
        return text.to_lowercase().contains(lower);
    }
    text.as_bytes().windows(lower.len()).any(|w| w.eq_ignore_ascii_case(lower.as_bytes()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use trace::MonoNs;
    use trace::ledger::{RequestDispatch, RequestNumbers};

    use super::*;

    fn row() -> RequestRow {
        let mut row = RequestRow {
            rid: "5B92f0".into(),
            numbers: RequestNumbers {
                gap_ns: Some(1_500_000_000),
                dropped: Some(2),
                tokens_sent: 10_000,
                worker: Some(1),
                ..RequestNumbers::default()
            },
            ..RequestRow::default()
        };
        row.flags.set_if(Flag::Gap, true);
        row
    }

    fn passes(text: &str) -> bool {
        RequestFilter::parse(text).unwrap_or_else(|m| panic!("{text:?} {m}")).matches(&row(), RunClock::default())
    }

    #[test]
    fn all_terms_must_match() {
        for text in [
            "",
            "  ",
            "gap>1s drop>0 rid:5b92 state:live",
            "GAP>=1500ms",
            "sent=10k",
            "5b92",
            "-flag:abort flag:gap",
            "gap<2m",
            "worker:1",
        ] {
            assert!(passes(text), "{text:?}");
        }
        for flag in Flag::ALL {
            assert_eq!(passes(&format!("flag:{}", flag.label().to_lowercase())), flag == Flag::Gap);
        }
        for text in ["gap>2s", "-5b92", "state:finished", "drop=0 5b92", "flag:wire-loss", "worker:0"] {
            assert!(!passes(text), "{text:?}");
        }
    }

    #[test]
    fn times_of_day_select_the_requests_in_flight() {
        const SECOND: u64 = 1_000_000_000;
        // 2026-11-21 14:59:02.700 UTC, after a start of the machine's clock at 100 s.
        let clock = RunClock { started: MonoNs(100 * SECOND), wall_start_ns: Some(1_795_273_142_700_000_000) };
        let mut row = row();
        (row.numbers.first_at, row.numbers.last_at) = (MonoNs(105 * SECOND), MonoNs(108 * SECOND));
        let passes = |text: &str, clock| RequestFilter::parse(text).expect(text).matches(&row, clock);
        // In flight from 14:59:07.7 to 14:59:10.7.
        for (text, expected) in [
            ("at:14:59:07", false),
            ("at:14:59:08", true),
            ("at:14:59:07..14:59:07", true),
            ("at:14:59:10Z", true),
            ("at:14:59:06", false),
            ("at:14:59:11", false),
            ("at:14:59:00..14:59:03", false),
            ("at:14:59:03..14:59:07", true),
            ("at:14:58:00..14:59:07", true),
            ("at:14:58:00..14:59:06", false),
            ("at:14:59:03..02:00:00", true),
            ("at:5s", true),
            ("at:9s", false),
            ("at:4.9s", false),
            ("at:4.95s..4.99s", false),
            ("at:14:59:07.6", false),
            ("at:14:59:07.7", true),
            ("-at:9s", true),
            ("since:14:59:07", true),
            ("since:14:59:08", false),
            ("since:0:05", true),
            ("since:5.1s", false),
        ] {
            assert_eq!(passes(text, clock), expected, "{text}");
        }
        assert!(passes("at:0:00:06", RunClock { wall_start_ns: None, ..clock }));
    }

    #[test]
    fn a_request_is_in_flight_from_its_dispatch_on() {
        let mut row = row();
        (row.numbers.first_at, row.numbers.last_at) = (MonoNs(9_000_000_000), MonoNs(12_000_000_000));
        let clock = RunClock::default();
        let passes = |row: &RequestRow, text: &str| RequestFilter::parse(text).expect(text).matches(row, clock);
        assert!(!passes(&row, "at:5s") && passes(&row, "since:8s"));
        row.numbers.dispatch = Some(RequestDispatch {
            sent: MonoNs(4_000_000_000),
            received: None,
            prompt_tokens: None,
            room: None,
            arrived_unix_ns: None,
        });
        assert!(passes(&row, "at:5s") && !passes(&row, "since:8s") && !passes(&row, "at:3.9s"));
    }

    #[test]
    fn hours_and_minutes_are_a_time_of_day_unless_the_run_is_as_long_from_its_start() {
        const SECOND: u64 = 1_000_000_000;
        // As above, from 14:59:02.700 on.
        let clock = RunClock { started: MonoNs(100 * SECOND), wall_start_ns: Some(1_795_273_142_700_000_000) };
        let mut row = row();
        (row.numbers.first_at, row.numbers.last_at) = (MonoNs(105 * SECOND), MonoNs(108 * SECOND));
        for (text, length_s, expected) in [
            ("at:14:59", 60, true),
            ("at:14:58..14:59", 60, true),
            ("at:15:00", 60, false),
            ("at:14:58", 60, false),
            ("at:14:59", 1_000, false),
            ("at:14:59Z", 1_000, true),
            ("at:2:59pm", 1_000, true),
            ("since:14:59", 60, true),
            ("since:15:00", 70, false),
        ] {
            let mut filter = RequestFilter::parse(text).expect(text);
            filter.settle_times(RunSpan { wall_start_ns: clock.wall_start_ns, length_ns: length_s * SECOND });
            assert_eq!(filter.matches(&row, clock), expected, "{text} in {length_s} s");
        }
    }

    #[test]
    fn unobservable_values_satisfy_no_comparison() {
        assert!(!passes("deliv>0") && !passes("deliv<1") && !passes("deliv=0"));
    }

    #[test]
    fn parse_errors_have_a_position_and_a_hint() {
        let at = |text: &str| RequestFilter::parse(text).map_err(|error| (error.position, error.message));
        for (text, place, hint) in [
            ("gap>1s drpo>0", 7, "unknown name \"drpo\"; did you mean drop?"),
            ("stat:live", 0, "did you mean state?"),
            ("@slow", 0, "stands alone"),
            ("gap>1s OR drop>0", 7, "all terms must match"),
            ("drop>0 or gap>1s", 7, "all terms must match"),
            ("5b92|4f1c", 0, "no alternatives"),
            ("at:13:43:34..13:43:33", 13, "before the start"),
            ("! gap>1s", 0, "`-` negates"),
            ("rdi:5b9", 0, "did you mean rid?"),
            ("(gap>1s", 0, "did you mean gap?"),
            ("gap!=1s", 0, "did you mean gap?"),
            ("slow@prod", 0, "stands alone"),
            ("5b9*", 0, "use rid:5b9"),
            ("-chatcmpl-?", 1, "use rid:chatcmpl-"),
            ("Live", 0, "did you mean state:live?"),
            ("dropped?", 0, "did you mean flag:DROPPED??"),
            ("gap", 0, "for example gap>1s"),
            ("Dropped", 0, "for example Dropped>0"),
            ("stall", 0, "did you mean flag:STALL?"),
            ("lost", 0, "lost>0"),
            ("at:soon", 3, "14:59:08"),
            ("at:14:59:00..x", 13, "14:59:08"),
            ("gap>", 4, "needs a value"),
            ("gap>fast", 4, "250ms"),
            ("gap>1parsec", 5, "250ms"),
            ("x -", 3, "after the minus"),
            ("state:dead", 6, "waiting live"),
            ("flag:bad", 5, "DROPPED"),
            ("state>live", 5, "state:live"),
            ("ä rid>5", 5, "cannot be compared"),
        ] {
            let (found, what) = at(text).expect_err(text);
            assert!(found == place && what.contains(hint), "{text:?}: {found} {what}");
        }
    }

    proptest! {
        #[test]
        fn parse_errors_are_positioned_inside_the_text(text in any::<String>()) {
            match RequestFilter::parse(&text) {
                Ok(query) => { query.matches(&row(), RunClock::default()); }
                Err(mistake) => prop_assert!(mistake.position <= text.chars().count(), "{text:?} {mistake}"),
            }
        }

        #[test]
        fn comparisons_match_the_reference(
            gap in proptest::option::of(0u64..10_000), bound in 0u64..10_000, negated in any::<bool>(), op in 0usize..5,
        ) {
            let sign = [">", ">=", "<", "<=", "="][op];
            let text = format!("{}gap{sign}{bound}ms", if negated { "-" } else { "" });
            let query = RequestFilter::parse(&text).map_err(|m| TestCaseError::fail(m.to_string()))?;
            let numbers = RequestNumbers { gap_ns: gap.map(|ms| ms * 1_000_000), ..RequestNumbers::default() };
            let row = RequestRow { numbers, ..RequestRow::default() };
            let holds = gap.is_some_and(|g| [g > bound, g >= bound, g < bound, g <= bound, g == bound][op]);
            prop_assert_eq!(query.matches(&row, RunClock::default()), holds != negated);
        }

        #[test]
        fn nearly_valid_queries_never_panic(
            text in "(-?(gap|drop|rid|state|flag|age|x)(:|>|>=|<|<=|=)?[0-9a-z.!? ]{0,6} ?){0,4}",
        ) {
            if let Err(mistake) = RequestFilter::parse(&text) {
                prop_assert!(mistake.position <= text.len());
            }
        }
    }
}
