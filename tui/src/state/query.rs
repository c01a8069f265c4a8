//! Filter of the request table: `gap>1s drop>0 rid:5b92 state:live -flag:abort`. All terms must match.
//!
//! An unobservable number matches no comparison, neither `gap>1s` nor `gap<1s`.

use std::fmt;

use trace::columns::Number;

use super::flags::Flag;
use super::row::{Life, Row, numbers};

/// A parsed filter, identified by its text. The empty filter matches every row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    pub(crate) text: String,
    terms: Vec<Term>,
}

impl PartialEq for Query {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

#[derive(Clone, Debug)]
struct Term {
    negated: bool,
    test: Test,
}

#[derive(Clone, Debug)]
enum Test {
    /// The rid contains this text, ignoring case.
    Rid(String),
    State(Life),
    Flag(Flag),
    Number(Number, Comparison, u64),
}

/// Other names of columns.
const ALIASES: [(&str, &str); 4] =
    [("tokens", "sent"), ("received", "recv"), ("delivered", "deliv"), ("dropped", "drop")];

type Comparison = fn(u64, u64) -> bool;

/// Signs between a name and a value; a longer sign precedes its own prefix.
const COMPARISONS: [(&str, Comparison); 6] = [
    (">=", |n, value| n >= value),
    ("<=", |n, value| n <= value),
    (">", |n, value| n > value),
    ("<", |n, value| n < value),
    ("=", |n, value| n == value),
    (":", |n, value| n == value),
];

/// A syntax error in a filter, with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SyntaxError {
    /// First wrong character, counted from 0.
    pub(crate) at: usize,
    /// Description of the error and of the expected input.
    pub(crate) what: String,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {}: {}", self.at + 1, self.what)
    }
}

pub(crate) fn help() -> impl Iterator<Item = (&'static str, String)> {
    let names: Vec<&str> = numbers().map(|(.., on_screen)| on_screen.head).collect();
    let numbers = format!("numbers: {}", names.join(" "));
    [
        ("5b92", "the rid contains 5b92 (also rid:5b92)"),
        ("gap>1s", &*numbers),
        ("", "with > >= < <= = ; durations in ns us ms s m h, counts with k or M"),
        ("worker:1", "it goes to receiver 1"),
        ("state:live", "waiting, live, done, aborted or orphaned"),
        ("flag:dropped", &Flag::ALL.map(Flag::word).join(" ")),
        ("-state:done", "`-` negates a term; all terms must match"),
    ]
    .map(|(term, what)| (term, what.to_owned()))
    .into_iter()
}

impl Query {
    pub(crate) fn parse(text: &str) -> Result<Self, SyntaxError> {
        let mut terms = Vec::new();
        let mut at = 0;
        for word in text.split(' ') {
            if !word.is_empty() {
                terms.push(term(word, at)?);
            }
            at += word.chars().count() + 1;
        }
        Ok(Self { text: text.trim_matches(' ').to_owned(), terms })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Parts of rids that the filter requires.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &str> {
        self.terms.iter().filter(|term| !term.negated).filter_map(|term| match &term.test {
            Test::Rid(part) => Some(part.as_str()),
            _ => None,
        })
    }

    pub(crate) fn matches(&self, row: &Row) -> bool {
        self.terms.iter().all(|term| term.test.holds(row) != term.negated)
    }
}

fn term(word: &str, at: usize) -> Result<Term, SyntaxError> {
    let body = word.strip_prefix('-').unwrap_or(word);
    let negated = body.len() < word.len();
    let at = at + usize::from(negated);
    if body.is_empty() {
        return Err(SyntaxError { at, what: "missing term after the minus sign".into() });
    }
    let (name, rest) = body.split_at(body.find([':', '<', '>', '=']).unwrap_or(body.len()));
    let found = COMPARISONS.iter().find_map(|&(sign, holds)| Some((sign, holds, rest.strip_prefix(sign)?)));
    let Some((sign, holds, value)) = found else {
        return Ok(Term { negated, test: Test::Rid(body.to_lowercase()) });
    };
    let value_at = at + name.chars().count() + sign.len();
    if value.is_empty() {
        return Err(SyntaxError { at: value_at, what: format!("{name} needs a value after {sign:?}") });
    }
    let test = match name.to_lowercase().as_str() {
        "rid" => Test::Rid(value.to_lowercase()),
        "state" => Test::State(labelled(value, value_at, "state", &Life::ALL, Life::word)?),
        "flag" => Test::Flag(labelled(value, value_at, "flag", &Flag::ALL, Flag::word)?),
        lower => {
            let head = ALIASES.iter().find(|alias| alias.0 == lower).map_or(lower, |alias| alias.1);
            let (_, column, _) = numbers()
                .find(|(.., on_screen)| on_screen.head == head)
                .ok_or_else(|| SyntaxError { at, what: unknown(name) })?;
            let units = if column.is_duration { DURATION } else { COUNT };
            Test::Number(column.of, holds, measured(value, value_at, units)?)
        }
    };
    if !matches!((&test, sign), (Test::Number(..), _) | (_, "=" | ":")) {
        return Err(SyntaxError {
            at: at + name.chars().count(),
            what: format!("{name} cannot be compared; use {name}:{value}"),
        });
    }
    Ok(Term { negated, test })
}

fn unknown(name: &str) -> String {
    let mut names: Vec<&str> = vec!["rid", "state", "flag"];
    names.extend(numbers().map(|(.., on_screen)| on_screen.head));
    format!("unknown name {name:?}; use one of {}", names.join(" "))
}

/// The one of `all` with this label, ignoring case.
fn labelled<T: Copy>(
    value: &str,
    at: usize,
    name: &str,
    all: &[T],
    word: fn(T) -> &'static str,
) -> Result<T, SyntaxError> {
    all.iter().copied().find(|one| word(*one).eq_ignore_ascii_case(value)).ok_or_else(|| {
        let words: Vec<&str> = all.iter().map(|one| word(*one)).collect();
        SyntaxError { at, what: format!("{value:?} is not a {name}: use one of {}", words.join(" ")) }
    })
}

/// Units of counts and of durations, and an example of each.
const COUNT: (&[(&str, f64)], &str) = (&[("", 1.0), ("k", 1e3), ("m", 1e6)], "a count, for example 0, 250 or 10k");
const DURATION: (&[(&str, f64)], &str) = (
    &[("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 6e10), ("h", 3.6e12)],
    "a duration, for example 250ms, 1s or 2m",
);

fn measured(value: &str, at: usize, (units, meant): (&[(&str, f64)], &str)) -> Result<u64, SyntaxError> {
    let wrong = |at| SyntaxError { at, what: format!("expected {meant}") };
    let digits = value.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(value.len());
    let (amount, unit) = value.split_at(digits);
    let amount: f64 = amount.parse().map_err(|_| wrong(at))?;
    let (_, scale) =
        units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(|| wrong(at + digits))?;
    Ok((amount * scale).round() as u64)
}

impl Test {
    fn holds(&self, row: &Row) -> bool {
        match self {
            Self::Rid(part) => contains(&row.rid, part),
            Self::State(life) => row.life == *life,
            Self::Flag(flag) => row.flags.has(*flag),
            Self::Number(of, holds, value) => of(row).is_some_and(|n| holds(n, *value)),
        }
    }
}

/// Returns whether `text` contains `lower`, which is lower case. ASCII text needs no allocation.
fn contains(text: &str, lower: &str) -> bool {
    if !text.is_ascii() || !lower.is_ascii() {
        return text.to_lowercase().contains(lower);
    }
    text.as_bytes().windows(lower.len()).any(|w| w.eq_ignore_ascii_case(lower.as_bytes()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use trace::ledger::Numbers;

    use super::*;

    fn row() -> Row {
        let mut row = Row {
            rid: "5B92f0".into(),
            numbers: Numbers {
                gap_ns: Some(1_500_000_000),
                dropped: Some(2),
                tokens_sent: 10_000,
                worker: Some(1),
                ..Numbers::default()
            },
            ..Row::default()
        };
        row.flags.set(Flag::Gap, true);
        row
    }

    fn passes(text: &str) -> bool {
        Query::parse(text).unwrap_or_else(|m| panic!("{text:?} {m}")).matches(&row())
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
            assert_eq!(passes(&format!("flag:{}", flag.word().to_lowercase())), flag == Flag::Gap);
        }
        for text in ["gap>2s", "-5b92", "state:done", "drop=0 5b92", "flag:wire-loss", "worker:0"] {
            assert!(!passes(text), "{text:?}");
        }
    }

    #[test]
    fn unobservable_values_satisfy_no_comparison() {
        assert!(!passes("deliv>0") && !passes("deliv<1") && !passes("deliv=0"));
    }

    #[test]
    fn parse_errors_have_a_position_and_a_hint() {
        let at = |text: &str| Query::parse(text).map_err(|m| (m.at, m.what));
        for (text, place, hint) in [
            ("gap>1s drpo>0", 7, "unknown name \"drpo\""),
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
            match Query::parse(&text) {
                Ok(query) => { query.matches(&row()); }
                Err(mistake) => prop_assert!(mistake.at <= text.chars().count(), "{text:?} {mistake}"),
            }
        }

        #[test]
        fn comparisons_match_the_reference(
            gap in proptest::option::of(0u64..10_000), bound in 0u64..10_000, negated in any::<bool>(), op in 0usize..5,
        ) {
            let sign = [">", ">=", "<", "<=", "="][op];
            let text = format!("{}gap{sign}{bound}ms", if negated { "-" } else { "" });
            let query = Query::parse(&text).map_err(|m| TestCaseError::fail(m.to_string()))?;
            let numbers = Numbers { gap_ns: gap.map(|ms| ms * 1_000_000), ..Numbers::default() };
            let row = Row { numbers, ..Row::default() };
            let holds = gap.is_some_and(|g| [g > bound, g >= bound, g < bound, g <= bound, g == bound][op]);
            prop_assert_eq!(query.matches(&row), holds != negated);
        }

        #[test]
        fn nearly_valid_queries_never_panic(
            text in "(-?(gap|drop|rid|state|flag|age|x)(:|>|>=|<|<=|=)?[0-9a-z.!? ]{0,6} ?){0,4}",
        ) {
            if let Err(mistake) = Query::parse(&text) {
                prop_assert!(mistake.at <= text.len());
            }
        }
    }
}
