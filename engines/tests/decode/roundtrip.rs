//! Random frames, encoded with all variations of a pickler and in msgpack, must decode to the original values.

use crate::encode::{Py, msgpack, pickle};
use engines::sglang::wire::{Batch, Codec, Decoder, Limits, PickleStyle, Value};
use proptest::prelude::*;
use trace::event::{IdColumn, Kind};

/// The part of a frame that belongs to one request.
#[derive(Clone, Debug)]
struct Row {
    rid: String,
    worker: Option<String>,
    ids: Vec<i64>,
    completion: u32,
    prompt: u32,
    finish: Option<Vec<(Py, Py)>>,
}

fn row() -> impl Strategy<Value = Row> {
    let ids = proptest::collection::vec(prop_oneof![0..200_000i64, any::<i64>()], 0..6);
    let finish = proptest::option::weighted(0.3, proptest::collection::vec(("[a-z]{1,5}", value()), 0..5));
    let worker = proptest::option::weighted(0.3, "ipc:///[a-z]{1,9}");
    ("[a-zé€]{0,40}", worker, ids, any::<u32>(), 0..5000u32, finish).prop_map(
        |(rid, worker, ids, completion, prompt, finish)| {
            let entries = |entries: Vec<(String, Py)>| entries.into_iter().map(|(k, v)| (Py::Str(k), v)).collect();
            Row { rid, worker, ids, completion, prompt, finish: finish.map(entries) }
        },
    )
}

fn value() -> impl Strategy<Value = Py> {
    let leaf = prop_oneof![
        Just(Py::None),
        any::<bool>().prop_map(Py::Bool),
        any::<i64>().prop_map(Py::Int),
        any::<i16>().prop_map(|value| Py::Int(value.into())),
        (-1e9..1e9).prop_map(Py::Float),
        "[a-z€]{0,300}".prop_map(Py::Str),
        proptest::collection::vec(any::<u8>(), 0..300).prop_map(Py::Bytes),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..7).prop_map(Py::List),
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Py::Tuple),
            proptest::collection::vec((inner.clone(), inner), 0..6).prop_map(Py::Dict),
        ]
    })
}

fn style() -> impl Strategy<Value = PickleStyle> {
    let frame = proptest::option::of(1..400usize);
    (2..=5u8, 1..9usize, frame, any::<bool>(), proptest::bool::weighted(0.2)).prop_map(
        |(protocol, batch, frame_bytes, has_memo, has_noise)| PickleStyle {
            protocol,
            batch,
            has_memo,
            frame_bytes,
            has_noise,
        },
    )
}

/// The first 14 fields of `BatchTokenIDOutput` since 0.5.15, in the positions that msgpack relies on.
fn fields(rows: &[Row], arrays: bool) -> Vec<(&'static str, Py)> {
    let column = |get: &dyn Fn(&Row) -> Py| Py::List(rows.iter().map(get).collect());
    let text = |text: &Option<String>| text.clone().map_or(Py::None, Py::Str);
    let ids = |row: &Row| {
        if arrays { Py::Array(row.ids.clone()) } else { Py::List(row.ids.iter().map(|id| Py::Int(*id)).collect()) }
    };
    vec![
        ("rids", column(&|row| Py::Str(row.rid.clone()))),
        ("http_worker_ipcs", column(&|row| text(&row.worker))),
        ("finished_reasons", column(&|row| row.finish.clone().map_or(Py::None, Py::Dict))),
        ("decoded_texts", column(&|_| Py::Str(String::new()))),
        ("decode_ids", column(&ids)),
        ("read_offsets", column(&|_| Py::Int(5))),
        ("output_ids", column(&ids)),
        ("skip_special_tokens", column(&|_| Py::Bool(true))),
        ("spaces_between_special_tokens", column(&|_| Py::Bool(true))),
        ("no_stop_trim", column(&|row| Py::Bool(row.prompt % 2 == 0))),
        ("prompt_tokens", column(&|row| Py::Int(row.prompt.into()))),
        ("reasoning_tokens", Py::List(Vec::new())),
        ("completion_tokens", column(&|row| Py::Int(row.completion.into()))),
        ("cached_tokens", Py::None),
    ]
}

fn check(batch: &Batch<'_>, rows: &[Row]) {
    assert_eq!(
        (batch.shape().class, batch.shape().kind, batch.shape().schema),
        ("BatchTokenIDOutput", Kind::TokenIds, "unlisted")
    );
    assert_eq!(batch.chunks().len(), rows.len());
    assert_eq!(batch.shape().ids, IdColumn::Delta);
    for (index, row) in rows.iter().enumerate() {
        let chunk = batch.chunks()[index];
        assert_eq!((chunk.rid, chunk.worker), (row.rid.as_str(), row.worker.as_deref()));
        assert_eq!((chunk.completion_tokens, chunk.prompt_tokens), (Some(row.completion), Some(row.prompt)));
        assert_eq!((chunk.cached_tokens, chunk.retractions), (None, None));
        assert_eq!(chunk.listed, Some(row.ids.len() as u32));
        assert_eq!(chunk.ids, row.ids);
        let finish = row.finish.clone().map(|entries| plain(&Py::Dict(entries)));
        assert_eq!(batch.finish(index).map(|value| py(&value)), finish);
    }
}

/// Removes distinctions that the codecs do not preserve: a tuple becomes a list.
fn plain(value: &Py) -> Py {
    match value {
        Py::List(items) | Py::Tuple(items) => Py::List(items.iter().map(plain).collect()),
        Py::Dict(entries) => Py::Dict(entries.iter().map(|(key, value)| (plain(key), plain(value))).collect()),
        _ => value.clone(),
    }
}

fn py(value: &Value<'_>) -> Py {
    match value.clone() {
        Value::Null => Py::None,
        Value::Bool(value) => Py::Bool(value),
        Value::Int(value) => Py::Int(value),
        Value::Float(value) => Py::Float(value),
        Value::Str(text) => Py::Str(text.into()),
        Value::Bytes(bytes) => Py::Bytes(bytes.into()),
        Value::List(items) => Py::List(items.map(|item| py(&item)).collect()),
        Value::Map(entries) => Py::Dict(entries.map(|(key, value)| (py(&key), py(&value))).collect()),
        Value::Other(what) => panic!("{what}"),
    }
}

proptest! {
    #[test]
    fn pickled_frames_round_trip(
        rows in proptest::collection::vec(row(), 1..12),
        style in style(),
        shares in any::<bool>(),
        arrays in any::<bool>(),
    ) {
        let named = fields(&rows, arrays).into_iter().map(|(name, column)| (Py::Str(name.into()), column));
        let message = pickle(style, shares, "BatchTokenIDOutput", &named.collect::<Vec<_>>());
        let mut decoder = Decoder::new(Limits::default()).with_ids();
        let batch = decoder.decode(&message).unwrap();
        prop_assert_eq!(batch.codec(), Codec::Pickle { protocol: style.protocol });
        check(&batch, &rows);
    }

    #[test]
    fn msgpack_frames_round_trip(rows in proptest::collection::vec(row(), 1..40), arrays in any::<bool>()) {
        let columns: Vec<Py> = fields(&rows, arrays).into_iter().map(|(_, column)| column).collect();
        let message = msgpack("BatchTokenIDOutput", &columns);
        let mut decoder = Decoder::new(Limits::default()).with_ids();
        let batch = decoder.decode(&message).unwrap();
        prop_assert_eq!(batch.codec(), Codec::Msgpack);
        check(&batch, &rows);
    }

    #[test]
    fn columns_of_unequal_length_are_rejected(rows in proptest::collection::vec(row(), 2..9), which in 0..5usize) {
        let name = ["http_worker_ipcs", "finished_reasons", "output_ids", "prompt_tokens", "completion_tokens"][which];
        let shorter = |(field, column): (&'static str, Py)| match column {
            Py::List(mut items) if field == name => {
                items.pop();
                (Py::Str(field.into()), Py::List(items))
            }
            column => (Py::Str(field.into()), column),
        };
        let state: Vec<(Py, Py)> = fields(&rows, false).into_iter().map(shorter).collect();
        let mut decoder = Decoder::new(Limits::default());
        let why = decoder.decode(&pickle(PickleStyle::PYTHON, true, "BatchTokenIDOutput", &state)).unwrap_err();
        prop_assert_eq!(why.to_string(), format!("BatchTokenIDOutput.{name}[0]: not as long as rids"));
        let columns: Vec<Py> = state.into_iter().map(|(_, column)| column).collect();
        let again = decoder.decode(&msgpack("BatchTokenIDOutput", &columns)).unwrap_err();
        prop_assert_eq!(again.reason(), "column");
    }
}

/// Python begins a new batch after 1,000 items and a new frame after 64 KiB, at any position.
#[test]
fn a_frame_of_thousands_of_requests_round_trips() {
    let row = |n: u32| Row {
        rid: format!("{n:032x}"),
        worker: n.is_multiple_of(3).then(|| format!("ipc:///tmp/{}", n % 7)),
        ids: (0..n % 4).map(|id| i64::from(id * n)).collect(),
        completion: n % 300,
        prompt: if n < 2500 { 7 } else { n },
        finish: (n % 1700 == 3).then(|| vec![(Py::Str("type".into()), Py::Str("stop".into()))]),
    };
    for count in [999, 1000, 1001, 2001, 4330] {
        let rows: Vec<Row> = (0..count).map(row).collect();
        for (arrays, has_noise) in [(false, false), (true, false), (false, true)] {
            let fields = fields(&rows, arrays).into_iter();
            let state: Vec<_> = fields.map(|(name, column)| (Py::Str(name.into()), column)).collect();
            let style = PickleStyle { has_noise, ..PickleStyle::PYTHON };
            let message = pickle(style, true, "BatchTokenIDOutput", &state);
            assert!(message.len() > 64 << 10, "{} bytes fill no frame", message.len());
            let mut decoder = Decoder::new(Limits::default()).with_ids();
            check(&decoder.decode(&message).unwrap(), &rows);
        }
    }
}
