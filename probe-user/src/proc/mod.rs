//! Non-intrusive readers for `/proc`.
//!
//! Used instead of a crate for three reasons (docs/internals/DISCOVERY.md). Paths are bytes, since a mapped file's name need not be UTF-8.
//! Every read has a limit. A process is identified by the descriptor of its directory, so that a reused pid never mixes two processes.

mod dir;
pub(crate) mod maps;
pub(crate) mod net;
pub(crate) mod stat;

pub use dir::FileStatus;
pub(crate) use dir::{ProcDir, ProcessRoot, SocketDescriptor, list_pids};
pub use foreign::ReadError;

/// Items up to a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listing<T> {
    pub(crate) items: Vec<T>,
    /// There are more than the limit.
    pub(crate) is_truncated: bool,
}

// Not derived, since it does not need `T: Default`.
impl<T> Default for Listing<T> {
    fn default() -> Self {
        Self { items: Vec::new(), is_truncated: false }
    }
}

/// The strings in a NUL-separated file (`cmdline`, `environ`), without the padding after a rewritten title.
pub(crate) fn split_nul_separated(bytes: &[u8]) -> Vec<String> {
    let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let text = &bytes[..end];
    if text.is_empty() {
        return Vec::new();
    }
    text.split(|&byte| byte == 0).map(|string| String::from_utf8_lossy(string).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::split_nul_separated;

    #[test]
    fn a_rewritten_title_is_one_string() {
        let mut cmdline = b"engine::scheduler_DP0_TP0".to_vec();
        cmdline.resize(138, 0);
        assert_eq!(split_nul_separated(&cmdline), ["engine::scheduler_DP0_TP0"]);
    }

    #[test]
    fn empty_arguments_between_others_are_kept() {
        assert_eq!(split_nul_separated(b"python3\0-m\0\0x\0"), ["python3", "-m", "", "x"]);
        assert_eq!(split_nul_separated(b""), [""; 0]);
        assert_eq!(split_nul_separated(&[0; 1278]), [""; 0]);
    }
}
