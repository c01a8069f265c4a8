//! Generated parts of documents.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Replaces the text between the two marks of `part` in a file of `docs`.
pub(crate) fn write(root: &Path, file: &str, part: &str, text: &str) -> Result<()> {
    let path = root.join("docs").join(file);
    let document = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let (begin, end) = (format!("<!-- {part}: written by the command -->\n"), format!("<!-- {part}: end -->"));
    let marks = || format!("cannot find the marks of {part} in {}", path.display());
    let from = document.find(&begin).with_context(marks)? + begin.len();
    let to = document[from..].find(&end).with_context(marks)? + from;
    let written = format!("{}{}\n{}", &document[..from], text.trim_end(), &document[to..]);
    fs::write(&path, written).with_context(|| format!("writing {}", path.display()))
}
