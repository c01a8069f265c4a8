//! Sockets of a process's network namespace, from `/proc/PID/net/tcp`, `tcp6` and `unix`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{ProcDir, ReadError};

/// Maximum length of a line of a TCP table in bytes.
const LINE: usize = 256;

/// A TCP socket with an inode. An orphan or a `TIME_WAIT` socket has none and belongs to no process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcpSocket {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) state: TcpState,
    pub(crate) inode: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TcpState {
    Established,
    Listening,
    Other,
}

/// TCP sockets of the process's network namespace by family, at most `limit` of each. The flag tells whether there are more.
pub(crate) fn tcp_tables(
    process: &ProcDir,
    limit: usize,
) -> impl Iterator<Item = Result<(Vec<TcpSocket>, bool), ReadError>> {
    let read = move |table| Ok(tcp(&process.read(table, limit.saturating_mul(LINE))?, limit));
    ["net/tcp", "net/tcp6"].into_iter().map(read)
}

/// Parses at most `limit` sockets of one table; the flag tells whether there are more. Skips invalid lines.
pub(crate) fn tcp(text: &[u8], limit: usize) -> (Vec<TcpSocket>, bool) {
    table(text, limit, tcp_line)
}

fn table<T>(text: &[u8], limit: usize, parse: fn(&[u8]) -> Option<T>) -> (Vec<T>, bool) {
    let mut sockets = text.split(|&b| b == b'\n').skip(1).filter_map(parse);
    (sockets.by_ref().take(limit).collect(), sockets.next().is_some())
}

fn tcp_line(line: &[u8]) -> Option<TcpSocket> {
    let mut fields = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let local = address(fields.nth(1)?)?;
    let remote = address(fields.next()?)?;
    let state = match fields.next()? {
        "01" => TcpState::Established,
        "0A" => TcpState::Listening,
        _ => TcpState::Other,
    };
    let inode = fields.nth(5)?.parse().ok().filter(|&inode| inode != 0)?;
    Some(TcpSocket { local, remote, state, inode })
}

/// Parses `0100007F:7569`, or 32 digits for IPv6: each 32-bit word in this machine's byte order. An IPv4-mapped IPv6 address becomes IPv4,
/// so that both ends of a connection have the same form.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| Some(u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (i, four) in bytes.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&word(i * 8)?);
            }
            Ipv6Addr::from(bytes).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// A Unix stream socket that listens or is connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnixSocket {
    pub(crate) inode: u32,
    pub(crate) listening: bool,
    /// A path, or `@name` for the abstract namespace; empty for the connecting side. An accepted socket has its listener's name.
    pub(crate) name: Vec<u8>,
    /// Inode of the other end. `/proc` does not show it.
    pub(crate) peer: Option<u32>,
}

/// Named stream sockets in `/proc/net/unix`, at most `limit`; the flag tells whether there are more.
pub(crate) fn unix(text: &[u8], limit: usize) -> (Vec<UnixSocket>, bool) {
    table(text, limit, unix_line)
}

/// Parses a line such as `ffff9738: 00000002 00000000 00010000 0001 01 53111 /tmp/tmpabcdefgh`. The name may contain spaces.
fn unix_line(line: &[u8]) -> Option<UnixSocket> {
    const SO_ACCEPTCON: u32 = 0x1_0000;
    let mut rest = line;
    let mut field = || {
        let start = rest.iter().position(|&b| b != b' ')?;
        let end = start + rest[start..].iter().position(|&b| b == b' ')?;
        let text = std::str::from_utf8(&rest[start..end]).ok()?;
        rest = &rest[end..];
        Some(text)
    };
    let (_slot, _users, _protocol) = (field()?, field()?, field()?);
    let flags = u32::from_str_radix(field()?, 16).ok()?;
    let stream = field()? == "0001";
    let _state = field()?;
    let inode = field()?.parse().ok().filter(|&inode| inode != 0)?;
    let name = rest.strip_prefix(b" ")?;
    let listening = flags & SO_ACCEPTCON != 0;
    (stream && !name.is_empty()).then(|| UnixSocket { inode, listening, name: name.to_vec(), peer: None })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Captured: a listener on 30233, both ends of its connection, and one orphan.
    const TCP: &[u8] = b"\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:7619 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 53120 1 000000005cb233f4 100 0 0 10 0
   1: 0100007F:7619 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 53121 1 000000005cb233f5 20 4 30 10 -1
   2: 0100007F:C350 0100007F:7619 01 00000000:00000000 00:00000000 00000000     0        0 53119 1 000000005cb233f6 20 4 30 10 -1
   3: 0100007F:C351 0100007F:7619 06 00000000:00000000 03:00000F61 00000000     0        0 0 3 000000005cb233f7
";
    const TCP6: &[u8] = b"\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000000000000000000000000000:7619 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 60001 1 0 100 0 0 10 0
   1: 0000000000000000FFFF00000100007F:7619 0000000000000000FFFF00000100007F:C352 01 00000000:00000000 00:00000000 00000000     0        0 60002 1 0 20 4 30 10 -1
";
    const UNIX: &[u8] = b"\
Num       RefCount Protocol Flags    Type St Inode Path
0000000097382e33: 00000003 00000000 00000000 0001 03  1141
00000000c3f3b442: 00000002 00000000 00010000 0001 01 53111 /tmp/tmpk3v_0qz7
00000000c3f3b443: 00000003 00000000 00000000 0001 03 53112 /tmp/tmpk3v_0qz7
00000000c3f3b444: 00000002 00000000 00000000 0002 01 53113 /run/log
00000000c3f3b445: 00000002 00000000 00010000 0001 01 53114 @zmq two words
";

    #[test]
    #[cfg(target_endian = "little")]
    fn parses_both_ends_and_skips_orphans() {
        let (sockets, more) = tcp(TCP, 10);
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(sockets.iter().map(|s| s.inode).collect::<Vec<_>>(), [53120, 53121, 53119]);
        assert_eq!((sockets[0].state, sockets[0].local), (TcpState::Listening, at(30233)));
        assert_eq!((sockets[1].local, sockets[1].remote), (at(30233), at(50000)));
        assert!(!more);
        assert!(tcp(TCP, 2).1);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn ipv4_inside_ipv6_is_ipv4() {
        let (sockets, _) = tcp(TCP6, 10);
        assert_eq!(sockets[1].remote, SocketAddr::from(([127, 0, 0, 1], 50002)));
        assert!(sockets[0].local.ip().is_unspecified());
    }

    #[test]
    fn only_named_stream_sockets_are_listed() {
        let (sockets, _) = unix(UNIX, 10);
        let seen: Vec<_> = sockets.iter().map(|s| (s.inode, s.listening, s.name.as_slice())).collect();
        assert_eq!(
            seen,
            [
                (53111, true, b"/tmp/tmpk3v_0qz7".as_slice()),
                (53112, false, b"/tmp/tmpk3v_0qz7"),
                (53114, true, b"@zmq two words")
            ]
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            tcp(&bytes, 100);
            unix(&bytes, 100);
            tcp_line(&bytes);
            unix_line(&bytes);
        }

        #[test]
        fn arbitrary_addresses_round_trip(ip: u32, port: u16) {
            let text = format!("{:08X}:{port:04X}", u32::from_ne_bytes(Ipv4Addr::from(ip).octets()));
            prop_assert_eq!(address(&text), Some(SocketAddr::from((Ipv4Addr::from(ip), port))));
        }
    }
}
