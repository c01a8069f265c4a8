use proptest::prelude::*;

use super::*;

/// Messages of a real server: 0.5.23, a chat's second token, and a finished request of a client that chose no id.
const TOKEN: &str = "9691b66368617431233137646262363763303030303030326591c09107910191009100";
const FINISHED: &str = "dc001791d92030386363653362383763623534616131616634373436646538343537373038349182a474797065a66c656e67\
    7468a66c656e67746808910b910891009100909090909090909090909090919193a764656661756c74000890909091cb3faaa40ef9a80000";
/// Arrays of output in vLLM's messages before 0.8.3, which also have four fields.
const OF_VLLM: &[u8] = b"\x94\x91\x98\xa3abc\x91\x07\xc0\xc0\xc0\xc0\xc0\xc0\xc0\x00\xc0";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn decoder() -> BatchDecoder {
    BatchDecoder::new(1 << 20)
}

fn chunk(rid: &str, listed: u32, finish: Option<Finish>) -> Chunk<'_> {
    Chunk { listed: Some(listed), finish, ..Chunk::new(rid) }
}

#[test]
fn real_batches_are_decoded() {
    let mut decoder = decoder();
    let message = bytes(TOKEN);
    assert!(decoder.recognises(&[&message]));
    let decoded = decoder.decode(&[&message]).unwrap();
    assert_eq!(decoded.chunks(), [chunk("chat1", 1, None)]);
    assert_eq!((decoded.shape().schema, decoded.shape().ids), ("0.5.23", IdColumn::Uncounted));
    drop(decoded);
    let message = bytes(FINISHED);
    let decoded = decoder.decode(&[&message]).unwrap();
    let finished = chunk("08cce3b87cb54aa1af4746de84577084", 8, Some(Finish::Length));
    assert_eq!(decoded.chunks(), [finished]);
}

#[test]
fn older_batches_have_four_columns() {
    let message = b"\x94\x92\xa1a\xa1b\x92\x81\xa4type\xa5abort\xc0\x92\x05\x06\x92\x00\xcd\x01\x00";
    let mut decoder = decoder();
    assert!(decoder.recognises(&[message]));
    let decoded = decoder.decode(&[message]).unwrap();
    assert_eq!(decoded.chunks(), [chunk("a", 0, Some(Finish::Abort)), chunk("b", 256, None)]);
    assert_eq!(decoded.shape().schema, "0.5.17..0.5.22");
}

#[test]
fn messages_of_sockets_are_not_batches() {
    let decoder = decoder();
    for message in [OF_VLLM, b"\x94\x90\xc0\xc0\xc0", b"\x98\xb2BatchTokenIDOutput", b"\x80\x04\x95", b""] {
        assert!(!decoder.recognises(&[message]), "{message:02x?}");
    }
    assert!(!decoder.recognises(&[b"\x94\x91\xa1a", b""]) && !decoder.recognises(&[]));
}

#[test]
fn every_format_leaves_the_batches_to_this_one() {
    let mut all = adapter::decode::Decoders::new(crate::FORMATS, 1 << 20);
    for message in [bytes(TOKEN), bytes(FINISHED)] {
        let decoded = all.decode(&mut adapter::decode::SocketFormat::default(), &[&message]);
        assert_eq!(decoded.unwrap().shape().class, CLASS);
    }
}

#[test]
fn ids_of_clients_and_responses() {
    assert_eq!(strip_server_suffix("chat1#17dbb67c00000026"), "chat1");
    assert_eq!(strip_server_suffix("a#17dbb67c00000026#17dbb67c00000027"), "a#17dbb67c00000026");
    for unchanged in ["08cce3b8", "a#b", "a#17DBB67C00000026", "a#17dbb67c000000261", "", "é#x"] {
        assert_eq!(strip_server_suffix(unchanged), unchanged);
    }
    assert_eq!(response_id_and_choice("cmpl-8b6db923-1"), Some(("cmpl-8b6db923", 1)));
    assert_eq!(response_id_and_choice("cmpl-x-y"), None);
    for own in ["chat1", "cmpl-8b6db923", "a-1", ""] {
        assert_eq!(response_id_and_choice(own), Some((own, 0)));
    }
}

proptest! {
    #[test]
    fn damaged_batches_are_refused_without_panic(
        place in 0_usize..100, value in any::<u8>(), length in 0_usize..120, finished in any::<bool>()
    ) {
        let mut message = bytes(if finished { FINISHED } else { TOKEN });
        let place = place % message.len();
        message[place] = value;
        message.truncate(length);
        let mut decoder = decoder();
        let _ = decoder.recognises(&[&message]);
        if let Ok(decoded) = decoder.decode(&[&message]) {
            prop_assert!(decoded.chunks().iter().all(|chunk| chunk.listed.is_some() && chunk.prompt_tokens.is_none()));
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(message in proptest::collection::vec(any::<u8>(), 0..64)) {
        let mut decoder = decoder();
        let _ = decoder.recognises(&[&message]);
        let _ = decoder.decode(&[&message]).is_ok();
    }
}
