//! One file per command, with its flags and their execution.

#[cfg(target_os = "linux")]
pub(crate) mod attach;
#[cfg(target_os = "linux")]
pub(crate) mod broker;
pub(crate) mod bundle;
pub(crate) mod decode;
#[cfg(target_os = "linux")]
pub(crate) mod demo;
pub(crate) mod diff;
#[cfg(target_os = "linux")]
pub(crate) mod doctor;
pub(crate) mod export;
pub(crate) mod generate;
#[cfg(target_os = "linux")]
pub(crate) mod guard;
pub(crate) mod import;
#[cfg(target_os = "linux")]
pub(crate) mod locator;
#[cfg(target_os = "linux")]
pub(crate) mod opener;
#[cfg(target_os = "linux")]
pub(crate) mod pick;
#[cfg(target_os = "linux")]
pub(crate) mod prober;
pub(crate) mod replay;
pub(crate) mod report;
#[cfg(target_os = "linux")]
pub(crate) mod run;
pub(crate) mod saved;
#[cfg(target_os = "linux")]
pub(crate) mod splice;
#[cfg(all(target_os = "linux", feature = "python-stacks"))]
pub(crate) mod stacks;
#[cfg(target_os = "linux")]
pub(crate) mod tap;
pub(crate) mod watch;
