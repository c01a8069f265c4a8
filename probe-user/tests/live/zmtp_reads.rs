//! Reads of registered sockets by a process without libzmq.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use probe_user::egress::{ConnectionStep, ConnectionTracker, Kind};
use probe_user::{Capture, Feature, Observation, Probe, ProbeOptions, Target};
use rustix::net::{RecvAncillaryBuffer, RecvFlags};

fn permitted() -> bool {
    crate::is_permitted(Feature::SocketReads)
}

fn inode(socket: impl AsFd) -> u64 {
    rustix::fs::fstat(socket).expect("an open socket").st_ino
}

/// Starts to observe the reads of this process from the socket `inode`.
fn observe(inode: u64, ring_bytes: u32) -> Probe {
    let options = ProbeOptions { ring_bytes, ..ProbeOptions::default() };
    let mut probe = Probe::attach(&[], options).expect("root may attach");
    let (pid, capture) = (std::process::id(), Capture::default());
    let observed = probe.observe_zmtp_reads(pid, &BTreeSet::from([inode])).expect("maps exist");
    assert!(observed, "{:?}", probe.degraded());
    probe.add_targets(&[Target { pid, capture }]).expect("it exists");
    assert_eq!(probe.degraded(), [], "libzmq is not needed");
    probe
}

/// Observed bytes of socket `inode`, and the number of holes before them.
fn observed(probe: &mut Probe, inode: u64, track: &mut ConnectionTracker, at_least: usize) -> (Vec<u8>, usize) {
    let (mut seen, mut holes, until) = (Vec::new(), 0, Instant::now() + Duration::from_secs(10));
    let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
    while seen.len() < at_least && Instant::now() < until {
        let see = |observation: Observation<'_>| {
            let Observation::Egress { pid, record } = observation else { return };
            assert_eq!(
                (pid, record.kind, record.head.socket, record.head.tid),
                (std::process::id(), Kind::Zmtp, inode, own)
            );
            for step in track.interpret_record(&record) {
                match step {
                    ConnectionStep::Bytes { bytes, .. } => seen.extend_from_slice(bytes),
                    ConnectionStep::Missed(_) => holes += 1,
                    _ => {}
                }
            }
        };
        probe.poll(Duration::from_millis(20), see).expect("the probe reads");
    }
    (seen, holes)
}

/// Reads everything that `from` sends, by each system call in turn.
fn every_call(mut from: impl Write, to: &OwnedFd) {
    let inode = inode(to);
    let mut probe = observe(inode, 8 << 20);
    let mut sent = Vec::new();
    for n in 0..200_usize {
        let piece: Vec<u8> = (0..=n * 173).map(|byte| (byte + n) as u8).collect();
        from.write_all(&piece).expect("space in the socket");
        sent.extend_from_slice(&piece);
        let (mut left, mut buffer) = (piece.len(), vec![0; 64 << 10]);
        while left > 0 {
            rustix::net::recv(to, &mut buffer[..left.min(9)], RecvFlags::PEEK).expect("bytes to look at");
            let (first, second) = buffer[..left].split_at_mut(left / 3);
            let mut parts = [IoSliceMut::new(first), IoSliceMut::new(second)];
            left -= match n % 4 {
                0 => rustix::net::recv(to, &mut buffer[..left], RecvFlags::empty()).expect("recvfrom").1,
                1 => File::from(to.try_clone().expect("a copy")).read(&mut buffer[..left]).expect("read"),
                2 => File::from(to.try_clone().expect("a copy")).read_vectored(&mut parts).expect("readv"),
                _ => {
                    let mut space = [MaybeUninit::uninit(); 64];
                    let mut control = RecvAncillaryBuffer::new(&mut space);
                    rustix::net::recvmsg(to, &mut parts, &mut control, RecvFlags::empty()).expect("recvmsg").bytes
                }
            };
        }
    }
    let (seen, holes) = observed(&mut probe, inode, &mut ConnectionTracker::default(), sent.len());
    assert!(seen == sent && holes == 0, "{} of {} bytes, {holes} holes", seen.len(), sent.len());
}

#[test]
fn every_byte_read_from_a_registered_socket_is_observed() {
    if !permitted() {
        return;
    }
    let (from, to) = UnixStream::pair().expect("two sockets");
    every_call(from, &to.into());
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let from = TcpStream::connect(listener.local_addr().expect("an address")).expect("the listener accepts");
    every_call(from, &listener.accept().expect("a connection").0.into());
}

#[test]
fn reads_without_space_in_the_ring_are_a_visible_hole() {
    if !permitted() {
        return;
    }
    let (mut from, mut to) = UnixStream::pair().expect("two sockets");
    let inode = inode(&to);
    let mut probe = observe(inode, 64 << 10);
    let mut track = ConnectionTracker::default();
    let mut move_bytes = |bytes: &[u8]| {
        from.write_all(bytes).expect("space in the socket");
        to.read_exact(&mut vec![0; bytes.len()]).expect("as many bytes");
    };
    move_bytes(b"first");
    assert_eq!(observed(&mut probe, inode, &mut track, 5), (b"first".to_vec(), 0));
    // Twenty reads of 8 KiB, of which the ring holds fewer than eight.
    (0..20).for_each(|_| move_bytes(&[7; 8192]));
    let (seen, holes) = observed(&mut probe, inode, &mut track, 8192);
    assert!(seen.len() < 8 * 8192 && holes == 0, "{} bytes, {holes} holes", seen.len());
    move_bytes(b"last");
    assert_eq!(observed(&mut probe, inode, &mut track, 4), (b"last".to_vec(), 1));
}

/// Reads of other system calls are reported, so that nothing is taken for unread.
#[test]
#[expect(unsafe_code, reason = "recvmmsg has no safe wrapper")]
fn a_read_by_another_call_is_a_visible_hole() {
    if !permitted() {
        return;
    }
    let (mut from, to) = UnixStream::pair().expect("two sockets");
    let inode = inode(&to);
    let mut probe = observe(inode, 1 << 20);
    from.write_all(b"unseen").expect("space in the socket");
    let mut buffer = [0_u8; 16];
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all zeros is a valid value of these structs.
    let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
    (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (&raw mut part, 1);
    // SAFETY: one message with one part, both of which outlive the call.
    let count = unsafe { libc::recvmmsg(to.as_raw_fd(), &raw mut message, 1, 0, std::ptr::null_mut()) };
    assert_eq!((count, message.msg_len), (1, 6));
    let (mut records, until) = (Vec::new(), Instant::now() + Duration::from_secs(10));
    while records.is_empty() && Instant::now() < until {
        let see = |observation: Observation<'_>| {
            if let Observation::Egress { record, .. } = observation {
                records.push((record.head.accepted, record.payload.len()));
            }
        };
        probe.poll(Duration::from_millis(20), see).expect("the probe reads");
    }
    assert_eq!(records, [(6, 0)]);
}

#[test]
fn other_sockets_and_processes_are_not_observed() {
    if !permitted() {
        return;
    }
    let (mut from, mut to) = UnixStream::pair().expect("two sockets");
    let (mut other, mut end) = UnixStream::pair().expect("two sockets");
    let watched = inode(&to);
    let mut probe = observe(watched, 1 << 20);
    other.write_all(b"other").expect("space in the socket");
    end.read_exact(&mut [0; 5]).expect("as many bytes");
    from.write_all(b"watched").expect("space in the socket");
    to.read_exact(&mut [0; 7]).expect("as many bytes");
    let mut track = ConnectionTracker::default();
    assert_eq!(observed(&mut probe, watched, &mut track, 7), (b"watched".to_vec(), 0));
    // A connection that is no longer registered is not read either.
    probe.observe_zmtp_reads(std::process::id(), &BTreeSet::from([inode(&end)])).expect("maps exist");
    from.write_all(b"later").expect("space in the socket");
    to.read_exact(&mut [0; 5]).expect("as many bytes");
    other.write_all(b"now").expect("space in the socket");
    end.read_exact(&mut [0; 3]).expect("as many bytes");
    let now = observed(&mut probe, inode(&end), &mut ConnectionTracker::default(), 3);
    assert_eq!(now, (b"now".to_vec(), 0));
}

/// Prints what the observation costs the reading thread, in alternated rounds.
#[test]
fn an_observed_read_costs_about_a_microsecond() {
    const ROUNDS: usize = 12;
    const READS: usize = 1000;
    if !permitted() {
        return;
    }
    for size in [944, 4200] {
        let (mut from, mut to) = UnixStream::pair().expect("two sockets");
        let inode = inode(&to);
        let (message, mut buffer) = (vec![7; size], vec![0; size]);
        let mut round = |probe: &mut Option<Probe>| {
            let mut spent = Duration::ZERO;
            for _ in 0..READS {
                from.write_all(&message).expect("space in the socket");
                let begin = Instant::now();
                to.read_exact(&mut buffer).expect("as many bytes");
                spent += begin.elapsed();
            }
            if let Some(probe) = probe {
                let (seen, holes) = observed(probe, inode, &mut ConnectionTracker::default(), READS * size);
                assert_eq!((seen.len(), holes), (READS * size, 0));
            }
            spent.as_nanos() as f64 / READS as f64
        };
        let mut added: Vec<f64> = Vec::new();
        for n in 0..ROUNDS {
            if n % 2 == 0 {
                let with = round(&mut Some(observe(inode, 8 << 20)));
                added.push(with - round(&mut None));
            } else {
                let without = round(&mut None);
                added.push(round(&mut Some(observe(inode, 8 << 20))) - without);
            }
        }
        added.sort_by(f64::total_cmp);
        let (low, median, high) = (added[ROUNDS / 4], added[ROUNDS / 2], added[ROUNDS * 3 / 4]);
        println!("a read of {size} bytes: +{median:.0} ns (quartiles {low:.0}..{high:.0})");
        assert!(median < 20_000.0, "{median} ns");
    }
}
