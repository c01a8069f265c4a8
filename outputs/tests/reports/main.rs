//! Reports, comparisons and time series of runs that are made of events.

mod bottleneck;
mod diff;
mod hostile;
mod judged;
mod pair_report;
mod report;
mod requests;
mod series;
mod uncounted;

#[path = "../../../recording/tests/common/events.rs"]
mod any_event;
#[path = "../../../trace/tests/common/engine.rs"]
mod engine;
#[path = "../../../trace/tests/common/pair.rs"]
mod pair_events;
#[path = "../../../trace/tests/common/path.rs"]
mod path;
