//! The programs' tables (eBPF maps) that user space changes or reads while the programs run.

use std::borrow::BorrowMut;

use aya::maps::{Array, HashMap, Map, MapData, MapError};
use aya::{Ebpf, Pod};
use probe_ebpf::egress::{Serves, Stream, TlsConnection, ZmtpConnection, listener_key};
use probe_ebpf::{Thread, Watched};

use crate::egress::CAPTURE_READ;
use crate::load;
use crate::plain::Plain;
use crate::programs::{TableChange, ThreadEntry};

/// Changes a table. The flags of all its calls are 0, so that an entry is created or replaced.
pub(crate) fn apply_change(ebpf: &mut Ebpf, change: TableChange) -> Result<(), MapError> {
    match change {
        TableChange::Watch { target, capture, counts_sends } => {
            let watched = Watched { capture, sends: counts_sends.into(), reserved: 0 };
            array_mut::<Plain<Watched>>(ebpf, "WATCHED")?.set(target, Plain(watched), 0)
        }
        TableChange::EnterTarget { target, pid } => {
            // In a separate pid namespace its id is ambiguous in the kernel. There, the kernel side learns the process at its first
            // probe hit.
            if !load::is_in_initial_pid_namespace() {
                return Ok(());
            }
            hash_table_mut::<u32, u32>(ebpf, "TARGETS")?.insert(pid, target, 0)
        }
        TableChange::RemoveTarget { pid } => {
            if !load::is_in_initial_pid_namespace() {
                return Ok(());
            }
            hash_table_mut::<u32, u32>(ebpf, "TARGETS")?.remove(&pid)
        }
        TableChange::Serve { target, serves } => {
            array_mut::<Plain<Serves>>(ebpf, "SERVING")?.set(target, Plain(serves), 0)
        }
        TableChange::EnterListener { target, namespace, port } => {
            hash_table_mut::<u64, u32>(ebpf, "LISTENERS")?.insert(listener_key(namespace, port), target, 0)
        }
        TableChange::RemoveListener { namespace, port } => {
            hash_table_mut::<u64, u32>(ebpf, "LISTENERS")?.remove(&listener_key(namespace, port))
        }
        TableChange::EnterZmtp { target, inode } => {
            // Unix sockets have no byte count in the kernel, so this entry counts from 0.
            let connection = ZmtpConnection { read: 0, target, limit: CAPTURE_READ };
            hash_table_mut::<u64, Plain<ZmtpConnection>>(ebpf, "ZMTP")?.insert(inode, Plain(connection), 0)
        }
        TableChange::RemoveZmtp { inode } => hash_table_mut::<u64, Plain<ZmtpConnection>>(ebpf, "ZMTP")?.remove(&inode),
        TableChange::IgnoreStream { socket } => {
            let mut streams = hash_table_mut::<u64, Plain<Stream>>(ebpf, "STREAMS")?;
            // If the connection has closed in the meantime, there is nothing to ignore.
            let Ok(Plain(stream)) = streams.get(&socket, 0) else { return Ok(()) };
            streams.insert(socket, Plain(Stream { ignored: 1, ..stream }), 0)
        }
        TableChange::IgnoreTls { connection } => {
            let mut connections = hash_table_mut::<u64, Plain<TlsConnection>>(ebpf, "TLS")?;
            // Only an entry that exists: the connection may have been freed in the meantime.
            if connections.get(&connection, 0).is_err() {
                return Ok(());
            }
            connections.insert(connection, Plain(TlsConnection { written: 0, ignored: 1 }), 0)
        }
        TableChange::RemoveThreads { target } => remove_threads_of_target(ebpf, target),
    }
}

/// Removes the kernel side's entries of all threads of the target with this index.
fn remove_threads_of_target(ebpf: &mut Ebpf, target_index: u32) -> Result<(), MapError> {
    let mut threads = hash_table_mut::<u32, Plain<Thread>>(ebpf, "THREADS")?;
    // Collected first, because a removal would disturb the walk through the table.
    let target_threads = threads.iter().flatten().filter(|(_, Plain(thread))| thread.target == target_index);
    let keys: Vec<u32> = target_threads.map(|(key, _)| key).collect();
    for key in keys {
        // An error means that the entry was evicted in the meantime.
        let _ = threads.remove(&key);
    }
    Ok(())
}

/// The accounting of all threads. An entry may be replaced while the table is read, and the next reading includes it.
pub(crate) fn read_threads(ebpf: &Ebpf) -> Result<Vec<ThreadEntry>, MapError> {
    let threads: HashMap<_, u32, Plain<Thread>> = HashMap::try_from(find_map(ebpf, "THREADS")?)?;
    Ok(threads.iter().flatten().map(|(key, Plain(thread))| ThreadEntry { key, thread }).collect())
}

/// The table with this name. An error if the object has none.
pub(crate) fn find_map<'e>(ebpf: &'e Ebpf, name: &str) -> Result<&'e Map, MapError> {
    ebpf.map(name).ok_or_else(|| MapError::InvalidName { name: name.to_owned() })
}

/// The hash table of the kernel's programs with this name, for changes.
fn hash_table_mut<'e, K: Pod, V: Pod>(
    ebpf: &'e mut Ebpf,
    name: &str,
) -> Result<HashMap<&'e mut MapData, K, V>, MapError> {
    HashMap::try_from(find_map_mut(ebpf, name)?)
}

/// The array of the kernel's programs with this name, for changes.
fn array_mut<'e, V: Pod>(ebpf: &'e mut Ebpf, name: &str) -> Result<Array<&'e mut MapData, V>, MapError>
where
    &'e mut MapData: BorrowMut<MapData>,
{
    Array::try_from(find_map_mut(ebpf, name)?)
}

/// The table with this name, to change. An error if the object has none.
fn find_map_mut<'e>(ebpf: &'e mut Ebpf, name: &str) -> Result<&'e mut Map, MapError> {
    ebpf.map_mut(name).ok_or_else(|| MapError::InvalidName { name: name.to_owned() })
}
