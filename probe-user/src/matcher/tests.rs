//! Simulation of a hop with lost records, which checks the matcher's answers.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const RECEIVER: SocketId = SocketId { pid: 1, address: 0xb0 };

fn sender(i: usize) -> SocketId {
    SocketId { pid: 100 + i as u32, address: 0xa0 }
}

fn message(socket: SocketId, seq: u64, at: u64, payload: &[u8]) -> Message<'_> {
    let call = Call { at: MonoNs(at), socket, tid: 1, seq, wakeup: None };
    Message { call, bytes: payload.len() as u64, more: false, payload }
}

/// A step of the simulation: a sender sends, or the receiver receives a sender's oldest frame.
#[derive(Clone, Debug)]
enum Step {
    Send { sender: usize, size: usize, lost: bool },
    Take { sender: usize, lost: bool },
}

fn steps(losing: f64) -> impl Strategy<Value = Vec<Step>> {
    let lost = move || prop::bool::weighted(losing);
    let step = prop_oneof![
        (0..3_usize, 1..40_usize, lost()).prop_map(|(sender, size, lost)| Step::Send { sender, size, lost }),
        (0..3_usize, lost()).prop_map(|(sender, lost)| Step::Take { sender, lost }),
    ];
    prop::collection::vec(step, 1..300)
}

/// A received frame: whether its send was observed, and the matcher's answer, if the receipt was observed.
struct Take {
    seq: u64,
    observed: bool,
    answer: Option<Answer>,
}

type Answer = Option<Match>;

struct World {
    matcher: Matcher,
    queues: Vec<VecDeque<(u64, Vec<u8>, bool)>>,
    sent: [u64; 3],
    received: u64,
    clock: u64,
}

impl World {
    fn new() -> Self {
        let queues = vec![VecDeque::new(); 3];
        Self { matcher: Matcher::default(), queues, sent: [0; 3], received: 0, clock: 0 }
    }

    fn send(&mut self, from: usize, size: usize, lost: bool) {
        let seq = self.sent[from];
        self.sent[from] += 1;
        self.clock += 1;
        let payload = format!("{from}:{seq}:{}", "x".repeat(size)).into_bytes();
        if !lost {
            let frame = self.matcher.record_send(&message(sender(from), seq, self.clock, &payload)).frame;
            assert_eq!(frame.seq, seq);
        }
        self.queues[from].push_back((seq, payload, lost));
    }

    /// Receives the oldest frame of `from`.
    fn take(&mut self, from: usize, lost: bool) -> Option<Take> {
        let (seq, payload, send_lost) = self.queues[from].pop_front()?;
        let received = self.received;
        self.received += 1;
        self.clock += 1;
        let answer =
            (!lost).then(|| self.matcher.match_receipt(&message(RECEIVER, received, self.clock, &payload)).ok());
        Some(Take { seq, observed: !send_lost, answer })
    }

    fn lane_of(&self, from: usize) -> Option<u32> {
        self.matcher.lanes().find(|lane| lane.sender == sender(from)).map(|lane| lane.lane)
    }
}

proptest! {
    #[test]
    fn frames_of_three_senders_to_one_receiver_are_matched(steps in steps(0.0)) {
        let mut world = World::new();
        for step in steps {
            match step {
                Step::Send { sender, size, .. } => world.send(sender, size, false),
                Step::Take { sender, .. } => if let Some(Take { seq, answer, .. }) = world.take(sender, false) {
                    let found = answer.flatten().expect("both sides were observed");
                    prop_assert_eq!((Some(found.frame.lane), found.frame.seq), (world.lane_of(sender), seq));
                    prop_assert_eq!(found.method, MatchMethod::Content);
                },
            }
        }
        prop_assert_eq!(world.matcher.misses(), MatcherMisses::default());
        for (from, queue) in world.queues.iter().enumerate() {
            if let Some(lane) = world.matcher.lanes().find(|lane| lane.sender == sender(from)) {
                prop_assert_eq!(lane.sent - lane.received, queue.len() as u64);
            }
        }
    }

    #[test]
    fn lost_records_never_shift_the_match(steps in steps(0.2)) {
        let mut world = World::new();
        for step in steps {
            match step {
                Step::Send { sender, size, lost } => world.send(sender, size, lost),
                Step::Take { sender, lost } => if let Some(Take { seq, observed, answer }) = world.take(sender, lost) {
                    let Some(answer) = answer else { continue };
                    if observed {
                        let found = answer.expect("both sides were observed");
                        prop_assert_eq!((Some(found.frame.lane), found.frame.seq), (world.lane_of(sender), seq));
                        prop_assert!(found.sent_at.is_some());
                    } else if let Some(found) = answer {
                        // The send was not observed, so the match may only use the position of a lost record.
                        prop_assert_eq!(found.method, MatchMethod::Order);
                        prop_assert_eq!(found.sent_at, None);
                    }
                },
            }
        }
    }
}

#[test]
fn with_one_sender_a_lost_send_keeps_its_sequence_number() {
    let mut world = World::new();
    for lost in [false, true, false] {
        world.send(0, 5, lost);
    }
    let frames: Vec<_> = (0..3).map(|_| world.take(0, false).unwrap().answer.flatten().unwrap()).collect();
    assert_eq!(frames.iter().map(|m| m.frame.seq).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(
        frames[1],
        Match { frame: FrameRef { lane: 0, seq: 1 }, sent_at: None, method: MatchMethod::Order, lost_before: 0 }
    );
    assert_eq!(world.matcher.misses().lost_sent, 1);
}

#[test]
fn the_next_record_of_each_side_counts_the_lost_ones() {
    let mut matcher = Matcher::default();
    let sent = [0, 3].map(|seq| matcher.record_send(&message(sender(0), seq, seq, format!("frame {seq}").as_bytes())));
    assert_eq!(sent.map(|send| send.lost_before), [0, 2]);
    let received =
        [0, 3].map(|seq| matcher.match_receipt(&message(RECEIVER, seq, 9, format!("frame {seq}").as_bytes())));
    assert_eq!(received.map(|found| found.unwrap().lost_before), [0, 2]);
}

#[test]
fn frames_sent_before_the_attach_match_no_sender() {
    let mut matcher = Matcher::default();
    for (seq, old) in [b"old 0", b"old 1"].into_iter().enumerate() {
        assert_eq!(matcher.match_receipt(&message(RECEIVER, seq as u64, 1, old)), Err(Unmatched::Unsent));
    }
    let frame = matcher.record_send(&message(sender(0), 0, 2, b"new 0")).frame;
    assert_eq!(matcher.match_receipt(&message(RECEIVER, 2, 3, b"old 2")), Err(Unmatched::Unsent));
    assert_eq!(matcher.match_receipt(&message(RECEIVER, 3, 4, b"new 0")).unwrap().frame, frame);
    assert_eq!(matcher.misses().unsent, 3);
}

#[test]
fn a_rejected_send_frees_its_sequence_number() {
    let mut matcher = Matcher::default();
    let refused = message(sender(0), 0, 1, b"first");
    let frame = matcher.record_send(&refused).frame;
    assert_eq!(matcher.record_refused_send(&refused.call), Some(frame));
    assert_eq!(matcher.record_send(&message(sender(0), 0, 2, b"first")).frame, frame);
    assert_eq!(matcher.match_receipt(&message(RECEIVER, 0, 3, b"first")).unwrap().sent_at, Some(MonoNs(2)));
    assert_eq!(matcher.lanes().map(|l| (l.sent, l.received)).collect::<Vec<_>>(), [(1, 1)]);
}

#[test]
fn frames_sent_round_robin_to_two_receivers_are_matched() {
    let mut matcher = Matcher::default();
    let other = SocketId { pid: 2, address: 0xb1 };
    for seq in 0..6 {
        matcher.record_send(&message(sender(0), seq, seq, format!("frame {seq}").as_bytes()));
    }
    for seq in [0, 2, 1, 3, 5, 4] {
        let to = if seq % 2 == 0 { RECEIVER } else { other };
        let found = matcher.match_receipt(&message(to, seq / 2, 10 + seq, format!("frame {seq}").as_bytes()));
        assert_eq!(found.ok().map(|m| m.frame.seq), (seq != 1).then_some(seq), "frame {seq}");
    }
    assert_eq!(matcher.misses().skipped, 1); // frame 1, before a second receiver was known
}

#[test]
fn a_new_socket_at_an_old_address_is_a_new_lane() {
    let mut matcher = Matcher::default();
    for seq in 0..3 {
        matcher.record_send(&message(sender(0), seq, seq, b"before"));
    }
    assert_eq!(matcher.record_send(&message(sender(0), 0, 9, b"after")).frame, FrameRef { lane: 1, seq: 0 });
}

#[test]
fn processed_refers_to_the_last_received_frame() {
    let mut matcher = Matcher::default();
    let frame = matcher.record_send(&message(sender(0), 0, 1, b"one")).frame;
    matcher.match_receipt(&message(RECEIVER, 0, 2, b"one")).unwrap();
    let mark = |seq| message(RECEIVER, seq, 3, b"").call;
    assert_eq!(matcher.processed_frame(&mark(0)), Some(frame));
    assert_eq!(matcher.processed_frame(&mark(1)), None);
}

#[test]
fn frames_beyond_the_in_flight_limit_are_dropped_and_counted() {
    let mut matcher = Matcher::new(MatcherLimits { max_in_flight: 10, search_depth: 10 });
    for seq in 0..25 {
        matcher.record_send(&message(sender(0), seq, seq, format!("frame {seq}").as_bytes()));
    }
    assert_eq!(matcher.misses().shed, 15);
    assert_eq!(matcher.match_receipt(&message(RECEIVER, 0, 30, b"frame 3")), Err(Unmatched::Unsent));
    assert_eq!(matcher.match_receipt(&message(RECEIVER, 1, 31, b"frame 20")).unwrap().frame.seq, 20);
}

/// Idle batches of two ranks are identical byte for byte. Their order cannot be observed, and it must not cost a match.
#[test]
fn identical_frames_of_two_lanes_shift_nothing() {
    let mut matcher = Matcher::default();
    let (idle, mut received) = (b"idle".as_slice(), 0);
    let mut take = |matcher: &mut Matcher, payload: &[u8]| {
        let found = matcher.match_receipt(&message(RECEIVER, received, 1_000 + received, payload));
        received += 1;
        found.ok().map(|found| (found.frame.lane, found.frame.seq))
    };
    let frames: [[&[u8]; 6]; 2] = [[b"a0", idle, idle, b"a3", idle, b"a5"], [b"b0", idle, b"b2", idle, b"b4", b"b5"]];
    for (lane, frames) in frames.iter().enumerate() {
        for (seq, payload) in frames.iter().enumerate() {
            matcher.record_send(&message(sender(lane), seq as u64, 10 * seq as u64 + lane as u64, payload));
        }
    }
    assert_eq!(take(&mut matcher, b"a0"), Some((0, 0)));
    assert_eq!(take(&mut matcher, b"b0"), Some((1, 0)));
    // The second lane's frame arrives first, but the match chooses the first lane's, which was sent earlier.
    assert_eq!(take(&mut matcher, idle), Some((0, 1)));
    assert_eq!(take(&mut matcher, b"b2"), Some((1, 2)));
    assert!(take(&mut matcher, idle).is_some() && take(&mut matcher, b"b4") == Some((1, 4)));
    let others: Vec<_> =
        [idle, idle, b"a3", idle, b"a5", b"b5"].iter().map(|payload| take(&mut matcher, payload)).collect();
    assert_eq!([others[2], others[4], others[5]], [Some((0, 3)), Some((0, 5)), Some((1, 5))]);
    assert_eq!(matcher.misses().unsent, 0, "{:?}", matcher.misses());
    assert_eq!(matcher.lanes().map(|lane| lane.sent - lane.received).sum::<u64>(), 0);
}

#[test]
fn the_largest_sequence_number_does_not_overflow() {
    let mut matcher = Matcher::default();
    for _ in 0..2 {
        matcher.record_send(&message(sender(0), u64::MAX, 1, b"last"));
        assert!(matcher.match_receipt(&message(RECEIVER, u64::MAX, 2, b"last")).is_ok());
    }
    // Gaps of the maximum size must not overflow, even repeatedly.
    for seq in [0, u64::MAX, 0, u64::MAX] {
        matcher.record_send(&message(sender(0), seq, 3, b"far"));
        let _ = matcher.match_receipt(&message(RECEIVER, seq, 4, b"far"));
    }
}
