//! A run of tokengap: the loop that feeds events from a source to the analysis, and to the screen, recordings and telemetry.
//!
//! This crate parses no flags, prints nothing and draws nothing.

mod about;
mod observer;
pub mod own;
pub mod playback;
mod problem;
mod run;
mod session;
mod signals;
pub mod sink;
mod source;
pub mod telemetry;
pub mod time_of_day;
pub mod units;

pub use about::{About, EngineIdentity, OwnUsage};
pub use observer::{NoObserver, Notice, Observer, Run, RunStage, ScreenCommand};
pub use run::{CompareRuns, RunHooks, RunOptions, Running, SHORT_SLEEP, run_sessions};
pub use session::Session;
pub use signals::Signals;
pub use source::{Flow, LiveSource, Source};
