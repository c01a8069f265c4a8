//! Tests with functions from libraries that engines use.

use probe_ebpf::{Kept, Register};
use proptest::prelude::*;

use super::find::{
    ReceivedPoint, SocketPoint, find_entry_probe_address, find_inner_tls_write_address, find_option_request_point,
    find_received_point, find_refused_point, find_wait_point,
};
use super::machine_state::{MachineCode, MachineState, TrackedValue};
use super::{ProbePointCache, ProbePoints, Sought};

/// `zmq_msg_recv` of libzmq 4.3.5 in the wheel of pyzmq 27.1.0, compiled without optimization.
const PLAIN_RECV: &str = "\
55 48 89 e5 48 83 ec 30 48 89 7d e8 48 89 75 e0 89 55 dc 48 8b 45 e0 48 89 c7 e8 0a ee ff ff 48 89 45 f8 48 83 \
7d f8 00 75 07 b8 ff ff ff ff eb 17 8b 55 dc 48 8b 4d e8 48 8b 45 f8 48 89 ce 48 89 c7 e8 98 f7 ff ff 90 c9 c3";
/// `zmq_msg_send` of the same library.
const PLAIN_SEND: &str = "\
55 48 89 e5 48 83 ec 30 48 89 7d e8 48 89 75 e0 89 55 dc 48 8b 45 e0 48 89 c7 e8 54 ee ff ff 48 89 45 f8 48 83 \
7d f8 00 75 07 b8 ff ff ff ff eb 17 8b 55 dc 48 8b 4d e8 48 8b 45 f8 48 89 ce 48 89 c7 e8 a7 f2 ff ff 90 c9 c3";
/// `s_sendmsg` of the same library, 0xd12 bytes before `zmq_msg_send`.
const PLAIN_SENDMSG: &str = "\
55 48 89 e5 48 83 ec 40 48 89 7d d8 48 89 75 d0 89 55 cc 48 8b 45 d0 48 89 c7 e8 33 2e f8 ff 48 89 45 f8 8b 55 \
cc 48 8b 4d d0 48 8b 45 d8 48 89 ce 48 89 c7 e8 b3 7f fd ff 89 45 f4 8b 45 f4 c1 e8 1f 0f b6 c0 48 85 c0 74 07 \
b8 ff ff ff ff eb 1c 48 c7 45 e8 ff ff ff 7f 48 8b 45 f8 48 3b 45 e8 73 06 48 8b 45 f8 eb 04 48 8b 45 e8 c9 c3";
/// `zmq_msg_recv` of libzmq 4.3.2 in the wheel of pyzmq 19.0.2: compiled without optimization, and with no instruction that can be
/// emulated.
const OLD_RECV: &str = "\
55 48 89 e5 48 83 ec 30 48 89 7d e8 48 89 75 e0 89 55 dc 48 8b 45 e0 48 89 c7 e8 c2 ee ff ff 48 89 45 f8 48 83 \
7d f8 00 75 07 b8 ff ff ff ff eb 16 8b 55 dc 48 8b 4d e8 48 8b 45 f8 48 89 ce 48 89 c7 e8 de f7 ff ff c9 c3";
/// `zmq_msg_recv` of Debian's libzmq 4.3.4.
const OPTIMIZED_RECV: &str = "\
41 54 55 53 48 85 f6 74 47 48 89 fd 48 89 f7 48 89 f3 41 89 d4 e8 66 ec fd ff 84 c0 74 32 44 89 e2 48 89 ee 48 \
89 df e8 a4 16 fe ff 85 c0 78 2b 48 89 ef e8 d8 84 f9 ff ba ff ff ff 7f 5b 5d 48 39 d0 41 5c 48 0f 47 c2 c3 0f \
1f 80 00 00 00 00 e8 0b 76 f9 ff c7 00 58 00 00 00 5b b8 ff ff ff ff 5d 41 5c c3";
/// `zmq_msg_send` of the same library.
const OPTIMIZED_SEND: &str = "\
41 55 41 54 55 53 48 83 ec 08 48 85 f6 74 51 49 89 fc 48 89 f7 48 89 f5 41 89 d5 e8 20 ea fd ff 84 c0 74 3c 4c \
89 e7 e8 a4 82 f9 ff 44 89 ea 4c 89 e6 48 89 ef 48 89 c3 e8 43 07 fe ff 85 c0 78 2a 48 81 fb fe ff ff 7f b8 ff \
ff ff 7f 0f 46 c3 48 83 c4 08 5b 5d 41 5c 41 5d c3 0f 1f 44 00 00 e8 bb 73 f9 ff c7 00 58 00 00 00 48 83 c4 08 \
b8 ff ff ff ff 5b 5d 41 5c 41 5d c3";
/// `epoll_wait` of Debian's glibc 2.36, up to its first branch.
const EPOLL_WAIT: &str = "\
80 3d f1 26 0d 00 00 41 89 ca 74 14 b8 e8 00 00 00 0f 05 48 3d 00 f0 ff";

/// `SSL_write` of Debian's OpenSSL 3.0, up to the call of `ssl_write_internal`.
const SSL_WRITE: &str = "\
48 83 ec 18 64 48 8b 04 25 28 00 00 00 48 89 44 24 08 31 c0 85 d2 78 2f 48 89 e1 48 63 d2 e8 fd fb ff ff";
/// `SSL_write_ex` of the same library, up to the same call.
const SSL_WRITE_EX: &str = "48 83 ec 08 e8 87 fb ff ff";

const AT: u64 = 0x1000;

fn bytes(hex: &str) -> Vec<u8> {
    hex.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

fn code(bytes: &[u8]) -> MachineCode<'_> {
    MachineCode { bytes, address: AT }
}

#[test]
fn both_writes_of_openssl_are_probed_in_the_function_that_they_call() {
    let (inner, write, write_ex) = (AT, AT + 0x3e0, AT + 0x470);
    let mut library = vec![0x90; 0x3e0];
    library.extend(bytes(SSL_WRITE));
    library.resize(0x470, 0x90);
    library.extend(bytes(SSL_WRITE_EX));
    assert_eq!(find_inner_tls_write_address(code(&library), write, write_ex), Some(inner));
    assert_eq!(
        find_inner_tls_write_address(MachineCode { bytes: &library[1..], address: AT + 1 }, write, write_ex),
        None
    );
    // `mov r8, rcx; xor ecx, ecx` before the call: an argument was inserted.
    library.splice(0x474..0x474, bytes("49 89 c8 31 c9"));
    assert_eq!(find_inner_tls_write_address(code(&library), write, write_ex), None);
    // Another function.
    library.splice(0x474..0x479, []);
    library[0x475] ^= 1;
    assert_eq!(find_inner_tls_write_address(code(&library), write, write_ex), None);
}

#[test]
fn a_receive_is_probed_at_the_nop_after_its_call() {
    let found = ReceivedPoint {
        at: AT + 0x47,
        socket: Kept::At(Register::Rbp, -0x20),
        message: Kept::At(Register::Rbp, -0x18),
    };
    assert_eq!(find_received_point(code(&bytes(PLAIN_RECV)), AT), Some(found));
}

#[test]
fn a_receive_is_probed_at_the_branch_on_its_result() {
    let found = ReceivedPoint { at: AT + 0x2e, socket: Kept::In(Register::Rbx), message: Kept::In(Register::Rbp) };
    assert_eq!(find_received_point(code(&bytes(OPTIMIZED_RECV)), AT), Some(found));
}

#[test]
fn a_receive_without_a_suitable_instruction_is_not_probed() {
    assert_eq!(find_received_point(code(&bytes(OLD_RECV)), AT), None);
}

#[test]
fn a_rejected_send_is_probed_where_its_result_becomes_minus_one() {
    let mut plain = bytes(PLAIN_SENDMSG);
    plain.resize(0xd12, 0xcc);
    plain.extend(bytes(PLAIN_SEND));
    let inner = SocketPoint { at: AT + 0x4f, socket: Kept::At(Register::Rbp, -0x28) };
    assert_eq!(find_refused_point(code(&plain), AT + 0xd12), Some(inner));
    let inlined = SocketPoint { at: AT + 0x6f, socket: Kept::In(Register::Rbp) };
    assert_eq!(find_refused_point(code(&bytes(OPTIMIZED_SEND)), AT), Some(inlined));
}

#[test]
fn an_entry_is_probed_where_the_kernel_can_emulate_the_instruction() {
    for function in [PLAIN_SEND, OPTIMIZED_SEND, PLAIN_RECV] {
        assert_eq!(find_entry_probe_address(code(&bytes(function)), AT), AT, "the function begins with a push");
    }
    // Probed at the branch, since only a comparison and a move of a register without an argument precede it.
    assert_eq!(find_entry_probe_address(code(&bytes(EPOLL_WAIT)), AT), AT + 10);
    // Moves past `endbr64`, but not past an instruction that changes an argument.
    assert_eq!(find_entry_probe_address(code(&bytes("f3 0f 1e fa 55")), AT), AT + 4);
    assert_eq!(find_entry_probe_address(code(&bytes("48 89 f7 55")), AT), AT);
}

/// The functions in one of the files of `code`, at their addresses relative to the returned one. The gaps contain no code.
fn functions(listing: &str) -> (u64, Vec<u8>) {
    let lines: Vec<(u64, Vec<u8>)> = listing
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(": "))
        .filter_map(|(at, hex)| {
            let pairs = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
            let bytes = pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
            Some((u64::from_str_radix(at, 16).ok()?, bytes))
        })
        .collect();
    let first = lines[0].0;
    let mut image = Vec::new();
    for (at, bytes) in lines {
        image.resize((at - first) as usize, 0xcc);
        image.extend(bytes);
    }
    (first, image)
}

#[test]
fn the_request_for_the_next_message_is_found_in_unoptimized_code() {
    let (at, image) = functions(include_str!("code/plain.txt"));
    let code = MachineCode { bytes: &image, address: at };
    let socket = Kept::At(Register::Rbp, -0x38);
    // The call of `options_t::getsockopt`, after all options that the socket itself handles.
    assert_eq!(find_option_request_point(code, 0x95c43), Some(SocketPoint { at: 0x6b1bf, socket }));
    // The call of `process_commands` in the waiting loop.
    assert_eq!(find_wait_point(code, 0x96cca), Some(SocketPoint { at: 0x6e621, socket }));
}

#[test]
fn the_request_for_the_next_message_is_found_in_optimized_code() {
    let (at, image) = functions(include_str!("code/optimized.txt"));
    let code = MachineCode { bytes: &image, address: at };
    let socket = Kept::In(Register::Rbx);
    assert_eq!(find_option_request_point(code, 0x8cfc0), Some(SocketPoint { at: 0x64644, socket }));
    assert_eq!(find_wait_point(code, 0x8d6e0), Some(SocketPoint { at: 0x64224, socket }));
}

#[test]
fn the_request_for_the_next_message_is_not_found_in_other_code() {
    let plain = bytes(PLAIN_RECV);
    assert_eq!((find_option_request_point(code(&plain), AT), find_wait_point(code(&plain), AT)), (None, None));
}

#[test]
fn a_constant_argument_decides_a_branch() {
    // cmp esi, 15; jne +1; push rbx; push rbp; and edx, 1; je +1; ret; push r12
    let bytes = bytes("83 fe 0f 75 01 53 55 83 e2 01 74 01 c3 41 54");
    let reached = |option, flags| {
        let arguments = [TrackedValue::Socket, TrackedValue::Number(option), TrackedValue::Number(flags)];
        code(&bytes).reachable_addresses(AT, MachineState::at_entry(&arguments)).unwrap()
    };
    let (events, other) = (reached(15, 0), reached(27, 1));
    assert!(events.contains(&(AT + 5)) && !events.contains(&(AT + 12)));
    assert!(!other.contains(&(AT + 5)) && other.contains(&(AT + 12)) && !other.contains(&(AT + 13)));
}

#[test]
fn the_c_library_of_this_process_is_found() {
    let libraries = crate::library::open_libc(std::process::id()).unwrap();
    let mut cache = ProbePointCache::default();
    let probe_points = cache.find_in_library(Sought::Functions, &libraries[0].file).unwrap();
    assert!(probe_points.entry_offset_of("poll").is_ok() && probe_points.entry_offset_of("epoll_wait").is_ok());
    assert!(probe_points.entry_offset_of("zmq_recv").unwrap_err().to_string().contains("does not export zmq_recv"));
    assert!(std::sync::Arc::ptr_eq(
        &probe_points,
        &cache.find_in_library(Sought::Functions, &libraries[0].file).unwrap()
    ));
}

#[test]
fn a_file_that_is_not_a_library_is_rejected() {
    let error = ProbePoints::find_in_image(Sought::Functions, b"#!/bin/sh\n").unwrap_err().to_string();
    assert!(error.starts_with("cannot analyse its code: not a library for this machine"), "{error}");
}

/// A library whose exported symbols all have the same name of `name_bytes`, without an end.
fn endless_names(symbols: usize, name_bytes: usize) -> Vec<u8> {
    const HEADERS: usize = 0x1000;
    let mut file = vec![0; HEADERS];
    file.resize(HEADERS + name_bytes, b'A');
    let symbols_at = file.len();
    file.resize(symbols_at + 24, 0);
    let symbol: Vec<u8> =
        [&1_u32.to_le_bytes()[..], &[0x12, 0, 1, 0], &0x1000_u64.to_le_bytes(), &16_u64.to_le_bytes()].concat();
    file.extend(symbol.repeat(symbols));
    let sections_at = file.len();
    let mut put = |at: usize, value: &[u8]| {
        file.resize(file.len().max(at + value.len()), 0);
        file[at..at + value.len()].copy_from_slice(value);
    };
    put(0, b"\x7fELF\x02\x01\x01");
    put(16, &[3, 0, 62, 0, 1, 0, 0, 0]);
    put(40, &sections_at.to_le_bytes());
    put(52, &[64, 0, 56, 0, 0, 0, 64, 0, 3, 0, 2, 0]);
    // Sections: none, dynamic symbols, names.
    let sections = [(11_u32, symbols_at, 24 * (symbols + 1), 2_u32), (3, HEADERS, name_bytes, 0)];
    put(sections_at, &[0; 64]);
    for (n, (kind, at, size, link)) in sections.into_iter().enumerate() {
        let section_at = sections_at + 64 * (n + 1);
        put(section_at, &[0; 64]);
        put(section_at + 4, &kind.to_le_bytes());
        put(section_at + 24, &at.to_le_bytes());
        put(section_at + 32, &size.to_le_bytes());
        put(section_at + 40, &link.to_le_bytes());
        put(section_at + 56, &24_u64.to_le_bytes());
    }
    file
}

#[test]
fn symbols_with_endless_names_are_refused_or_take_a_moment() {
    let began = std::time::Instant::now();
    let error =
        ProbePoints::find_in_image(Sought::Functions, &endless_names(1_300_000, 1 << 20)).unwrap_err().to_string();
    assert_eq!(error, "cannot analyse its code: more than 131072 exported symbols, the limit");
    let accepted = ProbePoints::find_in_image(Sought::Functions, &endless_names(131_000, 8 << 20)).unwrap();
    assert!(accepted.entry_offset_of("zmq_msg_send").is_err());
    assert!(began.elapsed() < std::time::Duration::from_secs(20), "{:?}", began.elapsed());
}

proptest! {
    #[test]
    fn arbitrary_code_terminates_the_analysis(bytes in prop::collection::vec(any::<u8>(), 0..400), from in 0_u64..400) {
        let code = code(&bytes);
        let _ = find_entry_probe_address(code, AT + from);
        let _ = (find_received_point(code, AT + from), find_refused_point(code, AT + from));
        let _ = (find_option_request_point(code, AT + from), find_wait_point(code, AT + from));
        let _ = find_inner_tls_write_address(code, AT, AT + from);
    }
}
