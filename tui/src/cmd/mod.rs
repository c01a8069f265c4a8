//! One file a command: its flags and what it does with them.

pub(crate) mod attach;
pub(crate) mod decode;
pub(crate) mod demo;
pub(crate) mod diff;
pub(crate) mod export;
pub(crate) mod guard;
pub(crate) mod import;
pub(crate) mod pick;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod saved;
pub(crate) mod splice;
pub(crate) mod tap;
