//! A scheduler step as a message: `BatchTokenIDOutput` from the scheduler, `BatchStrOutput` from the detokenizer.

use super::layout::{Class, Release};
use super::pickle::Pickler;

const IO_STRUCT: &str = "sglang.srt.managers.io_struct";
const TIME_STATS: (&str, &str) = ("sglang.srt.observability.req_time_stats", "SchedulerReqTimeStats");
/// Read offset of the detokenizer, which is the length of the prompt tail in a first chunk.
pub(in crate::demo) const READ_OFFSET: usize = 5;

/// Entry of one request in a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::demo) struct Row<'a> {
    /// Request id, 32 hex digits.
    pub(in crate::demo) rid: &'a str,
    /// `http_worker_ipc` of the tokenizer worker that waits for the request; `None` with a single worker.
    pub(in crate::demo) worker: Option<&'a str>,
    /// Set on the last chunk.
    pub(in crate::demo) finish: Option<Finish>,
    /// Last ids of the prompt, which precede the new ids in `decode_ids`. Empty except in a first chunk.
    pub(in crate::demo) prompt_tail: &'a [u32],
    /// New token ids.
    pub(in crate::demo) ids: &'a [u32],
    /// Text of the ids; unused in the scheduler's batches.
    pub(in crate::demo) text: &'a str,
    /// Length of the prompt.
    pub(in crate::demo) prompt_tokens: u32,
    /// Tokens generated so far, including these.
    pub(in crate::demo) completion_tokens: u32,
}

/// Reason why a request ended, in the form of `finished_reasons`.
#[derive(Clone, Copy, Debug)]
pub(in crate::demo) enum Finish {
    /// `{"type": "length", "length": N}`
    Length(u32),
    /// `{"type": "stop", "matched": id}`
    Stop(u32),
    /// `{"type": "abort", ..}`: the client disconnected.
    Abort,
}

/// Encodes a `BatchTokenIDOutput`. `split` marks a request extracted from a batch by the router, which omits empty columns.
pub(in crate::demo) fn token_batch(release: Release, rows: &[Row<'_>], split: bool) -> Vec<u8> {
    batch(release, Class::TokenIds, rows, split)
}

/// Encodes a `BatchStrOutput`; `split` as in [`token_batch`].
pub(in crate::demo) fn text_batch(release: Release, rows: &[Row<'_>], split: bool) -> Vec<u8> {
    batch(release, Class::Text, rows, split)
}

fn batch(release: Release, class: Class, rows: &[Row<'_>], split: bool) -> Vec<u8> {
    let mut pickler = Pickler::new();
    let columns =
        Columns { release, rows, split, load: !split && (class == Class::TokenIds || release.text_carries_load()) };
    pickler.instance((IO_STRUCT, class.name()), |p| {
        p.dict(|p| {
            for field in release.fields(class) {
                p.text(field);
                columns.write(p, field);
            }
        });
    });
    pickler.finish()
}

/// Parameters that determine the content of columns.
struct Columns<'a> {
    release: Release,
    rows: &'a [Row<'a>],
    split: bool,
    load: bool,
}

impl Columns<'_> {
    /// Writes the named column. Columns this server leaves unset (logprobs, hidden states etc.) are `None` as a whole.
    fn write(&self, p: &mut Pickler, field: &str) {
        match field {
            "rids" => self.each(p, |p, row| p.text(row.rid)),
            "http_worker_ipcs" if self.split && self.rows.iter().all(|row| row.worker.is_none()) => p.none(),
            "http_worker_ipcs" => self.each(p, |p, row| match row.worker {
                Some(worker) => p.text(worker),
                None => p.none(),
            }),
            "finished_reasons" => self.each(p, |p, row| finish(p, row.finish)),
            "decoded_texts" => self.each(p, |p, _| p.interned("")),
            "output_strs" => self.each(p, |p, row| {
                if row.text.is_empty() {
                    p.interned("");
                } else {
                    p.text(row.text);
                }
            }),
            "decode_ids" => self.each(p, |p, row| self.ids(p, &[row.prompt_tail, row.ids].concat())),
            "output_ids" => self.each(p, |p, row| self.ids(p, row.ids)),
            "read_offsets" => self.each(p, |p, _| p.int(READ_OFFSET as u32)),
            "skip_special_tokens" | "spaces_between_special_tokens" => self.each(p, |p, _| p.boolean(true)),
            "no_stop_trim" => self.each(p, |p, _| p.boolean(false)),
            "prompt_tokens" => self.each(p, |p, row| p.int(row.prompt_tokens)),
            "completion_tokens" => self.each(p, |p, row| p.int(row.completion_tokens)),
            "cached_tokens" | "reasoning_tokens" | "retraction_counts" | "dp_ranks" => self.each(p, |p, _| p.int(0)),
            "queue_time" | "forward_entry_time" => self.each(p, |p, _| p.float(0.0)),
            "prefill_launch_delay" | "prefill_launch_latency" | "prefill_finished_ts" | "cached_tokens_details" => {
                self.each(p, |p, _| p.none());
            }
            "time_stats" => self.each(p, |p, _| p.instance(TIME_STATS, Pickler::empty_dict)),
            "customized_info" => p.empty_dict(),
            "load" if self.load => self.load(p),
            _ if field.starts_with("spec_") && !self.split => p.list::<()>(&[], |_, ()| {}),
            _ => p.none(),
        }
    }

    fn each(&self, p: &mut Pickler, cell: impl Fn(&mut Pickler, &Row<'_>)) {
        p.list(self.rows, cell);
    }

    fn ids(&self, p: &mut Pickler, ids: &[u32]) {
        if self.release.packs_ids() {
            p.array(ids);
        } else {
            p.list(ids, |p, id| p.int(*id));
        }
    }

    /// Writes `GetLoadsReqOutput`, the scheduler's load report, which contains zeros on a server without metrics.
    fn load(&self, p: &mut Pickler) {
        p.instance((IO_STRUCT, "GetLoadsReqOutput"), |p| {
            p.dict(|p| {
                for field in ["rid", "http_worker_ipc"] {
                    p.text(field);
                    p.none();
                }
                for field in self.release.load_fields().into_iter().flatten() {
                    p.text(field);
                    p.int(0);
                }
                for field in ["memory", "speculative", "lora", "disaggregation", "queues"] {
                    p.text(field);
                    p.none();
                }
            });
        });
    }
}

fn finish(p: &mut Pickler, finish: Option<Finish>) {
    let Some(finish) = finish else { return p.none() };
    p.dict(|p| {
        p.interned("type");
        match finish {
            Finish::Length(length) => {
                p.interned("length");
                p.interned("length");
                p.int(length);
            }
            Finish::Stop(id) => {
                p.interned("stop");
                p.interned("matched");
                p.int(id);
            }
            Finish::Abort => {
                p.interned("abort");
                p.interned("message");
                p.text("AbortReq from client");
                p.interned("status_code");
                p.none();
                p.interned("err_type");
                p.none();
            }
        }
    });
}
