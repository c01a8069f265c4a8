//! Tests with real ZMTP peers on both sides.

use std::collections::BTreeMap;
use std::time::Duration;

use zeromq::{DealerSocket, PullSocket, PushSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};
use zmq_tap::relay::{Direction, Observed, Payload, Relay, RelayOptions};

use crate::support::{Bench, PATIENCE, noise, server};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// A message that identifies its sender and contains its number.
fn numbered(sender: u64, n: u64) -> Vec<u8> {
    let size = 20 + (n * 977 + sender * 31) % 30_000;
    [sender.to_le_bytes().to_vec(), n.to_le_bytes().to_vec(), noise(sender * 1_000 + n, size as usize)].concat()
}

async fn with_timeout<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("in time")
}

#[test]
fn many_senders_reach_one_receiver_through_one_listener() {
    let bench = Bench::new();
    let at = |name: &str| format!("ipc://{}", bench.path(name).display());
    let (senders, each) = (5_u64, 60_u64);
    let mut received: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
    runtime().block_on(with_timeout(async {
        let mut pull = PullSocket::new();
        pull.bind(&at("out.sock")).await.expect("bound");
        let sending = (0..senders).map(|sender| {
            let to = at("in.sock");
            tokio::spawn(async move {
                let mut push = PushSocket::new();
                push.connect(&to).await.expect("connected");
                for n in 0..each {
                    push.send(numbered(sender, n).into()).await.expect("sent");
                }
                push
            })
        });
        let sending: Vec<_> = sending.collect();
        for _ in 0..senders * each {
            let body = Vec::from(pull.recv().await.expect("received").get(0).expect("a part").clone());
            let sender = u64::from_le_bytes(*body.first_chunk().expect("numbered"));
            received.entry(sender).or_default().push(body);
        }
        for push in sending {
            push.await.expect("the sender ends");
        }
    }));
    for sender in 0..senders {
        assert!(received[&sender] == (0..each).map(|n| numbered(sender, n)).collect::<Vec<_>>());
    }
    // The reported messages must equal the sent ones. Each lane is one sender, in its order.
    let mut reported: BTreeMap<u32, Vec<Vec<u8>>> = BTreeMap::new();
    bench.watch(|lane, what| {
        if let Observed::Frame { seq, payload: Payload::Whole(body), direction, .. } = what {
            let lane_messages = reported.entry(lane).or_default();
            assert_eq!((seq, direction), (lane_messages.len() as u64, Direction::Forward));
            lane_messages.push(body.to_vec());
        }
        reported.values().map(Vec::len).sum::<usize>() as u64 == senders * each
    });
    let mut lanes: Vec<_> = reported.into_values().collect();
    lanes.sort();
    let mut sent: Vec<_> = received.into_values().collect();
    sent.sort();
    assert!(lanes == sent);
}

#[test]
fn the_side_that_connects_may_be_the_receiver() {
    let bench = Bench::new();
    let at = |name: &str| format!("ipc://{}", bench.path(name).display());
    runtime().block_on(with_timeout(async {
        let mut push = PushSocket::new();
        push.bind(&at("out.sock")).await.expect("bound");
        let mut pull = PullSocket::new();
        pull.connect(&at("in.sock")).await.expect("connected");
        for n in 0..20 {
            while push.send(numbered(1, n).into()).await.is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert!(pull.recv().await.expect("received").get(0).expect("a part")[..] == numbered(1, n));
        }
    }));
    let mut seen = 0;
    bench.watch(|_, what| {
        if let Observed::Frame { direction, seq, .. } = what {
            assert_eq!((direction, seq), (Direction::Backward, seen));
            seen += 1;
        }
        seen == 20
    });
    assert_eq!(bench.relay.stats().frames_forward, 0);
}

#[test]
fn requests_and_replies_are_relayed_over_tcp_as_multipart_messages() {
    // A port that was free a moment ago. No other test here binds fixed port numbers.
    let (_, pair) = server("tcp");
    let upstream = pair.upstream.to_string();
    let relay = Relay::start(vec![pair], RelayOptions::default()).expect("the relay starts");
    let requests = 10;
    runtime().block_on(with_timeout(async {
        let mut router = RouterSocket::new();
        router.bind(&upstream).await.expect("bound");
        let mut dealer = DealerSocket::new();
        dealer.connect(&relay.listening()[0].to_string()).await.expect("connected");
        for n in 0..requests {
            let mut request = ZmqMessage::from(numbered(1, n));
            request.push_back("more".into());
            dealer.send(request).await.expect("sent");
            let received = router.recv().await.expect("received");
            assert_eq!(received.len(), 3, "the router prepends the identity of the dealer");
            router.send(received).await.expect("answered");
            assert!(dealer.recv().await.expect("received").get(0).expect("a part")[..] == numbered(1, n));
        }
    }));
    let mut reported = (0, 0);
    let until = std::time::Instant::now() + PATIENCE;
    while reported != (requests, requests) && std::time::Instant::now() < until {
        match relay.poll().map(|observation| observation.what) {
            Some(Observed::Frame { direction, payload: Payload::Multipart(parts), .. }) => {
                assert_eq!((parts.len(), &parts[1][..]), (2, &b"more"[..]));
                if direction == Direction::Forward {
                    reported.0 += 1;
                } else {
                    reported.1 += 1;
                }
            }
            Some(Observed::Frame { payload, .. }) => panic!("{payload:?}"),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    assert_eq!(reported, (requests, requests));
}
