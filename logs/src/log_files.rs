//! Selection of files: those named, and those in named directories.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::ImportError;
use super::ImportOptions;
use super::import_stats::ImportStats;

/// Suffixes of files without a log: profiles, pickled requests (they hold prompts), tokengap recordings, archives.
const SUFFIXES_WITHOUT_LOG: [&str; 9] =
    [".pkl", ".pickle", ".pstats", ".tgap", ".json.gz", ".tar", ".tgz", ".zip", ".npz"];
/// Maximum length of a number or date at the end of a rotated file's name.
const LONGEST_ROTATION: usize = 10;
/// A number of at least this length is a date, even behind a name without an extension.
const SHORTEST_DATE: usize = 4;
/// Maximum depth of nested directories.
const MAX_DEPTH: usize = 32;

/// A file to import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogFile {
    pub(super) path: PathBuf,
    /// Name to which its lines are attributed; the same for all files of a rotated set.
    pub(super) label: Box<str>,
    /// Size on disk, in bytes.
    pub(super) bytes: u64,
}

/// A folder whose entries are not searched yet.
struct SearchedFolder {
    path: PathBuf,
    /// The folder that the user named. Labels are relative to it.
    root: PathBuf,
    depth: usize,
}

/// Error of reading `path`.
fn path_error(path: &Path, source: io::Error) -> ImportError {
    ImportError::Path { path: path.to_owned(), source }
}

/// A search for files to import.
#[derive(Default)]
struct FileSearch {
    /// Each file once, even if several arguments lead to it.
    found: BTreeMap<PathBuf, LogFile>,
    /// Folders that are not searched yet.
    folders: Vec<SearchedFolder>,
}

impl FileSearch {
    /// Adds a file or folder that the user named. Returns an error if it does not exist, or is a file that cannot be opened.
    fn add_named_path(&mut self, path: &Path) -> Result<(), ImportError> {
        let metadata = fs::metadata(path).map_err(|error| path_error(path, error))?;
        if metadata.is_dir() {
            self.folders.push(SearchedFolder { path: path.to_owned(), root: path.to_owned(), depth: 0 });
            return Ok(());
        }
        // A file that cannot be opened is an error here, before the import begins.
        fs::File::open(path).map_err(|error| path_error(path, error))?;
        // The file's label is its path from here on.
        let root = path.parent().unwrap_or(Path::new(""));
        self.found.insert(path.to_owned(), log_file(path, root, metadata.len()));
        Ok(())
    }

    /// Adds an entry of a folder, if it is a file or another folder. A file that is no log is counted as skipped.
    fn add_entry(&mut self, folder: &SearchedFolder, path: PathBuf, metadata: &fs::Metadata, stats: &mut ImportStats) {
        if metadata.is_dir() && folder.depth < MAX_DEPTH {
            self.folders.push(SearchedFolder { path, root: folder.root.clone(), depth: folder.depth + 1 });
        } else if metadata.is_file() && holds_no_log(&path) {
            stats.add_skipped_file(format!("{}: not a log file, by its name", path.display()));
        } else if metadata.is_file() {
            self.found.entry(path.clone()).or_insert_with(|| log_file(&path, &folder.root, metadata.len()));
        }
    }
}

/// Finds the files to import under `paths`, sorted by path. Counts those that are no logs as skipped. Symbolic links inside directories are
/// not followed.
pub(super) fn find_log_files(
    paths: &[PathBuf],
    options: &ImportOptions,
    stats: &mut ImportStats,
) -> Result<Vec<LogFile>, ImportError> {
    let mut search = FileSearch::default();
    for path in paths {
        search.add_named_path(path)?;
    }
    while let Some(folder) = search.folders.pop() {
        let entries = fs::read_dir(&folder.path).map_err(|error| path_error(&folder.path, error))?;
        // Entries that cannot be read are left out.
        for entry in entries.flatten() {
            // Metadata of the entry itself, not of a link's target. A file without metadata was removed in the meantime.
            let Ok(metadata) = entry.metadata() else { continue };
            search.add_entry(&folder, entry.path(), &metadata, stats);
            if search.found.len() > options.max_files {
                return Err(ImportError::TooManyFiles { limit: options.max_files, paths: join_paths(paths) });
            }
        }
    }
    if search.found.is_empty() {
        return Err(ImportError::NoFiles(join_paths(paths)));
    }
    Ok(search.found.into_values().collect())
}

/// The paths as an error lists them.
fn join_paths(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// The file at `path`, of `bytes`, whose label is relative to `root`.
fn log_file(path: &Path, root: &Path, bytes: u64) -> LogFile {
    let inside = path.strip_prefix(root).unwrap_or(path).display().to_string();
    LogFile { path: path.to_owned(), label: label_of_rotated_set(&inside).into(), bytes }
}

/// Whether the file is no log, judged by its name.
fn holds_no_log(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    SUFFIXES_WITHOUT_LOG.iter().any(|suffix| name.ends_with(suffix))
}

/// Removes suffixes of compression and rotation from a name: `decode.log.2.gz`, `decode.log-20260118`,
/// `decode.log.2026-01-18_07` all become `decode.log`.
fn label_of_rotated_set(name: &str) -> &str {
    let mut name = name;
    loop {
        let Some((stem, end)) = name.rsplit_once(['.', '-']) else { return name };
        let is_compression = matches!(end, "gz" | "zst" | "zstd");
        let is_suffix = is_compression || is_rotation_suffix(stem, end);
        // Something must be left as the name.
        if stem.is_empty() || !is_suffix {
            return name;
        }
        name = stem;
    }
}

/// Whether `end` is the number or date that rotation has added to the name `stem`. A short number behind a name without an extension is
/// part of the name: `decode-0`.
fn is_rotation_suffix(stem: &str, end: &str) -> bool {
    let is_digits = end.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    let is_number_or_date = (1..=LONGEST_ROTATION).contains(&end.len()) && is_digits;
    is_number_or_date && (stem.contains('.') || end.len() >= SHORTEST_DATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_rotated_set_have_one_label() {
        for (name, of) in [
            ("decode.log", "decode.log"),
            ("decode.log.2.gz", "decode.log"),
            ("decode.log-20260118.zst", "decode.log"),
            ("decode.log.2026-01-18_07", "decode.log"),
            ("host_0.log.2026-01-18_07", "host_0.log"),
            ("engine-request-metrics-20260118_07.log", "engine-request-metrics-20260118_07.log"),
            ("decode-0", "decode-0"),
            ("a/b.log.1", "a/b.log"),
            (".1", ".1"),
        ] {
            assert_eq!(label_of_rotated_set(name), of, "{name}");
        }
    }

    #[test]
    fn folders_are_walked_and_symlinks_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("pods")).unwrap();
        for name in ["b.log", "pods/a.log.1.gz", "dump.pkl", "profile.pstats"] {
            fs::write(at(name), "x").unwrap();
        }
        std::os::unix::fs::symlink(at("b.log"), at("link.log")).unwrap();
        std::os::unix::fs::symlink(folder.path(), at("pods/loop")).unwrap();
        let mut stats = ImportStats::default();
        let files = find_log_files(&[folder.path().to_owned()], &ImportOptions::default(), &mut stats).unwrap();
        let labels: Vec<&str> = files.iter().map(|f| &*f.label).collect();
        assert_eq!(labels, ["b.log", "pods/a.log"]);
        assert_eq!(stats.files_skipped, 2);
        let few = ImportOptions { max_files: 1, ..ImportOptions::default() };
        assert!(matches!(
            find_log_files(&[folder.path().to_owned()], &few, &mut stats),
            Err(ImportError::TooManyFiles { limit: 1, .. })
        ));
        let missing = find_log_files(&[at("gone.log")], &few, &mut stats).unwrap_err();
        assert!(missing.to_string().contains("gone.log") && missing.to_string().contains("No such file"));
    }
}
