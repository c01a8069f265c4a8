//! Which files the broker creates, renames and removes: only results of its run, in folders that are opened once. Whoever may rename a
//! folder could put a link to another one in its place.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use zmq_tap::splice::Folder;

use super::ResultFiles;

/// Prefix of the names that tokengap chooses.
const OWN_PREFIX: &str = "tokengap-";

pub(crate) struct Rules {
    results: ResultFiles,
    /// Folders of the results, by path.
    folders: HashMap<PathBuf, Folder>,
    /// Files created here, under their current names.
    created: HashSet<PathBuf>,
}

impl Rules {
    /// Opens the folders of the results. Skips a folder that cannot be opened: nothing can be created in it later.
    pub(crate) fn new(results: ResultFiles) -> Self {
        let folders_of_files = results.file.iter().filter_map(|file| file.parent());
        let named_folders = results.folder.iter().map(PathBuf::as_path);
        // A set, because several results may be in one folder.
        let paths: HashSet<&Path> = folders_of_files.chain(named_folders).collect();
        let mut folders = HashMap::new();
        for path in paths {
            let path = or_working_folder(path);
            let shown_path = path;
            if let Ok(folder) = Folder::open(path, shown_path) {
                folders.insert(path.to_owned(), folder);
            }
        }
        Self { results, folders, created: HashSet::new() }
    }

    /// Creates a file that this run may write (a result). Refuses any other path, and a file that exists.
    pub(super) fn create_result_file(&mut self, path: &Path) -> io::Result<File> {
        // A result that replaces a file is written under another name, and renamed once it is complete.
        let becomes_result = file_replaced_by(path).is_some_and(|replaced| self.is_result(&replaced));
        if !self.is_result(path) && !becomes_result {
            return Err(Errno::PERM.into());
        }
        let FolderEntry { folder, name } = self.find_folder_and_name(path)?;
        let file = folder.create_file(name)?;
        self.created.insert(path.to_owned());
        Ok(file)
    }

    /// Renames a file created here to a result beside it. Replaces a file that was not created here only with `--force`.
    pub(super) fn rename_to_result(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let entry = self.find_folder_and_name(to)?;
        let result_exists = entry.folder.find_file(entry.name)?.is_some();
        // A file created here belongs to this run, so it may be replaced without `--force`.
        let may_replace = !result_exists || self.created.contains(to) || self.results.force;
        // A result is written next to the file that it replaces.
        let is_beside_result = from.parent() == to.parent();
        let is_permitted = self.created.contains(from) && self.is_result(to) && may_replace && is_beside_result;
        if !is_permitted {
            return Err(Errno::PERM.into());
        }
        let from_name = self.find_folder_and_name(from)?.name;
        entry.folder.rename(from_name, entry.name)?;
        self.created.remove(from);
        self.created.insert(to.to_owned());
        Ok(())
    }

    /// Removes a file that was created here. Refuses any other path.
    pub(super) fn remove_created_file(&mut self, path: &Path) -> io::Result<()> {
        if !self.created.contains(path) {
            return Err(Errno::PERM.into());
        }
        let FolderEntry { folder, name } = self.find_folder_and_name(path)?;
        if let Some(found) = folder.find_file(name)? {
            folder.remove_file(name, found.metadata())?;
        }
        self.created.remove(path);
        Ok(())
    }

    /// The folder of a path, if it was opened at the start, and the name in it. No other folder can be reached.
    fn find_folder_and_name<'a>(&'a self, path: &'a Path) -> io::Result<FolderEntry<'a>> {
        let parent = path.parent().map(or_working_folder);
        let folder = parent.and_then(|parent| self.folders.get(parent));
        match (folder, path.file_name()) {
            (Some(folder), Some(name)) => Ok(FolderEntry { folder, name }),
            _ => Err(Errno::NOENT.into()),
        }
    }

    /// Whether this run may create a file at `path`: the user has named it or its folder.
    fn is_result(&self, path: &Path) -> bool {
        self.is_of_named_file(path) || self.is_own_file_in_named_folder(path)
    }

    /// Whether `path` is a file that the user has named, a further file of such a recording, or such a recording of one of several engines.
    fn is_of_named_file(&self, path: &Path) -> bool {
        let mut named_files = self.results.file.iter();
        named_files
            .any(|named| path == named || recording::is_part_of(path, named) || is_recording_of_one_engine(path, named))
    }

    /// Whether `path` is in a folder that the user has named, and has a name that tokengap chooses. Other files of the folder are not of
    /// this run.
    fn is_own_file_in_named_folder(&self, path: &Path) -> bool {
        let file_name = path.file_name().unwrap_or_default().as_encoded_bytes();
        let parent = path.parent().map(or_working_folder);
        let is_in_named_folder = self.results.folder.iter().any(|folder| parent == Some(or_working_folder(folder)));
        is_in_named_folder && file_name.starts_with(OWN_PREFIX.as_bytes())
    }
}

/// Whether `path` is the recording of one of several engines, for which the user gave the file `given_file`.
fn is_recording_of_one_engine(path: &Path, given_file: &Path) -> bool {
    let Some(run) = recording::run_name_of_path(path, given_file) else { return false };
    let mut kinds = engines::DISCOVERED.iter().map(|kind| kind.name()).chain(["engine"]);
    // The engine's port, model or pid follows its kind.
    kinds.any(|kind| run.strip_prefix(kind).is_some_and(|rest| rest.starts_with('-')))
}

/// A file of a permitted folder.
struct FolderEntry<'a> {
    folder: &'a Folder,
    name: &'a OsStr,
}

/// `folder`, where an empty path stands for the working folder.
pub(crate) fn or_working_folder(folder: &Path) -> &Path {
    if folder.as_os_str().is_empty() { Path::new(".") } else { folder }
}

/// The file that `temporary_path` replaces once it is complete: `run.tgap` for `.run.tgap.PID.new`. `None` if it has no such name.
fn file_replaced_by(temporary_path: &Path) -> Option<PathBuf> {
    let inner = temporary_path.file_name()?.to_str()?.strip_prefix('.')?.strip_suffix(".new")?;
    let (name, pid) = inner.rsplit_once('.')?;
    if pid.parse::<u32>().is_err() {
        return None;
    }
    Some(temporary_path.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn refused<T>(done: io::Result<T>) -> bool {
        done.is_err_and(|error| error.raw_os_error() == Some(Errno::PERM.raw_os_error()))
    }

    #[test]
    fn each_of_several_runs_is_recorded_to_its_own_file() {
        let path = recording::path_of_run(Path::new("/var/tmp/run.tgap"), "sglang:30000");
        assert_eq!(path, Path::new("/var/tmp/run-sglang-30000.tgap"));
        assert_eq!(recording::path_of_run(Path::new("run"), "[::1]:1"), Path::new("run----1--1"));
        let rules =
            Rules::new(ResultFiles { file: vec![PathBuf::from("/var/tmp/run.tgap")], ..ResultFiles::default() });
        assert!(rules.is_result(&path));
        for other in
            ["/var/run-sglang-30000.tgap", "/var/tmp/run-sglang-1.html", "/var/tmp/runs.tgap", "/var/tmp/run-2026.tgap"]
        {
            assert!(!rules.is_result(Path::new(other)), "{other}");
        }
    }

    #[test]
    fn only_result_files_are_created_and_only_created_files_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        for name in ["old.tgap", "tokengap-old.json", "run.2.tgap", "ours/x"] {
            fs::create_dir_all(at(name).parent().expect("a folder")).expect("made");
            fs::write(at(name), "precious").expect("written");
        }
        let mut rules = Rules::new(ResultFiles {
            file: vec![at("run.tgap"), at("old.tgap")],
            folder: vec![folder.path().to_owned()],
            force: false,
        });
        for name in ["run.tgap", "run.1.tgap", ".run.tgap.7.new", "tokengap-1.tgap", "run-vllm-8000.1.tgap"] {
            rules.create_result_file(&at(name)).expect(name);
        }
        for name in
            ["beside", ".bashrc", "run.x.tgap", ".beside.7.new", "ours/tokengap-1.tgap", "../tokengap-1.tgap", ""]
        {
            assert!(refused(rules.create_result_file(&at(name))), "{name}");
        }
        for name in ["old.tgap", "run.2.tgap", "tokengap-old.json", "beside"] {
            assert!(refused(rules.remove_created_file(&at(name))), "{name}");
        }
        // Named files are replaced only with --force, other files never.
        assert!(refused(rules.rename_to_result(&at(".run.tgap.7.new"), &at("old.tgap"))));
        assert!(refused(rules.rename_to_result(&at(".run.tgap.7.new"), &at("beside"))));
        assert!(refused(rules.rename_to_result(&at("old.tgap"), &at("run.3.tgap"))));
        rules.rename_to_result(&at(".run.tgap.7.new"), &at("run.tgap")).expect("its own file");
        rules.results.force = true;
        rules.rename_to_result(&at("run.tgap"), &at("old.tgap")).expect("asked for");
        assert!(refused(rules.remove_created_file(&at("run.tgap"))), "it has another name now");
        rules.remove_created_file(&at("run.1.tgap")).expect("created here");
        assert!(!at("run.1.tgap").exists());
        // The folder is opened once.
        let other = tempfile::tempdir().expect("a folder");
        let moved = other.path().join("moved");
        fs::rename(folder.path(), &moved).expect("renamed");
        std::os::unix::fs::symlink(other.path(), folder.path()).expect("linked");
        rules.create_result_file(&at("tokengap-2.tgap")).expect("created");
        assert!(moved.join("tokengap-2.tgap").exists() && !other.path().join("tokengap-2.tgap").exists());
        fs::remove_file(folder.path()).expect("the link");
        fs::rename(&moved, folder.path()).expect("renamed");
        let working_folder = Rules::new(ResultFiles { folder: vec![PathBuf::from(".")], ..ResultFiles::default() });
        for (name, is_result) in [("tokengap-1.html", true), ("./tokengap-1.html", true), ("a/tokengap-1.html", false)]
        {
            assert_eq!(working_folder.is_result(Path::new(name)), is_result, "{name}");
        }
    }
}
