//! Observed messages to the scheduler are processed without an allocation. This is a separate test binary because the allocator's counters
//! cover the whole process.
#![cfg(target_os = "linux")]

use std::alloc::System;

use engines::sglang::discover::role::{SCHEDULER, TOKENIZER};
use probe_user::{Call, Message, Observation, SocketId};
use sources::attach::Interpreter;
use sources::translate::Clients;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use trace::MonoNs;
use trace::event::{Event, What};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const REQUEST: &[u8] = include_bytes!("../../zmq-tap/fixtures/messages/0.5.23/req_text.pkl");
const WARM_UP: u64 = 300;
const MEASURED: u64 = 200;

#[test]
fn requests_to_the_scheduler_are_read_without_an_allocation_for_each() {
    let mut interpreter =
        Interpreter::observing_from_first_message(&[(1, SCHEDULER), (2, TOKENIZER)], Clients::default());
    let mut requests = 0;
    let mut send = |number: u64| {
        let socket = SocketId { pid: 2, address: 0x1000 };
        let call = Call { at: MonoNs(number * 1_000_000), socket, tid: 2, seq: number, wakeup: None };
        let message = Message { call, bytes: REQUEST.len() as u64, more: false, payload: REQUEST };
        interpreter.interpret_observation(&Observation::Sent(message), &mut |event: &Event<'_>| {
            requests += u64::from(matches!(event.what, What::Dispatched(_)));
        });
    };
    // The list of messages in flight grows to more than all of them.
    (0..WARM_UP).for_each(&mut send);
    let region = Region::new(ALLOCATOR);
    (WARM_UP..WARM_UP + MEASURED).for_each(&mut send);
    let change = region.change();
    assert_eq!(requests, WARM_UP + MEASURED);
    assert_eq!(change.allocations + change.reallocations, 0, "for {MEASURED} messages");
}
