//! Instructions of decoding and of scanning a connection for [`LAPS`] frames, and of reading a response with a tool call of [`LAPS`] chunks:
//! `cargo xtask bench count`.
#![allow(missing_docs, unused_qualifications, reason = "the benchmark macros generate public modules")]

use std::hint::black_box;
use std::path::Path;

use adapter::decode::Excerpt;
use engines::sglang::wire::{Decoder, Limits};
use gungraun::{library_benchmark, library_benchmark_group, main};
use responses::{ResponseReader, Server};
use trace::event::{Chunk, DispatchKind, Finish, Frame, IdColumn, Kind, ToolCallOutcome, What};
use trace::{FrameId, HopId, MonoNs};
use zmq_tap::zmtp::{Mark, Scanner};

const LAPS: usize = 256;
/// Written by the command: a thousand requests, which Python pickles in two batches and two frames.
const LONG: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/long.pkl");

fn message(file: &str) -> Vec<u8> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../zmq-tap/fixtures/messages"));
    std::fs::read(folder.join(file)).unwrap_or_else(|why| panic!("{file}: {why}"))
}

/// A decoder with all its buffers allocated, and the message.
fn decoder(file: &str) -> (Decoder, Vec<u8>) {
    let (mut decoder, message) = (Decoder::new(Limits::default()), message(file));
    assert!(decoder.decode(&message).is_ok_and(|batch| batch.chunks().len() >= 256), "{file}");
    (decoder, message)
}

#[library_benchmark]
#[bench::pickle_0_4_4(decoder("0.4.4/skip_delta_256rid.pkl"))]
#[bench::pickle_0_5_9(decoder("0.5.9/skip_delta_256rid.pkl"))]
#[bench::pickle_0_5_9_long(decoder(LONG))]
#[bench::pickle_0_5_23(decoder("0.5.23/skip_delta_256rid.pkl"))]
#[bench::msgpack_0_5_23(decoder("0.5.23-msgpack/skip_delta_256rid.msgpack"))]
fn count_decode((mut decoder, message): (Decoder, Vec<u8>)) -> (Decoder, Vec<u8>) {
    for _ in 0..LAPS {
        black_box(decoder.decode(black_box(&message)).map(|batch| batch.chunks().len()).ok());
    }
    (decoder, message)
}

/// A decoder of vLLM's messages with all its buffers allocated, and a message of 256 requests.
fn vllm_decoder(release: &str) -> (engines::vllm::Decoder, Vec<u8>) {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/vllm"));
    let file = folder.join(release).join("delta_256.0");
    let message = std::fs::read(&file).unwrap_or_else(|why| panic!("{}: {why}", file.display()));
    let mut decoder = engines::vllm::Decoder::new(1 << 20);
    assert!(decoder.decode(&[&message]).is_ok_and(|decoded| decoded.chunks().len() == 256), "{release}");
    (decoder, message)
}

#[library_benchmark]
#[bench::vllm_0_8_3(vllm_decoder("0.8.3"))]
#[bench::vllm_0_33_0(vllm_decoder("0.33.0"))]
fn count_decode_vllm((mut decoder, message): (engines::vllm::Decoder, Vec<u8>)) -> (engines::vllm::Decoder, Vec<u8>) {
    for _ in 0..LAPS {
        black_box(decoder.decode(black_box(&[&message])).map(|decoded| decoded.chunks().len()).ok());
    }
    (decoder, message)
}

/// A message to the scheduler, of which a probe captures at most 2 KiB from each end.
fn request(file: &str) -> Vec<u8> {
    // It reads the table of layouts, as that of any source does before the first message.
    drop(Decoder::new(Limits::default()));
    let mut message = message(file);
    if message.len() > 4096 {
        message.drain(2048..message.len() - 2048);
    }
    message
}

#[library_benchmark]
#[bench::pickle_0_5_9(request("0.5.9/req_text.pkl"))]
#[bench::pickle_0_5_9_long(request("0.5.9/req_room_3000tok.pkl"))]
#[bench::pickle_0_5_23(request("0.5.23/req_text.pkl"))]
#[bench::msgpack_0_5_23(request("0.5.23-msgpack/req_text.msgpack"))]
fn count_read_requests(message: Vec<u8>) -> Vec<u8> {
    let mut requests = Vec::with_capacity(1);
    let excerpt = match message.len() {
        4096 => Excerpt { length: 10_000, head: &message[..2048], tail: &message[2048..] },
        _ => Excerpt::whole(&message),
    };
    for _ in 0..LAPS {
        requests.clear();
        let kind = (engines::sglang::FORMAT.read_requests)(black_box(&[excerpt]), &mut requests);
        assert_eq!(kind, Ok(DispatchKind::Requests));
        black_box(&requests);
    }
    drop(requests);
    message
}

/// The parts of a vLLM request with a long prompt, and what a probe captures of the last.
fn vllm_request(release: &str) -> Vec<u8> {
    // As for SGLang.
    drop(engines::vllm::Decoder::new(1 << 20));
    let file =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/vllm")).join(release).join("request_add_3000.2");
    let message = std::fs::read(&file).unwrap_or_else(|why| panic!("{}: {why}", file.display()));
    [&message[..2048], &message[message.len() - 2048..]].concat()
}

#[library_benchmark]
#[bench::vllm_0_33_0(vllm_request("0.33.0"))]
fn count_read_vllm_requests(ends: Vec<u8>) -> Vec<u8> {
    let mut requests = Vec::with_capacity(1);
    let payload = Excerpt { length: 10_000, head: &ends[..2048], tail: &ends[2048..] };
    for _ in 0..LAPS {
        requests.clear();
        let kind = (engines::vllm::FORMAT.read_requests)(black_box(&[Excerpt::whole(&[0]), payload]), &mut requests);
        assert_eq!(kind, Ok(DispatchKind::Requests));
        black_box(&requests);
    }
    drop(requests);
    ends
}

/// A scanner behind a connection's greeting, and the bytes of one message as a ZMTP frame.
fn scanner(file: &str) -> (Scanner, Vec<u8>) {
    let message = message(file);
    let mut frame = vec![2];
    frame.extend_from_slice(&(message.len() as u64).to_be_bytes());
    frame.extend_from_slice(&message);
    let mut scanner = Scanner::from_greeting();
    let mut greeting = [0; 64];
    greeting[..12].copy_from_slice(&[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1]);
    greeting[12..16].copy_from_slice(b"NULL");
    scanner.feed(&greeting, &mut |_| {});
    (scanner, frame)
}

#[library_benchmark]
#[bench::frame(scanner("0.5.9/skip_delta_256rid.pkl"))]
fn count_scan((mut scanner, frame): (Scanner, Vec<u8>)) -> (Scanner, Vec<u8>) {
    let mut found = 0;
    for _ in 0..LAPS {
        // Pieces of the size of one read from a connection.
        for piece in frame.chunks(16 << 10) {
            scanner.feed(black_box(piece), &mut |mark| {
                found += usize::from(matches!(mark, Mark::Frame { .. }));
            });
        }
    }
    assert_eq!(found, LAPS, "frames");
    (scanner, frame)
}

/// A chat with a tool call: its chunks, and its response of one event a chunk, which may lack one.
struct Chat {
    chunks: Vec<String>,
    response: Vec<u8>,
    /// Whether the text in the frames is known, so that the call is compared.
    compared: bool,
}

/// A chat with a tool call in [`LAPS`] chunks. With `compared`, its text is known from frames, too. With `damaged`, its response lacks the
/// event of a chunk in the middle.
fn chat(compared: bool, damaged: bool) -> Chat {
    let arguments: Vec<String> = (0..LAPS).map(|n| format!("line {n} of it\\n")).collect();
    let mut chunks = arguments.clone();
    chunks.insert(0, "{\"name\": \"write\", \"arguments\": {\"file\": \"".to_owned());
    chunks.push("\"}}".to_owned());
    let event = |function: &str| {
        format!(
            "data: {{\"id\":\"r\",\"choices\":[{{\"index\":0,\"delta\":{{\"tool_calls\":[{{\"index\":0,\"function\":{function}}}]}},\"finish_reason\":null}}]}}\n\n"
        )
    };
    let mut events = vec![event("{\"name\":\"write\",\"arguments\":\"{\\\"file\\\": \\\"\"}")];
    events.extend(arguments.iter().map(|part| event(&format!("{{\"arguments\":\"{}\"}}", part.replace('\\', "\\\\")))));
    events.push(event("{\"arguments\":\"\\\"}\"}"));
    if damaged {
        events.remove(LAPS / 2);
    }
    events.push("data: {\"id\":\"r\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\ndata: [DONE]\n\n".to_owned());
    let mut response =
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    // In HTTP chunks, each after its length.
    for event in events {
        response.extend(format!("{:x}\r\n{event}\r\n", event.len()).into_bytes());
    }
    response.extend(b"0\r\n\r\n");
    Chat { chunks, response, compared }
}

#[library_benchmark]
#[bench::unread(chat(false, false))]
#[bench::complete(chat(true, false))]
#[bench::missing(chat(true, true))]
fn count_calls(chat: Chat) -> Chat {
    let (mut server, mut found) = (Server::new(None), None);
    // Without frames the text is not known, and the call is not compared.
    for (n, text) in (1..).zip(&chat.chunks).filter(|_| chat.compared) {
        let chunk = Chunk {
            listed: Some(1),
            completion_tokens: Some(n),
            finish: (n as usize == chat.chunks.len()).then_some(Finish::Stop),
            text: Some(text),
            ..Chunk::new("r")
        };
        let (id, chunks) = (FrameId::new(HopId(0), 0, u64::from(n)), &[chunk]);
        let frame = Frame { id, bytes: 0, forwarded: None, kind: Kind::Text, ids: IdColumn::Delta, chunks };
        server.record_frame(&frame, None);
    }
    let mut reader = ResponseReader::default();
    reader.read_bytes(MonoNs(1), black_box(&chat.response), true, &mut server, &mut |event| {
        if let What::Answered(answer) = event.what {
            found = answer.tool_calls;
        }
    });
    let judged = found.is_some_and(|calls| calls.outcome != ToolCallOutcome::Unjudged);
    assert_eq!(judged, chat.compared, "the calls are compared");
    chat
}

library_benchmark_group!(
    name = hot_paths,
    benchmarks =
        [count_calls, count_decode, count_decode_vllm, count_read_requests, count_read_vllm_requests, count_scan]
);
main!(library_benchmark_groups = hot_paths);
