//! Which files the broker creates, renames and removes: only results of its run.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use trace::{record, storage};

use super::Results;

/// Prefix of the names that tokengap chooses.
const OWN: &str = "tokengap-";

pub(super) struct Rules {
    results: Results,
    /// Files created here, under their current names.
    created: HashSet<PathBuf>,
}

impl Rules {
    pub(super) fn new(results: Results) -> Self {
        Self { results, created: HashSet::new() }
    }

    /// Creates a result that does not exist.
    pub(super) fn create(&mut self, path: &Path) -> io::Result<File> {
        if !self.is_result(path) && !replacement(path).is_some_and(|named| self.is_result(&named)) {
            return Err(Errno::PERM.into());
        }
        let file = storage::create_here(path)?;
        self.created.insert(path.to_owned());
        Ok(file)
    }

    /// Renames a file created here to a result. Replaces an existing file only with `--force`.
    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let replaces = to.symlink_metadata().is_ok() && !self.created.contains(to);
        let permitted = self.created.contains(from) && self.is_result(to) && (!replaces || self.results.force);
        if !permitted {
            return Err(Errno::PERM.into());
        }
        fs::rename(from, to)?;
        self.created.remove(from);
        self.created.insert(to.to_owned());
        Ok(())
    }

    /// Removes a file created here.
    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        if !self.created.contains(path) {
            return Err(Errno::PERM.into());
        }
        fs::remove_file(path)?;
        self.created.remove(path);
        Ok(())
    }

    /// Whether `path` is a named file, a further file of a named recording, or has a name of tokengap's in a permitted folder.
    fn is_result(&self, path: &Path) -> bool {
        let is_named = |named: &PathBuf| path == named || record::is_part_of(path, named);
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        let parent = path.parent().map(or_working_folder);
        let is_own = |folder: &PathBuf| name.starts_with(OWN.as_bytes()) && parent == Some(or_working_folder(folder));
        self.results.file.iter().any(is_named) || self.results.folder.iter().any(is_own)
    }
}

/// `folder`, where an empty path stands for the working folder.
pub(crate) fn or_working_folder(folder: &Path) -> &Path {
    if folder.as_os_str().is_empty() { Path::new(".") } else { folder }
}

/// The file that `path` replaces once it is complete.
fn replacement(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?.strip_prefix('.')?.strip_suffix(".new")?;
    let (name, pid) = name.rsplit_once('.')?;
    pid.parse::<u32>().ok()?;
    Some(path.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused<T>(done: io::Result<T>) -> bool {
        done.is_err_and(|error| error.raw_os_error() == Some(Errno::PERM.raw_os_error()))
    }

    #[test]
    fn only_result_files_are_created_and_only_created_files_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        for name in ["old.tgap", "tokengap-old.json", "run.2.tgap", "ours/x"] {
            fs::create_dir_all(at(name).parent().expect("a folder")).expect("made");
            fs::write(at(name), "precious").expect("written");
        }
        let mut rules = Rules::new(Results {
            file: vec![at("run.tgap"), at("old.tgap")],
            folder: vec![folder.path().to_owned()],
            force: false,
        });
        for name in ["run.tgap", "run.1.tgap", ".run.tgap.7.new", "tokengap-1.tgap"] {
            rules.create(&at(name)).expect(name);
        }
        for name in
            ["beside", ".bashrc", "run.x.tgap", ".beside.7.new", "ours/tokengap-1.tgap", "../tokengap-1.tgap", ""]
        {
            assert!(refused(rules.create(&at(name))), "{name}");
        }
        for name in ["old.tgap", "run.2.tgap", "tokengap-old.json", "beside"] {
            assert!(refused(rules.remove(&at(name))), "{name}");
        }
        // Named files are replaced only with --force, other files never.
        assert!(refused(rules.rename(&at(".run.tgap.7.new"), &at("old.tgap"))));
        assert!(refused(rules.rename(&at(".run.tgap.7.new"), &at("beside"))));
        assert!(refused(rules.rename(&at("old.tgap"), &at("run.3.tgap"))));
        rules.rename(&at(".run.tgap.7.new"), &at("run.tgap")).expect("its own file");
        rules.results.force = true;
        rules.rename(&at("run.tgap"), &at("old.tgap")).expect("asked for");
        assert!(refused(rules.remove(&at("run.tgap"))), "it has another name now");
        rules.remove(&at("run.1.tgap")).expect("created here");
        assert!(!at("run.1.tgap").exists());
        let working_folder = Rules::new(Results { folder: vec![PathBuf::from(".")], ..Results::default() });
        for (name, is_result) in [("tokengap-1.html", true), ("./tokengap-1.html", true), ("a/tokengap-1.html", false)]
        {
            assert_eq!(working_folder.is_result(Path::new(name)), is_result, "{name}");
        }
    }
}
