//! Which fields a message class has had, release by release.
//!
//! The table is data: `cargo xtask schemas` reads it out of the released wheels. A layout that several releases share
//! is one row, and a message that fits it can be told no finer than that.

use std::sync::LazyLock;

use trace::engine::Waiter;
use trace::event::Kind;

/// How a class was declared, which decides how it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Pickle only.
    Dataclass,
    /// `msgspec.Struct`: pickle or msgpack.
    Struct,
}

/// One layout of one class.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) class: &'static str,
    pub(super) form: Form,
    /// The releases as they are shown: `0.5.9`, `0.5.12..0.5.13.post1`, several spans with commas.
    pub(super) releases: &'static str,
    /// Field names in wire order.
    pub(super) fields: Vec<&'static str>,
    pub(super) columns: Columns,
    pub(super) kind: Kind,
    pub(super) ids: Ids,
    /// What a waiter does in these releases; `None` where they differ.
    pub(super) waiter: Option<Waiter>,
}

/// What a listed `output_ids` column means in a layout's releases. A column may always be absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ids {
    Delta,
    Cumulative,
    /// Both, in different releases of one layout.
    Undecided,
    /// New ids, the first chunk's with the prompt's tail before them in at least one of the releases.
    PromptTail,
}

/// Places of the fields that are read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Columns {
    pub(super) rids: Option<u16>,
    pub(super) finish: Option<u16>,
    pub(super) ids: Option<u16>,
    pub(super) completion: Option<u16>,
    pub(super) prompt: Option<u16>,
    pub(super) cached: Option<u16>,
    pub(super) retractions: Option<u16>,
    pub(super) workers: Option<u16>,
    /// 0.4.0 only: counts and finish reason in a dict per request.
    pub(super) meta: Option<u16>,
    /// A single request's id.
    pub(super) rid: Option<u16>,
    /// 0.5.2 and 0.5.3: the message inside a `MultiTokenizerWrapper`.
    pub(super) wrapped: Option<u16>,
}

impl Columns {
    /// Finds the fields among `names`, in wire order.
    pub(super) fn find<'n>(names: impl Iterator<Item = &'n [u8]>) -> Self {
        let mut columns = Self::default();
        for (place, name) in names.enumerate().take(usize::from(u16::MAX)) {
            let column = match name {
                b"rids" => &mut columns.rids,
                b"finished_reasons" | b"finished_reason" => &mut columns.finish,
                b"output_ids" => &mut columns.ids,
                b"completion_tokens" => &mut columns.completion,
                b"prompt_tokens" => &mut columns.prompt,
                b"cached_tokens" => &mut columns.cached,
                b"retraction_counts" => &mut columns.retractions,
                b"http_worker_ipcs" => &mut columns.workers,
                b"meta_info" => &mut columns.meta,
                b"rid" => &mut columns.rid,
                b"obj" => &mut columns.wrapped,
                _ => continue,
            };
            *column = Some(place as u16);
        }
        columns
    }
}

/// The generated table.
static TEXT: &str = include_str!("schemas.txt");

/// Every known layout, sorted by class, then by release.
pub(super) static TABLE: LazyLock<Vec<Layout>> = LazyLock::new(|| {
    let mut releases = Vec::new();
    let mut table = Vec::new();
    for line in TEXT.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split(' ');
        let (Some(class), Some(form)) = (words.next(), words.next()) else {
            continue;
        };
        if class == "releases" {
            releases = std::iter::once(form).chain(words).collect();
        } else if let Some(span) = words.next() {
            table.push(layout(class, form, span, words.collect(), &releases));
        }
    }
    table
});

/// The layouts of `class`.
pub(super) fn layouts(class: &[u8]) -> &'static [Layout] {
    let from = TABLE.partition_point(|layout| layout.class.as_bytes() < class);
    let to = TABLE.partition_point(|layout| layout.class.as_bytes() <= class);
    &TABLE[from..to]
}

fn layout(class: &'static str, form: &str, span: &'static str, fields: Vec<&'static str>, releases: &[&str]) -> Layout {
    let place = |release: &str| releases.iter().position(|known| *known == release);
    let first = span
        .split(',')
        .next()
        .and_then(|span| span.split("..").next())
        .and_then(place);
    let last = span
        .split(',')
        .next_back()
        .and_then(|span| span.split("..").last())
        .and_then(place);
    let kind = kind_of(class);
    let columns = Columns::find(fields.iter().map(|name| name.as_bytes()));
    let (upto, from) = (|release| last <= place(release), |release| first >= place(release));
    let ids = match kind {
        // The detokenizer passed `decode_ids` on, prompt tail included, from 0.5.0rc0 to 0.5.4.post2 (SGLang PR 12628).
        Kind::Text if from("0.5.5") => Ids::Delta,
        Kind::Text => Ids::PromptTail,
        _ if upto("0.4.6.post3") => Ids::Cumulative,
        _ if from("0.4.6.post4") => Ids::Delta,
        _ => Ids::Undecided,
    };
    let waiter = if upto("0.5.9") {
        Some(Waiter::KeepsLast)
    } else if from("0.5.10") {
        Some(Waiter::Merges)
    } else if from("0.5.10rc0") && upto("0.5.10rc0") {
        Some(Waiter::YieldsAll)
    } else {
        None
    };
    let form = if form == "struct" {
        Form::Struct
    } else {
        Form::Dataclass
    };
    Layout {
        class,
        form,
        releases: span,
        fields,
        columns,
        kind,
        ids,
        waiter,
    }
}

pub(super) fn kind_of(class: &str) -> Kind {
    match class {
        "BatchTokenIDOut" | "BatchTokenIDOutput" => Kind::TokenIds,
        "BatchStrOut" | "BatchStrOutput" => Kind::Text,
        "BatchEmbeddingOut" | "BatchEmbeddingOutput" => Kind::Embedding,
        "BatchMultimodalDecodeReq" | "BatchMultimodalOut" | "BatchMultimodalOutput" => Kind::Multimodal,
        "AbortReq" => Kind::Abort,
        _ => Kind::Control,
    }
}
