//! Identification of a message's class and layout.

use super::arena::Node;
use super::columns::RowBuffers;
use super::doc::Doc;
use super::schema::{self, ColumnIndices, MessageForm, MessageLayout};
use super::{Limits, Undecoded, not_a_codec};
use crate::msgpack::{self, Head, NextOffset};
use trace::event::Kind;

/// Python module of all message classes.
pub(super) const MODULE: &[u8] = b"sglang.srt.managers.io_struct";

/// Result of matching a message's class and fields.
pub(super) enum FoundLayout {
    Listed(&'static MessageLayout),
    /// The newest known layout of the class is used instead. Fields are found by name or by their stable positions.
    Unlisted(&'static MessageLayout, ColumnIndices),
}

impl FoundLayout {
    /// The layout of the message. If it is not listed, this is the newest listed layout of its class.
    pub(super) fn layout(&self) -> &'static MessageLayout {
        match self {
            Self::Listed(layout) | Self::Unlisted(layout, _) => layout,
        }
    }

    /// Positions of the fields that are read.
    pub(super) fn columns(&self) -> &ColumnIndices {
        match self {
            Self::Listed(layout) => &layout.columns,
            Self::Unlisted(_, columns) => columns,
        }
    }
}

/// Finds class and layout of a pickled message. For a wrapper, which is a message with another one inside, finds those of the inner
/// message. Leaves the fields in `rows`. Tries the layout `last_layout` first, since a connection normally carries one class of one
/// release.
pub(super) fn identify_pickle(
    doc: Doc<'_>,
    mut value: Node,
    rows: &mut RowBuffers,
    last_layout: Option<&'static MessageLayout>,
) -> Result<FoundLayout, Undecoded> {
    let mut is_unpacked = false;
    loop {
        let PickledObject { class, form, state } = split_message_object(doc, value)?;
        let is_valid_state = try_split_state_into(doc, state, rows);
        if !is_valid_state {
            return Err(Undecoded::Malformed { at: 0, what: "an object whose state is not a dict" });
        }
        let found = find_layout(doc, class, form, &rows.names, last_layout)?;
        match message_in_wrapper(&found, &rows.values) {
            // A wrapper inside a wrapper is not unpacked.
            Some(inner) if !is_unpacked => {
                value = inner;
                is_unpacked = true;
            }
            _ => return Ok(found),
        }
    }
}

/// The message inside a wrapper with these field values. `None` for a message of another class.
#[inline]
fn message_in_wrapper(found: &FoundLayout, values: &[Node]) -> Option<Node> {
    // MultiTokenizerWrapper, misspelt Warpper in 0.5.2rc0 to 0.5.2rc2.
    let is_wrapper = found.layout().class.starts_with("MultiTokenizerW");
    if !is_wrapper {
        return None;
    }
    values.get(usize::from(found.columns().wrapped?)).copied()
}

/// A message object in a pickle.
struct PickledObject<'a> {
    class: &'a [u8],
    form: MessageForm,
    state: Node,
}

/// Splits a message into its class and its state. It is either `Class()` with a state dict, or msgspec's `rebuild(Class, dict)`.
fn split_message_object(doc: Doc<'_>, value: Node) -> Result<PickledObject<'_>, Undecoded> {
    let no_object = || Undecoded::Malformed { at: 0, what: "the pickle holds no message object" };
    let Node::Object(id) = value else { return Err(no_object()) };
    let object = doc.named_call(id);
    let is_struct = object.module == b"msgspec._utils" && object.class_name == b"rebuild";
    let (class, form, state) = if is_struct {
        // The class and its fields are the arguments of `rebuild`.
        let mut args = doc.list_items(object.call.args).into_iter().flatten();
        (args.next(), MessageForm::Struct, args.next().unwrap_or(Node::Nil))
    } else {
        (Some(object.call.callable), MessageForm::Dataclass, object.call.state)
    };
    // All classes of messages are in one module.
    match class.and_then(|class| doc.module_and_name(class)) {
        Some((MODULE, name)) => Ok(PickledObject { class: name, form, state }),
        Some((module, name)) => Err(unknown_class(&[module, b".", name].concat())),
        None => Err(no_object()),
    }
}

/// Splits a state dict into the names and values of `rows`. Returns whether the value is a state: a dict, or nil for an object without
/// fields.
fn try_split_state_into(doc: Doc<'_>, state: Node, rows: &mut RowBuffers) -> bool {
    rows.names.clear();
    rows.values.clear();
    // Nearly every state is read in one piece and lies in consecutive cells.
    if let Some(pairs) = doc.contiguous_dict_pairs(state) {
        rows.names.extend(pairs.iter().map(|[name, _]| *name));
        rows.values.extend(pairs.iter().map(|[_, value]| *value));
        return true;
    }
    let Some(mut entries) = doc.dict_entries(state) else { return doc.is_nil(state) };
    while let (Some(name), Some(value)) = (entries.next(), entries.next()) {
        rows.names.push(name);
        rows.values.push(value);
    }
    true
}

/// Finds the layout of `class_name` with these field names in this order; `last_layout` is that of the last message. If no release has it,
/// uses the newest layout of the class, and finds the fields that are read by their names.
fn find_layout(
    doc: Doc<'_>,
    class_name: &[u8],
    form: MessageForm,
    field_names: &[Node],
    last_layout: Option<&'static MessageLayout>,
) -> Result<FoundLayout, Undecoded> {
    // Nearly all messages have the layout of the one before.
    if let Some(last_layout) = last_layout
        && last_layout.class.as_bytes() == class_name
        && last_layout.form == form
        && has_field_names(last_layout, doc, field_names)
    {
        return Ok(FoundLayout::Listed(last_layout));
    }
    let layouts = schema::layouts_of_class(class_name);
    for layout in layouts {
        if layout.form == form && has_field_names(layout, doc, field_names) {
            return Ok(FoundLayout::Listed(layout));
        }
    }
    // An unknown release.
    let newest = layouts.last().ok_or_else(|| unknown_class(class_name))?;
    let field_names = field_names.iter().map(|name| doc.string_bytes(*name).unwrap_or_default());
    Ok(FoundLayout::Unlisted(newest, ColumnIndices::find(field_names)))
}

/// Whether these are the names of the layout's fields, in its order.
fn has_field_names(layout: &MessageLayout, doc: Doc<'_>, names: &[Node]) -> bool {
    let mut pairs = layout.fields.iter().zip(names);
    layout.has_fields(names.len()) && pairs.all(|(field, name)| doc.text_equals(*name, field.as_bytes()))
}

/// Number of the first fields of a batch whose positions have not changed since msgpack is used.
const STABLE_FIELDS: usize = 14;

/// The beginning of a msgpack message.
struct MsgpackHead<'a> {
    class: &'a [u8],
    /// Number of fields.
    fields: usize,
    /// Offset of the first field.
    fields_at: usize,
}

/// Reads the beginning of a msgpack message, which is an array of the class name and the fields.
fn read_msgpack_head(message: &[u8]) -> Result<MsgpackHead<'_>, Undecoded> {
    let Some((Head::Array { len }, at)) = msgpack::read_head(message, 0) else {
        return Err(Undecoded::Truncated { at: 0 });
    };
    match msgpack::read_head(message, at) {
        Some((Head::Str { end }, start)) if len > 0 => {
            // The class name is no field.
            let fields = len as usize - 1;
            Ok(MsgpackHead { class: &message[start..end], fields, fields_at: end })
        }
        Some(_) => Err(not_a_codec(message)),
        None => Err(Undecoded::Truncated { at }),
    }
}

/// Finds class and layout of a msgpack message by its class name and its number of fields. Leaves the fields in `values`, in their order.
pub(super) fn identify_msgpack(
    message: &[u8],
    values: &mut Vec<Node>,
    limits: &Limits,
) -> Result<FoundLayout, Undecoded> {
    let MsgpackHead { class, fields, fields_at } = read_msgpack_head(message)?;
    let layouts = schema::layouts_of_class(class);
    // Only structs are sent as msgpack.
    let newest =
        layouts.last().filter(|layout| layout.form == MessageForm::Struct).ok_or_else(|| unknown_class(class))?;
    if fields > limits.items {
        return Err(Undecoded::Limit { limit: "items", value: limits.items });
    }
    let end = push_packed_fields(message, fields_at, fields, values)?;
    if end != message.len() {
        return Err(Undecoded::Malformed { at: end, what: "data after the end of the message" });
    }
    // If several layouts have the same length, use the newest. They differ only in names, which msgpack does not carry.
    let mut structs = layouts.iter().rev().filter(|layout| layout.form == MessageForm::Struct);
    if let Some(layout) = structs.find(|layout| layout.has_fields(fields)) {
        return Ok(FoundLayout::Listed(layout));
    }
    // The first fields of a batch have had the same positions since 0.5.15, and their columns are validated as usual.
    let has_stable_fields = matches!(newest.kind, Kind::TokenIds | Kind::Text) && fields >= STABLE_FIELDS;
    if has_stable_fields {
        return Ok(FoundLayout::Unlisted(newest, newest.columns));
    }
    Err(Undecoded::Layout { class: newest.class, fields, what: "another number of fields" })
}

/// Appends the `field_count` values from `at` on to `values`. Returns the end of the last one.
#[inline]
fn push_packed_fields(
    message: &[u8],
    mut at: usize,
    field_count: usize,
    values: &mut Vec<Node>,
) -> Result<NextOffset, Undecoded> {
    for _ in 0..field_count {
        values.push(Node::Pack(at as u32));
        at = msgpack::skip_value(message, at)?;
    }
    Ok(at)
}

/// Error for a class that is in no release, with the first characters of its name.
pub(super) fn unknown_class(class: &[u8]) -> Undecoded {
    const MAX_SHOWN: usize = 120;
    let class = String::from_utf8_lossy(class).chars().take(MAX_SHOWN).collect();
    Undecoded::UnknownClass { class }
}
