//! State of the screen: its data ([`Model`]) and the user's position in it ([`ui::Ui`]). Independent of the terminal.

#[macro_use]
mod labelled;

pub(crate) mod action;
#[cfg(test)]
mod agreement;
pub(crate) mod curves;
mod evidence;
pub(crate) mod fate;
pub(crate) mod flags;
mod hops;
pub(crate) mod model;
pub(crate) mod pick;
pub(crate) mod pinned;
pub(crate) mod pods;
pub(crate) mod query;
pub(crate) mod refresh;
pub(crate) mod request;
pub(crate) mod row;
#[cfg(test)]
pub(crate) mod scene;
pub(crate) mod table;
pub(crate) mod threads;
pub(crate) mod ui;

pub(crate) use model::Model;
