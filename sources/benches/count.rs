//! Instructions from observations of the probe to events for [`LAPS`] frames, each sent, received and processed: `cargo xtask bench count`.
#![cfg(target_os = "linux")]
#![allow(missing_docs, unused_qualifications, reason = "the benchmark macros generate public modules")]

use std::hint::black_box;

use engines::sglang::discover::role::{SCHEDULER, TOKENIZER};
use gungraun::{library_benchmark, library_benchmark_group, main};
use probe_user::{Call, Message, Observation, SocketId};
use sources::attach::Interpreter;
use sources::translate::Clients;
use trace::MonoNs;
use trace::event::{Event, What};

const LAPS: u64 = 256;
const FRAME: &[u8] = include_bytes!("../../zmq-tap/fixtures/messages/0.5.9/skip_delta_256rid.pkl");
const SENDER: u32 = 1;
const RECEIVER: u32 = 2;

/// Frames and requests in the events of a lap.
#[derive(Default)]
struct Counts {
    frames: u64,
    chunks: usize,
}

/// Passes a message on its whole way, and counts it at each end.
fn lap(interpreter: &mut Interpreter, number: u64, counts: &mut Counts) {
    let call = |pid: u32, ns: u64| {
        let socket = SocketId { pid, address: 0x1000 };
        Call { at: MonoNs(number * 1_000_000 + ns), socket, tid: pid, seq: number, wakeup: Some(number) }
    };
    let message = |call: Call| Message { call, bytes: FRAME.len() as u64, more: false, payload: black_box(FRAME) };
    for observation in [
        Observation::Sent(message(call(SENDER, 0))),
        Observation::Received(message(call(RECEIVER, 100_000))),
        Observation::Processed(call(RECEIVER, 200_000)),
    ] {
        interpreter.interpret_observation(&observation, &mut |event: &Event<'_>| match &black_box(event).what {
            What::Sent(frame) => {
                (counts.frames, counts.chunks) = (counts.frames + 1, counts.chunks + frame.chunks.len());
            }
            What::Received(_) | What::Processed(_) => counts.frames += 1,
            _ => {}
        });
    }
}

/// An interpreter that knows the hop, with all its buffers allocated.
fn interpreter() -> Interpreter {
    let mut interpreter =
        Interpreter::observing_from_first_message(&[(SENDER, SCHEDULER), (RECEIVER, TOKENIZER)], Clients::default());
    lap(&mut interpreter, 0, &mut Counts::default());
    interpreter
}

#[library_benchmark]
#[bench::frame(interpreter())]
fn count_attach(mut interpreter: Interpreter) -> Interpreter {
    let mut counts = Counts::default();
    for number in 1..=LAPS {
        lap(&mut interpreter, number, &mut counts);
    }
    assert_eq!(
        (counts.frames, counts.chunks),
        (3 * LAPS, 256 * LAPS as usize),
        "each frame is sent, received and processed"
    );
    interpreter
}

library_benchmark_group!(name = hot_paths, benchmarks = [count_attach]);
main!(library_benchmark_groups = hot_paths);
