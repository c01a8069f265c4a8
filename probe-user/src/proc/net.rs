//! Sockets of a process's network namespace, from `/proc/PID/net/tcp`, `tcp6` and `unix`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Listing, ProcDir, ReadError};

/// Maximum length of a line of a TCP table in bytes.
const MAX_LINE_BYTES: usize = 256;
/// Number of hexadecimal digits of 32 bits.
const WORD_DIGITS: usize = 8;

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

/// TCP sockets of the process's network namespace by family, at most `max_per_family` of each.
pub(crate) fn read_tcp_tables(
    process: &ProcDir,
    max_per_family: usize,
) -> impl Iterator<Item = Result<Listing<TcpSocket>, ReadError>> {
    ["net/tcp", "net/tcp6"].into_iter().map(move |table| {
        let text = process.read(table, max_per_family.saturating_mul(MAX_LINE_BYTES))?;
        Ok(parse_tcp_table(&text, max_per_family))
    })
}

/// Parses at most `limit` sockets of one table. Skips invalid lines.
pub(crate) fn parse_tcp_table(text: &[u8], limit: usize) -> Listing<TcpSocket> {
    parse_socket_table(text, limit, parse_tcp_line)
}

/// Parses up to `max_sockets` of a table of `/proc/net`.
fn parse_socket_table<T>(text: &[u8], max_sockets: usize, parse_line: fn(&[u8]) -> Option<T>) -> Listing<T> {
    // The first line has the names of the columns.
    let mut sockets = text.split(|&byte| byte == b'\n').skip(1).filter_map(parse_line);
    let items = sockets.by_ref().take(max_sockets).collect();
    let is_truncated = sockets.next().is_some();
    Listing { items, is_truncated }
}

/// Parses a line of `/proc/net/tcp` or `tcp6`. `None` if it is malformed or has no inode.
fn parse_tcp_line(line: &[u8]) -> Option<TcpSocket> {
    let mut fields = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    // The number of the line comes first.
    let local = parse_address(fields.nth(1)?)?;
    let remote = parse_address(fields.next()?)?;
    let state = match fields.next()? {
        "01" => TcpState::Established,
        "0A" => TcpState::Listening,
        _ => TcpState::Other,
    };
    // The queues, the timer, the retransmissions, the user and the timeout come between.
    let inode = fields.nth(5)?.parse().ok().filter(|&inode| inode != 0)?;
    Some(TcpSocket { local, remote, state, inode })
}

/// The four bytes of an address whose [`WORD_DIGITS`] digits begin at `start`.
fn address_word(digits: &str, start: usize) -> Option<[u8; 4]> {
    let word_digits = digits.get(start..start + WORD_DIGITS)?;
    Some(u32::from_str_radix(word_digits, 16).ok()?.to_ne_bytes())
}

/// Parses an address and port such as `0100007F:7569`, or with 32 digits for IPv6. Each 32-bit word of the address is in this machine's
/// byte order. An IPv4-mapped IPv6 address becomes IPv4, so that both ends of a connection have the same form. `None` if it is malformed.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (ip_digits, port_digits) = text.split_once(':')?;
    let port = u16::from_str_radix(port_digits, 16).ok()?;
    Some(SocketAddr::new(parse_ip(ip_digits)?, port))
}

/// Parses the 8 digits of an IPv4 address, or the 32 digits of an IPv6 address. `None` if it has neither.
fn parse_ip(digits: &str) -> Option<IpAddr> {
    match digits.len() {
        8 => Some(IpAddr::V4(Ipv4Addr::from(address_word(digits, 0)?))),
        32 => {
            let mut bytes = [0; 16];
            for (index, word) in bytes.chunks_exact_mut(4).enumerate() {
                word.copy_from_slice(&address_word(digits, index * WORD_DIGITS)?);
            }
            Some(Ipv6Addr::from(bytes).to_canonical())
        }
        _ => None,
    }
}

/// A Unix stream socket that listens or is connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnixSocket {
    pub(crate) inode: u32,
    pub(crate) is_listening: bool,
    /// A path, or `@name` for the abstract namespace; empty for the connecting side. An accepted socket has its listener's name.
    pub(crate) name: Vec<u8>,
    /// Inode of the other end. `/proc` does not show it.
    pub(crate) peer: Option<u32>,
}

/// Named stream sockets in `/proc/net/unix`, at most `limit`.
pub(crate) fn parse_unix_table(text: &[u8], limit: usize) -> Listing<UnixSocket> {
    parse_socket_table(text, limit, parse_unix_line)
}

/// Parses a line such as `ffff9738: 00000002 00000000 00010000 0001 01 53111 /tmp/tmpabcdefgh`, whose name may contain spaces. `None` if it
/// is no stream socket or has no name.
fn parse_unix_line(line: &[u8]) -> Option<UnixSocket> {
    const SO_ACCEPTCON: u32 = 0x1_0000;
    const STREAM_TYPE: &str = "0001";
    let mut rest = line;
    // The fields are taken one by one, because the name at the end may contain spaces.
    let _address = take_next_field(&mut rest)?;
    let _reference_count = take_next_field(&mut rest)?;
    let _protocol = take_next_field(&mut rest)?;
    let flags = u32::from_str_radix(take_next_field(&mut rest)?, 16).ok()?;
    let is_stream = take_next_field(&mut rest)? == STREAM_TYPE;
    let _state = take_next_field(&mut rest)?;
    let inode = take_next_field(&mut rest)?.parse().ok().filter(|&inode| inode != 0)?;
    // Connecting sides have no name.
    let name = rest.strip_prefix(b" ")?;
    if !is_stream || name.is_empty() {
        return None;
    }
    Some(UnixSocket { inode, is_listening: flags & SO_ACCEPTCON != 0, name: name.to_vec(), peer: None })
}

/// Removes the next field, which ends with a space, from `rest` and returns it. `None` if there is no further field.
fn take_next_field<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let start = rest.iter().position(|&byte| byte != b' ')?;
    let end = start + rest[start..].iter().position(|&byte| byte == b' ')?;
    let text = std::str::from_utf8(&rest[start..end]).ok()?;
    *rest = &rest[end..];
    Some(text)
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
        let Listing { items: sockets, is_truncated } = parse_tcp_table(TCP, 10);
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(sockets.iter().map(|s| s.inode).collect::<Vec<_>>(), [53120, 53121, 53119]);
        assert_eq!((sockets[0].state, sockets[0].local), (TcpState::Listening, at(30233)));
        assert_eq!((sockets[1].local, sockets[1].remote), (at(30233), at(50000)));
        assert!(!is_truncated);
        assert!(parse_tcp_table(TCP, 2).is_truncated);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn ipv4_inside_ipv6_is_ipv4() {
        let sockets = parse_tcp_table(TCP6, 10).items;
        assert_eq!(sockets[1].remote, SocketAddr::from(([127, 0, 0, 1], 50002)));
        assert!(sockets[0].local.ip().is_unspecified());
    }

    #[test]
    fn only_named_stream_sockets_are_listed() {
        let sockets = parse_unix_table(UNIX, 10).items;
        let seen: Vec<_> = sockets.iter().map(|s| (s.inode, s.is_listening, s.name.as_slice())).collect();
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
            parse_tcp_table(&bytes, 100);
            parse_unix_table(&bytes, 100);
            parse_tcp_line(&bytes);
            parse_unix_line(&bytes);
        }

        #[test]
        fn arbitrary_addresses_round_trip(ip: u32, port: u16) {
            let text = format!("{:08X}:{port:04X}", u32::from_ne_bytes(Ipv4Addr::from(ip).octets()));
            prop_assert_eq!(parse_address(&text), Some(SocketAddr::from((Ipv4Addr::from(ip), port))));
        }
    }
}
