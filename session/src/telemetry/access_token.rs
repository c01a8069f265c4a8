//! Access to the metrics: a token that every client sends.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::{fmt, hint};

use hyper::header::HeaderValue;

use super::secret_file;

/// Longest token file in bytes.
const MAX_FILE_BYTES: u64 = 4_096;
/// Mode bits of users who are neither the owner nor in the group. Kubernetes lets the pod's group read a secret.
const OTHER_USERS: u32 = 0o007;

/// A secret that clients send as `Authorization: Bearer TOKEN`.
#[derive(Clone)]
pub struct AccessToken {
    secret: Box<[u8]>,
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessToken(..)")
    }
}

/// Reads a token file, and refuses one that other users can read. Reads one byte beyond the limit at most. From that byte, the caller sees
/// that the file is too long.
fn read_private_token_file(file: File) -> io::Result<Vec<u8>> {
    secret_file::refuse_exposed_secret_file(&file, OTHER_USERS)?;
    let mut text = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut text)?;
    Ok(text)
}

/// Why this content of a token file is refused; `None` if it is accepted. Does not show the content, because that is a secret.
fn fault_of_token_file(text: &[u8]) -> Option<&'static str> {
    let token = text.trim_ascii();
    if text.len() as u64 > MAX_FILE_BYTES {
        Some("is longer than 4096 bytes; create one with `openssl rand -hex 32`")
    } else if token.is_empty() {
        Some("is empty; create a token with `openssl rand -hex 32`")
    } else if !token.iter().all(u8::is_ascii_graphic) {
        Some("must contain one word of ASCII characters; create a token with `openssl rand -hex 32`")
    } else {
        None
    }
}

impl AccessToken {
    /// Reads the token from a file that other users cannot read. Surrounding white space is ignored.
    pub fn read(path: &Path) -> io::Result<Self> {
        Self::read_opened_file(path, trace::named_file::open_regular(path))
    }

    /// Reads the token from the file that was opened at this path. If opening it has failed, the error names the path.
    pub fn read_opened_file(path: &Path, opened: io::Result<File>) -> io::Result<Self> {
        let shown_path = path.display();
        let text = opened
            .and_then(read_private_token_file)
            .map_err(|error| io::Error::new(error.kind(), format!("cannot read the token in {shown_path}: {error}")))?;
        if let Some(fault) = fault_of_token_file(&text) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("the token file {shown_path} {fault}")));
        }
        Ok(Self { secret: text.trim_ascii().into() })
    }

    /// Value of the header that sends the token.
    ///
    /// # Panics
    ///
    /// Never: a token consists of graphic ASCII characters only.
    pub fn bearer_header_value(&self) -> HeaderValue {
        let text = [b"Bearer ", &*self.secret].concat();
        let mut value = HeaderValue::from_bytes(&text).expect("graphic ASCII characters");
        value.set_sensitive(true);
        value
    }

    /// Whether a request with this header has the token.
    pub(super) fn is_sent_in(&self, authorization: Option<&HeaderValue>) -> bool {
        const SCHEME: &[u8] = b"bearer ";
        let Some(authorization) = authorization else { return false };
        let Some((scheme, token)) = authorization.as_bytes().split_at_checked(SCHEME.len()) else {
            return false;
        };
        scheme.eq_ignore_ascii_case(SCHEME) && self.equals_in_constant_time(token)
    }

    /// Compares the secret with a token that a client has sent. The time depends on the lengths only, so it does not reveal the secret.
    fn equals_in_constant_time(&self, token: &[u8]) -> bool {
        let mut difference = 0;
        for (expected, sent) in self.secret.iter().zip(token) {
            // Hides the value from the optimiser, which could otherwise leave the loop at the first difference.
            difference = hint::black_box(difference | (expected ^ sent));
        }
        difference == 0 && self.secret.len() == token.len()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn read(text: &[u8], mode: u32) -> Result<AccessToken, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set");
        AccessToken::read(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn a_token_is_one_word_in_a_file_that_others_cannot_read() {
        for mode in [0o600, 0o400, 0o440] {
            assert!(read(b"0123abc\n", mode).is_ok(), "{mode:o}");
        }
        for (text, mode, why) in [
            (&b"0123abc\n"[..], 0o644, "chmod 600"),
            (b" \n", 0o600, "is empty"),
            (b"two words", 0o600, "one word"),
            (&[b'a'; 5_000], 0o600, "4096"),
        ] {
            assert!(read(text, mode).is_err_and(|error| error.contains(why)), "{why}");
        }
        let missing = AccessToken::read(Path::new("/nowhere/token")).expect_err("missing");
        assert!(missing.to_string().contains("cannot read the token in /nowhere/token"), "{missing}");
    }

    #[test]
    fn only_the_whole_token_gives_access() {
        let token = read(b"secret\n", 0o600).expect("a token");
        let is_sent = |value: &'static str| token.is_sent_in(Some(&HeaderValue::from_static(value)));
        assert!(is_sent("Bearer secret") && is_sent("bearer secret"));
        for wrong in
            ["", "secret", "Bearer", "Bearer ", "Bearer secre", "Bearer secretx", "Bearer Secret", "Basic  secret"]
        {
            assert!(!is_sent(wrong), "{wrong}");
        }
        assert!(!token.is_sent_in(None));
        assert_eq!(format!("{token:?}"), "AccessToken(..)");
    }
}
