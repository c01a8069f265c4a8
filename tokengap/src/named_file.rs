//! Files that the user named on the command line or in the environment.

use std::fs::File;
use std::io;
use std::path::Path;

/// Opens a regular file that the user named. In `attach`, which gives up the right to read other users' files, its opener process does so.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    #[cfg(target_os = "linux")]
    return probe_user::process_files::open_user_named_file(path);
    #[cfg(not(target_os = "linux"))]
    trace::named_file::open_regular(path)
}
