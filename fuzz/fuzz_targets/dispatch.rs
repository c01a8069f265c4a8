//! Arbitrary messages to the scheduler and to the engine core, whole and as both ends of a longer one: reading does not panic, ids are parts
//! of the message, and a shorter excerpt never shows another value than the whole message.
#![no_main]

use adapter::decode::{Excerpt, ReadRequests};
use libfuzzer_sys::fuzz_target;
use trace::event::DispatchedRequest;

/// The requests in the parts of a message, or in those that were captured; `None` if it is refused.
fn read<'a>(read_requests: ReadRequests, parts: &[Excerpt<'a>]) -> Option<Vec<DispatchedRequest<'a>>> {
    let mut requests = Vec::new();
    if let Err(why) = read_requests(parts, &mut requests)
        && why.reason != "cut-by-capture"
    {
        assert!(requests.is_empty(), "{requests:?}");
        return None;
    }
    for request in &requests {
        let rid = request.rid.as_bytes().as_ptr_range();
        let is_inside = |bytes: &[u8]| bytes.as_ptr_range().start <= rid.start && rid.end <= bytes.as_ptr_range().end;
        assert!(parts.iter().any(|part| is_inside(part.head) || is_inside(part.tail)), "{request:?}");
    }
    Some(requests)
}

fn check(read_requests: ReadRequests, before: &[Excerpt<'_>], message: &[u8], captured: usize) {
    let whole = [before, &[Excerpt::whole(message)]].concat();
    let whole = read(read_requests, &whole);
    if 2 * captured >= message.len() {
        return;
    }
    let (head, tail) = (&message[..captured], &message[message.len() - captured..]);
    let ends = [before, &[Excerpt { length: message.len() as u64, head, tail }]].concat();
    let ends = read(read_requests, &ends);
    for (whole, ends) in whole.iter().flatten().zip(ends.iter().flatten()) {
        assert_eq!(whole.rid, ends.rid);
        assert!(ends.prompt_tokens.is_none() || ends.prompt_tokens == whole.prompt_tokens, "{whole:?} {ends:?}");
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&[kind, captured], message)) = input.split_first_chunk() else { return };
    let captured = 8 * usize::from(captured);
    check(engines::sglang::FORMAT.read_requests, &[], message, captured);
    check(engines::vllm::FORMAT.read_requests, &[Excerpt::whole(&[kind % 6])], message, captured);
});
