//! Dynamo's request plane, recorded from real frontends: the ids must be found wherever the bytes are cut.

use adapter::requests::ParseRequests as _;
use engines::dynamo::RequestPlaneParser;
use proptest::prelude::*;

use super::{recorded, recording};

/// Subject, context and request id of every message.
type Ids = Vec<(Option<String>, String, Option<String>)>;

fn read(pieces: &[&[u8]]) -> Ids {
    let (mut requests, mut ids) = (RequestPlaneParser::default(), Ids::new());
    for piece in pieces {
        requests.parse(piece, true, &mut |request| {
            let own = |text: Option<&str>| text.map(str::to_owned);
            ids.push((own(request.subject), request.context.to_owned(), own(request.rid)));
        });
    }
    ids
}

#[test]
fn every_request_names_its_stream() {
    // Counted with `grep -c subject` in the recordings, which contain the first ids as plain text.
    for (name, requests, subject, context) in [
        ("v0.8.1", 6, "adc14633-b29c-4754-a1d4-bd5b876e9bbb", "11111111-2222-4333-8444-555555555555"),
        ("v1.0.0-frontend", 4, "0c0a6331-39a1-4498-98f9-6ae874caed9f", "290f14af-cee3-4226-9662-6a556c450be6"),
        ("v1.6.1-frontend", 3, "a6cf0597-1827-4beb-baa3-35989b7172de", "631dd30e-a74d-4e1b-bb13-9dc94f995cfd"),
    ] {
        let ids = read(&[&recording("dynamo/requests", name)]);
        assert_eq!(ids.len(), requests, "{name}");
        assert_eq!(ids[0], (Some(subject.to_owned()), context.to_owned(), None), "{name}");
    }
}

#[test]
fn the_trace_id_is_the_request_id_only_with_the_older_path() {
    let traced = |path: &str| {
        let headers = format!(
            r#"{{"x-endpoint-path":"{path}","traceparent":"00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"}}"#
        );
        let control = r#"{"id":"c","connection_info":{"transport":"tcp_server","info":"{\"subject\":\"s\"}"}}"#;
        let mut bytes = (path.len() as u16).to_be_bytes().to_vec();
        bytes.extend(path.as_bytes());
        bytes.extend((headers.len() as u16).to_be_bytes());
        bytes.extend(headers.as_bytes());
        bytes.extend((24 + control.len() as u32 + 2).to_be_bytes());
        for length in [control.len() as u64, 2, 0] {
            bytes.extend(length.to_be_bytes());
        }
        bytes.extend(control.as_bytes());
        bytes.extend(b"{}");
        read(&[&bytes]).remove(0).2
    };
    assert_eq!(traced("68710b3c0b6355f7/generate").as_deref(), Some("0af7651916cd43dd8448eb211c80319c"));
    assert_eq!(traced("ef06e7c260e915e7/dynamo/backend/generate"), None);
}

#[test]
fn a_gap_in_a_prompt_loses_nothing_and_a_gap_in_a_header_loses_its_request() {
    let bytes = recording("dynamo/requests", "v1.0.0-frontend");
    // Every message begins with the same path and its length.
    let start = &bytes[..27];
    let second = bytes[1..].windows(27).position(|window| window == start).map_or(0, |at| at + 1);
    assert!(second > 600);
    let (head, rest) = bytes.split_at(second - 100);
    let mut requests = RequestPlaneParser::default();
    let mut count = 0;
    requests.parse(head, true, &mut |_| count += 1);
    requests.missed(50);
    requests.parse(&rest[50..], false, &mut |_| count += 1);
    assert_eq!(count, 4);
    let mut requests = RequestPlaneParser::default();
    let mut count = 0;
    requests.parse(&bytes[..second + 10], true, &mut |_| count += 1);
    requests.missed(30);
    requests.parse(&bytes[second + 40..], false, &mut |_| count += 1);
    assert_eq!(count, 1);
    // The next read begins with a message.
    requests.parse(&bytes, true, &mut |_| count += 1);
    assert_eq!(count, 5);
}

proptest! {
    #[test]
    fn requests_are_independent_of_read_boundaries(cuts in prop::collection::vec(1_usize..400, 1..30), which in 0_usize..3) {
        let bytes = recorded("dynamo/requests").swap_remove(which).1;
        let (mut pieces, mut rest) = (Vec::new(), &bytes[..]);
        for cut in cuts.iter().cycle() {
            if rest.is_empty() { break; }
            let (now, later) = rest.split_at(rest.len().min(*cut));
            pieces.push(now);
            rest = later;
        }
        prop_assert_eq!(read(&pieces), read(&[&bytes]));
    }

    #[test]
    fn arbitrary_bytes_never_panic(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20), missed in 0_u64..1000) {
        let mut requests = RequestPlaneParser::default();
        for (n, piece) in pieces.iter().enumerate() {
            requests.parse(piece, n % 2 == 0, &mut |_| {});
            requests.missed(missed);
        }
    }
}
