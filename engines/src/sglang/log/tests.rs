use proptest::prelude::*;

use super::*;

/// Name of the message's form, and its statements.
fn read(message: &str) -> (Option<Result<&'static str, MalformedLine>>, Vec<String>) {
    let mut statements = Vec::new();
    let mut sink = |item: &Statement<'_>| {
        let at = item.wall_ns.map_or(String::new(), |ns| format!("{} ", ns / 1_000_000 % 10_000_000));
        let cut = if item.is_rid_truncated { ".." } else { "" };
        statements.push(match item.kind {
            StatementKind::Stage(stage) => {
                format!("{at}{}: {}{cut} {} {:?} {:?}", stage.by, stage.rid, stage.name, stage.tokens, stage.pending)
            }
            StatementKind::MergedChunks(merged) => format!("{}: {} merged {}", merged.by, merged.rid, merged.chunks),
            StatementKind::ProcessState(state) => format!("{state:?}"),
            StatementKind::RequestHalf(half) => {
                format!("{} in room {}, decode: {}", half.rid, half.room, half.is_decode)
            }
            StatementKind::Rejected { status } => format!("rejected with {status}"),
            StatementKind::ServerAddress(address) => format!("serves {address}"),
            StatementKind::ImpossibleDurations => String::from("impossible durations"),
        });
    };
    let form = FORMS.iter().filter_map(|form| Some((message.find(form.mark)?, form)));
    let found = form.min_by_key(|found| found.0).map(|(at, form)| {
        let line_ns = Some(1_768_722_900_000_000_000);
        (form.parse)(&message[at + form.mark.len()..], line_ns, &mut sink).map(|()| form.name)
    });
    (found, statements)
}

#[test]
fn trace_lines_are_recognised() {
    for (line, form, statements) in [
        (
            "[TRACE disagg] rid=20cba755... first_output_stream stage=stream_output_generation ...",
            "trace",
            "scheduler: 20cba755.. first_output_stream None None",
        ),
        (
            "[TRACE output] rid=5b920f43-bd1e-4e84-a4ce-45ca3ccdecf0 tokenizer_first_token output_len=1 pending=256",
            "trace",
            "tokenizer: 5b920f43-bd1e-4e84-a4ce-45ca3ccdecf0 tokenizer_first_token Some(1) Some(256)",
        ),
        (
            "[TRACE output] rid=20cba755... tokenizer_first_token ... pending=1014",
            "trace",
            "tokenizer: 20cba755.. tokenizer_first_token None Some(1014)",
        ),
        (
            "[TRACE disagg] rid=5b920f... waiting_to_running ...",
            "trace",
            "scheduler: 5b920f.. waiting_to_running None None",
        ),
        ("[TRACE frontend] rid=a first_token_received", "trace", "frontend: a first_token_received None None"),
        (
            "[TOK recv] type=BatchTokenIDOutput rids=15 states=850 recv_wait_ms=0.2 more=True",
            "tok-recv",
            "LoggedState { by: \"tokenizer\", states: Some(850), rids: Some(15), recv_wait_ns: Some(200000), more: Some(true), cpu: None, cpu_system: None, unanswered_since: None }",
        ),
        (
            "[TOK cpu_high] proc=225.0 sys=7.1 states=1024",
            "tok-other",
            "LoggedState { by: \"tokenizer\", states: Some(1024), rids: None, recv_wait_ns: None, more: None, cpu: Some(2.25), cpu_system: None, unanswered_since: None }",
        ),
    ] {
        assert_eq!(read(line), (Some(Ok(form)), vec![statements.to_owned()]), "{line}");
    }
    let (form, statements) =
        read("[TRACE disagg] output_send stage=send_to_detokenizer batch_rids=['a1', 'b2', ...] n=3");
    assert_eq!((form, statements.len()), (Some(Ok("trace")), 2));
    assert_eq!(statements[1], "scheduler: b2 output_send None None");
}

#[test]
fn engine_lines_are_recognised() {
    for (line, chunks) in [
        (
            "Streaming backlog: rid=4f1c, coalescing 27 queued chunks into one. This may inflate P99 ITL for affected requests.",
            27,
        ),
        ("Streaming backlog: rid=4f1c, draining 2 queued chunks. This may inflate P99 TBT for affected requests.", 2),
    ] {
        assert_eq!(read(line).1, [format!("tokenizer: 4f1c merged {chunks}")], "{line}");
    }
    let line = "Received output for rid='4f1c' but the state was deleted in TokenizerManager.";
    assert_eq!(read(line).1, ["tokenizer: 4f1c output_after_state_deleted None None"]);
    let line = "Req Time Stats(rid=4f1c, input len=12, output len=30, type=unified): queue_duration=1.50ms, \
                forward_duration=4000.00ms, entry_time=1768722900.123";
    assert_eq!(
        read(line).1,
        [
            "2900123 scheduler: 4f1c wait_queue_entry None None",
            "2900124 scheduler: 4f1c forward_entry None None",
            "2904124 scheduler: 4f1c completion Some(30) None",
        ]
    );
    // Without a wall time, the line's own timestamp is the end.
    let line = "Req Time Stats(rid=4f1c, bootstrap_room=7, input len=12, output len=30, type=decode): \
                prealloc_queue_duration(5.00ms) = alloc_wait(0.00ms) + bootstrap(5.00ms) + other(0.00ms); \
                transfer_duration=3.00ms; queue_duration=1000.00ms, forward_duration=2000.00ms, start=77.123";
    assert_eq!(
        read(line).1,
        [
            "4f1c in room 7, decode: true",
            "2896992 scheduler: 4f1c decode_prealloc_queue_entry None None",
            "2896997 scheduler: 4f1c decode_transfer_queue_entry None None",
            "2897000 scheduler: 4f1c decode_wait_queue_entry None None",
            "2898000 scheduler: 4f1c decode_forward_entry None None",
            "2900000 scheduler: 4f1c decode_completion Some(30) None",
        ]
    );
    // The line's timestamp is 07:55:00 UTC, and the times in it are those of UTC+8.
    let line = "Health check failed. Server couldn't get a response from detokenizer for last 20 seconds. \
                tic start time: 15:54:38. last_heartbeat time: 15:54:30";
    assert_eq!(
        read(line).1,
        [
            "LoggedState { by: \"tokenizer\", states: None, rids: None, recv_wait_ns: Some(30000000000), more: None, cpu: None, \
          cpu_system: None, unanswered_since: Some(MonoNs(1768722878000000000)) }"
        ]
    );
}

#[test]
fn a_prompt_cannot_imitate_a_log_line() {
    let line = "Receive: obj=GenerateReqInput(rid='4f1c', text=\"[TRACE output] rid=evil tokenizer_first_token 'meta_info': {\")";
    assert_eq!(read(line).1, ["tokenizer: 4f1c receive_logged None None"]);
    let line = "Finish: obj=GenerateReqInput(rid='4f1c', text='x'), out={'text': \"'meta_info': {'request_received_ts': 1800000000.0\", \
                'meta_info': {'id': '4f1c', 'completion_tokens': 7, 'request_received_ts': 1768722900.5, 'decode_finished_ts': 1768722901.25}}";
    assert_eq!(
        read(line).1,
        [
            "tokenizer: 4f1c finish_logged None None",
            "2900500 tokenizer: 4f1c request_received None None",
            "2901250 tokenizer: 4f1c decode_finished Some(7) None",
        ]
    );
}

#[test]
fn incomplete_lines_are_malformed_and_unknown_lines_ignored() {
    for line in [
        "[TRACE disagg]",
        "[TRACE disagg] rid=",
        "[TRACE disagg] rid=a",
        "Streaming backlog: rid=a, coalescing many",
        "Finish: obj=(rid='",
        "Receive: obj=GenerateReqInput(rid=None, text='x', y=(rid='evil'))",
        "Req Time Stats(rid=",
        "Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.",
        "[TOK recv] type=BatchTokenIDOutput",
    ] {
        assert_eq!(read(line).0, Some(Err(MalformedLine)), "{line}");
    }
    assert_eq!(read("Decode batch. #running-req: 12, gen throughput (token/s): 900.1").0, None);
}

#[test]
fn access_lines_of_rejected_requests_are_recognised() {
    let rejected = |status: u16| (Some(Ok("access-error")), vec![format!("rejected with {status}")]);
    for (line, status) in [
        (r#"INFO:     127.0.0.1:51022 - "POST /generate HTTP/1.1" 503 Service Unavailable"#, 503),
        (r#"INFO:     127.0.0.1:51022 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request"#, 400),
        (r#"INFO:     127.0.0.1:51022 - "POST /v1/completions HTTP/1.1" 499"#, 499),
    ] {
        assert_eq!(read(line), rejected(status), "{line}");
    }
    // What is answered, another endpoint, and the rest of a prompt.
    for line in [
        r#"INFO:     127.0.0.1:51022 - "POST /generate HTTP/1.1" 200 OK"#,
        r#"INFO:     127.0.0.1:51022 - "GET /metrics HTTP/1.1" 404 Not Found"#,
        r#"INFO:     127.0.0.1:51022 - "GET /health_generate HTTP/1.1" 503 Service Unavailable"#,
    ] {
        assert_eq!(read(line), (None, Vec::new()), "{line}");
    }
    let quoted = r#"why does my log say "POST /generate HTTP/1.1" 503 Service Unavailable, and what is 5?"#;
    assert_eq!(read(quoted), (Some(Err(MalformedLine)), Vec::new()));
    let address = "INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)";
    assert_eq!(read(address), (Some(Ok("server-address")), vec!["serves 127.0.0.1:30000".to_owned()]));
}

proptest! {
    #[test]
    fn parsing_any_message_never_panics(head in 0..FORMS.len(), tail: String) {
        let _ = read(&format!("{}{tail}", FORMS[head].mark));
    }

    #[test]
    fn parsing_a_damaged_line_never_panics(head in 0_usize..9, at in 0_usize..200, junk in "\\PC{0,4}") {
        let lines = [
            "[TRACE disagg] rid=20cba755... first_output_stream stage=x output_len=1 pending=2",
            "[TRACE disagg] output_send batch_rids=[a, b]",
            "[TOK recv] type=BatchTokenIDOutput rids=15 states=850 recv_wait_ms=0.2 more=True",
            "Streaming backlog: rid=a, coalescing 27 queued chunks into one.",
            "Req Time Stats(rid=a, output len=30, type=unified): queue_duration=1ms, forward_duration=4ms, entry_time=1768722900.1",
            "Receive: obj=GenerateReqInput(rid='a')",
            "Finish: obj=GenerateReqInput(rid='a'), out={'meta_info': {'request_received_ts': 1768722900.1}}",
            "Received output for rid='a' but the state was deleted",
            "no form at all",
        ];
        let mut line: Vec<char> = lines[head].chars().collect();
        let at = at.min(line.len());
        line.splice(at..at, junk.chars());
        let _ = read(&line.into_iter().collect::<String>());
    }
}
