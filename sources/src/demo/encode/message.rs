//! SGLang's messages: `TokenizedGenerateReqInput` to the scheduler, `BatchTokenIDOutput` from it, `BatchStrOutput` from the detokenizer.

use std::sync::LazyLock;

use adapter::decode::EngineSeconds;
use engines::sglang::wire::{PickleStyle, Pickler, fields};

const IO_STRUCT: &str = "sglang.srt.managers.io_struct";
const REQUEST: &str = "TokenizedGenerateReqInput";
const SAMPLING_PARAMS: &str = "sglang.srt.sampling.sampling_params";
const TIME_STATS: &str = "sglang.srt.observability.req_time_stats";
/// Default of `top_k`, which allows all tokens.
const TOP_K_ALL: i64 = 1 << 30;
/// `max_new_tokens` of all requests.
const MAX_NEW_TOKENS: i64 = 64;
/// Read offset of the detokenizer, which is the length of the prompt tail in a first chunk.
pub(in crate::demo) const READ_OFFSET: usize = 5;

/// A release whose output the demo can write. The frames differ: the second release has no timing columns, the third packs token ids into
/// `array('q')`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::demo) enum SglangRelease {
    /// Last release whose waiters keep only one chunk.
    V0_5_9,
    /// First release whose waiters merge queued chunks.
    V0_5_10,
    /// Has several detokenizers behind a router.
    V0_5_13,
}

/// Values of `sglang.__version__`.
const VERSIONS: [&str; 3] = ["0.5.9", "0.5.10", "0.5.13"];

/// Class of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::demo) enum Class {
    TokenIds,
    Text,
}

const CLASSES: [&str; 2] = ["BatchTokenIDOutput", "BatchStrOutput"];

/// By release and class.
static FIELDS: LazyLock<[[&[&str]; 2]; 3]> = LazyLock::new(|| {
    VERSIONS.map(|version| CLASSES.map(|class| fields(class, version).expect("the table has this release")))
});

/// By release.
static REQUEST_FIELDS: LazyLock<[&[&str]; 3]> =
    LazyLock::new(|| VERSIONS.map(|version| fields(REQUEST, version).expect("the table has this release")));

const LOAD: [&str; 4] = ["dp_rank", "timestamp", "num_running_reqs", "num_waiting_reqs"];
const LOAD_REST: [&str; 6] =
    ["max_total_num_tokens", "token_usage", "gen_throughput", "cache_hit_rate", "utilization", "max_running_requests"];

impl SglangRelease {
    pub(in crate::demo) fn version(self) -> &'static str {
        VERSIONS[self as usize]
    }

    /// Returns whether token ids are `array('q')` instead of lists.
    fn packs_ids(self) -> bool {
        self == Self::V0_5_13
    }

    /// Names of the times in `SchedulerReqTimeStats` with `--enable-metrics`.
    fn time_stat_names(self) -> &'static [&'static str] {
        match self {
            Self::V0_5_9 => &[],
            Self::V0_5_10 => &[
                "wait_queue_entry_time",
                "forward_entry_time",
                "prefill_run_batch_start_time",
                "prefill_run_batch_end_time",
                "prefill_finished_time",
                "diff_realtime_monotonic",
            ],
            Self::V0_5_13 => {
                &["wait_queue_entry_time", "forward_entry_time", "prefill_finished_time", "diff_realtime_monotonic"]
            }
        }
    }

    /// Returns whether the detokenizer copies the scheduler's load into its own batches.
    fn text_carries_load(self) -> bool {
        self != Self::V0_5_13
    }

    /// Fields of a batch.
    fn fields(self, class: Class) -> &'static [&'static str] {
        FIELDS[self as usize][class as usize]
    }

    /// Fields of `GetLoadsReqOutput` up to the first that is `None` on a server without metrics, in three parts. Only the second part
    /// differs between releases.
    fn load_report_fields(self) -> [&'static [&'static str]; 3] {
        let tokens: &[_] = match self {
            Self::V0_5_9 | Self::V0_5_10 => &["num_used_tokens"],
            Self::V0_5_13 => &["num_waiting_uncached_tokens", "num_used_tokens", "num_total_tokens"],
        };
        [&LOAD, tokens, &LOAD_REST]
    }
}

/// Entry of one request in a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::demo) struct BatchRow<'a> {
    /// Request id, 32 hex digits.
    pub(in crate::demo) rid: &'a str,
    /// `http_worker_ipc` of the tokenizer worker that waits for the request; `None` with a single worker.
    pub(in crate::demo) worker: Option<&'a str>,
    /// Set on the last chunk.
    pub(in crate::demo) finish: Option<Finish>,
    /// Last ids of the prompt, which precede the new ids in `decode_ids`. Empty except in a first chunk.
    pub(in crate::demo) prompt_tail: &'a [i64],
    /// New token ids.
    pub(in crate::demo) ids: &'a [i64],
    /// Text of the ids; unused in the scheduler's batches.
    pub(in crate::demo) text: &'a str,
    /// Length of the prompt.
    pub(in crate::demo) prompt_tokens: u32,
    /// Tokens generated so far, including these.
    pub(in crate::demo) completion_tokens: u32,
    /// Moments of the request at the scheduler; 0 without `--enable-metrics`, from 0.5.10 on.
    pub(in crate::demo) times: EngineSeconds,
    /// The wall clock's lead over the monotonic clock in seconds.
    pub(in crate::demo) wall_clock_lead: f64,
}

/// A request to the scheduler.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::demo) struct RequestRow<'a> {
    /// Request id.
    pub(in crate::demo) rid: &'a str,
    /// `http_worker_ipc` of the tokenizer worker that sends it; `None` with a single worker.
    pub(in crate::demo) worker: Option<&'a str>,
    /// Text of the prompt.
    pub(in crate::demo) text: &'a str,
    /// Token ids of the prompt.
    pub(in crate::demo) prompt: &'a [i64],
    /// When the server saw it, in seconds of the wall clock; only vLLM's message has it.
    pub(in crate::demo) arrived: f64,
    /// Strings that end the response.
    pub(in crate::demo) stop: &'static [&'static str],
    /// Key that separates its prefix cache from others'.
    pub(in crate::demo) extra_key: Option<&'static str>,
}

/// Reason why a request ended, in the form of `finished_reasons`.
#[derive(Clone, Copy, Debug)]
pub(in crate::demo) enum Finish {
    /// `{"type": "length", "length": N}`
    Length(u32),
    /// `{"type": "stop", "matched": id}`
    Stop(i64),
    /// `{"type": "abort", ..}`: the client disconnected.
    Abort,
}

/// Encodes a batch of the class as the pickle that SGLang sends. `is_split` says that a sender has extracted its only row from another
/// batch, and omits empty columns.
pub(in crate::demo) fn encode_batch(
    release: SglangRelease,
    class: Class,
    rows: &[BatchRow<'_>],
    is_split: bool,
) -> Vec<u8> {
    let mut pickler = Pickler::new(PickleStyle::PYTHON);
    let has_load_report = !is_split && (class == Class::TokenIds || release.text_carries_load());
    let columns = Columns { release, rows, is_split, has_load_report };
    // A pickled object is its class with a dict of its fields, each of which is a column: one value per row.
    pickler.instance(IO_STRUCT, CLASSES[class as usize], |pickler| {
        pickler.dict(|pickler| {
            for field in release.fields(class) {
                pickler.text(field);
                columns.write_column(pickler, field);
            }
        });
    });
    pickler.finish()
}

/// Encodes a request to the scheduler as the pickle that SGLang sends.
pub(in crate::demo) fn encode_request(release: SglangRelease, row: &RequestRow<'_>) -> Vec<u8> {
    let mut pickler = Pickler::new(PickleStyle::PYTHON);
    pickler.instance(IO_STRUCT, REQUEST, |pickler| {
        pickler.dict(|pickler| {
            for field in REQUEST_FIELDS[release as usize] {
                pickler.interned(field);
                write_request_field(pickler, release, row, field);
            }
        });
    });
    pickler.finish()
}

/// Writes a field of a request. Fields without a value here are `None`.
fn write_request_field(pickler: &mut Pickler<'_>, release: SglangRelease, row: &RequestRow<'_>, field: &str) {
    match field {
        "rid" => pickler.text(row.rid),
        "http_worker_ipc" => match row.worker {
            Some(worker) => pickler.text(worker),
            None => pickler.none(),
        },
        "input_text" => pickler.text(row.text),
        "input_ids" => write_ids(pickler, release, row.prompt),
        "sampling_params" => {
            pickler.instance(SAMPLING_PARAMS, "SamplingParams", |pickler| write_sampling_params(pickler, row.stop));
        }
        "stream" => pickler.boolean(true),
        "logprob_start_len" => pickler.int(-1),
        "top_logprobs_num" | "routed_experts_start_len" => pickler.int(0),
        "extra_key" => match row.extra_key {
            Some(key) => pickler.interned(key),
            None => pickler.none(),
        },
        "need_wait_for_image" | "need_wait_for_mm_inputs" | "no_logs" | "require_reasoning" => pickler.boolean(false),
        _ if field.starts_with("return_") => pickler.boolean(false),
        _ => pickler.none(),
    }
}

/// Writes the `SamplingParams` of a request for [`MAX_NEW_TOKENS`] tokens with these stop strings.
fn write_sampling_params(pickler: &mut Pickler<'_>, stop: &[&'static str]) {
    pickler.dict(|pickler| {
        write_int(pickler, "max_new_tokens", MAX_NEW_TOKENS);
        pickler.interned("stop_strs");
        pickler.list(stop, |pickler, text| pickler.interned(text));
        write_none_items(pickler, &["stop_token_ids", "stop_regex_strs"]);
        write_float_items(pickler, &[("temperature", 1.0), ("top_p", 1.0)]);
        write_int(pickler, "top_k", TOP_K_ALL);
        write_float_items(pickler, &[("min_p", 0.0), ("frequency_penalty", 0.0), ("presence_penalty", 0.0)]);
        write_float_items(pickler, &[("repetition_penalty", 1.0)]);
        write_int(pickler, "min_new_tokens", 0);
        write_none_items(pickler, &["regex"]);
        write_int(pickler, "n", 1);
        write_none_items(pickler, &["json_schema", "ebnf", "structural_tag"]);
        let flags = [
            ("ignore_eos", false),
            ("skip_special_tokens", true),
            ("spaces_between_special_tokens", true),
            ("no_stop_trim", false),
        ];
        for (name, value) in flags {
            pickler.interned(name);
            pickler.boolean(value);
        }
        write_none_items(pickler, &["custom_params", "stream_interval", "logit_bias", "sampling_seed"]);
    });
}

/// Writes an item of a dict.
fn write_int(pickler: &mut Pickler<'_>, name: &'static str, value: i64) {
    pickler.interned(name);
    pickler.int(value);
}

/// Writes items of a dict.
fn write_float_items(pickler: &mut Pickler<'_>, items: &[(&'static str, f64)]) {
    for &(name, value) in items {
        pickler.interned(name);
        pickler.float(value);
    }
}

/// Writes items of a dict whose value is `None`.
fn write_none_items(pickler: &mut Pickler<'_>, names: &[&'static str]) {
    for &name in names {
        pickler.interned(name);
        pickler.none();
    }
}

/// Writes a list of ids as this release does: packed, or one by one.
fn write_ids(pickler: &mut Pickler<'_>, release: SglangRelease, ids: &[i64]) {
    if release.packs_ids() {
        pickler.array(ids);
    } else {
        pickler.list(ids, |pickler, id| pickler.int(*id));
    }
}

/// Parameters that determine the content of columns.
struct Columns<'a> {
    release: SglangRelease,
    rows: &'a [BatchRow<'a>],
    is_split: bool,
    has_load_report: bool,
}

impl Columns<'_> {
    /// Writes the column of this name. Columns that this server leaves unset (logprobs, hidden states etc.) are `None` as a whole.
    fn write_column(&self, pickler: &mut Pickler<'_>, field: &str) {
        match field {
            "rids" => self.write_each(pickler, |pickler, row| pickler.text(row.rid)),
            // A split batch omits empty columns.
            "http_worker_ipcs" if self.is_split && self.rows.iter().all(|row| row.worker.is_none()) => pickler.none(),
            "http_worker_ipcs" => self.write_each(pickler, |pickler, row| match row.worker {
                Some(worker) => pickler.text(worker),
                None => pickler.none(),
            }),
            "finished_reasons" => self.write_each(pickler, |pickler, row| write_finish_reason(pickler, row.finish)),
            "decoded_texts" => self.write_each(pickler, |pickler, _| pickler.interned("")),
            // Python has only one empty string, so the pickle refers to it.
            "output_strs" => self.write_each(pickler, |pickler, row| {
                if row.text.is_empty() {
                    pickler.interned("");
                } else {
                    pickler.text(row.text);
                }
            }),
            "decode_ids" => {
                // The detokenizer needs the end of the prompt before the first new ids. Later chunks have no prompt tail.
                self.write_each(pickler, |pickler, row| {
                    write_ids(pickler, self.release, &[row.prompt_tail, row.ids].concat());
                });
            }
            "output_ids" => self.write_each(pickler, |pickler, row| write_ids(pickler, self.release, row.ids)),
            "read_offsets" => self.write_each(pickler, |pickler, _| pickler.int(READ_OFFSET as i64)),
            "skip_special_tokens" | "spaces_between_special_tokens" => {
                self.write_each(pickler, |pickler, _| pickler.boolean(true));
            }
            "no_stop_trim" => self.write_each(pickler, |pickler, _| pickler.boolean(false)),
            "prompt_tokens" => self.write_each(pickler, |pickler, row| pickler.int(row.prompt_tokens.into())),
            "completion_tokens" => self.write_each(pickler, |pickler, row| pickler.int(row.completion_tokens.into())),
            "cached_tokens" | "reasoning_tokens" | "retraction_counts" | "dp_ranks" => {
                self.write_each(pickler, |pickler, _| pickler.int(0));
            }
            "queue_time" => {
                self.write_each(pickler, |pickler, row| pickler.float(row.times.batch_entered - row.times.queued));
            }
            "forward_entry_time" => self.write_each(pickler, |pickler, row| pickler.float(row.times.batch_entered)),
            "prefill_launch_delay" | "prefill_launch_latency" | "prefill_finished_ts" | "cached_tokens_details" => {
                self.write_each(pickler, |pickler, _| pickler.none());
            }
            "time_stats" => self.write_each(pickler, |pickler, row| {
                pickler.instance(TIME_STATS, "SchedulerReqTimeStats", |pickler| self.write_times(pickler, row));
            }),
            "customized_info" => pickler.empty_dict(),
            "load" if self.has_load_report => self.write_load_report(pickler),
            // The demo does not decode speculatively.
            _ if field.starts_with("spec_") && !self.is_split => write_empty_list(pickler),
            _ => pickler.none(),
        }
    }

    fn write_each(&self, pickler: &mut Pickler<'_>, cell: impl Fn(&mut Pickler<'_>, &BatchRow<'_>)) {
        pickler.list(self.rows, cell);
    }

    /// Writes the content of `SchedulerReqTimeStats`.
    fn write_times(&self, pickler: &mut Pickler<'_>, row: &BatchRow<'_>) {
        // A server without metrics keeps no times.
        if row.times == EngineSeconds::default() {
            return pickler.empty_dict();
        }
        pickler.dict(|pickler| {
            for name in self.release.time_stat_names() {
                pickler.interned(name);
                pickler.float(match *name {
                    "wait_queue_entry_time" => row.times.queued,
                    "forward_entry_time" => row.times.batch_entered,
                    "prefill_finished_time" => row.times.prefill_finished,
                    "diff_realtime_monotonic" => row.wall_clock_lead,
                    // A time that the demo does not simulate.
                    _ => 0.0,
                });
            }
        });
    }

    /// Writes `GetLoadsReqOutput`, the scheduler's load report, which contains zeros on a server without metrics.
    fn write_load_report(&self, pickler: &mut Pickler<'_>) {
        pickler.instance(IO_STRUCT, "GetLoadsReqOutput", |pickler| {
            pickler.dict(|pickler| {
                for field in ["rid", "http_worker_ipc"] {
                    pickler.text(field);
                    pickler.none();
                }
                for field in self.release.load_report_fields().into_iter().flatten() {
                    pickler.text(field);
                    pickler.int(0);
                }
                for field in ["memory", "speculative", "lora", "disaggregation", "queues"] {
                    pickler.text(field);
                    pickler.none();
                }
            });
        });
    }
}

fn write_empty_list(pickler: &mut Pickler<'_>) {
    pickler.list::<()>(&[], |_, ()| {});
}

/// Writes the dict that SGLang sends as the reason of a request's end; `None` in a chunk that is not the last.
fn write_finish_reason(pickler: &mut Pickler<'_>, finish: Option<Finish>) {
    let Some(finish) = finish else { return pickler.none() };
    pickler.dict(|pickler| {
        // The pickle has an interned string only once, and refers to it later, because Python does so with its literals.
        pickler.interned("type");
        pickler.interned(match finish {
            Finish::Length(_) => "length",
            Finish::Stop(_) => "stop",
            Finish::Abort => "abort",
        });
        // The other keys, each with its value.
        match finish {
            Finish::Length(length) => {
                pickler.interned("length");
                pickler.int(length.into());
            }
            Finish::Stop(id) => {
                pickler.interned("matched");
                pickler.int(id);
            }
            Finish::Abort => {
                pickler.interned("message");
                pickler.text("AbortReq from client");
                pickler.interned("status_code");
                pickler.none();
                pickler.interned("err_type");
                pickler.none();
            }
        }
    });
}
