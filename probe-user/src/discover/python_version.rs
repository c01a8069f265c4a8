//! Version of the Python interpreter that a process runs.

use super::setting::{Origin, Setting};
use crate::proc::maps::MappedFile;

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
    /// Version from the names of mapped files: `python3.11`, `libpython3.11.so.1.0`, `lib/python3.11/lib-dynload/...`.
    pub(crate) fn of(files: &[MappedFile]) -> Option<Setting<Self>> {
        files.iter().find_map(|file| {
            let path = file.path.to_str()?;
            let version = path.match_indices("python").find_map(|(at, word)| Self::parse(&path[at + word.len()..]))?;
            Some(Setting::new(version, Origin::Mapped(file.path.clone())))
        })
    }

    /// Parses a version such as `3.11` at the beginning of `text`.
    fn parse(text: &str) -> Option<Self> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (major, rest) = text[..end].split_once('.')?;
        let minor = rest.split('.').next()?;
        let major = major.parse().ok().filter(|&major| major == 3)?;
        Some(Self { major, minor: minor.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proc::maps;

    #[test]
    fn mapped_files_give_the_python_version() {
        let version = |path: &str| {
            let files = maps::files(format!("7f00-7f01 r-xp 00000000 fe:00 1 {path}\n").as_bytes());
            assert_eq!(files.len(), 1);
            PythonVersion::of(&files).map(|setting| setting.value.to_string())
        };
        assert_eq!(version("/usr/bin/python3.12").as_deref(), Some("3.12"));
        assert_eq!(version("/usr/lib/x86_64-linux-gnu/libpython3.10.so.1.0").as_deref(), Some("3.10"));
        assert_eq!(version("/opt/v/lib/python3.11/site-packages/zmq/_zmq.so").as_deref(), Some("3.11"));
        assert_eq!(version("/usr/lib/python3/dist-packages/apt_pkg.so"), None);
        assert_eq!(version("/home/python/lib/libc.so.6"), None);
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in ".{0,200}") {
            let _ = PythonVersion::parse(&text);
        }
    }
}
