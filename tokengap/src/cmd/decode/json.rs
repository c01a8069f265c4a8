//! JSON output: written directly from the message, with fields in wire order.

use std::cell::Cell;
use std::io::{self, Write};

use engines::sglang::wire::Value;
use serde::ser::{SerializeMap, SerializeSeq, SerializeStruct};
use serde::{Serialize, Serializer};
use serde_json::json;
use trace::event::{DispatchedRequest, EngineTimes, Kind};

use super::OutputBudget;
use super::message::AnyMessage;

/// Maximum number of values shown of one finish reason. Real ones have about five; in a hostile message, containers can share parts or
/// contain themselves.
const MAX_SHOWN_VALUES: u32 = 10_000;
/// Maximum nesting depth shown.
const MAX_DEPTH: u32 = 16;

/// Approximate output size of a chunk without tokens, and of a token, in bytes.
const CHUNK_BYTES: usize = 160;
const TOKEN_BYTES: usize = 6;

/// Writes a message as one line of JSON.
pub(super) fn write_message(
    out: &mut impl Write,
    file: &str,
    message: &AnyMessage<'_>,
    budget: &OutputBudget,
) -> io::Result<()> {
    write_line(out, &MessageLine { file, message, budget })
}

/// Writes why a file is not a message, as one line of JSON.
pub(super) fn write_error(out: &mut impl Write, file: &str, why: &str) -> io::Result<()> {
    #[derive(Serialize)]
    struct ErrorLine<'a> {
        file: &'a str,
        error: &'a str,
    }
    write_line(out, &ErrorLine { file, error: why })
}

fn write_line(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}

struct MessageLine<'a> {
    file: &'a str,
    message: &'a AnyMessage<'a>,
    budget: &'a OutputBudget,
}

impl Serialize for MessageLine<'_> {
    /// Writes the message as an object. Content beyond the budget is left out, and `truncated` says so.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        /// Number of fields if none is left out.
        const MAX_FIELDS: usize = 10;
        let shape = self.message.shape();
        let chunks = self.message.chunks();
        let mut fields = to.serialize_struct("Message", MAX_FIELDS)?;
        fields.serialize_field("file", self.file)?;
        fields.serialize_field("engine", shape.engine)?;
        fields.serialize_field("class", shape.class)?;
        fields.serialize_field("codec", shape.codec)?;
        fields.serialize_field("schema", shape.schema)?;
        fields.serialize_field("ids", super::text::ids_label(shape.ids))?;
        // An AbortReq names a request but has no chunks, like other control messages.
        if shape.kind == Kind::Abort {
            fields.serialize_field("rid", &chunks.first().map(|chunk| chunk.rid))?;
        }
        fields.serialize_field("chunks", &ChunkList { message: self.message, budget: self.budget })?;
        if !self.message.requests().is_empty() {
            let requests = RequestList { requests: self.message.requests(), budget: self.budget };
            fields.serialize_field("requests", &requests)?;
        }
        if self.budget.is_exhausted() {
            fields.serialize_field("truncated", &true)?;
        }
        fields.end()
    }
}

struct ChunkList<'a> {
    message: &'a AnyMessage<'a>,
    budget: &'a OutputBudget,
}

impl Serialize for ChunkList<'_> {
    /// Writes the chunks as a list, as far as the budget allows.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self { message, budget } = *self;
        // The entries of an abort only name requests. The first was written as `rid`.
        let chunk_count = if message.shape().kind == Kind::Abort { 0 } else { message.chunks().len() };
        // The number of items is not known, because the budget may leave some out.
        let unknown_length = None;
        let mut list = to.serialize_seq(unknown_length)?;
        for index in 0..chunk_count {
            // Charged before it is written, so that the output ends where the budget does.
            let is_within_budget = budget.charge(CHUNK_BYTES);
            if !is_within_budget {
                break;
            }
            list.serialize_element(&Chunk { message, index, budget })?;
        }
        list.end()
    }
}

struct RequestList<'a> {
    requests: &'a [DispatchedRequest<'a>],
    budget: &'a OutputBudget,
}

impl Serialize for RequestList<'_> {
    /// Writes the requests as a list, as far as the budget allows. Each is charged before it is written.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        // The number of items is not known, because the budget may leave some out.
        let unknown_length = None;
        let mut list = to.serialize_seq(unknown_length)?;
        for request in self.requests {
            let is_within_budget = self.budget.charge(CHUNK_BYTES + request.rid.len());
            if !is_within_budget {
                break;
            }
            list.serialize_element(request)?;
        }
        list.end()
    }
}

struct Chunk<'a> {
    message: &'a AnyMessage<'a>,
    index: usize,
    budget: &'a OutputBudget,
}

impl Serialize for Chunk<'_> {
    /// Writes the chunk as an object, and charges its content to the budget.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        const FIELDS: usize = 11;
        let Self { message, index, budget } = *self;
        let chunk = message.chunks()[index];
        // These texts are written in any case, so this only limits what follows.
        budget.charge(chunk.rid.len() + chunk.worker.map_or(0, str::len));
        let mut fields = to.serialize_struct("Chunk", FIELDS)?;
        fields.serialize_field("rid", chunk.rid)?;
        // `null` if the message lists no ids.
        fields.serialize_field("tokens", &chunk.listed.map(|_| TokenIds { ids: chunk.ids, budget }))?;
        fields.serialize_field("completion_tokens", &chunk.completion_tokens)?;
        fields.serialize_field("prompt_tokens", &chunk.prompt_tokens)?;
        fields.serialize_field("cached_tokens", &chunk.cached_tokens)?;
        fields.serialize_field("retractions", &chunk.retractions)?;
        // Limits the items shown, because a hostile value may contain itself.
        let values_left = Cell::new(MAX_SHOWN_VALUES);
        if let Some(value) = message.finish_reason(index) {
            let finish = WireValue { value, depth: MAX_DEPTH, values_left: &values_left, budget };
            fields.serialize_field("finish", &finish)?;
        } else {
            // Only the kind is known. It has the form of SGLang's finish reasons.
            let finish = chunk.finish.map(|finish| json!({ "type": finish.as_str() }));
            fields.serialize_field("finish", &finish)?;
        }
        fields.serialize_field("http_worker_ipc", &chunk.worker)?;
        // On the engine's monotonic clock.
        let EngineTimes { queued, batch_entered, prefill_finished } = message.engine_times(index);
        fields.serialize_field("queued_ns", &queued)?;
        fields.serialize_field("batch_entered_ns", &batch_entered)?;
        fields.serialize_field("prefill_finished_ns", &prefill_finished)?;
        fields.end()
    }
}

/// Token ids, and the budget that they are charged to.
struct TokenIds<'a> {
    ids: &'a [i64],
    budget: &'a OutputBudget,
}

impl Serialize for TokenIds<'_> {
    /// Writes the ids as a list, as far as the budget allows. Each is charged before it is written.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        // The number of items is not known, because the budget may leave some out.
        let unknown_length = None;
        let mut list = to.serialize_seq(unknown_length)?;
        for id in self.ids {
            let is_within_budget = self.budget.charge(TOKEN_BYTES);
            if !is_within_budget {
                break;
            }
            list.serialize_element(id)?;
        }
        list.end()
    }
}

/// A value in its wire format.
struct WireValue<'a> {
    value: Value<'a>,
    depth: u32,
    values_left: &'a Cell<u32>,
    budget: &'a OutputBudget,
}

impl<'a> WireValue<'a> {
    /// An item of this value, with the remaining limits. `count_value_and_check_limits` must have returned true, so that `depth` is not 0.
    fn nested(&self, value: Value<'a>) -> Self {
        WireValue { value, depth: self.depth - 1, values_left: self.values_left, budget: self.budget }
    }

    /// Writes items of this value as a list, up to the first one beyond a limit.
    fn serialize_list<S: Serializer>(
        &self,
        items: impl IntoIterator<Item = Value<'a>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        // The number of items is not known, because a limit may leave some out.
        let unknown_length = None;
        let mut list = to.serialize_seq(unknown_length)?;
        for item in items {
            if !self.count_value_and_check_limits() {
                break;
            }
            list.serialize_element(&self.nested(item))?;
        }
        list.end()
    }

    /// Writes entries of this value as an object, up to the first one beyond a limit. A key that is neither a text nor a number becomes
    /// `?`.
    fn serialize_map<S: Serializer>(
        &self,
        entries: impl IntoIterator<Item = (Value<'a>, Value<'a>)>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        // The number of entries is not known, because a limit may leave some out.
        let unknown_length = None;
        let mut map = to.serialize_map(unknown_length)?;
        for (key, value) in entries {
            if !self.count_value_and_check_limits() {
                break;
            }
            match key {
                Value::Str(key) => {
                    self.budget.charge(key.len());
                    map.serialize_entry(key, &self.nested(value))?;
                }
                // JSON has only strings as keys.
                Value::Int(key) => map.serialize_entry(&key.to_string(), &self.nested(value))?,
                _ => map.serialize_entry("?", &self.nested(value))?,
            }
        }
        map.end()
    }

    /// Counts one more value and charges it to the budget. Returns whether it may be shown.
    fn count_value_and_check_limits(&self) -> bool {
        let values_left = self.values_left.get();
        self.values_left.set(values_left.saturating_sub(1));
        values_left > 0 && self.depth > 0 && self.budget.charge(TOKEN_BYTES)
    }
}

impl Serialize for WireValue<'_> {
    /// Writes the value as JSON. Items beyond a limit of depth, number or bytes are left out.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.value.clone() {
            Value::Null => to.serialize_unit(),
            Value::Bool(value) => to.serialize_bool(value),
            Value::Int(value) => to.serialize_i64(value),
            Value::Float(value) => to.serialize_f64(value),
            Value::Str(value) => {
                // A text is written whole, so this only limits what follows.
                self.budget.charge(value.len());
                to.serialize_str(value)
            }
            Value::Bytes(value) => to.collect_str(&format_args!("{} bytes", value.len())),
            Value::Other(what) => to.serialize_str(what),
            Value::List(items) => self.serialize_list(items, to),
            Value::Map(entries) => self.serialize_map(entries, to),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::MessageReader;
    use super::*;

    /// Output of `decode --json` for a recorded message.
    fn decoded(name: &str) -> serde_json::Value {
        decoded_within(name, 1 << 20)
    }

    fn decoded_within(name: &str, budget: usize) -> serde_json::Value {
        let path = format!("{}/../zmq-tap/fixtures/messages/{name}", env!("CARGO_MANIFEST_DIR"));
        let bytes = std::fs::read(&path).unwrap();
        let mut reader = MessageReader::new(1 << 20);
        let decoded = reader.read(&bytes).unwrap();
        let mut out = Vec::new();
        write_message(&mut out, name, &decoded, &OutputBudget::new(budget)).unwrap();
        assert_eq!(out.pop(), Some(b'\n'));
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn a_finish_reason_keeps_its_form() {
        for name in ["0.5.23/skip_finish_mix_6rid.pkl", "0.5.23-msgpack/skip_finish_mix_6rid.msgpack"] {
            let chunks = &decoded(name)["chunks"];
            assert_eq!(chunks[0]["finish"], json!({"type": "length", "length": 3}));
            assert_eq!(chunks[2]["finish"], json!({"type": "stop", "matched": "</s>"}));
            assert_eq!(chunks[3]["finish"]["status_code"], 503);
            assert_eq!(chunks[5]["finish"], serde_json::Value::Null);
            assert_eq!(chunks[1]["tokens"], json!([65536]));
        }
    }

    #[test]
    fn output_over_the_limit_is_truncated_and_marked() {
        let name = "0.5.9/skip_finish_mix_6rid.pkl";
        let (whole, cut) = (decoded(name), decoded_within(name, 500));
        assert_eq!((whole["chunks"].as_array().unwrap().len(), &whole["truncated"]), (6, &serde_json::Value::Null));
        assert!(cut["chunks"].as_array().unwrap().len() < 4);
        assert_eq!(cut["truncated"], true);
    }

    #[test]
    fn a_control_message_has_no_chunks() {
        let abort = decoded("0.5.9/ctl_abort_req.pkl");
        assert_eq!(abort["chunks"], json!([]));
        assert!(abort["rid"].is_string());
        assert_eq!(decoded("0.5.9/ctl_health_check_output.pkl")["chunks"], json!([]));
    }

    #[test]
    fn the_first_tokens_of_a_request_have_the_times_of_the_engine() {
        for name in ["0.5.23/skip_engine_times_2rid.pkl", "0.5.23-msgpack/skip_engine_times_2rid.msgpack"] {
            let chunks = &decoded(name)["chunks"];
            assert_eq!(chunks[0]["queued_ns"], 4_697_332_429_685_u64);
            assert_eq!(chunks[0]["prefill_finished_ns"], 4_697_622_429_685_u64);
            assert_eq!(chunks[1]["batch_entered_ns"], serde_json::Value::Null);
        }
    }

    #[test]
    fn a_message_to_the_scheduler_shows_its_requests_without_their_prompts() {
        let message = decoded("0.5.9/req_room_3000tok.pkl");
        let request = &message["requests"][0];
        assert_eq!((&request["prompt_tokens"], &request["room"]), (&json!(3000), &json!(0x1234_5678_9abc_def0_u64)));
        let batch = decoded("0.5.23-msgpack/req_batch_3rid.msgpack");
        assert_eq!(batch["requests"].as_array().unwrap().len(), 3);
        assert!(!batch.to_string().contains("canary"), "{batch}");
    }

    #[test]
    fn an_absent_id_column_is_null_and_never_an_empty_list() {
        assert_eq!(decoded("0.4.4/str_first_3rid.pkl")["chunks"][0]["tokens"], serde_json::Value::Null);
    }
}
