//! Messages, streams, responses and logs of engines: recorded ones, random ones and hostile ones.

#[path = "../common/mod.rs"]
mod common;
mod encode;
mod frame_reader;
mod hostile;
mod log_lines;
mod messages;
mod posted_responses;
mod requests;
mod roundtrip;
mod vllm_messages;
mod zmtp;
