//! Turns the observations of the probe into events.

use adapter::discover::Role;
use probe_user::egress::Kind;
use probe_user::{Loss, Observation};
use trace::MonoNs;
use trace::event::{Event, Missed, MissedCause, What};

use super::egress::Egress;
use super::lanes::{Lanes, Sink};
use super::observability::Observability;
use super::roles::Roles;
use super::socket_reads::SocketReads;
use crate::translate::Clients;

/// Interprets observations: messages by their lanes, the bytes of other sockets by their connections.
pub struct Interpreter {
    pub(super) lanes: Lanes,
    pub(super) egress: Egress,
    pub(super) reads: SocketReads,
    /// Observations dropped because the ring buffer was full.
    pub(super) overflowed: u64,
}

impl Interpreter {
    pub(super) fn new(lanes: Lanes, egress: Egress, reads: SocketReads) -> Self {
        Self { lanes, egress, reads, overflowed: 0 }
    }

    /// An interpreter for a run that is observed from its first message on. `roles_by_pid` are the processes of the engine. `clients` get
    /// its responses.
    pub fn observing_from_first_message(roles_by_pid: &[(u32, Role)], clients: Clients) -> Self {
        let is_processing_reported = true;
        let mut observability = Observability::new(is_processing_reported, clients.is_observed);
        // Before all messages, so all of them count as observed.
        let begin = MonoNs(0);
        for (pid, _) in roles_by_pid {
            observability.mark_watched(*pid, begin);
            observability.mark_served(*pid, begin);
        }
        let no_known_connections = [];
        let lanes = Lanes::new(Roles::from_roles_and_connections(roles_by_pid, &no_known_connections), observability);
        Self::new(lanes, Egress::new(clients), SocketReads::default())
    }

    /// Makes the decoders keep what the comparison with responses needs, from the next message on.
    pub fn prepare_comparison(&mut self) {
        self.lanes.translator.prepare_comparison(&self.egress.clients);
    }

    /// Emits the events of an observation: a call of libzmq that sends or receives a message, a read or write of another socket, a loss, or
    /// the exit of a process.
    pub fn interpret_observation(&mut self, observation: &Observation<'_>, sink: Sink<'_>) {
        let Self { lanes, egress, reads, .. } = self;
        match observation {
            Observation::Sent(message) => lanes.record_send(message, &mut egress.clients, sink),
            // libzmq has refused the message.
            Observation::Unsent(call) => lanes.record_refused_send(call),
            // The method that passes messages to a server inside the process has returned.
            Observation::Returned(call) => lanes.emit_wait_of_returned_send(call, sink),
            Observation::Received(message) => {
                // Whether its send was observed makes no difference here.
                lanes.match_receive_with_send_and_emit(message, sink);
            }
            // The receiver asks for its next message.
            Observation::Processed(call) => lanes.emit_processed_at_next_receive(call, sink),
            // Bytes that a process without libzmq has read from a ZMQ connection.
            Observation::Egress { pid, record } if record.kind == Kind::Zmtp => {
                reads.emit_frames_of_read(*pid, record, lanes, sink);
            }
            Observation::Egress { pid, record } => egress.read_record(*pid, record, sink),
            Observation::Lost { cause, count } => self.report_loss_beyond_gaps(*cause, *count, sink),
            Observation::Exited { pid } => {
                tracing::info!("process {pid} has ended");
                reads.remove_process(*pid);
                lanes.record_exit(*pid, sink);
            }
        }
    }

    /// Reports lost observations of this cause, except those that gaps in the numbering of messages have already revealed. `count` is an
    /// estimate of this engine's share if several engines share the ring buffer.
    fn report_loss_beyond_gaps(&mut self, cause: Loss, count: u64, sink: Sink<'_>) {
        // Keeps responses from being compared with the text of missed frames.
        self.egress.clients.record_missed_frames();
        if count > 0 {
            tracing::warn!("{count} observations missed: {}", cause.words());
        }
        let mut unreported = count;
        // Gaps were reported as losses of this cause only.
        if matches!(cause, Loss::RingFull) {
            self.overflowed += count;
            unreported = self.lanes.take_unreported_by_gaps(count);
        }
        // A count of 0 is the rounded share of a loss that several engines may have: this engine may be among them.
        if unreported > 0 || count == 0 {
            let missed = Missed { hop: None, count: unreported, cause: MissedCause::QueueFull };
            sink(&Event::new(MonoNs::now(), What::Missed(missed)));
        }
    }
}

#[cfg(test)]
mod tests {
    use engines::sglang::discover::role::{SCHEDULER, TOKENIZER};
    use probe_user::egress::{Head, Record};
    use probe_user::{Call, Message, SocketId};
    use proptest::prelude::*;
    use trace::{Analysis, Config};

    use super::*;

    const FRAME: &[u8] = include_bytes!("../../../zmq-tap/fixtures/messages/0.5.9/skip_first_1rid.pkl");
    const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";

    #[derive(Clone, Copy, Debug)]
    struct Step {
        kind: u8,
        pid: u32,
        seq: u64,
        flipped_bit: Option<usize>,
    }

    fn step() -> impl Strategy<Value = Step> {
        let flipped_bit = proptest::option::weighted(0.2, 0..FRAME.len() * 8);
        (0..8_u8, 1..4_u32, 0..6_u64, flipped_bit).prop_map(|(kind, pid, seq, flipped_bit)| Step {
            kind,
            pid,
            seq,
            flipped_bit,
        })
    }

    proptest! {
        #[test]
        fn any_order_of_observations_leaves_balanced_sums(steps in proptest::collection::vec(step(), 0..40)) {
            let clients = Clients { is_observed: true, ..Clients::default() };
            let mut interpreter = Interpreter::observing_from_first_message(&[(1, SCHEDULER), (2, TOKENIZER)], clients);
            interpreter.prepare_comparison();
            let mut analysis = Analysis::new(Config { engines: engines::FACTS, ..Config::default() });
            for (n, Step { kind, pid, seq, flipped_bit }) in steps.into_iter().enumerate() {
                let mut payload = FRAME.to_vec();
                if let Some(bit) = flipped_bit {
                    payload[bit / 8] ^= 1 << (bit % 8);
                }
                let at = MonoNs(n as u64 * 1_000_000);
                let call = Call { at, socket: SocketId { pid, address: 1 }, tid: pid, seq, wakeup: None };
                let message = Message { call, bytes: FRAME.len() as u64, more: false, payload: &payload };
                let head = Head { at_ns: at.0, socket: seq, accepted: RESPONSE.len() as i64, ..Head::default() };
                let record = Record { kind: Kind::Wrote, head, payload: RESPONSE };
                let observation = match kind {
                    0 | 1 => Observation::Sent(message),
                    2 => Observation::Received(message),
                    3 => Observation::Processed(call),
                    4 => Observation::Unsent(call),
                    5 => Observation::Egress { pid, record },
                    6 => Observation::Lost { cause: Loss::RingFull, count: seq },
                    _ => Observation::Returned(call),
                };
                interpreter.interpret_observation(&observation, &mut |event| analysis.apply(event));
            }
            prop_assert_eq!(analysis.ledger().check_balance(), Ok(()));
        }
    }
}
