//! Access rights of a file with a secret.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;

/// Refuses a file with a secret if its mode has one of the `forbidden_bits`, or if its owner is neither root nor the user of this process.
pub(super) fn refuse_exposed_secret_file(file: &File, forbidden_bits: u32) -> io::Result<()> {
    let metadata = file.metadata()?;
    let owner = metadata.uid();
    if metadata.mode() & forbidden_bits != 0 {
        let why = "other users can read it: run chmod 600 on it, and create a new one if it may have been read";
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        let why = format!("it belongs to user {owner}, who can read it: use a file of your own");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_secret_is_readable_by_its_owner_only() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let open = |mode, owner| {
            fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).expect("set");
            rustix::fs::chown(file.path(), Some(owner), None)
                .map(|()| refuse_exposed_secret_file(file.as_file(), 0o007))
        };
        let own_user = rustix::process::geteuid();
        for (mode, is_accepted) in [(0o600, true), (0o440, true), (0o604, false)] {
            assert_eq!(open(mode, own_user).expect("its owner").is_ok(), is_accepted, "{mode:o}");
        }
        match open(0o600, rustix::fs::Uid::from_raw(own_user.as_raw() + 1)) {
            Ok(opened) => assert!(opened.is_err_and(|error| error.to_string().contains("belongs to user"))),
            Err(error) => println!("SKIPPED: cannot give the file to another user: {error}"),
        }
    }
}
