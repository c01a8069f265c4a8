//! Formats an error as one line, with advice if the operating system refused something.

use std::io::{Error, ErrorKind};

/// The error and its causes, without repetitions, plus advice unless a cause already contains it.
pub(crate) fn line(error: &anyhow::Error) -> String {
    let told = error
        .chain()
        .map(ToString::to_string)
        .fold(String::new(), |line, cause| match line.as_str() {
            "" => cause,
            told if told.contains(&cause) => line,
            _ => format!("{line}: {cause}"),
        });
    let refused = error.chain().filter_map(|cause| cause.downcast_ref::<Error>()).last();
    // In messages, advice follows a semicolon.
    match refused.and_then(advice).filter(|_| !told.contains("; ")) {
        Some(advice) => format!("{told}; {advice}"),
        None => told,
    }
}

fn advice(refused: &Error) -> Option<&'static str> {
    Some(match refused.kind() {
        ErrorKind::NotFound => "check the name: it, or a folder on the way to it, is not there",
        ErrorKind::PermissionDenied => "ls -l says who may: be that user, or name another place",
        ErrorKind::IsADirectory => "it is a folder: name a file",
        ErrorKind::NotADirectory => "a parent of this path is a file, not a folder: check the name",
        ErrorKind::ReadOnlyFilesystem => "nothing can be written there: name another place",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room there, or name a place on another disk",
        ErrorKind::AddrInUse => "somebody listens there already: choose another place",
        ErrorKind::AddrNotAvailable => "this machine has no such address: choose one that it has, or 0.0.0.0 for all",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn what_the_system_refused_comes_with_what_to_do_next() {
        let gone = || Error::from(ErrorKind::NotFound);
        let told = line(&anyhow::Error::from(gone()).context("cannot read x"));
        assert_eq!(
            told,
            "cannot read x: entity not found; check the name: it, or a folder on the way to it, is not there"
        );
        let advised = Err::<(), _>(gone()).context("cannot read x; give y").expect_err("gone");
        assert_eq!(line(&advised), "cannot read x; give y: entity not found");
        let other = anyhow::Error::from(Error::other("odd")).context("cannot read x");
        assert_eq!(line(&other), "cannot read x: odd");
    }

    #[test]
    fn a_cause_that_was_told_is_not_told_again() {
        let error = anyhow::anyhow!("the disk").context("cannot read x: the disk");
        assert_eq!(line(&error), "cannot read x: the disk");
    }
}
