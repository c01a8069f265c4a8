//! The user whose files a relay works on. A relay that root started takes this user before it opens a path or connects, because whoever
//! owns a file may replace it by a link.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use confine::Account;
use foreign::kernel;
use zmq_tap::relay::Endpoint;
use zmq_tap::splice::Folder;

const ROOT: u32 = 0;
const NO_UNUSED_USER: &str =
    "this user namespace has no unused user: run tokengap as the user of the sockets instead of root";

/// User and group of this process.
pub fn own_account() -> Account {
    Account { user: rustix::process::geteuid().as_raw(), group: rustix::process::getegid().as_raw() }
}

/// User and group of process `pid`. An error if its real, effective, saved and file system ids differ.
pub fn account_of_process(pid: u32) -> anyhow::Result<Account> {
    let status = kernel::read(format!("/proc/{pid}/status"), kernel::MAX_STATUS_BYTES);
    let status = status.with_context(|| format!("cannot read the user of process {pid}"))?;
    parse_account(&status).with_context(|| format!("process {pid} runs with the rights of several users"))
}

/// User and group of a process from its status. `None` if its real, effective, saved and file system ids are not the same.
fn parse_account(status: &[u8]) -> Option<Account> {
    Some(Account {
        user: kernel::id_if_all_kinds_equal(status, "Uid:")?,
        group: kernel::id_if_all_kinds_equal(status, "Gid:")?,
    })
}

/// Requires that `pid` has the same mounts and the same root folder as this process.
pub fn require_same_mounts_and_root(pid: u32) -> anyhow::Result<()> {
    let shares_files = shares_mounts_and_root(pid).with_context(|| {
        format!("cannot see the mounts of process {pid}: run tokengap as that process's user, or use tokengap attach")
    })?;
    ensure!(
        shares_files,
        "process {pid} runs in another container or root folder: tokengap moves sockets only in its own, because a relay outside the container could be led to sockets of the host; run tokengap inside the container, or use tokengap attach"
    );
    Ok(())
}

/// Returns whether process `pid` has the mounts and the root folder of this process, so that a path means the same file to both.
fn shares_mounts_and_root(pid: u32) -> io::Result<bool> {
    let theirs = Path::new("/proc").join(pid.to_string());
    let ours = Path::new("/proc/self");
    if std::fs::read_link(theirs.join("ns/mnt"))? != std::fs::read_link(ours.join("ns/mnt"))? {
        return Ok(false);
    }
    // The slash at the end follows the link to the root folder.
    let their_root = std::fs::metadata(theirs.join("root/"))?;
    let our_root = std::fs::metadata(ours.join("root/"))?;
    Ok(their_root.dev() == our_root.dev() && their_root.ino() == our_root.ino())
}

/// Path of a socket file; `None` for an abstract name or a TCP address.
fn socket_path(endpoint: &Endpoint) -> Option<&Path> {
    if let Endpoint::Path(path) = endpoint { Some(path) } else { None }
}

/// Chooses the user for a relay between these endpoints that root has started. It is the owner of the upstreams' sockets, or, if none
/// exists yet, the owner of the folders of all socket files. Without socket files, it is a user that owns no files.
pub fn choose_relay_account(listens: &[Endpoint], upstreams: &[Endpoint]) -> anyhow::Result<Account> {
    let upstream_paths: Vec<&Path> = upstreams.iter().filter_map(socket_path).collect();
    let paths: Vec<&Path> = listens.iter().filter_map(socket_path).chain(upstream_paths.iter().copied()).collect();
    if paths.is_empty() {
        return confine::unused_account().context(NO_UNUSED_USER);
    }
    let user = find_single_owner_uid(&upstream_paths, &paths)?;
    // The group of a socket file is not used, because its folder may determine it.
    Ok(Account { user, group: gid_of_user(user)? })
}

/// The user that owns the upstreams' sockets or, if none exists yet, the folders of `all_paths`. Fails if there are several.
fn find_single_owner_uid(upstream_paths: &[&Path], all_paths: &[&Path]) -> anyhow::Result<u32> {
    let socket_users = uids_owning_sockets(upstream_paths)?;
    let owners = if socket_users.is_empty() { non_root_uids_owning_folders_of(all_paths) } else { socket_users };
    let owners: Vec<u32> = owners.into_iter().collect();
    match *owners {
        // All folders are root's, so root is the user of the sockets.
        [] => Ok(ROOT),
        [user] => Ok(user),
        [first, second, ..] => bail!(
            "the endpoints belong to several users, such as {first} and {second}, and tokengap does not relay between users as root: start one tokengap tap for each user, as that user"
        ),
    }
}

/// Group of a user in `/etc/passwd`. For a user without an entry, a group that owns no files.
#[expect(clippy::disallowed_methods, reason = "/etc/passwd, a file of root")]
fn gid_of_user(uid: u32) -> anyhow::Result<u32> {
    // A container may lack the file. Its text is then empty, and the user has no entry.
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    match find_primary_gid(&passwd, uid) {
        Some(gid) => Ok(gid),
        None => Ok(confine::unused_account().context(NO_UNUSED_USER)?.group),
    }
}

/// Users that own the sockets at these paths. Fails if the folder of one cannot be opened.
fn uids_owning_sockets(socket_paths: &[&Path]) -> anyhow::Result<BTreeSet<u32>> {
    let mut users = BTreeSet::new();
    for path in socket_paths {
        let owners = socket_owners(path).with_context(|| {
            format!(
                "the folder of {} cannot be opened: create it first, because tokengap as root takes the user that owns it",
                path.display()
            )
        })?;
        users.extend(owners.socket);
    }
    Ok(users)
}

/// Users that own the folders of these paths, without root. Passes over folders that cannot be opened.
fn non_root_uids_owning_folders_of(socket_paths: &[&Path]) -> BTreeSet<u32> {
    let mut users = BTreeSet::new();
    for path in socket_paths {
        users.extend(socket_owners(path).map(|owners| owners.folder));
    }
    // A folder of root, such as `/tmp`, says nothing about its users.
    users.remove(&ROOT);
    users
}

/// Owners of a socket file.
struct SocketOwners {
    folder: u32,
    /// `None` if there is no such socket.
    socket: Option<u32>,
}

/// Owners of the socket file `path`, if there is such a socket, and of its folder. `None` if the folder cannot be opened, or its file
/// cannot be looked up.
fn socket_owners(path: &Path) -> Option<SocketOwners> {
    // The parent of a bare file name is empty: it means the working folder.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let shown_path = parent;
    let folder = Folder::open(parent, shown_path).ok()?;
    let socket = folder.find_file(path.file_name()?).ok()?.filter(zmq_tap::splice::HeldFile::is_socket);
    Some(SocketOwners { folder: folder.metadata().ok()?.uid(), socket: socket.map(|socket| socket.owner_uid()) })
}

/// Group of a user according to the text of `/etc/passwd`. `None` for a user without an entry.
fn find_primary_gid(passwd_text: &str, uid: u32) -> Option<u32> {
    // The group of root is known without an entry, which a container may lack.
    if uid == ROOT {
        return Some(ROOT);
    }
    for line in passwd_text.lines() {
        // NAME:PASSWORD:UID:GID, and more.
        let fields: Vec<&str> = line.split(':').collect();
        if let [_, _, entry_uid, gid, ..] = fields[..]
            && entry_uid.parse() == Ok(uid)
        {
            return gid.parse().ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_of_a_process_is_read_from_its_status() {
        let own_pid = std::process::id();
        assert_eq!(account_of_process(own_pid).expect("readable"), own_account());
        let status = "Name:\tx\nUid:\t1000\t1000\t1000\t1000\nGid:\t7\t7\t7\t7\n";
        assert_eq!(parse_account(status.as_bytes()), Some(Account { user: 1000, group: 7 }));
        let of_two_groups = status.replace("1000\t7", "1000\t8").replace("7\t7\t7\t7", "7\t0\t7\t7");
        assert_eq!(parse_account(of_two_groups.as_bytes()), None);
        require_same_mounts_and_root(own_pid).expect("the same process");
    }

    #[test]
    fn the_group_of_a_user_is_found() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nbroken\nengine:x:1000:100::/:/bin/sh\n";
        assert_eq!(find_primary_gid(passwd, 1000), Some(100));
        assert_eq!(find_primary_gid(passwd, 7), None);
        assert_eq!(find_primary_gid("", 0), Some(0));
    }

    #[test]
    fn endpoints_without_files_need_no_user() {
        let endpoint = |text: &str| text.parse::<Endpoint>().expect("an endpoint");
        let tcp = [endpoint("tcp://127.0.0.1:1"), endpoint("ipc://@name")];
        let account = choose_relay_account(&tcp, &tcp).expect("one user");
        assert!(account.user != 0 && account.group != 0, "{account:?}");
        let folder = tempfile::tempdir().expect("a folder");
        let own_folder = [endpoint(&format!("ipc://{}/socket", folder.path().display()))];
        assert_eq!(choose_relay_account(&own_folder, &tcp).expect("one user").user, own_account().user);
    }
}
