//! Version of the Python interpreter that a process runs.

/// Python's major and minor version, which determine the behaviour of its event loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PythonVersion {
    /// Major version: 3.
    pub major: u16,
    /// Minor version, for example 11 in 3.11.
    pub minor: u16,
}

impl std::fmt::Display for PythonVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl PythonVersion {
    /// Version from the name of a file: `python3.11`, `libpython3.11.so.1.0`, `lib/python3.11/lib-dynload/...`.
    pub fn in_path(path: &str) -> Option<Self> {
        path.match_indices("python").find_map(|(start, word)| Self::parse(&path[start + word.len()..]))
    }

    /// Parses a version such as `3.11` at the beginning of `text`. `None` if there is none, or if it is not a version of Python 3.
    fn parse(text: &str) -> Option<Self> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (major, rest) = text[..end].split_once('.')?;
        let minor = rest.split('.').next()?;
        let version = Self { major: major.parse().ok()?, minor: minor.parse().ok()? };
        // No engine runs on another major version.
        (version.major == 3).then_some(version)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in ".{0,200}") {
            let _ = (PythonVersion::in_path(&text), PythonVersion::parse(&text));
        }
    }
}
