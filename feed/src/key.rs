//! The key shared by source and watchers.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fmt, io};

/// Largest key file in bytes.
const FILE: u64 = 1_024;
/// Mode bits of all users but the owner.
const OTHER_USERS: u32 = 0o077;

/// A 256-bit pre-shared key.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// Creates a key from raw bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Reads a file of 64 hexadecimal digits that only its owner may read.
    pub fn read(path: &Path) -> io::Result<Self> {
        Self::of_file(path, File::open(path))
    }

    /// Reads the key from the file that was opened at this path.
    pub fn of_file(path: &Path, opened: io::Result<File>) -> io::Result<Self> {
        let shown = path.display();
        let failed =
            |error: io::Error| io::Error::new(error.kind(), format!("cannot read the key in {shown}: {error}"));
        let refused = |why: &str| io::Error::new(io::ErrorKind::InvalidData, format!("{shown} {why}"));
        let file = opened.map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        if meta.mode() & 0o077 != 0 {
            return Err(refused(
                "is readable by other users: run chmod 600 on it, and create a new key if it may have been read",
            ));
        }
        let mut text = String::new();
        file.take(FILE + 1).read_to_string(&mut text).map_err(failed)?;
        parse(text.trim()).ok_or_else(|| {
            refused("is not a key: it must contain 64 hexadecimal digits; create one with `openssl rand -hex 32`")
        })
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
        let refused = |text: &str, mode, why| write(text, mode).is_err_and(|error| error.to_string().contains(why));
        assert!(refused(digits, 0o640, "other users can read it"));
        for wrong in ["", "0123", &format!("{digits}0"), &digits.replace('0', "g"), &"0".repeat(2_000)] {
            assert!(refused(wrong, 0o600, "is not a key"), "{wrong:?}");
        }
        assert_eq!(format!("{key:?}"), "Key(..)");
    }
}
