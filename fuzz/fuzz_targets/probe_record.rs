//! Arbitrary ring buffer records: parsed slices lie within the input, and the matcher accepts any parsed record.
#![no_main]

use libfuzzer_sys::fuzz_target;
use probe_ebpf::{Kind, Record, egress};
use probe_user::matcher::Limits;
use probe_user::{Call, Matcher, Message, SocketId};
use trace::MonoNs;

fuzz_target!(|bytes: &[u8]| {
    let mut matcher = Matcher::new(Limits { in_flight: 64, depth: 16 });
    // Each record follows a byte that holds half its length.
    let mut rest = bytes;
    while let Some((length, tail)) = rest.split_first() {
        let (raw, later) = tail.split_at((usize::from(*length) * 2).min(tail.len()));
        rest = later;
        if let Some(record) = egress::Record::parse(raw) {
            assert!(record.payload.len() == record.head.captured as usize);
        }
        let Some(record) = Record::parse(raw) else { continue };
        assert!(record.payload.len() <= raw.len());
        let call = Call {
            at: MonoNs(record.header.at_ns),
            socket: SocketId { pid: record.header.target, address: record.header.socket },
            tid: record.header.tid,
            seq: record.header.seq,
            wakeup: None,
        };
        let message =
            Message { call, bytes: record.header.bytes, more: record.header.more == 1, payload: record.payload };
        match record.kind {
            Kind::Sent => {
                matcher.sent(&message);
            }
            Kind::Unsent => {
                matcher.unsent(&call);
            }
            Kind::Received => {
                let _ = matcher.received(&message);
            }
            Kind::Processed => {
                matcher.processed(&call);
            }
            // Has no message to match.
            Kind::Returned => {}
        }
    }
});
