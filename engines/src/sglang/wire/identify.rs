//! Identification of a message's class and layout.

use super::arena::Node;
use super::columns::Rowwise;
use super::doc::Doc;
use super::schema::{self, Columns, Form, Layout};
use super::{Limits, Undecoded, not_a_codec};
use crate::msgpack::{self, Head};
use trace::event::Kind;

/// Python module of all message classes.
const MODULE: &[u8] = b"sglang.srt.managers.io_struct";

/// Result of matching a message's class and fields.
pub(super) enum Found {
    Listed(&'static Layout),
    /// The newest known layout of the class is used instead. Fields are found by name or by their stable positions.
    Unlisted(&'static Layout, Columns),
}

impl Found {
    pub(super) fn layout(&self) -> &'static Layout {
        match self {
            Self::Listed(layout) | Self::Unlisted(layout, _) => layout,
        }
    }

    pub(super) fn columns(&self) -> &Columns {
        match self {
            Self::Listed(layout) => &layout.columns,
            Self::Unlisted(_, columns) => columns,
        }
    }
}

/// Finds class and fields of a pickled message. Tries `last` first, since a hop normally carries one class of one release.
pub(super) fn pickled(
    doc: Doc<'_>,
    mut value: Node,
    rows: &mut Rowwise,
    last: Option<&'static Layout>,
) -> Result<Found, Undecoded> {
    let mut wrapped = false;
    loop {
        let (class, form, state) = instance(doc, value)?;
        if !spread(doc, state, rows) {
            return Err(Undecoded::Malformed { at: 0, what: "an object whose state is not a dict" });
        }
        let found = by_names(doc, (class, form), &rows.names, last)?;
        let inner = found.columns().wrapped.and_then(|place| rows.values.get(usize::from(place)));
        match inner {
            // MultiTokenizerWrapper, misspelt Warpper in 0.5.2rc0 to 0.5.2rc2. A wrapper inside a wrapper is not unpacked.
            Some(inner) if !wrapped && found.layout().class.starts_with("MultiTokenizerW") => {
                value = *inner;
                wrapped = true;
            }
            _ => return Ok(found),
        }
    }
}

/// Class and state of a message: `Class()` with a state dict, or msgspec's `rebuild(Class, dict)`.
fn instance(doc: Doc<'_>, value: Node) -> Result<(&[u8], Form, Node), Undecoded> {
    let (class, form, state) = match value {
        Node::Object(id) => match doc.object(id) {
            (b"msgspec._utils", b"rebuild", object) => {
                let mut args = doc.items(object.args).into_iter().flatten();
                (args.next(), Form::Struct, args.next().unwrap_or(Node::Nil))
            }
            (_, _, object) => (Some(object.callable), Form::Dataclass, object.state),
        },
        _ => (None, Form::Dataclass, Node::Nil),
    };
    match class.and_then(|class| doc.global(class)) {
        Some((MODULE, name)) => Ok((name, form, state)),
        Some((module, name)) => Err(unknown(&[module, b".", name].concat())),
        None => Err(Undecoded::Malformed { at: 0, what: "the pickle holds no message object" }),
    }
}

/// Splits a state dict into its fields. Returns false for any other value. An object without fields has no state.
fn spread(doc: Doc<'_>, state: Node, rows: &mut Rowwise) -> bool {
    rows.names.clear();
    rows.values.clear();
    if let Some(pairs) = doc.pairs(state) {
        rows.names.extend(pairs.iter().map(|[name, _]| *name));
        rows.values.extend(pairs.iter().map(|[_, value]| *value));
        return true;
    }
    let Some(mut entries) = doc.entries(state) else {
        return doc.is_nil(state);
    };
    while let (Some(name), Some(value)) = (entries.next(), entries.next()) {
        rows.names.push(name);
        rows.values.push(value);
    }
    true
}

/// Finds the layout of `class` with these field names in this order.
fn by_names(
    doc: Doc<'_>,
    (class, form): (&[u8], Form),
    names: &[Node],
    last: Option<&'static Layout>,
) -> Result<Found, Undecoded> {
    let fits = |layout: &&Layout| {
        let equal = |(field, name): (&&str, &Node)| doc.text_equals(*name, field.as_bytes());
        layout.form == form && layout.has_fields(names.len()) && layout.fields.iter().zip(names).all(equal)
    };
    if let Some(layout) = last.filter(|last| last.class.as_bytes() == class).filter(fits) {
        return Ok(Found::Listed(layout));
    }
    let layouts = schema::layouts(class);
    match (layouts.iter().find(fits), layouts.last()) {
        (Some(layout), _) => Ok(Found::Listed(layout)),
        (None, Some(newest)) => {
            let names = names.iter().map(|name| doc.string(*name).unwrap_or_default());
            Ok(Found::Unlisted(newest, Columns::find(names)))
        }
        (None, None) => Err(unknown(class)),
    }
}

/// Finds class and fields of a msgpack message: an array of the class name and its fields in order.
pub(super) fn packed(message: &[u8], values: &mut Vec<Node>, limits: &Limits) -> Result<Found, Undecoded> {
    let Some((Head::Array { len }, at)) = msgpack::head(message, 0) else {
        return Err(Undecoded::Truncated { at: 0 });
    };
    let (class, mut at) = match msgpack::head(message, at) {
        Some((Head::Str { end }, start)) if len > 0 => (&message[start..end], end),
        Some(_) => return Err(not_a_codec(message)),
        None => return Err(Undecoded::Truncated { at }),
    };
    let layouts = schema::layouts(class);
    let newest = layouts.last().filter(|layout| layout.form == Form::Struct).ok_or_else(|| unknown(class))?;
    let fields = len as usize - 1;
    if fields > limits.items {
        return Err(Undecoded::Limit { limit: "items", value: limits.items });
    }
    for _ in 0..fields {
        values.push(Node::Pack(at as u32));
        at = msgpack::skip(message, at)?;
    }
    if at != message.len() {
        return Err(Undecoded::Malformed { at, what: "data after the end of the message" });
    }
    // If several layouts have the same length, use the newest. They differ only in names, which msgpack does not carry.
    let mut fitting = layouts.iter().rev().filter(|layout| layout.form == Form::Struct);
    match fitting.find(|layout| layout.has_fields(fields)) {
        Some(layout) => Ok(Found::Listed(layout)),
        // The first fields of a batch have had the same positions since 0.5.15, and their columns are validated as usual.
        None if matches!(newest.kind, Kind::TokenIds | Kind::Text) && fields >= 14 => {
            Ok(Found::Unlisted(newest, newest.columns))
        }
        None => Err(Undecoded::Layout { class: newest.class, fields, what: "another number of fields" }),
    }
}

fn unknown(class: &[u8]) -> Undecoded {
    let class = String::from_utf8_lossy(class).chars().take(120).collect();
    Undecoded::UnknownClass { class }
}
