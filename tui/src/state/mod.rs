//! State of the screen: its data ([`Model`]) and the user's position in it ([`ui::Ui`]). Independent of the terminal.

#[macro_use]
mod labelled;

pub(crate) mod action;
pub(crate) mod chunk_status;
pub(crate) mod curves;
pub(crate) mod filter;
pub(crate) mod finding_requests;
pub(crate) mod flags;
mod hop_ends;
mod hops;
pub(crate) mod model;
pub(crate) mod picker;
pub(crate) mod pinned;
pub(crate) mod pods;
pub(crate) mod receiver_changes;
pub(crate) mod refresh;
pub(crate) mod request_detail;
pub(crate) mod request_facts;
pub(crate) mod request_row;
pub(crate) mod request_table;
mod row_writer;
pub(crate) mod run_time;
pub(crate) mod saved_filter;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod threads;
pub(crate) mod ui;
mod unobserved;
pub(crate) mod waiting;

pub(crate) use model::Model;
