//! Formats an error as one line, with advice if the operating system refused something or the build lacks a feature.

use std::io::{Error, ErrorKind};

/// The error and its causes, without repetitions, plus advice unless a cause already contains it.
pub(crate) fn error_line_with_advice(error: &anyhow::Error) -> String {
    let mut message = String::new();
    for cause in error.chain().map(ToString::to_string) {
        // Many errors already name their cause.
        let is_named = message.contains(&cause);
        if message.is_empty() {
            message = cause;
        } else if !is_named {
            message = format!("{message}: {cause}");
        }
    }
    // In messages, advice follows a semicolon.
    let has_advice = message.contains("; ");
    let root_io_error = error.chain().filter_map(|cause| cause.downcast_ref::<Error>()).last();
    if !has_advice && let Some(advice) = root_io_error.and_then(advice_for) {
        message = format!("{message}; {advice}");
    }
    message
}

/// Advice about an error of the system; `None` if there is none.
fn advice_for(error: &Error) -> Option<&'static str> {
    Some(match error.kind() {
        ErrorKind::NotFound => "check the name: the file or one of its folders does not exist",
        ErrorKind::PermissionDenied => "run as the user that `ls -l` shows, or choose another path",
        ErrorKind::IsADirectory => "it is a folder: choose a file",
        ErrorKind::NotADirectory => "a parent of this path is a file, not a folder: check the name",
        ErrorKind::ReadOnlyFilesystem => "the file system is read-only: choose another path",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free some space, or choose a path on another disk",
        ErrorKind::AddrInUse => "the address is in use: choose another",
        ErrorKind::AddrNotAvailable => {
            "this machine does not have that address: choose one that it has, or 0.0.0.0 for all"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn a_system_error_comes_with_advice() {
        let not_found = || Error::from(ErrorKind::NotFound);
        let message = error_line_with_advice(&anyhow::Error::from(not_found()).context("cannot read x"));
        assert_eq!(
            message,
            "cannot read x: entity not found; check the name: the file or one of its folders does not exist"
        );
        let with_advice = Err::<(), _>(not_found()).context("cannot read x; give y").expect_err("gone");
        assert_eq!(error_line_with_advice(&with_advice), "cannot read x; give y: entity not found");
        let other = anyhow::Error::from(Error::other("odd")).context("cannot read x");
        assert_eq!(error_line_with_advice(&other), "cannot read x: odd");
    }

    #[test]
    fn a_repeated_cause_is_printed_once() {
        let error = anyhow::anyhow!("the disk").context("cannot read x: the disk");
        assert_eq!(error_line_with_advice(&error), "cannot read x: the disk");
    }
}
