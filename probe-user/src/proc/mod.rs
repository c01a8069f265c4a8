//! Non-intrusive readers for `/proc`.
//!
//! Used instead of a crate for three reasons (docs/internals/DISCOVERY.md). Paths are bytes, since a mapped file's name need not be UTF-8.
//! Every read has a limit. A process is identified by the descriptor of its directory, so that a reused pid never mixes two processes.

mod dir;
pub(crate) mod maps;
pub(crate) mod net;
pub(crate) mod stat;

pub use dir::FileStatus;
pub(crate) use dir::{ProcDir, ProcessRoot, pids};
pub use foreign::ReadError;

/// The strings in a NUL-separated file (`cmdline`, `environ`), without the padding after a rewritten title.
pub(crate) fn strings(bytes: &[u8]) -> Vec<String> {
    let end = bytes.iter().rposition(|&b| b != 0).map_or(0, |last| last + 1);
    let text = &bytes[..end];
    if text.is_empty() {
        return Vec::new();
    }
    text.split(|&b| b == 0).map(|s| String::from_utf8_lossy(s).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::strings;

    #[test]
    fn a_rewritten_title_is_one_string() {
        let mut cmdline = b"engine::scheduler_DP0_TP0".to_vec();
        cmdline.resize(138, 0);
        assert_eq!(strings(&cmdline), ["engine::scheduler_DP0_TP0"]);
    }

    #[test]
    fn empty_arguments_between_others_are_kept() {
        assert_eq!(strings(b"python3\0-m\0\0x\0"), ["python3", "-m", "", "x"]);
        assert_eq!(strings(b""), [""; 0]);
        assert_eq!(strings(&[0; 1278]), [""; 0]);
    }
}
