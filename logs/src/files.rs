//! Selection of files: those named, and those in named directories.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::ImportError;
use super::Options;
use super::stats::Stats;

/// Suffixes of files without a log: profiles, pickled requests (they hold prompts), tokengap recordings, archives.
const NO_LOGS: [&str; 9] = [".pkl", ".pickle", ".pstats", ".tgap", ".json.gz", ".tar", ".tgz", ".zip", ".npz"];
/// Maximum depth of nested directories.
const DEPTH: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogFile {
    pub(super) path: PathBuf,
    /// Name to which its lines are attributed; the same for all files of a rotated set.
    pub(super) label: Box<str>,
    /// Size on disk, in bytes.
    pub(super) bytes: u64,
}

/// Finds all files under `paths`. Symbolic links inside directories are not followed.
pub(super) fn gather(paths: &[PathBuf], options: &Options, stats: &mut Stats) -> Result<Vec<LogFile>, ImportError> {
    let all = || paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ");
    let mut found: BTreeMap<PathBuf, LogFile> = BTreeMap::new();
    let mut folders: Vec<(PathBuf, PathBuf, usize)> = Vec::new();
    for path in paths {
        let failed = |source| ImportError::Path { path: path.clone(), source };
        let kind = fs::metadata(path).map_err(failed)?;
        if kind.is_dir() {
            folders.push((path.clone(), path.clone(), 0));
        } else {
            fs::File::open(path).map_err(failed)?;
            let root = path.parent().unwrap_or(Path::new(""));
            found.insert(path.clone(), file(path, root, kind.len()));
        }
    }
    while let Some((folder, root, depth)) = folders.pop() {
        let entries = fs::read_dir(&folder).map_err(|source| ImportError::Path { path: folder.clone(), source })?;
        for entry in entries.flatten() {
            let path = entry.path();
            // Metadata of the entry itself, not of a link's target.
            let Ok(kind) = entry.metadata() else { continue };
            if kind.is_dir() && depth < DEPTH {
                folders.push((path, root.clone(), depth + 1));
            } else if kind.is_file() && no_log(&path) {
                stats.skip(format!("{}: not a log file, by its name", path.display()));
            } else if kind.is_file() {
                found.entry(path.clone()).or_insert_with(|| file(&path, &root, kind.len()));
            }
            if found.len() > options.files {
                return Err(ImportError::TooManyFiles { limit: options.files, paths: all() });
            }
        }
    }
    if found.is_empty() {
        return Err(ImportError::NoFiles(all()));
    }
    Ok(found.into_values().collect())
}

fn file(path: &Path, root: &Path, bytes: u64) -> LogFile {
    let inside = path.strip_prefix(root).unwrap_or(path).display().to_string();
    LogFile { path: path.to_owned(), label: label(&inside).into(), bytes }
}

fn no_log(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    NO_LOGS.iter().any(|end| name.ends_with(end))
}

/// Removes suffixes of compression and rotation from a name: `decode.log.2.gz`, `decode.log-20260118`,
/// `decode.log.2026-01-18_07` all become `decode.log`.
fn label(name: &str) -> &str {
    let mut name = name;
    loop {
        let Some((stem, end)) = name.rsplit_once(['.', '-']) else {
            return name;
        };
        let compressed = matches!(end, "gz" | "zst" | "zstd");
        let turn = (1..=10).contains(&end.len()) && end.bytes().all(|b| b.is_ascii_digit() || b == b'_');
        // A number at the end of a stem without an extension is part of the name: `decode-0`.
        let rotated = turn && (stem.contains('.') || end.len() >= 4);
        if stem.is_empty() || !(compressed || rotated) {
            return name;
        }
        name = stem;
    }
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
            assert_eq!(label(name), of, "{name}");
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
        let mut stats = Stats::default();
        let files = gather(&[folder.path().to_owned()], &Options::default(), &mut stats).unwrap();
        let labels: Vec<&str> = files.iter().map(|f| &*f.label).collect();
        assert_eq!(labels, ["b.log", "pods/a.log"]);
        assert_eq!(stats.files_skipped, 2);
        let few = Options { files: 1, ..Options::default() };
        assert!(matches!(
            gather(&[folder.path().to_owned()], &few, &mut stats),
            Err(ImportError::TooManyFiles { limit: 1, .. })
        ));
        let missing = gather(&[at("gone.log")], &few, &mut stats).unwrap_err();
        assert!(missing.to_string().contains("gone.log") && missing.to_string().contains("No such file"));
    }
}
