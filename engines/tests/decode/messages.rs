//! Compares every recorded message with its sidecar, both written by a real release (`cargo xtask fixtures`).

use crate::common::{messages, root};
use engines::sglang::SgLang;
use engines::sglang::wire::{Batch, Decoder, Limits, Value};
use serde_json::{Map, Value as Json, json};
use trace::engine::{Facts as _, SentTime, SentTimes, Version, VersionRange};
use trace::event::{EngineTimes, Finish, IdColumn, Kind};

#[test]
fn every_recorded_message_decodes_to_its_sidecar() {
    let mut decoder = Decoder::new(Limits::default()).with_ids();
    let messages = messages();
    assert!(messages.len() > 100, "only {} messages in {}", messages.len(), root().display());
    let (mut wrong, mut with_times) = (Vec::new(), 0);
    for path in &messages {
        let message = std::fs::read(path).unwrap();
        let sidecar = std::fs::read(path.with_extension("json")).unwrap();
        let expected: Json = serde_json::from_slice(&sidecar).unwrap();
        with_times += usize::from(expected.get("engine_times").is_some());
        match decoder.decode(&message) {
            Ok(batch) => {
                for difference in differences(&batch, &expected) {
                    wrong.push(format!("{}: {difference}", path.display()));
                }
            }
            Err(why) => wrong.push(format!("{}: {} {why}", path.display(), why.reason())),
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), messages.len(), wrong.join("\n"));
    // One of each layout from 0.5.5 on.
    assert!(with_times >= 20, "{with_times} messages with times");
    println!("{} messages", messages.len());
}

/// The columns of 0.5.5 to 0.5.9 have the end of the prefill by the wall clock or not at all: `prefill_launch_latency` ends when the kernels are
/// launched.
#[test]
fn columns_of_times_have_no_end_of_the_prefill() {
    let mut decoder = Decoder::new(Limits::default());
    for release in ["0.5.5", "0.5.6", "0.5.7", "0.5.8", "0.5.9"] {
        let message = std::fs::read(root().join(release).join("skip_engine_times_2rid.pkl")).unwrap();
        let has_column = |name: &str| message.windows(name.len()).any(|bytes| bytes == name.as_bytes());
        assert!(has_column("prefill_delay") || has_column("prefill_launch_delay"), "{release}");
        assert_eq!(has_column("prefill_finished_ts"), release >= "0.5.7", "{release}");
        let batch = decoder.decode(&message).unwrap();
        let EngineTimes { queued, batch_entered, prefill_finished } = batch.engine_times(0);
        assert!(queued.is_some() && queued < batch_entered, "{release}: {queued:?}, {batch_entered:?}");
        assert_eq!(prefill_finished, None, "{release}");
        let SentTimes { entries, prefill_end } = SgLang.sent_times(Some(release));
        let SentTime::Never(reason) = prefill_end else { panic!("{release}: {prefill_end:?}") };
        assert_eq!(entries, SentTime::Always, "{release}");
        assert!(reason.contains("from 0.5.10 on") && reason.contains("--enable-metrics"), "{release}: {reason}");
    }
}

fn differences(batch: &Batch<'_>, expected: &Json) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut same = |what: &str, got: Json, want: Json| {
        if got != want {
            wrong.push(format!("{what}: got {got}, want {want}"));
        }
    };
    same("class", json!(batch.shape().class), expected["class"].clone());
    same("codec", json!(batch.codec().as_str()), expected["codec"].clone());
    let release = expected["release"].as_str().unwrap_or_default();
    same("schema covers the release", json!(covers(batch.shape().schema, release)), json!(true));

    if batch.shape().kind == Kind::Abort {
        same("abort", json!(batch.chunks().first().map(|chunk| chunk.rid)), expected["rid"].clone());
        return wrong;
    }
    if batch.shape().kind == Kind::Control {
        same("chunks", json!(batch.chunks().len()), json!(0));
        return wrong;
    }
    let c = batch.chunks();
    let chunk = |get: &dyn Fn(usize) -> Json| (0..batch.chunks().len()).map(get).collect::<Json>();
    same("rids", chunk(&|i| json!(c[i].rid)), expected["rids"].clone());

    let counts = |name| match expected.get("meta_info").and_then(Json::as_array) {
        Some(meta) => meta.iter().map(|m| m.get(name).cloned().unwrap_or(Json::Null)).collect(),
        None => column(expected, name, batch),
    };
    same("completion_tokens", chunk(&|i| json!(c[i].completion_tokens)), counts("completion_tokens"));
    same("prompt_tokens", chunk(&|i| json!(c[i].prompt_tokens)), counts("prompt_tokens"));
    same("cached_tokens", chunk(&|i| json!(c[i].cached_tokens)), counts("cached_tokens"));
    same("retractions", chunk(&|i| json!(c[i].retractions)), column(expected, "retraction_counts", batch));
    same("workers", chunk(&|i| json!(c[i].worker)), column(expected, "http_worker_ipcs", batch));

    let times = (0..c.len()).map(|i| {
        let EngineTimes { queued, batch_entered, prefill_finished } = batch.engine_times(i);
        if queued.or(batch_entered).or(prefill_finished).is_none() {
            return Json::Null;
        }
        json!([queued, batch_entered, prefill_finished])
    });
    same("engine times", times.collect(), column(expected, "engine_times", batch));

    let ids = column(expected, "output_ids", batch);
    let lengths: Json = ids.as_array().unwrap().iter().map(|ids| json!(ids.as_array().map(Vec::len))).collect();
    same("tokens", chunk(&|i| json!(c[i].listed.map(|_| c[i].ids))), ids);
    same("listed", chunk(&|i| json!(c[i].listed)), lengths.clone());
    if !batch.chunks().is_empty() {
        let none = lengths.as_array().unwrap().iter().all(Json::is_null);
        same("ids are absent", json!(batch.shape().ids == IdColumn::Absent), json!(none));
    }

    let finish = if expected.get("meta_info").is_some() {
        counts("finish_reason")
    } else {
        column(expected, "finished_reasons", batch)
    };
    same("finish", chunk(&|i| batch.finish(i).map_or(Json::Null, to_json)), finish.clone());
    let word = |i: usize| match c[i].finish {
        Some(Finish::Length) => json!("length"),
        Some(Finish::Stop) => json!("stop"),
        Some(Finish::Abort) => json!("abort"),
        Some(Finish::Other) => json!("other"),
        None => Json::Null,
    };
    same("finish type", chunk(&word), finish.as_array().unwrap().iter().map(|f| f["type"].clone()).collect());
    wrong
}

/// A column of the sidecar with one entry per request. A column that is `None`, empty or missing becomes all null.
fn column(expected: &Json, name: &str, batch: &Batch<'_>) -> Json {
    match expected.get(name).and_then(Json::as_array) {
        Some(column) if !column.is_empty() => column.iter().cloned().collect(),
        _ => (0..batch.chunks().len()).map(|_| Json::Null).collect(),
    }
}

fn to_json(value: Value<'_>) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(value) => json!(value),
        Value::Int(value) => json!(value),
        Value::Float(value) => json!(value),
        Value::Str(value) => json!(value),
        Value::Bytes(value) => json!({ "bytes": value.len() }),
        Value::List(items) => items.map(to_json).collect(),
        Value::Map(entries) => entries
            .map(|(key, value)| match key {
                Value::Str(key) => (key.to_owned(), to_json(value)),
                _ => panic!("a key that is not text"),
            })
            .collect::<Map<_, _>>()
            .into(),
        Value::Other(what) => json!(what),
    }
}

/// Whether a schema such as `0.5.12..0.5.13.post1` includes a release.
fn covers(schema: &str, release: &str) -> bool {
    let release: Version = release.parse().expect("a release");
    let mut spans = schema.split(',').map(|span| span.parse::<VersionRange>().expect("a range of releases"));
    spans.any(|span| span.first <= release && release <= span.last)
}
