//! The decoder: finds out codec, class and layout of a message, then reads its columns.

use trace::event::{Chunk, IdColumn, Kind};

use super::arena::{Arena, Node};
use super::batch::{self, Batch, Codec, Shape};
use super::columns::{self, Rowwise, Table};
use super::doc::Doc;
use super::msgpack::{self, Head};
use super::schema::{self, Columns, Form, Ids, Layout};
use super::{Limits, Undecoded, not_a_codec, pickle};

/// Python's module of every message class.
const MODULE: &[u8] = b"sglang.srt.managers.io_struct";

/// The label of a layout that is not in the table.
const UNLISTED: &str = "unlisted";

/// Decodes messages one after the other, with the same memory. After a few messages it allocates nothing more.
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    payload: bool,
    arena: Arena,
    scratch: pickle::Scratch,
    rows: Rowwise,
    chunks: Vec<Chunk<'static>>,
    /// The layout of the last message: a hop sends one class of one release.
    last: Option<&'static Layout>,
}

impl Decoder {
    /// A decoder that counts tokens and leaves their ids where they are.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            payload: false,
            arena: Arena::default(),
            scratch: pickle::Scratch::default(),
            rows: Rowwise::default(),
            chunks: Vec::new(),
            last: None,
        }
    }

    /// Fills [`Chunk::ids`], too.
    #[must_use]
    pub fn with_ids(mut self) -> Self {
        self.payload = true;
        self
    }

    /// Reads one message. On error nothing of it is used.
    pub fn decode<'a>(&'a mut self, message: &'a [u8]) -> Result<Batch<'a>, Undecoded> {
        if message.len() > self.limits.message {
            return Err(Undecoded::Limit {
                limit: "message",
                value: self.limits.message,
            });
        }
        let Self {
            limits,
            payload,
            arena,
            scratch,
            rows,
            chunks: home,
            last,
        } = self;
        rows.clear();
        // A pickle begins with 0x80 and ends with its STOP; in msgpack 0x80 is an empty map, never a message.
        let (codec, found) = match message {
            [0x80, .., b'.'] => {
                let (value, protocol) = pickle::load(message, arena, scratch, limits)?;
                let doc = Doc { bytes: message, arena };
                (
                    Codec::Pickle { protocol },
                    pickled(doc, value, &mut rows.values, *last)?,
                )
            }
            [0x80, 2..=5, ..] => return Err(Undecoded::Truncated { at: message.len() }),
            [0x90..=0x9f | 0xdc | 0xdd, ..] => {
                arena.clear();
                (Codec::Msgpack, packed(message, &mut rows.values, limits)?)
            }
            _ => return Err(not_a_codec(message)),
        };
        if let Found::Listed(layout) = found {
            *last = Some(layout);
        }
        let doc = Doc { bytes: message, arena };
        let mut chunks: Vec<Chunk<'a>> = std::mem::take(home);
        let shape = match fill(doc, codec, &found, limits, rows, &mut chunks) {
            Ok(shape) => shape,
            Err(why) => {
                *home = batch::recycle(chunks);
                return Err(why);
            }
        };
        if *payload {
            copy_ids(doc, &rows.listed, &mut rows.ids);
        }
        let Rowwise {
            listed, finished, ids, ..
        } = rows;
        let mut ids = ids.as_slice();
        if *payload {
            for chunk in &mut chunks {
                (chunk.ids, ids) = ids.split_at(chunk.listed.unwrap_or(0) as usize);
            }
        }
        Ok(Batch {
            doc,
            shape,
            chunks,
            home,
            listed,
            finished,
        })
    }
}

/// What a message's class and field names matched.
enum Found {
    Listed(&'static Layout),
    /// The class's newest known layout stands in; the fields were found by name or by their stable places.
    Unlisted(&'static Layout, Columns),
}

/// Class and fields of a pickled message.
fn pickled(
    doc: Doc<'_>,
    mut value: Node,
    values: &mut Vec<Node>,
    last: Option<&'static Layout>,
) -> Result<Found, Undecoded> {
    let mut wrapped = false;
    loop {
        let (class, form, state) = instance(doc, value)?;
        values.clear();
        if !columns::spread(doc, state, values) {
            return Err(Undecoded::Malformed {
                at: 0,
                what: "an object without fields",
            });
        }
        let found = name_layout(doc, (class, form), state, values.len(), last)?;
        let columns = found.columns();
        match columns.wrapped.and_then(|place| values.get(usize::from(place))) {
            Some(inner) if !wrapped && found.layout().class.starts_with("MultiTokenizerW") => {
                value = *inner;
                wrapped = true;
            }
            _ => return Ok(found),
        }
    }
}

/// The class of a message and its state: `Class()` with a state dict, or msgspec's `rebuild(Class, dict)`.
fn instance(doc: Doc<'_>, value: Node) -> Result<(&[u8], Form, Node), Undecoded> {
    let nothing = Undecoded::Malformed {
        at: 0,
        what: "the pickle holds no message object",
    };
    let Node::Object(id) = value else { return Err(nothing) };
    let (module, name, object) = doc.object(id);
    let (module, name, form, state) = if module == b"msgspec._utils" && name == b"rebuild" {
        let mut args = doc.items(object.args).ok_or(nothing.clone())?;
        let (class, state) = (args.next().ok_or(nothing.clone())?, args.next().ok_or(nothing.clone())?);
        let (module, name) = doc.global(class).ok_or(nothing)?;
        (module, name, Form::Struct, state)
    } else {
        (module, name, Form::Dataclass, object.state)
    };
    if module == MODULE {
        Ok((name, form, state))
    } else {
        Err(unknown(&[module, b".", name].concat()))
    }
}

/// The layout whose field names are those of `state`, in order.
fn name_layout(
    doc: Doc<'_>,
    (class, form): (&[u8], Form),
    state: Node,
    fields: usize,
    last: Option<&'static Layout>,
) -> Result<Found, Undecoded> {
    let fits = |layout: &Layout| {
        layout.form == form
            && layout.fields.len() == fields
            && columns::keys(doc, state)
                .zip(&layout.fields)
                .all(|(key, field)| key == field.as_bytes())
    };
    if let Some(layout) = last
        && layout.class.as_bytes() == class
        && fits(layout)
    {
        return Ok(Found::Listed(layout));
    }
    let layouts = schema::layouts(class);
    if let Some(layout) = layouts.iter().find(|layout| fits(layout)) {
        return Ok(Found::Listed(layout));
    }
    let newest = layouts.last().ok_or_else(|| unknown(class))?;
    Ok(Found::Unlisted(newest, Columns::find(columns::keys(doc, state))))
}

/// Class and fields of a msgpack message: an array of the class name and its fields in order.
fn packed(message: &[u8], values: &mut Vec<Node>, limits: &Limits) -> Result<Found, Undecoded> {
    let Some((Head::Array { len }, at)) = msgpack::head(message, 0) else {
        return Err(Undecoded::Truncated { at: 0 });
    };
    let (class, mut at) = match msgpack::head(message, at) {
        Some((Head::Str { end }, start)) => (&message[start..end], end),
        Some(_) => return Err(not_a_codec(message)),
        None => return Err(Undecoded::Truncated { at }),
    };
    let layouts = schema::layouts(class);
    let newest = layouts
        .last()
        .filter(|layout| layout.form == Form::Struct)
        .ok_or_else(|| unknown(class))?;
    let fields = len as usize - 1;
    if fields > limits.items {
        return Err(Undecoded::Limit {
            limit: "items",
            value: limits.items,
        });
    }
    for _ in 0..fields {
        values.push(Node::Pack(at as u32));
        at = msgpack::skip(message, at)?;
    }
    if at != message.len() {
        return Err(Undecoded::Malformed {
            at,
            what: "bytes after the end of the message",
        });
    }
    // Of several layouts of one length the newest: those differ in names only, which msgpack does not carry.
    let mut fitting = layouts.iter().rev().filter(|layout| layout.form == Form::Struct);
    match fitting.find(|layout| layout.fields.len() == fields) {
        Some(layout) => Ok(Found::Listed(layout)),
        // The first fields of a batch have kept their places since 0.5.15; the columns are checked like any other.
        None if matches!(newest.kind, Kind::TokenIds | Kind::Text) && fields >= 14 => {
            Ok(Found::Unlisted(newest, newest.columns))
        }
        None => Err(Undecoded::Layout {
            class: newest.class,
            fields,
            what: "another number of fields",
        }),
    }
}

impl Found {
    fn layout(&self) -> &'static Layout {
        match self {
            Self::Listed(layout) | Self::Unlisted(layout, _) => layout,
        }
    }

    fn columns(&self) -> &Columns {
        match self {
            Self::Listed(layout) => &layout.columns,
            Self::Unlisted(_, columns) => columns,
        }
    }
}

/// Reads the columns into `chunks`.
fn fill<'a>(
    doc: Doc<'a>,
    codec: Codec,
    found: &Found,
    limits: &Limits,
    rows: &mut Rowwise,
    chunks: &mut Vec<Chunk<'a>>,
) -> Result<Shape, Undecoded> {
    let (layout, columns) = (found.layout(), found.columns());
    let Rowwise {
        values,
        listed,
        finished,
        ..
    } = rows;
    let table = Table {
        doc,
        class: layout.class,
        columns,
        values,
        limits,
    };
    let mut ids = IdColumn::Absent;
    match layout.kind {
        Kind::Control => {}
        Kind::Abort => table.aborted(chunks)?,
        Kind::TokenIds | Kind::Text | Kind::Embedding | Kind::Multimodal => {
            if columns.rids.is_none() {
                return Err(table.unfit("no rids"));
            }
            table.requests(chunks)?;
            table.counts(chunks, finished)?;
            if table.listed(chunks, listed)? || chunks.is_empty() {
                ids = column(layout.ids, chunks);
            }
        }
    }
    let generates = matches!(layout.kind, Kind::TokenIds | Kind::Text);
    if generates && !chunks.is_empty() && chunks.iter().any(|chunk| chunk.completion_tokens.is_none()) {
        return Err(table.unfit("no completion_tokens"));
    }
    if generates && finished.len() != chunks.len() {
        return Err(table.unfit("no finished_reasons"));
    }
    let (schema, waiter) = match found {
        Found::Listed(layout) => (layout.releases, layout.waiter),
        Found::Unlisted(..) => (UNLISTED, None),
    };
    Ok(Shape {
        class: layout.class,
        codec,
        schema,
        kind: layout.kind,
        ids,
        waiter,
    })
}

/// What the id column means here: what the layout says, and where that says two things, what this frame proves.
fn column(ids: Ids, chunks: &[Chunk<'_>]) -> IdColumn {
    match ids {
        Ids::Delta => IdColumn::Delta,
        Ids::Cumulative => IdColumn::Cumulative,
        Ids::PromptTail => IdColumn::DeltaAfterPromptTail,
        // A cumulative list is as long as its count says, always.
        Ids::Undecided if chunks.iter().any(|chunk| chunk.listed < chunk.completion_tokens) => IdColumn::Delta,
        Ids::Undecided => IdColumn::Undecided,
    }
}

fn copy_ids(doc: Doc<'_>, listed: &[Node], ids: &mut Vec<i64>) {
    for node in listed {
        if let Some((tokens, _)) = super::Tokens::of(doc, *node) {
            ids.extend(tokens);
        }
    }
}

fn unknown(class: &[u8]) -> Undecoded {
    let class = String::from_utf8_lossy(class).chars().take(120).collect();
    Undecoded::UnknownClass { class }
}
