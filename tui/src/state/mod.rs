//! What the screen shows ([`Model`]) and where the reader is in it ([`ui::Ui`]). Nothing here knows a terminal.

pub(crate) mod flags;
pub(crate) mod history;
pub(crate) mod journal;
pub(crate) mod model;
pub(crate) mod query;
pub(crate) mod request;
pub(crate) mod row;
pub(crate) mod table;
pub(crate) mod ui;
pub(crate) mod units;

pub(crate) use model::Model;
