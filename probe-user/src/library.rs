//! Which libzmq and libc a process uses, as paths that are valid from here.

use std::fs;
use std::path::PathBuf;

/// A library that a process has mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// Where it is.
    pub path: PathBuf,
    /// It may be asked to send or take plain buffers (`zmq_send`). pyzmq's is not: it moves messages (`zmq_msg_send`).
    pub buffers: bool,
}

/// The mapped files whose name says that they hold libzmq: `libzmq-<hash>.so.5.2.5` of the pyzmq wheels, a
/// distribution's `libzmq.so.5`, or an extension module that has it linked in (`_zmq.abi3.so`). Sorted, each once.
pub fn libzmq(pid: u32) -> std::io::Result<Vec<Library>> {
    let maps = maps(pid)?;
    let found = libzmq_in(&maps).into_iter();
    Ok(found
        .map(|m| Library {
            buffers: !m.of_pyzmq(&maps),
            path: m.reachable(pid),
        })
        .collect())
}

/// The mapped C library: glibc's `libc.so.6` (`libc-2.31.so` before 2.34) or musl's `ld-musl-<machine>.so.1`.
pub fn libc(pid: u32) -> std::io::Result<Vec<Library>> {
    let named = |file: &str| file == "libc.so.6" || file.starts_with("libc-2.") || file.starts_with("ld-musl-");
    let found = mapped(&maps(pid)?, named).into_iter();
    Ok(found
        .map(|m| Library {
            buffers: false,
            path: m.reachable(pid),
        })
        .collect())
}

fn maps(pid: u32) -> std::io::Result<String> {
    fs::read_to_string(format!("/proc/{pid}/maps"))
}

fn libzmq_in(maps: &str) -> Vec<Mapped> {
    let mut found = mapped(maps, |file| file.contains("zmq") && file.contains(".so"));
    // The wheels' extension modules only call libzmq; where it is a file of its own, that file is the place.
    if found.iter().any(|m| m.file().starts_with("libzmq")) {
        found.retain(|m| m.file().starts_with("libzmq"));
    }
    found
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Mapped {
    path: String,
    range: String,
    deleted: bool,
}

impl Mapped {
    /// Through the target's root, so that a container's file is found; through its mapping when the file is gone.
    fn reachable(&self, pid: u32) -> PathBuf {
        if self.deleted {
            PathBuf::from(format!("/proc/{pid}/map_files/{}", self.range))
        } else {
            PathBuf::from(format!("/proc/{pid}/root{}", self.path))
        }
    }
}

/// The executable mappings of files whose name `wanted` accepts; sorted, each path once.
fn mapped(maps: &str, wanted: impl Fn(&str) -> bool) -> Vec<Mapped> {
    let mut found: Vec<Mapped> = maps.lines().filter_map(line).filter(|m| wanted(m.file())).collect();
    found.sort();
    found.dedup_by(|a, b| a.path == b.path);
    found
}

impl Mapped {
    /// A wheel keeps it in `pyzmq.libs`, or links it into its module; and the module has been imported.
    fn of_pyzmq(&self, maps: &str) -> bool {
        let module = "/zmq/backend/";
        self.path.contains(module) || self.path.contains("/pyzmq.libs/") && maps.contains(module)
    }

    fn file(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

/// `7f..-7f.. r-xp 00001000 08:01 1234   /path with spaces/libzmq.so.5 (deleted)`
fn line(line: &str) -> Option<Mapped> {
    let mut rest = line;
    let mut fields = [""; 5];
    for field in &mut fields {
        (*field, rest) = rest.trim_start().split_once(' ')?;
    }
    let (path, deleted) = match rest.trim_start().strip_suffix(" (deleted)") {
        Some(path) => (path, true),
        None => (rest.trim_start(), false),
    };
    (path.starts_with('/') && fields[1].contains('x')).then(|| Mapped {
        path: path.to_owned(),
        range: fields[0].to_owned(),
        deleted,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WHEEL: &str = "\
7f12c0a00000-7f12c0a21000 r--p 00000000 fe:00 1052 /srv/venv/lib/python3.11/site-packages/pyzmq.libs/libzmq-2f02442c.so.5.2.5
7f12c0a21000-7f12c0ad2000 r-xp 00021000 fe:00 1052 /srv/venv/lib/python3.11/site-packages/pyzmq.libs/libzmq-2f02442c.so.5.2.5
7f12c1000000-7f12c1020000 r-xp 00000000 fe:00 1060 /srv/venv/lib/python3.11/site-packages/zmq/backend/cython/_zmq.abi3.so
7ffd1b5f2000-7ffd1b613000 rw-p 00000000 00:00 0 [stack]
";

    #[test]
    fn the_wheels_library_and_not_the_module_that_calls_it() {
        let found = libzmq_in(WHEEL);
        assert_eq!(found.len(), 1);
        assert!(found[0].of_pyzmq(WHEEL));
        // Called by somebody else: no telling how.
        assert!(!found[0].of_pyzmq(&WHEEL.replace("/zmq/backend/", "/other/")));
        assert_eq!(
            found[0].reachable(7).to_str(),
            Some("/proc/7/root/srv/venv/lib/python3.11/site-packages/pyzmq.libs/libzmq-2f02442c.so.5.2.5")
        );
    }

    #[test]
    fn a_module_that_has_it_linked_in() {
        let found = libzmq_in(WHEEL.lines().nth(2).unwrap());
        assert_eq!(found[0].file(), "_zmq.abi3.so");
    }

    #[test]
    fn a_replaced_file_is_reached_through_its_mapping() {
        let found = libzmq_in("7f00-7f10 r-xp 00000000 fe:00 9 /opt/my libs/libzmq.so.5 (deleted)\n");
        assert_eq!(found[0].reachable(7).to_str(), Some("/proc/7/map_files/7f00-7f10"));
        assert_eq!(found[0].path, "/opt/my libs/libzmq.so.5");
    }

    proptest! {
        #[test]
        fn never_panics(text in "[ -~\n]{0,300}") {
            let _ = libzmq_in(&text);
        }
    }
}
