//! What the run hands to the feed's thread, in order.

use std::sync::mpsc::Sender;

use trace::record::{Closing, OpenBlock};
use trace::report::Report;

use crate::image::Image;

pub(super) enum Job {
    Block(Box<OpenBlock>),
    /// For those who wait for a state.
    Start(Box<Start>),
    About(Box<Closing>),
    Report(Box<Report>),
    /// The last state. Answered when the end has reached everybody.
    End(Box<Start>, Sender<()>),
}

/// The state, and the record that comes next.
pub(super) struct Start {
    pub(super) record: u64,
    pub(super) closing: Closing,
    pub(super) image: Option<Image>,
    pub(super) history: Option<Image>,
}
