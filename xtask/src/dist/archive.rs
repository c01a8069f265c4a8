//! Reproducible release archives: the same bytes at any time and on any machine.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

/// Packs `dir` into `archive`, a `.tar.gz`, under the folder's own name, with normalized owner, times and order.
pub(crate) fn pack(dir: &Path, archive: &Path, built_at: u64) -> Result<()> {
    let top = dir.parent().context("the folder to pack has no parent")?;
    let mut files = vec![dir.to_owned()];
    list(dir, &mut files)?;
    files.sort();
    let out = tempfile::Builder::new()
        .permissions(fs::Permissions::from_mode(0o644))
        .tempfile_in(top)?;
    let mut tar = Builder::new(GzBuilder::new().write(out, Compression::best()));
    for file in &files {
        let name = file.strip_prefix(top)?;
        let meta = file.metadata()?;
        let mut header = Header::new_gnu();
        header.set_mtime(built_at);
        header.set_mode(mode(&meta));
        if meta.is_dir() {
            header.set_entry_type(EntryType::Directory);
            header.set_size(0);
            tar.append_data(&mut header, name, io::empty())?;
        } else {
            header.set_size(meta.len());
            tar.append_data(&mut header, name, File::open(file)?)?;
        }
    }
    let out = tar.into_inner()?.finish()?;
    out.persist(archive)
        .with_context(|| format!("write {}", archive.display()))?;
    Ok(())
}

/// Compresses `text` like `gzip -9n`.
pub(crate) fn gzip(text: &[u8]) -> Result<Vec<u8>> {
    let mut out = GzBuilder::new().write(Vec::new(), Compression::best());
    out.write_all(text)?;
    Ok(out.finish()?)
}

fn list(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            list(&path, files)?;
        }
        files.push(path);
    }
    Ok(())
}

/// Normalized file mode, independent of the umask: executable files are executable by all.
fn mode(meta: &fs::Metadata) -> u32 {
    if meta.is_dir() || meta.permissions().mode() & 0o100 != 0 {
        0o755
    } else {
        0o644
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_folders_with_the_same_files_make_the_same_archive() {
        let packed = || {
            let top = tempfile::tempdir().expect("a temporary folder");
            let dir = top.path().join("tokengap-0.1.0");
            fs::create_dir_all(dir.join("man")).expect("made");
            fs::write(dir.join("man/tokengap.1"), "page").expect("written");
            fs::write(dir.join("README.md"), "readme").expect("written");
            let archive = top.path().join("a.tar.gz");
            pack(&dir, &archive, 1_700_000_000).expect("packed");
            fs::read(archive).expect("read")
        };
        let first = packed();
        assert_eq!(first, packed());
        let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(&first[..]));
        let names: Vec<String> = tar
            .entries()
            .expect("entries")
            .map(|e| e.expect("an entry").path().expect("a path").display().to_string())
            .collect();
        assert_eq!(
            names,
            [
                "tokengap-0.1.0",
                "tokengap-0.1.0/README.md",
                "tokengap-0.1.0/man",
                "tokengap-0.1.0/man/tokengap.1"
            ]
        );
    }
}
