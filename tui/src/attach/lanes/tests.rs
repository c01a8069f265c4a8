//! What is told when records of messages are lost.

use probe_user::{Call, Message, SocketId};
use trace::event::What;
use trace::report::ReportInput;
use trace::{Analysis, Config, MonoNs};

use super::super::roles::Roles;
use super::{Lanes, Sight};

const FRAME: &[u8] = include_bytes!("../../../../zmq-tap/fixtures/messages/0.5.9/skip_delta_256rid.pkl");

/// The recorded frame with another first rid.
fn frame(seq: u64) -> Vec<u8> {
    let mut bytes = FRAME.to_vec();
    let rid = bytes
        .windows(8)
        .position(|at| at == b"d5a06630")
        .expect("the recorded rid");
    bytes[rid] = b'0' + seq as u8;
    bytes
}

fn message(pid: u32, seq: u64, bytes: &[u8]) -> Message<'_> {
    Message {
        call: Call {
            at: MonoNs(1_000_000 * (seq + u64::from(pid))),
            socket: SocketId { pid, address: 0x1000 },
            tid: pid,
            seq,
            cpu: None,
            wakeup: None,
        },
        bytes: bytes.len() as u64,
        more: false,
        payload: bytes,
    }
}

#[test]
fn a_loss_that_numbers_show_is_told_before_what_follows_it_and_only_once() {
    let sight = Sight {
        handled: false,
        delivered: false,
    };
    let mut lanes = Lanes::new(Roles::default(), sight);
    let mut analysis = Analysis::new(Config::default());
    let mut told = Vec::new();
    let mut enter = |event: &trace::Event<'_>| {
        analysis.apply(event);
        match &event.what {
            What::Lost(lost) => told.push(("lost", lost.count)),
            What::Sent(frame) => told.push(("sent", frame.id.seq)),
            What::Taken(taken) => told.push(("taken", taken.id.seq)),
            _ => {}
        }
    };
    for seq in [0, 4] {
        lanes.sent(&message(1, seq, &frame(seq)), &mut enter);
    }
    for seq in [0, 1, 4] {
        lanes.taken(&message(2, seq, &frame(seq)), &mut enter);
    }
    assert_eq!(told[..3], [("sent", 0), ("lost", 3), ("sent", 4)]);
    assert_eq!(
        told[3..].iter().filter(|told| told.0 == "lost").collect::<Vec<_>>(),
        [&("lost", 2)]
    );
    // Five of seven that the kernel side then counts are known already.
    assert_eq!((lanes.not_told(3), lanes.not_told(4), lanes.not_told(1)), (0, 2, 1));
    let report = analysis.report(&ReportInput::of("attach"));
    assert_eq!((report.own.events_missed, report.own.frames_unannounced), (5, 0));
}
