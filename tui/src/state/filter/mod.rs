//! Filter of the request table: `gap>1s drop>0 rid:5b92 state:live -flag:abort`. All terms must match.
//!
//! An unobservable number matches no comparison, neither `gap>1s` nor `gap<1s`.

mod similar_names;

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use session::playback::Position;
use trace::columns::Number;
use trace::detect::thresholds::LATE_NS;
use trace::detect::{self, Finding};
use trace::ledger::{CountedRids, HopWait, Ledger};
use trace::{HopId, MonoNs};

use super::flags::Flag;
use super::request_row::{RequestRow, RequestState, number_columns};
use super::run_time::{RunClock, RunSpan, TypedTime};
pub(crate) use similar_names::nearest_name;

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
        /// Heading of its column.
        head: &'static str,
        number_of: Number,
        compare: NumberComparison,
        value: u64,
    },
    /// The request was in flight at this moment, as the number of live requests counts it.
    InFlight(TypedTime),
    /// The request was in flight at some time from `from` to the end of the second or decimal `to`.
    InFlightDuring(TypedSpan),
    /// A frame of the request waited at least [`LATE_NS`] on a hop.
    Waited(WaitOnHop),
    /// A finding counts the request.
    OfFinding(NamedFinding),
    /// The request began at this time or later.
    BegunSince(TypedTime),
}

/// A finding, by its name in a filter.
#[derive(Clone, Debug)]
pub(super) struct NamedFinding {
    pub(super) kind: &'static str,
    /// Name of its hop, with `_` for spaces; `None` if any will do.
    hop: Option<String>,
    /// Requests that it counts; `None` if the run has no such finding.
    pub(super) requests: Option<CountedRids>,
}

/// From `from` to the end of the second or decimal `to`.
#[derive(Clone, Copy, Debug)]
pub(super) struct TypedSpan {
    from: TypedTime,
    to: TypedTime,
}

#[derive(Clone, Debug)]
pub(super) struct WaitOnHop {
    /// Name of the hop, with `_` for spaces.
    pub(super) hop: String,
    /// At some time of this span; `None` at any time.
    during: Option<TypedSpan>,
    /// Requests that waited, which their rows do not show; `None` before they are searched for.
    found: Option<Arc<FoundWaits>>,
}

#[derive(Debug)]
struct FoundWaits {
    rids: BTreeSet<Box<str>>,
    /// Whether older chunks, which may have waited too, are not kept any more.
    is_incomplete: bool,
}

/// Other names of columns.
const COLUMN_ALIASES: [ColumnAlias; 4] = [
    ColumnAlias { name: "tokens", head: "sent" },
    ColumnAlias { name: "received", head: "recv" },
    ColumnAlias { name: "delivered", head: "deliv" },
    ColumnAlias { name: "dropped", head: "drop" },
];

/// Another name of a column, and its heading.
struct ColumnAlias {
    name: &'static str,
    head: &'static str,
}

type NumberComparison = fn(u64, u64) -> bool;

/// Signs between a name and a value; a longer sign precedes its own prefix.
const COMPARISONS: [(&str, NumberComparison); 6] = [
    (">=", |number, value| number >= value),
    ("<=", |number, value| number <= value),
    (">", |number, value| number > value),
    ("<", |number, value| number < value),
    ("=", |number, value| number == value),
    (":", |number, value| number == value),
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

/// Terms with their meaning, for the help. An empty term continues the line before.
pub(crate) fn syntax_help() -> impl Iterator<Item = (&'static str, String)> {
    let numbers = format!("numbers: {}", number_names().join(" "));
    [
        ("5b92", "the rid contains 5b92 (also rid:5b92)"),
        ("gap>1s", &*numbers),
        ("", "with > >= < <= = ; durations in ns us ms s m h, counts with k or M"),
        ("at:14:59:08", "in flight at that moment (UTC), also at:3.9s from the start; at:14:59 in that minute"),
        ("at:1:20..1:30", "in flight at any time of that span, also at:14:59:00..14:59:10"),
        ("since:14:59", "it began then or later"),
        ("waited:a->b", "a frame of it waited 250 ms or more on the hop a->b; in a span: waited:a->b@1:20..1:30"),
        ("finding:queued", "a finding of this kind counts it; of one hop: finding:out-of-order@a->b"),
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
    /// Parses terms that are separated by spaces. The error has the position of the first wrong character.
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

    /// Decides by the span of the run whether times such as `14:59` are times of day or times from the start.
    pub(crate) fn resolve_ambiguous_times(&mut self, span: RunSpan) {
        for term in &mut self.terms {
            match &mut term.condition {
                Condition::InFlight(time) | Condition::BegunSince(time) => time.resolve_ambiguity(span),
                Condition::InFlightDuring(typed) | Condition::Waited(WaitOnHop { during: Some(typed), .. }) => {
                    typed.resolve_ambiguity(span);
                }
                // The other conditions have no time.
                _ => {}
            }
        }
    }

    /// Refuses times that a recording does not cover, because no request can match them.
    pub(crate) fn check_times_are_covered(&self, recording: &Position) -> Result<(), FilterSyntaxError> {
        let wall_start_ns = recording.start_wall_ns();
        for term in &self.terms {
            let first_ns = term.condition.first_ns_since_run_start(wall_start_ns);
            if first_ns.is_some_and(|first_ns| first_ns > recording.whole_ns) {
                return Err(FilterSyntaxError { position: term.position, message: recording.outside_run_message() });
            }
        }
        Ok(())
    }

    /// Parts of rids that every matching request has, in lower case.
    pub(crate) fn required_rid_parts(&self) -> impl Iterator<Item = &str> {
        self.required_conditions().filter_map(|condition| match condition {
            Condition::Rid(part) => Some(part.as_str()),
            _ => None,
        })
    }

    /// Conditions of all terms.
    pub(super) fn conditions(&self) -> impl Iterator<Item = &Condition> {
        self.terms.iter().map(|term| &term.condition)
    }

    /// Conditions of the terms that are not negated.
    fn required_conditions(&self) -> impl Iterator<Item = &Condition> {
        self.terms.iter().filter(|term| !term.is_negated).map(|term| &term.condition)
    }

    /// Notes in each term `waited:HOP` the requests with a frame that waited on that hop. Reads all chunks that the ledger keeps. A term
    /// that has its requests already is searched again only if `is_outdated`.
    pub(crate) fn refresh_found_waits(&mut self, ledger: &Ledger, clock: RunClock, is_outdated: bool) {
        for term in &mut self.terms {
            if let Condition::Waited(wait) = &mut term.condition
                && (is_outdated || wait.found.is_none())
            {
                wait.found = Some(Arc::new(wait.find_waiting_requests(ledger, clock)));
            }
        }
    }

    /// Copies the affected requests of each finding into the terms `finding:KIND` that name it.
    pub(crate) fn refresh_named_findings(&mut self, findings: &[Finding]) {
        for term in &mut self.terms {
            if let Condition::OfFinding(named) = &mut term.condition {
                let finding = findings.iter().find(|finding| named.is_of(finding));
                named.requests = finding.map(|finding| finding.verdict.requests.clone());
            }
        }
    }

    /// Whether requests may be missing in the list, because chunks that could show them are not kept any more.
    pub(crate) fn may_lack_requests(&self) -> bool {
        self.terms.iter().any(|term| match &term.condition {
            Condition::Waited(wait) => wait.found.as_ref().is_some_and(|found| found.is_incomplete),
            _ => false,
        })
    }

    /// Number of requests that the finding has counted as affected, if the whole filter is `finding:KIND`. `None` for any other filter, and
    /// if the run has no such finding.
    pub(crate) fn requests_counted_by_sole_finding(&self) -> Option<u64> {
        match &self.terms[..] {
            [FilterTerm { is_negated: false, condition: Condition::OfFinding(named), .. }] => {
                named.requests.as_ref().map(CountedRids::counted)
            }
            _ => None,
        }
    }

    /// Whether all terms match the request.
    pub(crate) fn matches(&self, row: &RequestRow, clock: RunClock) -> bool {
        self.terms.iter().all(|term| term.condition.holds_for(row, clock) != term.is_negated)
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
    let Some(&(sign, compare)) = COMPARISONS.iter().find(|(sign, _)| rest.starts_with(*sign)) else {
        // A word without a sign is part of a rid.
        if let Some(message) = explain_misused_word(body) {
            return Err(FilterSyntaxError { position, message });
        }
        return Ok(FilterTerm { position, is_negated, condition: Condition::Rid(body.to_lowercase()) });
    };
    let value = &rest[sign.len()..];
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
        "waited" => Condition::Waited(WaitOnHop::parse(value, value_position)?),
        "finding" => Condition::OfFinding(NamedFinding::parse(value, value_position)?),
        lower_name => {
            let head = heading_of_column(lower_name);
            let Some(number) = number_columns().find(|number| number.on_screen.head == head) else {
                return Err(FilterSyntaxError { position, message: unknown_name_message(name) });
            };
            let units = if number.column.is_duration { &DURATION_UNITS } else { &COUNT_UNITS };
            let value = parse_amount(value, value_position, units)?;
            let condition =
                Condition::Number { head: number.on_screen.head, number_of: number.column.of, compare, value };
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

/// Parses the value of `at:`, which is a moment or a span between two moments.
fn parse_time_in_flight(value: &str, position: usize) -> Result<Condition, FilterSyntaxError> {
    match TypedSpan::parse(value, position)? {
        Some(span) => Ok(Condition::InFlightDuring(span)),
        None => Ok(Condition::InFlight(parse_time(value, position)?)),
    }
}

impl TypedSpan {
    /// Parses `1:20..1:30`; `None` if it is no range.
    fn parse(text: &str, position: usize) -> Result<Option<Self>, FilterSyntaxError> {
        let Some((from, to)) = text.split_once("..") else { return Ok(None) };
        let to_position = position + text.chars().count() - to.chars().count();
        let from = parse_time(from, position)?;
        let to = parse_time(to, to_position)?;
        if from.is_after(to) {
            let message = String::from("the end is before the start");
            return Err(FilterSyntaxError { position: to_position, message });
        }
        Ok(Some(Self { from, to }))
    }

    fn resolve_ambiguity(&mut self, run: RunSpan) {
        self.from.resolve_ambiguity(run);
        self.to.resolve_ambiguity(run);
    }

    /// The span by the run's clock, its end included.
    fn on_clock(self, clock: RunClock) -> RangeInclusive<MonoNs> {
        // The end is part of the time: `..14:59:10` is the whole second.
        let end = clock.at(self.to.last_ns_since_run_start(clock.wall_start_ns));
        let begin = clock.at(self.from.first_ns_since_run_start(clock.wall_start_ns));
        // A time of day before the run was read as one of the next day. It means that the span has begun when the run starts.
        let is_from_before_run = begin > end;
        if is_from_before_run { clock.started..=end } else { begin..=end }
    }
}

impl WaitOnHop {
    /// Parses the name of a hop, with a span behind `@`.
    fn parse(value: &str, position: usize) -> Result<Self, FilterSyntaxError> {
        let Some((hop, span)) = value.split_once('@') else {
            return Ok(Self { hop: value.to_owned(), during: None, found: None });
        };
        let span_position = position + hop.chars().count() + 1;
        let during = TypedSpan::parse(span, span_position)?;
        if during.is_none() {
            let message = String::from("expected a span of time, for example 1:20..1:30");
            return Err(FilterSyntaxError { position: span_position, message });
        }
        Ok(Self { hop: hop.to_owned(), during, found: None })
    }

    /// Whether it names this hop.
    pub(super) fn is_on(&self, hop_name: &str) -> bool {
        is_hop_name(&self.hop, hop_name)
    }

    /// Searches the chunks that the ledger keeps for frames that waited at least [`LATE_NS`] on the hop, and returns their requests.
    fn find_waiting_requests(&self, ledger: &Ledger, clock: RunClock) -> FoundWaits {
        let during = match self.during {
            Some(span) => span.on_clock(clock),
            None => clock.started..=ledger.now(),
        };
        let hops = ledger.hops().iter().filter(|hop| {
            // Without observed receives, every frame would seem to wait.
            hop.capabilities().received && self.is_on(&ledger.groups()[hop.group].name)
        });
        let hops: Vec<HopId> = hops.map(|hop| hop.id).collect();
        // The span begins before the oldest chunk that is kept.
        let is_incomplete = ledger.chunks_known_since().is_some_and(|known_since| known_since > *during.start());
        let rids = ledger.rids_that_waited(&HopWait { hops, during, min_ns: LATE_NS });
        FoundWaits { rids: rids.into_iter().map(Box::from).collect(), is_incomplete }
    }
}

impl NamedFinding {
    /// Parses the kind of a finding, with the name of a hop behind `@`.
    fn parse(value: &str, position: usize) -> Result<Self, FilterSyntaxError> {
        let (kind_name, hop) = match value.split_once('@') {
            Some((kind_name, hop)) => (kind_name, Some(hop.to_owned())),
            None => (value, None),
        };
        let kinds: Vec<&'static str> = detect::ALL.iter().map(|detector| detector.kind).collect();
        let Some(kind) = kinds.iter().copied().find(|kind| kind.eq_ignore_ascii_case(kind_name)) else {
            let nearest = nearest_name(kind_name, &kinds).unwrap_or_default();
            let message = format!("{kind_name:?} is not a kind of finding; did you mean {nearest}?");
            return Err(FilterSyntaxError { position, message });
        };
        Ok(Self { kind, hop, requests: None })
    }

    /// Whether this finding has the kind that the filter names and, if it names a hop, is about that hop.
    fn is_of(&self, finding: &Finding) -> bool {
        finding.kind == self.kind && self.hop.as_ref().is_none_or(|hop| is_hop_name(hop, &finding.verdict.hop))
    }
}

/// Whether `typed` names this hop. It has `_` for spaces, because spaces separate the terms of a filter.
fn is_hop_name(typed: &str, hop_name: &str) -> bool {
    hop_name.replace(' ', "_").eq_ignore_ascii_case(typed)
}

/// Parses a time that starts at `position` in the filter.
fn parse_time(text: &str, position: usize) -> Result<TypedTime, FilterSyntaxError> {
    TypedTime::parse(text).ok_or_else(|| FilterSyntaxError {
        position,
        message: String::from("expected a time, for example 14:59:08, 1:23 or 3.9s"),
    })
}

/// Message about a term whose name does not exist, with the most similar one.
fn unknown_name_message(name: &str) -> String {
    let mut names = vec!["rid", "state", "flag", "at", "since", "waited", "finding"];
    names.extend(number_names());
    let nearest = nearest_name(name, &names).unwrap_or_default();
    format!("unknown name {name:?}; did you mean {nearest}? Names: {}", names.join(" "))
}

/// Heading of the column with this name, in any case; the name itself if it is no other name of a column.
fn heading_of_column(name: &str) -> &str {
    let alias = COLUMN_ALIASES.iter().find(|alias| alias.name.eq_ignore_ascii_case(name));
    alias.map_or(name, |alias| alias.head)
}

/// Explains a word without a sign that is probably no part of a rid, such as `and` or the name of a column. `None` for a word that is
/// searched in the rids.
fn explain_misused_word(word: &str) -> Option<String> {
    let as_text = format!("rid:{word} searches the rid");
    if ["or", "and", "not", "||", "&&", "!"].contains(&word.to_lowercase().as_str()) {
        return Some(format!("{word} is no term: all terms must match, and `-` negates one; {as_text}"));
    }
    let heading = heading_of_column(word);
    if let Some(number) = number_columns().find(|number| number.on_screen.head.eq_ignore_ascii_case(heading)) {
        let example = if number.column.is_duration { "1s" } else { "0" };
        return Some(format!("{word} needs a comparison, for example {word}>{example}; {as_text}"));
    }
    if let Some(state) = RequestState::ALL.iter().find(|state| state.label().eq_ignore_ascii_case(word)) {
        return Some(format!("did you mean state:{}? {as_text}", state.label()));
    }
    if let Some(flag) = Flag::ALL.iter().find(|flag| flag.label().eq_ignore_ascii_case(word)) {
        return Some(format!("did you mean flag:{}? {as_text}", flag.label()));
    }
    if word.contains(['*', '?']) {
        return Some(format!("no wildcards: a rid contains the text; use rid:{}", word.replace(['*', '?'], "")));
    }
    if word.contains('|') {
        return Some(format!("no alternatives: all terms must match; {as_text}"));
    }
    if word.contains('@') {
        return Some(format!("a saved filter stands alone; {as_text}"));
    }
    None
}

/// The one of `variants` whose label is `typed_label`, ignoring case. The error lists the labels; `kind_word` is its word for them, `state`
/// or `flag`.
fn parse_label<T: Copy>(
    typed_label: &str,
    position: usize,
    kind_word: &str,
    variants: &[T],
    label: fn(T) -> &'static str,
) -> Result<T, FilterSyntaxError> {
    if let Some(variant) = variants.iter().find(|variant| label(**variant).eq_ignore_ascii_case(typed_label)) {
        return Ok(*variant);
    }
    let labels: Vec<&str> = variants.iter().map(|variant| label(*variant)).collect();
    let message = format!("{typed_label:?} is not a {kind_word}: use one of {}", labels.join(" "));
    Err(FilterSyntaxError { position, message })
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

/// Parses an amount with one of these units, such as `1.5s` or `20k`. Durations become nanoseconds.
fn parse_amount(text: &str, position: usize, units: &AmountUnits) -> Result<u64, FilterSyntaxError> {
    let message = format!("expected {}", units.expected);
    let unit_start = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (amount, unit) = text.split_at(unit_start);
    let Ok(amount) = amount.parse::<f64>() else {
        return Err(FilterSyntaxError { position, message });
    };
    let Some((_, factor)) = units.factors.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)) else {
        return Err(FilterSyntaxError { position: position + unit_start, message });
    };
    Ok((amount * factor).round() as u64)
}

impl Condition {
    /// First nanosecond of the time that the condition names, counted from the start of the run. `wall_start_ns` is the wall clock at that
    /// start. `None` for a condition without a time.
    fn first_ns_since_run_start(&self, wall_start_ns: Option<u64>) -> Option<u64> {
        match self {
            Self::InFlight(time) | Self::BegunSince(time) => Some(time.first_ns_since_run_start(wall_start_ns)),
            Self::InFlightDuring(span) | Self::Waited(WaitOnHop { during: Some(span), .. }) => {
                let start_ns = span.from.first_ns_since_run_start(wall_start_ns);
                let end_ns = span.to.first_ns_since_run_start(wall_start_ns);
                // The start may be later than the end: a time of day before the run is read as one of the next day.
                Some(start_ns.min(end_ns))
            }
            _ => None,
        }
    }

    /// Whether the condition is true for a request. The `clock` of the run places typed times among the times of the request.
    fn holds_for(&self, row: &RequestRow, clock: RunClock) -> bool {
        match self {
            Self::Rid(part) => contains_ignoring_case(&row.rid, part),
            Self::State(state) => row.state == *state,
            Self::Flag(flag) => row.flags.contains(*flag),
            Self::InFlight(time) => was_in_flight(row, &range_of_moment_or_minute(*time, clock)),
            Self::InFlightDuring(span) => was_in_flight(row, &span.on_clock(clock)),
            Self::Waited(wait) => wait.found.as_ref().is_some_and(|found| found.rids.contains(&*row.rid)),
            Self::OfFinding(named) => named.requests.as_ref().is_some_and(|requests| requests.contains(&row.rid)),
            Self::BegunSince(time) => row.began_at() >= clock.at(time.first_ns_since_run_start(clock.wall_start_ns)),
            Self::Number { number_of, compare, value, .. } => {
                number_of(row).is_some_and(|number| compare(number, *value))
            }
        }
    }
}

/// The time by the run's clock. `14:59` names a whole minute, any other time a moment.
fn range_of_moment_or_minute(time: TypedTime, clock: RunClock) -> RangeInclusive<MonoNs> {
    let begin = clock.at(time.first_ns_since_run_start(clock.wall_start_ns));
    let end = if time.is_minute() { clock.at(time.last_ns_since_run_start(clock.wall_start_ns)) } else { begin };
    begin..=end
}

/// Whether the request was in flight at some time of the span.
fn was_in_flight(row: &RequestRow, span: &RangeInclusive<MonoNs>) -> bool {
    row.began_at() <= *span.end() && row.last_at >= *span.start()
}

/// Returns whether `text` contains `lowercase_part`, ignoring case. The part must be in lower case and not empty. ASCII text needs no
/// allocation.
fn contains_ignoring_case(text: &str, lowercase_part: &str) -> bool {
    if !text.is_ascii() || !lowercase_part.is_ascii() {
        return text.to_lowercase().contains(lowercase_part);
    }
    text.as_bytes().windows(lowercase_part.len()).any(|part| part.eq_ignore_ascii_case(lowercase_part.as_bytes()))
}

#[cfg(test)]
mod tests;
