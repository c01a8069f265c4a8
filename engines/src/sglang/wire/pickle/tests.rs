//! Tests of opcodes that the recorded messages lack, against the results of CPython's unpickler.

use proptest::prelude::*;

use super::super::arena::Arena;
use super::super::doc::Doc;
use super::super::value::Value;
use super::super::{Limits, Undecoded};
use super::{Scratch, load};

/// Text form of the value that `opcodes` build. Objects appear as `Other`.
fn shown(opcodes: &[u8]) -> Result<String, Undecoded> {
    let message = [b"\x80\x04", opcodes, b"."].concat();
    let (mut arena, mut scratch) = (Arena::default(), Scratch::default());
    let (node, protocol) = load(&message, &mut arena, &mut scratch, &Limits::default())?;
    assert_eq!(protocol, 4);
    Ok(text(Value::of_node(Doc { bytes: &message, arena: &arena }, node), 4))
}

/// Limits the output to four levels, since a list may contain itself.
fn text(value: Value<'_>, depth: u32) -> String {
    let inner = |value| {
        if depth == 0 { "..".to_owned() } else { text(value, depth - 1) }
    };
    match value {
        Value::List(items) => format!("[{}]", items.map(inner).collect::<Vec<_>>().join(" ")),
        Value::Map(entries) => {
            let entry = |(key, value)| format!("{}:{}", inner(key), inner(value));
            format!("{{{}}}", entries.map(entry).collect::<Vec<_>>().join(" "))
        }
        Value::Int(value) => value.to_string(),
        Value::Str(value) => value.to_owned(),
        Value::Other(what) => format!("<{what}>"),
        other => format!("{other:?}"),
    }
}

#[test]
fn every_opcode_decodes_as_in_python() {
    for (opcodes, value) in [
        // Numbers.
        (b"J\xff\xff\xff\xff".as_slice(), "-1"),
        (b"M\xff\xff", "65535"),
        (b"\x8a\x00", "0"),
        (b"\x8a\x02\xff\x00", "255"),
        (b"\x8a\x01\xff", "-1"),
        (b"\x8b\x03\x00\x00\x00\x00\x00\x80", "-8388608"),
        (b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", "9223372036854775807"),
        (b"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00", "<an integer that exceeds 64 bits>"),
        (b"G\x3f\xf8\x00\x00\x00\x00\x00\x00", "Float(1.5)"),
        (b"\x88", "Bool(true)"),
        // Text and bytes with every length prefix.
        (b"X\x02\x00\x00\x00ab", "ab"),
        (b"\x8d\x02\x00\x00\x00\x00\x00\x00\x00ab", "ab"),
        (b"B\x01\x00\x00\x00\x00", "Bytes([0])"),
        (b"\x8e\x01\x00\x00\x00\x00\x00\x00\x00\x07", "Bytes([7])"),
        (b"\x96\x01\x00\x00\x00\x00\x00\x00\x00\x07", "Bytes([7])"),
        (b"\x8c\x01\xff", "<text that is not UTF-8>"),
        // Containers with one item and with many, in one batch and in several.
        (b"]K\x01a", "[1]"),
        (b"](K\x01K\x02e(K\x03e", "[1 2 3]"),
        (b"](K\x01}eNa(K\x02e", "[1 {} Null 2]"),
        (b"}K\x01K\x02s", "{1:2}"),
        (b"}(K\x01K\x02K\x03](K\x04K\x05eu", "{1:2 3:[4 5]}"),
        (b")", "[]"),
        (b"K\x01\x85K\x02K\x03\x86K\x04K\x05K\x06\x87\x87", "[[1] [2 3] [4 5 6]]"),
        (b"(K\x01K\x02K\x03K\x04t", "[1 2 3 4]"),
        (b"\x8f(K\x01K\x02\x90", "[1 2]"),
        (b"(K\x01K\x02\x91", "[1 2]"),
        // An item after an empty list belongs to the outer list, whatever opcode it begins with.
        (b"](](K\x01K\x02tK\x03e", "[[] [1 2] 3]"),
        (b"](]\x94(K\x01K\x02tK\x03e", "[[] [1 2] 3]"),
        (b"](]\x94]\x94K\x07aK\x01e", "[[] [7] 1]"),
        (b"](]\x94(K\x01K\x02e(K\x03e]\x94e", "[[1 2 3] []]"),
        // The stack.
        (b"K\x01K\x020", "1"),
        (b"K\x01(K\x02K\x031", "1"),
        (b"(0K\x01", "1"),
        (b"K\x012\x86", "[1 1]"),
        // References to strings, and to a list that is still growing.
        (b"]\x94(\x8c\x01x\x94h\x01h\x01h\x01K\x01e", "[x x x x 1]"),
        (b"]\x94(K\x01h\x00\x85e", "[1 [[1 [[.. ..]]]]]"),
        // Calls are recorded and never executed. Arrays and enums show as their values.
        (b"cos\nsystem\n\x8c\x02ls\x85R", "<an object>"),
        (b"(cdatetime\ndate\nK\x01o", "<an object>"),
        (b"(K\x01idatetime\ndate\n", "<an object>"),
        (b"ca\nB\n)}\x92}b", "<an object>"),
        (b"chttp\nHTTPStatus\nM\xf7\x01\x85R", "503"),
        (b"carray\narray\n\x8c\x01q](K\x01K\x02e\x86R", "[1 2]"),
    ] {
        let actual = shown(opcodes).unwrap_or_else(|why| panic!("{opcodes:x?}: {why}"));
        assert_eq!(actual, value, "{opcodes:x?}");
    }
}

#[test]
fn pickles_that_python_cannot_load_are_malformed() {
    for opcodes in [
        b"a".as_slice(),
        b"K\x01a",
        b"]a",
        b"(a",
        b"](a",
        b"e",
        b"(e",
        b"K\x01(K\x02e",
        b"}(K\x01u",
        b"s",
        b"}K\x01s",
        b"h\x00",
        b"j\x00\x00\x00\x00",
        b"q\x01",
        b"\x94",
        b"\x85",
        b"(K\x01\x86",
        b"t",
        b"0",
        b"1",
        b"R",
        b"K\x01R",
        b"K\x01K\x02\x93",
        b"o",
        b"(o",
        b"NN",
        b"(",
        b"",
        b"\xff",
        b"NK",
    ] {
        let why = shown(opcodes).expect_err(&format!("{opcodes:x?}"));
        assert!(matches!(why.reason(), "malformed" | "truncated"), "{opcodes:x?}: {why}");
    }
}

#[test]
fn appending_to_a_list_after_an_array_was_built_from_it_is_rejected() {
    for batch in [b"(K\x08K\x09e".as_slice(), b"(]\x94]\x94e"] {
        let made = b"]\x94(carray\narray\n\x8c\x01q]\x94K\x07a\x86Rh\x01";
        let why = shown(&[made.as_slice(), batch, b"0e"].concat()).expect_err("a copy");
        assert!(why.to_string().contains("an array was made of"), "{why}");
    }
}

#[test]
fn later_arrays_reuse_the_constructor_of_the_first() {
    let words = |words: &[i64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let first = [
        b"\x8c\x05array\x94\x8c\x14_array_reconstructor\x94\x93\x94(h\x01\x8c\x05array\x94\x93\x94\x8c\x01q\x94K\x0cC\x08".as_slice(),
        &words(&[1]), b"\x94t\x94R\x94",
    ];
    let again = |data: &[i64]| {
        [b"h\x03(h\x05h\x06K\x0cC", [data.len() as u8 * 8].as_slice(), &words(data), b"\x94t\x94R\x94"].concat()
    };
    let lists = [b"]\x94(".as_slice(), &first.concat(), &again(&[2]), &again(&[3, 4]), &again(&[]), b"h\x09e"].concat();
    // Arrays appear as their bytes; the last one is a reference to the first.
    let bytes = |data: &[i64]| format!("Bytes({:?})", words(data));
    let want = [bytes(&[1]), bytes(&[2]), bytes(&[3, 4]), bytes(&[]), bytes(&[1])].join(" ");
    assert_eq!(shown(&lists), Ok(format!("[{want}]")));
}

/// Opcodes of list items, and opcodes that may be out of place between two items.
fn opcodes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => any::<u8>().prop_map(|value| vec![b'K', value]),
        2 => any::<u16>().prop_map(|value| [b"M".as_slice(), &value.to_le_bytes()].concat()),
        2 => any::<i32>().prop_map(|value| [b"J".as_slice(), &value.to_le_bytes()].concat()),
        2 => "[a-z]{0,40}".prop_map(|text| [b"\x8c".as_slice(), &[text.len() as u8], text.as_bytes(), b"\x94"].concat()),
        2 => prop::sample::select(vec![b"N".as_slice(), b"\x88", b"\x89", b"G\x3f\xf8\0\0\0\0\0\0", b"\x8a\x01\x05"])
            .prop_map(<[u8]>::to_vec),
        2 => (0..6u8).prop_map(|slot| vec![b'h', slot]),
        3 => prop::collection::vec(any::<u8>(), 0..9).prop_map(|items| {
            let items: Vec<u8> = items.iter().flat_map(|item| [b'K', *item]).collect();
            match items.len() {
                0 => b"]\x94".to_vec(),
                2 => [b"]\x94".as_slice(), &items, b"a"].concat(),
                _ => [b"]\x94(".as_slice(), &items, b"e"].concat(),
            }
        }),
        2 => Just(b"\x95\x01\0\0\0\0\0\0\0".to_vec()),
        3 => prop::sample::select(b"(ae]\x94".to_vec()).prop_map(|op| vec![op]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// A value that is pushed and popped between two opcodes changes nothing, but it disables the fast paths.
    #[test]
    fn fast_paths_agree_with_the_opcode_machine(
        items in prop::collection::vec((opcodes(), 1..5usize), 0..12),
        batches in 1..4usize,
    ) {
        let items: Vec<Vec<u8>> = items.into_iter().flat_map(|(op, times)| std::iter::repeat_n(op, times)).collect();
        let list = |between: &[u8]| {
            let batch = [b"(".as_slice(), between, &items.join(between), between, b"e"].concat();
            [b"]\x94".as_slice(), between, &batch.repeat(batches)].concat()
        };
        match (shown(&list(b"")), shown(&list(b"N0"))) {
            // The one permitted difference: the fast path rejects appending to a completed list. No pickler does that.
            (Err(why), _) if why.to_string().contains("a completed list") => {}
            (fast, slow) => prop_assert_eq!(fast.ok(), slow.ok()),
        }
    }
}
