//! Messages from the run to the feed's thread, in order.

use std::sync::mpsc::Sender;

use trace::record::{Closing, OpenBlock};
use trace::report::Report;

use crate::image::Image;

pub(super) enum Job {
    Block(Box<OpenBlock>),
    /// State for watchers that wait for one.
    Start(Box<Start>),
    About(Box<Closing>),
    Report(Box<Report>),
    /// The last state. The feed's thread replies when every watcher has received the end.
    End(Box<Start>, Sender<()>),
}

/// The state and the number of the next record.
pub(super) struct Start {
    pub(super) record: u64,
    pub(super) closing: Closing,
    pub(super) image: Option<Image>,
    pub(super) history: Option<Image>,
}
