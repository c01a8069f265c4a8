//! `EngineCoreRequest` and `EngineCoreOutputs` as vLLM 0.33.0 encodes them: msgpack arrays without names, at full length.

use adapter::decode::EngineSeconds;
use rmp::encode;

use super::message::{BatchRow, Finish, RequestRow};

/// Release whose layout this is.
pub(super) const VERSION: &str = "0.33.0";

/// Number of fields of each message class.
const OUTPUTS_FIELDS: usize = 9;
const OUTPUT_FIELDS: usize = 19;
const REQUEST_FIELDS: usize = 22;
const SCHEDULER_STATS_FIELDS: usize = 18;
/// Types of an engine core's events.
const QUEUED: u64 = 1;
const SCHEDULED: u64 = 2;
/// A nil in msgpack.
const NIL: u8 = 0xc0;

/// The scheduler's state, which each message contains.
#[derive(Clone, Copy, Debug)]
pub(in crate::demo) struct Stats {
    pub(in crate::demo) running: usize,
    pub(in crate::demo) waiting: usize,
    pub(in crate::demo) step: u64,
}

/// Encodes the outputs of one step at this time of the monotonic clock. Without `stats`, encodes them as an engine with
/// `--disable-log-stats` does. The time distinguishes messages with the same tokens.
pub(super) fn encode_outputs(rows: &[BatchRow<'_>], stats: Option<Stats>, mono_seconds: f64) -> Vec<u8> {
    // Usually enough for the whole message.
    let mut packer = Packer(Vec::with_capacity(1024 + rows.len() * 96));
    packer.begin_array(OUTPUTS_FIELDS);
    packer.int(0); // engine_index
    packer.begin_array(rows.len());
    for row in rows {
        write_output(&mut packer, row);
    }
    match stats {
        Some(stats) => write_scheduler_stats(&mut packer, stats),
        None => packer.nils(1),
    }
    packer.float(mono_seconds);
    packer.nils(5); // utility_output, finished_requests, wave_complete, start_wave, weight_version
    packer.0
}

/// First part of a message with a request.
pub(super) const ADD: [u8; 1] = [0];

/// Encodes a request to the engine core.
pub(super) fn encode_request(row: &RequestRow<'_>) -> Vec<u8> {
    // Usually enough for the whole message: a token id takes at most 5 bytes, and all other fields less than 512.
    let mut packer = Packer(Vec::with_capacity(512 + row.prompt.len() * 5));
    packer.begin_array(REQUEST_FIELDS);
    packer.text(row.rid);
    packer.begin_array(row.prompt.len());
    row.prompt.iter().for_each(|&id| packer.int(id as u64));
    packer.nils(1); // mm_features
    packer.begin_map(5); // sampling_params, with the following five names and values
    packer.write_fields("temperature 0.7 top_p 0.95 max_tokens 64 bad_words [0 skip_reading_prefix_cache false");
    packer.nils(1); // pooling_params
    packer.float(row.arrived);
    packer.nils(5); // lora_request, cache_salt, data_parallel_rank, prompt_embeds, prompt_is_token_ids
    packer.int(0); // client_index
    packer.int(0); // current_wave
    packer.int(0); // priority
    packer.nils(1); // trace_headers
    packer.boolean(false); // resumable
    packer.nils(3); // external_req_id, reasoning_ended, reasoning_parser_kwargs
    packer.boolean(false); // abort_immediately
    packer.nils(2); // session_id, kv_hints
    packer.0
}

/// Writes an `EngineCoreOutput`.
fn write_output(packer: &mut Packer, row: &BatchRow<'_>) {
    packer.begin_array(OUTPUT_FIELDS);
    packer.text(row.rid);
    packer.begin_array(row.ids.len());
    row.ids.iter().for_each(|&id| packer.int(id as u64));
    packer.nils(3); // new_logprobs, new_prompt_logprobs_tensors, pooling_output
    match row.finish {
        None => packer.nils(1),
        // Numbers of `FinishReason`.
        Some(Finish::Stop(_)) => packer.int(0),
        Some(Finish::Length(_)) => packer.int(1),
        Some(Finish::Abort) => packer.int(2),
    }
    packer.nils(1); // stop_reason
    // Only the first row of a request has the tail of its prompt.
    let is_first_output = !row.prompt_tail.is_empty();
    // An engine without statistics keeps no times, and sends no events.
    let has_times = row.times.queued != 0.0;
    if is_first_output && has_times {
        write_scheduling_events(packer, row.times);
    } else {
        packer.nils(1);
    }
    packer.nils(3); // kv_transfer_params, ec_transfer_params, trace_headers
    if is_first_output {
        write_prefill_stats(packer, row.prompt_tokens);
    } else {
        packer.nils(1);
    }
    packer.nils(1); // routed_experts
    packer.int(0); // num_nans_in_logits
    packer.nils(5); // mm_cache_miss_hashes, new_sampling_mask, spec_decode_metrics, prompt_token_id_logprobs, error
}

/// Writes the events since the last output, of the types QUEUED and SCHEDULED.
fn write_scheduling_events(packer: &mut Packer, times: EngineSeconds) {
    // Two events, each with a type and a time.
    packer.begin_array(2);
    for (kind, timestamp) in [(QUEUED, times.queued), (SCHEDULED, times.batch_entered)] {
        packer.begin_map(2);
        packer.text("type");
        packer.int(kind);
        packer.text("timestamp");
        packer.float(timestamp);
    }
}

/// Writes the `PrefillStats` of a prompt without cached tokens.
fn write_prefill_stats(packer: &mut Packer, prompt_tokens: u32) {
    // Six names with their values, in the notation of `write_fields`. `PROMPT` stands for the number of tokens.
    let text = "num_prompt_tokens PROMPT num_computed_tokens PROMPT num_cached_tokens 0 num_local_cached_tokens 0 \
                num_external_cached_tokens 0 num_cache_creation_tokens 0";
    packer.begin_map(6);
    packer.write_fields(&text.replace("PROMPT", &prompt_tokens.to_string()));
}

/// Writes `SchedulerStats`. The values that no screen shows are those of the recorded message.
fn write_scheduler_stats(packer: &mut Packer, Stats { running, waiting, step }: Stats) {
    packer.begin_map(SCHEDULER_STATS_FIELDS);
    // Names with their values, in the notation of `write_fields`. `{{` is one brace.
    packer.write_fields(&format!(
        "num_running_reqs {running} num_waiting_reqs {waiting} num_skipped_waiting_reqs 0 num_kv_fetch_reqs_by_stage {{0 \
         step_counter {step} current_wave 1 kv_cache_usage 0.421875 iteration_details - \
         prefix_cache_stats {{8 reset false requests 2 queries 64 hits 16 preempted_requests 0 preempted_queries 0 \
         preempted_hits 0 hits_by_source {{0 \
         connector_prefix_cache_stats - kv_cache_eviction_events [0 spec_decoding_stats - kv_connector_stats - \
         ec_connector_stats - waiting_lora_adapters {{0 running_lora_adapters {{0 cudagraph_stats - perf_stats -"
    ));
}

/// Writes msgpack in the shortest encodings, as `msgspec` does. Writing into memory cannot fail.
struct Packer(Vec<u8>);

impl Packer {
    fn begin_array(&mut self, len: usize) {
        let _ = encode::write_array_len(&mut self.0, len as u32);
    }

    fn begin_map(&mut self, len: usize) {
        let _ = encode::write_map_len(&mut self.0, len as u32);
    }

    fn nils(&mut self, count: usize) {
        self.0.extend(std::iter::repeat_n(NIL, count));
    }

    fn float(&mut self, value: f64) {
        let _ = encode::write_f64(&mut self.0, value);
    }

    fn boolean(&mut self, value: bool) {
        let _ = encode::write_bool(&mut self.0, value);
    }

    fn int(&mut self, value: u64) {
        let _ = encode::write_uint(&mut self.0, value);
    }

    fn text(&mut self, text: &str) {
        let _ = encode::write_str(&mut self.0, text);
    }

    /// Writes names with their values: a number, `false`, `-` for nil, `{N` for a map of the next N fields, `[N` for an array.
    fn write_fields(&mut self, text: &str) {
        let mut words = text.split(' ');
        while let (Some(name), Some(value)) = (words.next(), words.next()) {
            self.text(name);
            if let Some(length) = value.strip_prefix('{') {
                self.begin_map(length.parse().unwrap_or_default());
            } else if let Some(length) = value.strip_prefix('[') {
                self.begin_array(length.parse().unwrap_or_default());
            } else if value == "-" {
                self.nils(1);
            } else if value == "false" {
                self.boolean(false);
            } else if let Ok(number) = value.parse() {
                self.int(number);
            } else {
                self.float(value.parse().unwrap_or_default());
            }
        }
    }
}
