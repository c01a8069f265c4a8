use super::*;

const RUN: PushRunId = PushRunId { index: 0 };

fn queue_of_one_run(max: usize, max_per_minute: u64) -> PushQueue {
    let queue = PushQueue::new(max, max_per_minute);
    assert_eq!(queue.add_run(), RUN);
    queue
}

fn body(signal: PushSignal, bytes: usize, items: u64) -> PushBody {
    PushBody { run: RUN, signal, json: vec![0; bytes], items, created_at: Instant::now() }
}

#[test]
fn the_limit_per_minute_is_reset_every_minute() {
    let queue = queue_of_one_run(10_000, 100);
    let begun = Instant::now();
    let admits = |bytes, after| {
        let dropped = queue.pushed(RUN).spans.dropped;
        queue.push_body(PushBody {
            created_at: begun + Duration::from_secs(after),
            ..body(PushSignal::Traces, bytes, 1)
        });
        queue.pushed(RUN).spans.dropped == dropped
    };
    assert!(admits(60, 0) && admits(60, 1));
    assert!(!admits(1, 2) && !admits(1, 59));
    assert!(admits(500, 61) && !admits(1, 62));
    assert!(queue.problem(RUN).is_some_and(|t| t.contains("--otlp-rate")));
}

#[test]
fn overflow_is_counted_and_newer_metrics_replace_older_ones() {
    let queue = queue_of_one_run(100, u64::MAX);
    queue.push_body(body(PushSignal::Metrics, 40, 5));
    queue.push_body(body(PushSignal::Traces, 60, 7));
    queue.push_body(body(PushSignal::Metrics, 30, 6));
    queue.push_body(body(PushSignal::Traces, 11, 3));
    assert_eq!(queue.pushed(RUN).spans, PushedItems { accepted: 0, dropped: 3 });
    assert_eq!(queue.pushed(RUN).points, PushedItems::default());
    assert!(queue.problem(RUN).is_some_and(|t| t.contains("--otlp-queue")));
    assert!(queue.take_message(RUN).is_some() && queue.take_message(RUN).is_none());
    let first = queue.wait_for_next_body().expect("there are two");
    assert_eq!((first.signal, first.items), (PushSignal::Traces, 7));
    queue.record_outcome_of_sent_body(&first, 2, "two were bad");
    assert_eq!(queue.pushed(RUN).spans, PushedItems { accepted: 5, dropped: 5 });
    assert_eq!(queue.wait_for_next_body().map(|b| b.items), Some(6));
}

#[test]
fn close_waits_until_its_deadline() {
    let queue = queue_of_one_run(100, u64::MAX);
    queue.push_body(body(PushSignal::Traces, 10, 4));
    let began = Instant::now();
    queue.close_run(RUN, began + Duration::from_millis(50));
    assert!(began.elapsed() >= Duration::from_millis(50) && began.elapsed() < Duration::from_secs(5));
    assert_eq!(queue.pushed(RUN).spans, PushedItems { accepted: 0, dropped: 4 });
    assert!(queue.wait_for_next_body().is_none());
}

#[test]
fn runs_share_the_queue_and_end_one_after_another() {
    let queue = queue_of_one_run(100, u64::MAX);
    let second = queue.add_run();
    queue.push_body(body(PushSignal::Metrics, 40, 5));
    queue.push_body(PushBody { run: second, ..body(PushSignal::Metrics, 40, 3) });
    queue.push_body(PushBody { run: second, ..body(PushSignal::Traces, 40, 2) });
    assert_eq!(queue.pushed(second).spans, PushedItems { accepted: 0, dropped: 2 }, "the limit is that of both");
    let began = Instant::now();
    queue.close_run(RUN, began + Duration::from_millis(50));
    assert_eq!(queue.pushed(RUN).points, PushedItems { accepted: 0, dropped: 5 });
    let of_second = queue.wait_for_next_body().expect("the second goes on");
    queue.record_outcome_of_sent_body(&of_second, 0, "");
    assert_eq!(queue.pushed(second).points, PushedItems { accepted: 3, dropped: 0 });
    queue.close_run(second, began + Duration::from_mins(1));
    assert!(queue.wait_for_next_body().is_none() && began.elapsed() < Duration::from_secs(30));
    assert_eq!(queue.problem(RUN).map(|text| text.contains("0 spans and 5 metric points")), Some(true));
}

#[test]
fn unusable_urls_are_rejected() {
    for url in [
        "localhost:4318",
        "ftp://x",
        "http://",
        "http://localhost:4317",
        "https://x",
        "not a url",
        "http://me:secret@x",
    ] {
        assert!(PushSender::new(url, &Environment::default()).is_err(), "{url}");
    }
    let headers = vec![("a name".to_owned(), String::new())];
    assert!(PushSender::new("http://x", &Environment { headers, ..Environment::default() }).is_err());
    assert_eq!(["http://x", "http://x:4318/otlp", "not a url"].map(receiver_port), [Some(80), Some(4318), None]);
    assert!(PushSender::new("http://collector.example/otlp/", &Environment::default()).is_ok());
}

#[test]
fn an_unreachable_receiver_does_not_block_close() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port");
    let sender = PushSender::new(&format!("http://{free}"), &Environment::default()).expect("a URL");
    let queue = queue_of_one_run(1_000, u64::MAX);
    queue.push_body(PushBody {
        run: RUN,
        signal: PushSignal::Traces,
        json: b"{}".to_vec(),
        items: 2,
        created_at: Instant::now(),
    });
    std::thread::scope(|scope| {
        let run = scope.spawn(|| sender.send_bodies(&queue));
        queue.close_run(RUN, Instant::now() + Duration::from_secs(5));
        run.join().expect("no panic");
    });
    assert_eq!(queue.pushed(RUN).spans, PushedItems { accepted: 0, dropped: 2 });
    assert!(queue.problem(RUN).is_some_and(|t| t.contains("v1/traces")));
}
