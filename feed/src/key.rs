//! The key shared by source and watchers.

use std::fmt;
use std::path::{Path, PathBuf};

/// Largest key file in bytes.
const FILE: u64 = 1_024;

/// A 256-bit pre-shared key.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Reasons why a key file is rejected.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("cannot read the key in {path}: {error}")]
    Io {
        /// Path of the key file.
        path: PathBuf,
        /// The operating system's error.
        error: std::io::Error,
    },
    /// Users other than the owner may read the file.
    #[error("{0} is readable by other users: run chmod 600 on it, and create a new key if it may have been read")]
    Open(PathBuf),
    /// The file does not hold 64 hexadecimal digits.
    #[error("{0} is not a key: it must contain 64 hexadecimal digits; create one with `openssl rand -hex 32`")]
    NoKey(PathBuf),
}

impl Key {
    /// Creates a key from raw bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Reads a file of 64 hexadecimal digits that only its owner may read.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let failed = |error| KeyError::Io { path: path.to_owned(), error };
        let meta = std::fs::metadata(path).map_err(failed)?;
        if is_open(&meta) {
            return Err(KeyError::Open(path.to_owned()));
        }
        let no_key = || KeyError::NoKey(path.to_owned());
        if meta.len() > FILE {
            return Err(no_key());
        }
        let text = std::fs::read_to_string(path).map_err(failed)?;
        parse(text.trim()).ok_or_else(no_key)
    }

    #[cfg(any(feature = "encryption", test))]
    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

fn parse(text: &str) -> Option<Key> {
    let digits: Vec<u8> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair.get(1).unwrap_or(&0)).collect();
    (digits.len() == 64).then(|| bytes.try_into().ok().map(Key))?
}

#[cfg(unix)]
fn is_open(meta: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    meta.mode() & 0o077 != 0
}

#[cfg(not(unix))]
fn is_open(_: &std::fs::Metadata) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_64_digits_in_a_private_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("feed.key");
        let write = |text: &str, mode: u32| {
            use std::os::unix::fs::PermissionsExt;
            std::fs::write(&path, text).expect("written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("set");
            Key::read(&path)
        };
        let digits = "0123456789abcdefABCDEF00112233445566778899aabbccddeeff0011223344";
        let key = write(&format!("{digits}\n"), 0o600).expect("a key");
        assert_eq!((key.bytes()[0], key.bytes()[31]), (0x01, 0x44));
        assert!(matches!(write(digits, 0o640), Err(KeyError::Open(_))));
        for wrong in ["", "0123", &format!("{digits}0"), &digits.replace('0', "g"), &"0".repeat(2_000)] {
            assert!(matches!(write(wrong, 0o600), Err(KeyError::NoKey(_))), "{wrong:?}");
        }
        assert_eq!(format!("{key:?}"), "Key(..)");
    }
}
