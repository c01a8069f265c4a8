//! Comparable release numbers of Python packages.

use std::fmt;
use std::str::FromStr;

/// A release number: `0.5.10rc0` < `0.5.10` < `0.5.10.post1`. Further suffixes (`.dev3+g1a2b`) are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Release {
    /// Major, minor, patch.
    pub number: [u16; 3],
    /// Position among the releases with the same number.
    pub stage: ReleaseStage,
}

/// Position before, at or after the final release of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReleaseStage {
    /// A pre-release: `rc0`, `a1`, `b2`.
    Candidate(u16),
    /// The final release.
    Final,
    /// A post-release: `.post1`.
    Post(u16),
}

impl Release {
    /// Creates a final release.
    pub const fn new(major: u16, minor: u16, patch: u16) -> Self {
        Self { number: [major, minor, patch], stage: ReleaseStage::Final }
    }

    /// Returns post-release `n` of the same number.
    #[must_use]
    pub const fn post(self, n: u16) -> Self {
        Self { number: self.number, stage: ReleaseStage::Post(n) }
    }

    /// Returns release candidate `n` of the same number.
    #[must_use]
    pub const fn rc(self, n: u16) -> Self {
        Self { number: self.number, stage: ReleaseStage::Candidate(n) }
    }
}

impl FromStr for Release {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut rest = text.trim();
        rest = rest.strip_prefix('v').unwrap_or(rest);
        let mut number = [0; 3];
        for (index, part) in number.iter_mut().enumerate() {
            if index > 0 {
                let Some(after_dot) = rest.strip_prefix('.') else { break };
                // A dot may also begin the suffix: `.post1`.
                if !after_dot.starts_with(|c: char| c.is_ascii_digit()) {
                    break;
                }
                rest = after_dot;
            }
            (*part, rest) = leading_number(rest).ok_or(())?;
        }
        Ok(Self { number, stage: ReleaseStage::from_suffix(rest) })
    }
}

impl ReleaseStage {
    /// Stage by what follows the number of a release. Unknown suffixes are ignored.
    fn from_suffix(suffix: &str) -> Self {
        // Alpha and beta releases come before the final one, as candidates do.
        if let Some(n) = ["rc", "a", "b"].iter().find_map(|prefix| number_after(suffix, prefix)) {
            return Self::Candidate(n);
        }
        match number_after(suffix, ".post") {
            Some(n) => Self::Post(n),
            None => Self::Final,
        }
    }
}

/// The number at the beginning of a text, and the rest. `None` if it begins with none, or with too large a one.
fn leading_number(text: &str) -> Option<(u16, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

/// The number behind a prefix of the text; `None` if it has another beginning.
fn number_after(text: &str, prefix: &str) -> Option<u16> {
    leading_number(text.strip_prefix(prefix)?).map(|(number, _)| number)
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.number;
        write!(f, "{major}.{minor}.{patch}")?;
        match self.stage {
            ReleaseStage::Candidate(n) => write!(f, "rc{n}"),
            ReleaseStage::Final => Ok(()),
            ReleaseStage::Post(n) => write!(f, ".post{n}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn releases_are_ordered() {
        let order = [
            "0.4.3",
            "0.4.3.post4",
            "0.4.6.post4",
            "0.4.10.post2",
            "0.5.0rc0",
            "0.5.9",
            "0.5.10rc0",
            "0.5.10",
            "0.5.10.post1",
            "1.0.0",
        ];
        let releases: Vec<Release> = order.iter().map(|t| t.parse().unwrap()).collect();
        assert!(releases.is_sorted());
        for (release, text) in releases.iter().zip(order) {
            assert_eq!(release.to_string(), text);
        }
    }

    #[test]
    fn development_builds_and_short_numbers_parse() {
        assert_eq!("0.5.10.dev12+gabc".parse(), Ok(Release::new(0, 5, 10)));
        assert_eq!("26.4".parse(), Ok(Release::new(26, 4, 0)));
        assert!("unknown".parse::<Release>().is_err());
        assert!("".parse::<Release>().is_err());
    }

    proptest! {
        #[test]
        fn releases_round_trip(a: u16, b: u16, c: u16, n: u16, which in 0usize..3) {
            let release = Release::new(a, b, c);
            let release = [release, release.post(n), release.rc(n)][which];
            prop_assert_eq!(release.to_string().parse(), Ok(release));
        }

        #[test]
        fn arbitrary_text_never_panics(text in ".{0,40}") {
            let _ = text.parse::<Release>();
        }
    }
}
