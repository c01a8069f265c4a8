//! Version strings of Python packages, in PEP 440 order.

use std::fmt;
use std::str::FromStr;

/// A release: `0.5.9`, `0.5.10rc0`, `0.4.6.post4`, `0.10.1.1`, `v0.5.3.dev12+g1a2b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    release: [u32; 4],
    phase: Phase,
}

/// Suffix after the numbers; the variants are declared in version order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Phase {
    Dev(u32),
    Alpha(u32),
    Beta(u32),
    Candidate(u32),
    Final,
    Post(u32),
}

/// Error for a string that is not a version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a release: expected numbers with an optional rc, post or dev suffix, for example 0.5.9 or 0.5.10rc0"
)]
pub struct BadVersion(String);

/// Maximum number of characters of a bad version that its error shows.
const MAX_SHOWN_CHARS: usize = 64;

impl Version {
    /// A final release.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { release: [major, minor, patch, 0], phase: Phase::Final }
    }

    /// Candidate `n` of the same numbers.
    #[must_use]
    pub const fn rc(self, n: u32) -> Self {
        Self { phase: Phase::Candidate(n), ..self }
    }

    /// The numbers: major, minor, patch and a fourth.
    pub const fn numbers(self) -> [u32; 4] {
        self.release
    }

    /// Parses the version of an installed package as the release whose behaviour it has. A development version counts as its release, an
    /// alpha or beta as a candidate. Any other suffix is ignored. `None` unless the text begins with a number.
    pub fn parse_package_version(text: &str) -> Option<Self> {
        let (release, suffix) = split_release_numbers(text)?;
        let phase = match split_phase(suffix) {
            Some((Phase::Alpha(n) | Phase::Beta(n), _)) => Phase::Candidate(n),
            Some((Phase::Dev(_), _)) | None => Phase::Final,
            Some((phase, _)) => phase,
        };
        Some(Self { release, phase })
    }
}

impl FromStr for Version {
    type Err = BadVersion;

    fn from_str(text: &str) -> Result<Self, BadVersion> {
        parse_version(text).ok_or_else(|| BadVersion(text.chars().take(MAX_SHOWN_CHARS).collect()))
    }
}

/// Parses a version such as `v0.5.10rc0+g1a2b`; `None` if the text is not one.
fn parse_version(text: &str) -> Option<Version> {
    let (release, suffix) = split_release_numbers(text)?;
    let (phase, tail) = split_phase(suffix)?;
    // A development version of a candidate or post-release is read as that release.
    let is_whole = tail.is_empty() || tail.starts_with(".dev");
    is_whole.then_some(Version { release, phase })
}

/// The version without a `v` at its start, and without the local part after `+`.
fn strip_prefix_and_local_part(text: &str) -> &str {
    let text = text.strip_prefix('v').unwrap_or(text);
    text.split_once('+').map_or(text, |(public, _)| public)
}

/// The text from the next number on, without the dot that separates it from the number before. `None` if no number follows: a dot may also
/// begin the suffix, `.post1`.
fn strip_dot_before_number(text: &str, has_dot_before: bool) -> Option<&str> {
    let number = if has_dot_before { text.strip_prefix('.')? } else { text };
    number.starts_with(|c: char| c.is_ascii_digit()).then_some(number)
}

/// Splits a version into its numbers and the suffix behind them: `v0.5.10rc0` into `[0, 5, 10, 0]` and `rc0`. The local part after `+` is
/// left out. `None` without a number.
fn split_release_numbers(text: &str) -> Option<([u32; 4], &str)> {
    let public_part = strip_prefix_and_local_part(text.trim());
    let mut rest = public_part;
    // Numbers that the text leaves out are 0.
    let mut release = [0; 4];
    for (index, number) in release.iter_mut().enumerate() {
        let has_dot_before = index > 0;
        let Some(digits) = strip_dot_before_number(rest, has_dot_before) else { break };
        (*number, rest) = split_number(digits)?;
    }
    let has_number = rest.len() < public_part.len();
    if !has_number {
        return None;
    }
    // Leaves out the separator between numbers and suffix, as in `0.4.6.post4` or `0.5.9-cu12`.
    let suffix = rest.trim_start_matches(['.', '-', '_']);
    Some((release, suffix))
}

/// Splits the suffix of a version, such as `rc0.dev1`, into its phase and the text behind it. An empty suffix is [`Phase::Final`]. `None`
/// if the phase is unknown.
fn split_phase(suffix: &str) -> Option<(Phase, &str)> {
    if suffix.is_empty() {
        return Some((Phase::Final, ""));
    }
    // The word before the first digit names the phase.
    let word_length = suffix.find(|c: char| c.is_ascii_digit()).unwrap_or(suffix.len());
    let (word, digits) = suffix.split_at(word_length);
    let (number, tail) = if digits.is_empty() { (0, "") } else { split_number(digits)? };
    let phase = match word.trim_end_matches('.') {
        "dev" => Phase::Dev(number),
        "a" | "alpha" => Phase::Alpha(number),
        "b" | "beta" => Phase::Beta(number),
        "rc" | "c" => Phase::Candidate(number),
        "post" => Phase::Post(number),
        _ => return None,
    };
    Some((phase, tail))
}

/// Splits `text` behind the number with which it begins.
fn split_number(text: &str) -> Option<(u32, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

impl fmt::Display for Version {
    /// Writes the version as in a package's name: `0.5.10rc0`. A fourth number is written only if it is not 0.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch, fourth] = self.release;
        write!(f, "{major}.{minor}.{patch}")?;
        if fourth > 0 {
            write!(f, ".{fourth}")?;
        }
        match self.phase {
            Phase::Dev(n) => write!(f, ".dev{n}"),
            Phase::Alpha(n) => write!(f, "a{n}"),
            Phase::Beta(n) => write!(f, "b{n}"),
            Phase::Candidate(n) => write!(f, "rc{n}"),
            Phase::Final => Ok(()),
            Phase::Post(n) => write!(f, ".post{n}"),
        }
    }
}

/// Range of releases, both ends included: `0.5.12..0.5.14`, or a single one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VersionRange {
    /// First release of the range.
    pub first: Version,
    /// Last release of the range.
    pub last: Version,
}

impl FromStr for VersionRange {
    type Err = BadVersion;

    /// Parses `FIRST..LAST`, or one version as the range of itself alone.
    fn from_str(text: &str) -> Result<Self, BadVersion> {
        // A single release is a range of one.
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        // Rust's form `..=` is accepted, too.
        let range = Self { first: first.parse()?, last: last.trim_start_matches('=').parse()? };
        if range.first > range.last {
            let shown_text = text.chars().take(MAX_SHOWN_CHARS).collect();
            return Err(BadVersion(shown_text));
        }
        Ok(range)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn versions_sort_by_release_order() {
        let order = [
            "0.4.0",
            "0.4.6",
            "0.4.6.post3",
            "0.4.6.post4",
            "0.4.10.post2",
            "0.4.10.1",
            "0.5.0rc0",
            "0.5.0rc2",
            "0.5.1",
            "0.5.3rc0",
            "0.5.3",
            "0.5.3.post2",
            "0.5.9.dev3",
            "0.5.9",
            "0.5.10rc0",
            "0.5.10",
            "0.5.10.post1",
            "0.5.23",
            "1.0",
        ];
        let versions: Vec<Version> = order.iter().map(|v| v.parse().unwrap()).collect();
        assert!(versions.windows(2).all(|w| w[0] < w[1]), "{versions:?}");
    }

    #[test]
    fn alternative_spellings_parse_and_garbage_is_rejected() {
        let parsed = |text: &str| text.parse::<Version>().map(|v| v.to_string());
        assert_eq!(parsed("v0.5.9").as_deref(), Ok("0.5.9"));
        assert_eq!(parsed("0.5.10rc0.dev5+g12ab").as_deref(), Ok("0.5.10rc0"));
        assert_eq!(parsed("0.5").as_deref(), Ok("0.5.0"));
        for bad in ["", "newest", "0.5.x", "0.5.9-cu12", "99999999999.0.0", "."] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
        assert!("0.5.14..0.5.12".parse::<VersionRange>().is_err());
        assert!("0.5.12..0.5.14".parse::<VersionRange>().is_ok());
    }

    #[test]
    fn a_package_has_the_behaviour_of_the_release_that_it_is_built_for() {
        for (text, release) in [
            ("0.5.10.dev12+gabc", "0.5.10"),
            ("0.5.10rc0.dev5", "0.5.10rc0"),
            ("0.5.10rc0-cu12", "0.5.10rc0"),
            ("0.5.10a1", "0.5.10rc1"),
            ("0.5.9-cu12", "0.5.9"),
            ("0.4.6.post4", "0.4.6.post4"),
            ("26.4", "26.4.0"),
        ] {
            assert_eq!(
                Version::parse_package_version(text).map(|version| version.to_string()).as_deref(),
                Some(release),
                "{text}"
            );
        }
        for wrong in ["", "unknown", "."] {
            assert_eq!(Version::parse_package_version(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_parses_and_round_trips_or_is_rejected(text in "\\PC{0,24}") {
            let package_version = Version::parse_package_version(&text);
            prop_assert!(text.parse::<Version>().is_err() || package_version.is_some());
            if let Ok(version) = text.parse::<Version>() {
                prop_assert_eq!(version.to_string().parse(), Ok(version));
            }
        }

        #[test]
        fn versions_round_trip(a in 0u32..9, b in 0u32..9, c in 0u32..99, post in proptest::option::of(0u32..9)) {
            let text = post.map_or_else(|| format!("{a}.{b}.{c}"), |p| format!("{a}.{b}.{c}.post{p}"));
            prop_assert_eq!(text.parse::<Version>().unwrap().to_string(), text);
        }
    }
}
