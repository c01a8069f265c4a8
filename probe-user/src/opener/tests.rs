use std::os::fd::AsFd as _;
use std::path::Path;

use super::*;
use crate::discover::toy::TOY;
use crate::message::decode_message;
use crate::opener_client::Opener;
use crate::opener_client::request::{OpenDescriptor, ProcessLink, ThreadFile};

/// Starts an opener on a thread of this process.
fn start(pids: &[u32], files: &[&Path]) -> &'static Opener {
    let (ours, theirs) = channel::message_pair().unwrap();
    let files: Vec<PathBuf> = files.iter().map(|file| file.to_path_buf()).collect();
    let permitted = Permitted { engines: &[TOY], pids: pids.to_vec(), files: files.clone() };
    thread::spawn(move || serve_connections(theirs.as_fd(), permitted));
    Box::leak(Box::new(Opener::new(ours, files)))
}

#[test]
fn a_process_is_the_same_through_the_opener() {
    let me = std::process::id();
    let opener = start(&[me], &[]);
    let remote = ProcDir::with_opener(me, Some(opener)).unwrap();
    let local = ProcDir::with_opener(me, None).unwrap();
    let libraries = |process: &ProcDir| maps::parse_mapped_files(&process.mappings(MAX_MAPPINGS_BYTES).unwrap());
    assert_eq!(libraries(&remote), libraries(&local));
    assert_eq!(remote.environment(1 << 20), local.environment(1 << 20));
    for link in ProcessLink::ALL {
        assert_eq!(remote.read_process_link(link), local.read_process_link(link));
    }
    assert_eq!(remote.network_namespace_inode(), local.network_namespace_inode());
    let (held, _end) = std::os::unix::net::UnixStream::pair().unwrap();
    let inode = rustix::fs::fstat(&held).unwrap().st_ino;
    let descriptors = remote.list_sockets_and_io_urings(1 << 16).unwrap();
    let is_held = |descriptor: &OpenDescriptor| matches!(descriptor, OpenDescriptor::Socket { inode: found, .. } if *found == inode);
    assert!(descriptors.items.iter().any(is_held) && !descriptors.is_truncated);
    assert!(remote.list_sockets_and_io_urings(1).unwrap().is_truncated);
    let libc = libraries(&local).into_iter().find(|file| crate::library::is_libc_name(file.name())).unwrap();
    let opened = remote.open_library(&libc).unwrap();
    assert_eq!(opened.inode, libc.inode);
    let own_program = libraries(&local).into_iter().find(|file| file.path == std::env::current_exe().unwrap()).unwrap();
    assert_eq!(remote.open_library(&own_program).err(), Some(ReadError::Denied), "no library that is probed");
    assert!(remote.read_thread_file(me, ThreadFile::WaitFunction).is_ok());
}

#[test]
fn only_metadata_is_opened_in_the_root_of_a_process() {
    let folder = tempfile::tempdir().unwrap();
    let info = folder.path().join("toy_engine-0.5.9.dist-info");
    std::fs::create_dir(&info).unwrap();
    std::fs::write(info.join("METADATA"), "Version: 0.5.9\n").unwrap();
    std::fs::write(folder.path().join("secret"), "secret").unwrap();
    std::os::unix::fs::symlink("/dev/zero", folder.path().join("tokenizer.json")).unwrap();
    let me = std::process::id();
    let opener = start(&[me], &[]);
    let process = ProcDir::with_opener(me, Some(opener)).unwrap();
    let root = process.root().unwrap();
    assert_eq!(root.read(&info.join("METADATA"), 100), Ok(b"Version: 0.5.9\n".to_vec()));
    assert_eq!(root.read(&info.join("METADATA"), 3), Err(ReadError::TooLong(3)));
    assert_eq!(root.read(&folder.path().join("secret"), 100), Err(ReadError::Denied));
    assert_eq!(root.read(&folder.path().join("tokenizer.json"), 100), Err(ReadError::NotRegular));
    assert_eq!(root.package_names(folder.path(), 100).unwrap(), ["toy_engine-0.5.9.dist-info"]);
}

#[test]
fn other_processes_and_files_are_refused() {
    let named = tempfile::NamedTempFile::new().unwrap();
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let opener = start(&[], &[named.path()]);
    let process = ProcDir::with_opener(child.id(), Some(opener)).unwrap();
    assert_eq!(process.mappings(1 << 20), Err(ReadError::NotExamined));
    assert_eq!(process.environment(1 << 20), Err(ReadError::NotExamined));
    assert_eq!(process.open_output(1).err(), Some(ReadError::NotExamined));
    let inode = process.inode().unwrap();
    let another = ProcessKey { pid: child.id(), inode: inode + 1 };
    assert_eq!(
        opener.send_request(&OpenRequest::Process(another, ProcessRequest::Mappings)).err(),
        Some(ReadError::Gone)
    );
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(process.mappings(1 << 20), Err(ReadError::Gone));
    assert!(opener.send_request(&OpenRequest::Named(0)).unwrap().into_file().is_ok());
    assert_eq!(opener.send_request(&OpenRequest::Named(1)).err(), Some(ReadError::Denied));
    assert_eq!(opener.index_of_named(Path::new("/etc/passwd")), None);
}

#[test]
fn the_end_of_the_opener_is_an_error_of_its_own() {
    let (ours, theirs) = channel::message_pair().unwrap();
    drop(theirs);
    let opener: &'static Opener = Box::leak(Box::new(Opener::new(ours, Vec::new())));
    let process = ProcDir::with_opener(std::process::id(), Some(opener)).unwrap();
    assert_eq!(process.mappings(1 << 20), Err(ReadError::OpenerEnded));
    assert_eq!(process.list_sockets(1), Err(ReadError::OpenerEnded));
    // Files that every user may read are still read.
    assert!(process.read("stat", 4096).is_ok());
}

#[test]
fn a_message_that_is_no_request_ends_its_connection_only() {
    let me = std::process::id();
    let (ours, theirs) = channel::message_pair().unwrap();
    let permitted = Permitted { engines: &[TOY], pids: vec![me], files: Vec::new() };
    let served = thread::spawn(move || serve_connections(theirs.as_fd(), permitted));
    let connect = || {
        let (client, server) = channel::message_pair().unwrap();
        channel::send_message(ours.as_fd(), CONNECT, &[server.as_fd()]).unwrap();
        client
    };
    let mut buffer = [0; 64];
    let broken = connect();
    channel::send_message(broken.as_fd(), b"not a request", &[]).unwrap();
    assert_eq!(channel::receive_message(broken.as_fd(), &mut buffer).map_or(0, |received| received.bytes), 0);
    channel::send_message(ours.as_fd(), CONNECT, &[]).unwrap();
    channel::send_message(ours.as_fd(), &[0; 100], &[]).unwrap();
    let good = connect();
    channel::send_message(good.as_fd(), &encode_message(&OpenRequest::Named(0)), &[]).unwrap();
    let received = channel::receive_message(good.as_fd(), &mut buffer).unwrap();
    assert_eq!(decode_message(&buffer[..received.bytes]), Some(ReplyPiece::single(Err(ReadError::Denied))));
    drop(ours);
    served.join().unwrap().unwrap();
}

#[test]
fn requests_beyond_the_pace_wait() {
    let mut pace = RequestPace { interval_start: Instant::now(), requests: MAX_REQUESTS_PER_INTERVAL - 1 };
    assert_eq!(pace.count_request_and_find_delay(), None);
    assert!(pace.count_request_and_find_delay().is_some_and(|delay| delay <= PACE_INTERVAL));
    pace.interval_start = Instant::now().checked_sub(PACE_INTERVAL).unwrap();
    assert_eq!(pace.count_request_and_find_delay(), None);
}
