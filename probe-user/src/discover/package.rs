//! Python packages as a process imports them: its search path, and the releases found there.

use std::path::{Path, PathBuf};

use adapter::discover::{EngineKind, Origin, PackageRelease, PythonVersion, Setting};

use crate::proc::maps::{MappedFile, find_package_directories};
use crate::proc::{ProcDir, ProcessRoot};

/// Maximum number of directories of `PYTHONPATH`.
const MAX_PYTHON_PATH: usize = 64;
/// Maximum number of entries read in one package directory.
const MAX_ENTRIES: usize = 50_000;
/// Maximum size of `METADATA`, which contains the README after its headers.
const MAX_METADATA_BYTES: usize = 4 << 20;
/// Maximum size of a source file that assigns the release.
const MAX_SOURCE_BYTES: usize = 64 << 10;
/// Maximum length of a version.
const MAX_VERSION_BYTES: usize = 100;

/// Properties of a process that determine its import path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PythonInterpreter<'a> {
    pub(crate) files: &'a [MappedFile],
    pub(crate) version: Option<PythonVersion>,
    /// `argv[0]`. It is inside the virtual environment, whereas `exe` is the interpreter that the environment was made from.
    pub(crate) argv0: Option<&'a str>,
    pub(crate) script: Option<&'a str>,
    pub(crate) exe: Option<&'a Path>,
    pub(crate) cwd: Option<&'a Path>,
    pub(crate) python_path: Option<&'a str>,
    pub(crate) virtual_env: Option<&'a str>,
}

impl PythonInterpreter<'_> {
    /// The path from the root; `None` if it is relative and the working folder is unknown.
    fn absolute_path(&self, path: &Path) -> Option<PathBuf> {
        if path.is_absolute() {
            return Some(path.to_owned());
        }
        Some(self.cwd?.join(path))
    }

    /// Directories `PREFIX` in which the interpreter may be installed as `PREFIX/bin/python3`: the virtual environment, and those that
    /// contain `argv[0]` and the executed program.
    fn possible_install_prefixes(&self) -> impl Iterator<Item = PathBuf> {
        let mut prefixes = Vec::new();
        prefixes.extend(self.virtual_env.map(PathBuf::from));
        // A name without a folder was found in PATH, which is unknown.
        if let Some(argv0) = self.argv0
            && argv0.contains('/')
            && let Some(program) = self.absolute_path(Path::new(argv0))
        {
            prefixes.extend(prefix_of_program(&program));
        }
        prefixes.extend(self.exe.and_then(prefix_of_program));
        prefixes.into_iter()
    }

    /// The directory from which Python imports first: that of the script, or without one, as with `python -m`, the working folder. `None`
    /// if it is unknown.
    fn first_import_directory(&self) -> Option<PathBuf> {
        let Some(script) = self.script else { return self.cwd.map(Path::to_owned) };
        self.absolute_path(Path::new(script))?.parent().map(Path::to_owned)
    }

    /// The directories of `PYTHONPATH`, at most [`MAX_PYTHON_PATH`].
    fn python_path_directories(&self) -> Vec<PathBuf> {
        let entries = self.python_path.unwrap_or_default().split(':').filter(|entry| !entry.is_empty());
        let read_entries = entries.take(MAX_PYTHON_PATH);
        read_entries.filter_map(|entry| self.absolute_path(Path::new(entry))).collect()
    }

    /// The package directories of each folder in which the interpreter may be installed. Empty if its version is unknown.
    fn possible_package_directories(&self) -> Vec<PathBuf> {
        let mut dirs = Vec::new();
        let Some(PythonVersion { major, minor }) = self.version else { return dirs };
        for prefix in self.possible_install_prefixes() {
            // Debian has `dist-packages`, also for all versions of Python 3 together.
            dirs.push(prefix.join(format!("lib/python{major}.{minor}/site-packages")));
            dirs.push(prefix.join(format!("lib/python{major}.{minor}/dist-packages")));
            dirs.push(prefix.join(format!("lib/python{major}/dist-packages")));
        }
        dirs
    }
}

/// The directory `PREFIX` of a program at `PREFIX/bin/python3`.
fn prefix_of_program(program: &Path) -> Option<PathBuf> {
    program.parent()?.parent().map(Path::to_owned)
}

/// Import directories in Python's order: script or working directory, `PYTHONPATH`, package directories. Package directories are those
/// that contain mapped modules, and those that belong to a possible installation of the interpreter.
pub(crate) fn directories_in_import_order(interpreter: PythonInterpreter<'_>) -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    dirs.extend(interpreter.first_import_directory());
    dirs.extend(interpreter.python_path_directories());
    dirs.extend(find_package_directories(interpreter.files));
    dirs.extend(interpreter.possible_package_directories());
    // A module is imported from the first directory that has it, so further occurrences have no effect.
    let mut unique_dirs = Vec::new();
    for dir in dirs {
        if !unique_dirs.contains(&dir) {
            unique_dirs.push(dir);
        }
    }
    unique_dirs
}

/// Releases of the engines' packages, each from the first directory that contains it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InstalledReleases {
    pub(crate) releases: Vec<PackageRelease>,
}

impl InstalledReleases {
    /// Finds the release of each engine's package in the first folder that has it. Skips folders that cannot be read.
    pub(crate) fn find(process: &ProcDir, import_dirs: &[PathBuf], engines: &[EngineKind]) -> Self {
        let mut found = Self::default();
        // Without access to the process's files, no release is known.
        let Ok(root) = process.root() else { return found };
        for dir in import_dirs {
            let Ok(names) = root.package_names(dir, MAX_ENTRIES) else { continue };
            let names: Vec<&str> = names.iter().filter_map(|name| name.to_str()).collect();
            for &engine in engines {
                // As in Python, the first directory that has the package decides.
                if found.release(engine).is_some() {
                    continue;
                }
                // Only an engine with a Python package has a release here.
                let Some(package) = engine.package() else { continue };
                let installed = release_in_metadata(&root, dir, &names, package.name);
                // A package that is not installed may be imported from its source tree.
                let release_here = installed.or_else(|| release_in_source(&root, dir, &names, package.source));
                if let Some(release) = release_here {
                    found.releases.push(PackageRelease { engine, release });
                }
            }
        }
        found
    }

    /// Release of an engine's package; `None` if it was not found.
    pub(crate) fn release(&self, engine: EngineKind) -> Option<&PackageRelease> {
        self.releases.iter().find(|known| known.engine == engine)
    }
}

/// Release in `NAME-RELEASE.dist-info/METADATA`. `None` if the directory has none for the package, or several.
fn release_in_metadata(root: &ProcessRoot<'_>, dir: &Path, names: &[&str], package: &str) -> Option<Setting<String>> {
    let mut matching = names.iter().filter_map(|name| DistInfo::parse(name)).filter(|info| info.package == package);
    let info = matching.next()?;
    let is_ambiguous = matching.next().is_some();
    if is_ambiguous {
        return None;
    }
    let file = dir.join(info.folder).join("METADATA");
    let metadata = root.read(&file, MAX_METADATA_BYTES).ok();
    let version_in_file = metadata.as_deref().and_then(parse_version_header);
    // If the file has no version, the name of its folder has one.
    let version = version_in_file.unwrap_or_else(|| info.version.to_owned());
    Some(Setting::new(version, Origin::File(file)))
}

/// Release of a package that is imported from its source tree in `dir` without being installed. The first of the `version_files` that
/// assigns a version decides. `None` if none does. `names` are the entries of `dir`.
fn release_in_source(
    root: &ProcessRoot<'_>,
    dir: &Path,
    names: &[&str],
    version_files: &[&str],
) -> Option<Setting<String>> {
    for file in version_files {
        let folder = file.split('/').next()?;
        // Without its folder, the file need not be tried.
        if !names.contains(&folder) {
            continue;
        }
        let file = dir.join(file);
        let Ok(text) = root.read(&file, MAX_SOURCE_BYTES) else { continue };
        if let Some(version) = parse_version_assignment(&String::from_utf8_lossy(&text)) {
            return Some(Setting::new(version, Origin::File(file)));
        }
    }
    None
}

/// Name of a folder with the metadata of a package: `Some.Package-1.0.0.dist-info`.
struct DistInfo<'n> {
    folder: &'n str,
    /// Normalised similarly to PEP 503: `some_package`.
    package: String,
    version: &'n str,
}

impl<'n> DistInfo<'n> {
    /// Parses a folder's name. `None` if it is another folder.
    fn parse(folder: &'n str) -> Option<Self> {
        let (package, version) = folder.strip_suffix(".dist-info")?.split_once('-')?;
        Some(Self { folder, package: package.to_ascii_lowercase().replace(['-', '.'], "_"), version })
    }
}

/// Value of the `Version` header of `METADATA`. `None` if there is none, or if it is too long. The text after the headers is ignored.
fn parse_version_header(metadata: &[u8]) -> Option<String> {
    // An empty line ends the headers.
    let mut headers = metadata.split(|&byte| byte == b'\n').take_while(|line| !line.trim_ascii().is_empty());
    let value = headers.find_map(|line| line.strip_prefix(b"Version:"))?;
    let version = std::str::from_utf8(value).ok()?.trim();
    if version.is_empty() || version.len() > MAX_VERSION_BYTES {
        return None;
    }
    Some(version.to_owned())
}

/// Parses `__version__ = "0.5.9"` or `__version__ = version = '0.5.9'`. `None` if no line assigns a literal version.
fn parse_version_assignment(source: &str) -> Option<String> {
    let line = source.lines().find(|line| line.starts_with("__version__") && line.contains(['"', '\'']))?;
    let value = line.rsplit('=').next()?.trim().trim_matches(['"', '\'']);
    let is_version = value.starts_with(|c: char| c.is_ascii_digit());
    is_version.then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::toy::TOY;
    use super::*;
    use crate::proc::maps::AddressRange;

    #[test]
    fn a_virtual_environment_takes_precedence_over_its_base_interpreter() {
        let files = [MappedFile {
            path: "/opt/venv/lib/python3.11/site-packages/pyzmq.libs/libzmq-2f02442c.so.5.2.5".into(),
            inode: 1,
            is_deleted: false,
            range: AddressRange { start: 0, end: 1 },
        }];
        let interpreter = PythonInterpreter {
            files: &files,
            version: Some(PythonVersion { major: 3, minor: 11 }),
            argv0: Some("python"),
            script: None,
            exe: Some(Path::new("/usr/bin/python3.11")),
            cwd: Some(Path::new("/srv")),
            python_path: Some("/wheels/0.5.9:relative"),
            virtual_env: None,
        };
        let dirs = directories_in_import_order(interpreter);
        let expected = [
            "/srv",
            "/wheels/0.5.9",
            "/srv/relative",
            "/opt/venv/lib/python3.11/site-packages",
            "/usr/lib/python3.11/site-packages",
            "/usr/lib/python3.11/dist-packages",
            "/usr/lib/python3/dist-packages",
        ];
        assert_eq!(dirs, expected.map(PathBuf::from));
        let by_script = directories_in_import_order(PythonInterpreter { script: Some("bench/race.py"), ..interpreter });
        assert_eq!(by_script[0], Path::new("/srv/bench"));
    }

    #[test]
    fn releases_are_read_from_installed_metadata() {
        let dir = tempfile::tempdir().unwrap();
        let metadata = dir.path().join("Toy.Engine-0.5.9.dist-info");
        std::fs::create_dir(&metadata).unwrap();
        std::fs::write(metadata.join("METADATA"), "Metadata-Version: 2.1\nName: toy\nVersion: 0.5.9\n\nVersion: 7\n")
            .unwrap();
        let me = ProcDir::open(std::process::id()).unwrap();
        let release =
            || Some(InstalledReleases::find(&me, &[dir.path().to_owned()], &[TOY]).release(TOY)?.release.clone());
        assert_eq!(release(), Some(Setting::new("0.5.9".into(), Origin::File(metadata.join("METADATA")))));
        std::fs::create_dir(dir.path().join("toy_engine-0.6.0.dist-info")).unwrap();
        assert_eq!(release(), None, "two releases in one directory are ambiguous");
    }

    #[test]
    fn a_source_tree_states_its_release() {
        assert_eq!(parse_version_assignment("__version__ = \"0.4.6.post4\"\n").as_deref(), Some("0.4.6.post4"));
        assert_eq!(parse_version_assignment("x = 1\n__version__ = version = '0.5.10'\n").as_deref(), Some("0.5.10"));
        assert_eq!(parse_version_assignment("__version__ = read(\"VERSION\")\n"), None);
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in ".{0,200}", bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_version_header(&bytes);
            let _ = parse_version_assignment(&text);
            let _ = DistInfo::parse(&text);
        }
    }
}
