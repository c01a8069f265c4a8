//! Attributes in OTLP/JSON, where 64-bit integers are strings.

use crate::export::json::{Array, Object};

pub(super) fn attribute(list: &mut Array<'_>, key: &str, value: impl FnOnce(&mut Object<'_>)) {
    list.object(|o| {
        o.text("key", key).object("value", value);
    });
}

pub(super) fn text(list: &mut Array<'_>, key: &str, value: &str) {
    attribute(list, key, |v| {
        v.text("stringValue", value);
    });
}

pub(super) fn int(list: &mut Array<'_>, key: &str, value: Option<impl Into<u64>>) {
    if let Some(value) = value {
        attribute(list, key, |v| {
            v.int_text("intValue", value.into());
        });
    }
}

pub(super) fn flag(list: &mut Array<'_>, key: &str, value: bool) {
    attribute(list, key, |v| {
        v.flag("boolValue", value);
    });
}
