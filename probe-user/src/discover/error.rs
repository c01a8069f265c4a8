//! Errors that prevent discovery.

use super::proc::ReadError;

/// Error that prevents discovery.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiscoverError {
    /// No procfs is mounted.
    #[error("cannot list {path} ({error}): mount procfs there")]
    Proc {
        /// Path that was tried.
        path: String,
        /// Error of listing it.
        error: ReadError,
    },
    /// A process that the user named does not exist.
    #[error("--pid {pid}: there is no such process here{}", inside(.outside))]
    NoSuchProcess {
        /// Process id as given.
        pid: u32,
        /// Local ids of processes that have this id inside their containers.
        outside: Vec<u32>,
    },
}

fn inside(outside: &[u32]) -> String {
    match outside {
        [] => String::from("; use a pid as shown by ps here"),
        [one] => format!("; pid {one} has that pid inside its container: use --pid {one}"),
        several => {
            let pids: Vec<String> = several.iter().map(u32::to_string).collect();
            format!("; pids {} have that pid inside their containers", pids.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DiscoverError;

    #[test]
    fn a_pid_from_inside_a_container_is_translated() {
        let message = |outside| DiscoverError::NoSuchProcess { pid: 17, outside }.to_string();
        assert_eq!(
            message(vec![]),
            "--pid 17: there is no such process here; use a pid as shown by ps here"
        );
        assert!(message(vec![22336]).ends_with("; pid 22336 has that pid inside its container: use --pid 22336"));
    }
}
