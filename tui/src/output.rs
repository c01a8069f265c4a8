//! Where a command's result goes: standard output, or a file that is there whole or not at all.

use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;
use tempfile::NamedTempFile;

/// Writes `text` to `path`, or to standard output without one.
pub(crate) fn write(path: Option<&Path>, text: &str) -> anyhow::Result<()> {
    let Some(path) = path else {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        return Ok(());
    };
    let told = || format!("cannot write {}", path.display());
    // A pipe or a device is written to as it is.
    if path.metadata().is_ok_and(|m| !m.is_file()) {
        return std::fs::write(path, text).with_context(told);
    }
    let mut file = beside(path, 0o666).with_context(told)?;
    file.write_all(text.as_bytes()).with_context(told)?;
    file.persist(path).with_context(told)?;
    Ok(())
}

/// A file beside `path`, to take its place once it is whole.
pub(crate) fn beside(path: &Path, mode: u32) -> io::Result<NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    // Asked first: what cannot be done is then told without the other file's name.
    folder.metadata()?;
    tempfile::Builder::new()
        .prefix(".tokengap-")
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_a_folder_that_is_missing_is_said() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("report.html");
        for text in ["first", "second"] {
            write(Some(&path), text).expect("written");
            assert_eq!(std::fs::read_to_string(&path).expect("read"), text);
        }
        assert_eq!(
            folder.path().read_dir().expect("listed").count(),
            1,
            "nothing else is left"
        );
        let error = write(Some(&folder.path().join("no/such")), "x").expect_err("no folder");
        assert!(format!("{error:#}").contains("cannot write"), "{error:#}");
    }
}
