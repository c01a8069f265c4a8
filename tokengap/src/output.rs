//! Destination of a command's result: standard output, a pipe, a device, or a file.
//!
//! Results contain strings that other processes choose, so everything is escaped here once more.
//!
//! Files appear complete or not at all. They are readable by the owner only, because they contain rids and endpoints, and replace existing
//! files only on request. Symbolic links are not followed, because anyone who can write to the folder could plant one.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, IsTerminal as _, StdoutLock, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use outputs::report::hostile::{self, EscapeForm, EscapingWriter};
use rustix::fs::OFlags;
use tempfile::NamedTempFile;

/// Mode of new files.
const OWNER_ONLY: u32 = 0o600;
/// Names of standard output in a shell.
const STANDARD: [&str; 2] = ["-", "/dev/stdout"];

/// File named by `path`; `None` for standard output.
pub(crate) fn destination_file(path: Option<&Path>) -> Option<&Path> {
    path.filter(|path| !STANDARD.iter().any(|standard| *path == Path::new(standard)))
}

/// Standard output.
pub(crate) fn stdout(form: EscapeForm) -> EscapingWriter<StdoutLock<'static>> {
    EscapingWriter::new(raw_stdout(), form)
}

/// Standard output for data that is escaped already, or that no other process chose.
#[expect(clippy::disallowed_methods, reason = "the only access to standard output outside the screen")]
pub(crate) fn raw_stdout() -> StdoutLock<'static> {
    io::stdout().lock()
}

/// Whether standard output is a terminal.
pub(crate) fn is_terminal() -> bool {
    raw_stdout().is_terminal()
}

/// Writes `text` to standard output, with control characters escaped.
pub(crate) fn print_result(text: &str, form: EscapeForm) -> anyhow::Result<()> {
    let escaped = hostile::escape_output(text, form);
    let mut out = raw_stdout();
    out.write_all(escaped.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Writes `text` to `path`, or to standard output without a path. Control characters are escaped. With `force`, replaces an existing file.
pub(crate) fn write_result(path: Option<&Path>, text: &str, form: EscapeForm, force: bool) -> anyhow::Result<()> {
    let Some(path) = destination_file(path) else { return print_result(text, form) };
    let escaped = hostile::escape_output(text, form);
    let mut target = ResultFile::open(path, force)?;
    let written = target.writer().write_all(escaped.as_bytes());
    written.with_context(|| format!("cannot write {}", path.display()))?;
    target.finish()
}

/// Output being written.
pub(crate) struct ResultFile<'a> {
    path: &'a Path,
    force: bool,
    kind: ResultFileKind,
}

enum ResultFileKind {
    Replacement(NamedTempFile),
    /// A pipe or device, written to directly.
    Direct(File),
}

impl<'a> ResultFile<'a> {
    /// Checks that `path` can be written. An existing file is replaced only with `force`, and only in `finish`.
    pub(crate) fn open(path: &'a Path, force: bool) -> anyhow::Result<Self> {
        // If `path` is a link, these are of the link itself. `None` for a new file.
        let metadata = path.symlink_metadata().ok();
        let is_file = metadata.as_ref().is_some_and(Metadata::is_file);
        ensure!(
            force || !is_file,
            "{} already exists; choose another name, or use --force to replace it",
            path.display()
        );
        let opened = open_target(path, metadata.as_ref());
        let kind = opened.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path, force, kind })
    }

    /// Fails if no file can be written at `path` later. Accepts a pipe or device without opening it, because closing a pipe again would
    /// show its reader the end of the file.
    pub(crate) fn check_writable(path: &'a Path, force: bool) -> anyhow::Result<()> {
        match path.symlink_metadata() {
            Ok(metadata) if !metadata.is_file() => Ok(()),
            _ => Self::open(path, force).map(drop),
        }
    }

    /// The file to write the result to: a temporary one, if the result replaces a file in `finish`.
    pub(crate) fn writer(&mut self) -> &mut dyn Write {
        match &mut self.kind {
            ResultFileKind::Replacement(file) => file,
            ResultFileKind::Direct(file) => file,
        }
    }

    /// Moves the finished file into place. A pipe or device already has the result.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        let ResultFileKind::Replacement(file) = self.kind else { return Ok(()) };
        let placed = if self.force { file.persist(self.path) } else { file.persist_noclobber(self.path) };
        placed.with_context(|| format!("cannot write {}", self.path.display()))?;
        Ok(())
    }
}

/// Opens a pipe or device at `path` itself, or else a temporary file that replaces the one at `path` later. `existing_metadata` is that of
/// what is at `path`, if there is something.
fn open_target(path: &Path, existing_metadata: Option<&Metadata>) -> anyhow::Result<ResultFileKind> {
    Ok(match existing_metadata {
        Some(metadata) if metadata.is_symlink() => ResultFileKind::Direct(open_linked_pipe_or_device(path)?),
        // A pipe or a device.
        Some(metadata) if !metadata.is_file() => ResultFileKind::Direct(open_in_place(path, OFlags::NOFOLLOW)?),
        // A new file, or one to replace.
        _ => ResultFileKind::Replacement(create_temporary_file_beside(path)?),
    })
}

/// Opens a pipe or device through a link that no other user can have created: `/dev/fd/63`, `/dev/stderr`.
fn open_linked_pipe_or_device(path: &Path) -> anyhow::Result<File> {
    const ROOT: u32 = 0;
    let folder = path.parent().unwrap_or(Path::new("/")).metadata()?;
    let is_of_root_or_own = folder.uid() == ROOT || folder.uid() == rustix::process::geteuid().as_raw();
    // The write permissions of the group and of all others.
    let is_writable_by_others = folder.mode() & 0o022 != 0;
    // Such a link to a regular file would redirect the result.
    let leads_to_file = path.metadata().is_ok_and(|metadata| metadata.is_file());
    if !is_of_root_or_own || is_writable_by_others || leads_to_file {
        bail!("it is a symbolic link, which is not followed: use the file itself");
    }
    Ok(open_in_place(path, OFlags::empty())?)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a result that the user named; a link in another user's folder was refused"
)]
fn open_in_place(path: &Path, flags: OFlags) -> io::Result<File> {
    OpenOptions::new().write(true).custom_flags(flags.bits() as i32).open(path)
}

/// Creates a temporary file beside `path` that replaces it once complete.
fn create_temporary_file_beside(path: &Path) -> io::Result<NamedTempFile> {
    // The parent of a bare file name is empty: it means the working folder.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    // Check the folder first, so that the error does not name the temporary file.
    folder.metadata()?;
    tempfile::Builder::new().prefix(".tokengap-").permissions(Permissions::from_mode(OWNER_ONLY)).tempfile_in(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_replaced_only_with_force_and_a_missing_folder_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("report.html");
        for text in ["first", "second"] {
            write_result(Some(&path), text, EscapeForm::Text, true).expect("written");
            assert_eq!(std::fs::read_to_string(&path).expect("read"), text);
        }
        let error = write_result(Some(&path), "third", EscapeForm::Text, false).expect_err("it exists");
        assert!(error.to_string().contains("--force"), "{error:#}");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "second");
        assert_eq!(folder.path().read_dir().expect("listed").count(), 1, "no temporary file remains");
        let error =
            write_result(Some(&folder.path().join("no/such")), "x", EscapeForm::Text, false).expect_err("no folder");
        assert!(format!("{error:#}").contains("cannot write"), "{error:#}");
    }

    #[test]
    fn files_appear_complete_or_not_at_all_and_only_for_their_owner() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("trace.json");
        let listed = || folder.path().read_dir().expect("a folder").count();

        let mut given_up = ResultFile::open(&path, false).expect("opened");
        given_up.writer().write_all(b"[").expect("written");
        assert!(!path.exists());
        drop(given_up);
        assert_eq!(listed(), 0, "a dropped target leaves no file");

        let mut whole = ResultFile::open(&path, false).expect("opened");
        whole.writer().write_all(b"[]").expect("written");
        whole.finish().expect("placed");
        let mode = path.metadata().expect("there").permissions().mode();
        assert_eq!((std::fs::read(&path).expect("read"), mode & 0o777), (b"[]".to_vec(), 0o600));
    }

    #[test]
    fn symbolic_links_in_shared_folders_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let (target, link) = (folder.path().join("precious"), folder.path().join("out"));
        std::fs::write(&target, "precious").expect("written");
        for to in [target.as_path(), Path::new("/dev/null"), Path::new("nowhere")] {
            std::os::unix::fs::symlink(to, &link).expect("linked");
            std::fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).expect("set");
            for force in [false, true] {
                let error = write_result(Some(&link), "x", EscapeForm::Text, force).expect_err("refused");
                assert!(format!("{error:#}").contains("symbolic link"), "{error:#}");
            }
            assert_eq!(std::fs::read_link(&link).expect("still there"), to);
            std::fs::remove_file(&link).expect("removed");
        }
        assert_eq!(std::fs::read_to_string(&target).expect("read"), "precious");
        assert!(!folder.path().join("nowhere").exists());
    }
}
