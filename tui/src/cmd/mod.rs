//! One file a command: its flags and what it does with them.

#[cfg(target_os = "linux")]
pub(crate) mod attach;
pub(crate) mod decode;
#[cfg(target_os = "linux")]
pub(crate) mod demo;
pub(crate) mod diff;
pub(crate) mod export;
pub(crate) mod generate;
pub(crate) mod import;
#[cfg(target_os = "linux")]
pub(crate) mod pick;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod saved;
#[cfg(target_os = "linux")]
pub(crate) mod tap;
