//! Detects whether a built program is up to date. Running cargo would rebuild it for a different package selection.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

/// Whether `program` is newer than every file in cargo's dep-info file beside it, and than the manifests of the workspace at `root`.
pub(super) fn is_current(program: &Path, root: &Path) -> bool {
    let Some(built) = changed(program) else { return false };
    let Ok(noted) = fs::read_to_string(program.with_extension("d")) else {
        return false;
    };
    let Ok(members) = fs::read_dir(root) else { return false };
    let manifests = members.flatten().map(|member| member.path().join("Cargo.toml"));
    let own = ["Cargo.toml", "Cargo.lock"].map(|name| root.join(name));
    let mut manifests = manifests.filter(|manifest| manifest.exists()).chain(own);
    let is_older = |file: &Path| changed(file).is_some_and(|at| at < built);
    read(&noted).iter().all(|file| is_older(Path::new(file))) && manifests.all(|manifest| is_older(&manifest))
}

fn changed(file: &Path) -> Option<SystemTime> {
    fs::metadata(file).and_then(|about| about.modified()).ok()
}

/// Files after the colon of `PROGRAM: FILE FILE ...`, where a backslash escapes a space in a name.
fn read(noted: &str) -> Vec<String> {
    let files = noted.split_once(": ").map_or("", |(_, files)| files);
    let files = files.replace("\\ ", "\0");
    files.split_whitespace().map(|file| file.replace('\0', " ")).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_source_or_a_manifest_that_changed_later_makes_it_stale() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::create_dir(path("member")).unwrap();
        let sources = ["a source.rs", "Cargo.toml", "Cargo.lock", "member/Cargo.toml"];
        for name in sources {
            fs::write(path(name), "").unwrap();
        }
        let program = path("program");
        let source = path(sources[0]).display().to_string().replace(' ', "\\ ");
        fs::write(path("program.d"), format!("{}: {source}\n", program.display())).unwrap();
        assert!(!is_current(&program, root.path()), "there is none");
        fs::write(&program, "").unwrap();
        let touch = |name: &str, seconds: u64| {
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            fs::File::options()
                .write(true)
                .open(path(name))
                .unwrap()
                .set_modified(at)
                .unwrap();
        };
        for name in sources {
            touch(name, 1);
        }
        touch("program", 2);
        assert!(is_current(&program, root.path()));
        for name in sources {
            touch(name, 3);
            assert!(!is_current(&program, root.path()), "{name}");
            touch(name, 1);
        }
        fs::remove_file(path(sources[0])).unwrap();
        assert!(!is_current(&program, root.path()), "a source that is gone");
    }
}
