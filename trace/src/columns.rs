//! The numbers of a request as columns: of CSV and Parquet, and of the screen's table with its sort orders, filters and help.

use crate::clock::MonoNs;
use crate::ledger::{RequestNumbers, TtftMoment, TtftPath};

/// A number of a request; `None` if it was not observed.
pub type Number = fn(&RequestNumbers) -> Option<u64>;

impl RequestNumbers {
    /// When it arrived or was dispatched; where neither was observed, when it was first seen.
    pub fn began_at(&self) -> MonoNs {
        let first_moment = TtftPath::new(self).moments().next();
        first_moment.map_or(self.first_at, |(_, at)| at.min(self.first_at))
    }
}

/// A number of every request.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Name in exports, with the unit; `None` if no export has it.
    pub name: Option<&'static str>,
    /// Place in the screen's table and its filters; `None` if it has none.
    pub on_screen: Option<OnScreen>,
    /// In nanoseconds, not a count.
    pub is_duration: bool,
    /// The number of a request.
    pub of: Number,
}

/// A column of the screen.
#[derive(Clone, Copy, Debug)]
pub struct OnScreen {
    /// Head of the column, and its name in filters.
    pub head: &'static str,
    /// Explanation for the help.
    pub about: &'static str,
    /// Width in cells; 0 if only filters have the number.
    pub width: u16,
    /// Narrow screens show only the columns with the lowest numbers; 255 if only filters have the number.
    pub need: u8,
    /// How the screen draws it.
    pub emphasis: Emphasis,
}

/// How the screen draws a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emphasis {
    /// Like text.
    None,
    /// Brighter than the others.
    Strong,
    /// As a problem, if it is above 0.
    Problem,
}

const fn count_column(name: &'static str, of: Number) -> Column {
    Column { name: Some(name), on_screen: None, is_duration: false, of }
}

const fn duration_column(name: &'static str, of: Number) -> Column {
    Column { is_duration: true, ..count_column(name, of) }
}

/// Defines the list of columns; those on the screen with head, width, need, emphasis and explanation.
macro_rules! columns {
    ($($column:expr $(=> $head:literal $width:literal $need:literal $emphasis:ident $about:literal)?;)+) => {
        /// All columns, from left to right.
        pub static COLUMNS: &[Column] = &[$(Column {
            $(on_screen: Some(OnScreen {
                head: $head, about: $about, width: $width, need: $need, emphasis: Emphasis::$emphasis,
            }),)?
            ..$column
        }),+];
    };
}

columns! {
    Column { name: None, ..duration_column("", |n| Some(n.last_at.since(n.began_at()))) }
        => "age" 7 9 None "time since it began, or from then until it ended";
    duration_column("gap_ns", |n| n.gap_ns)
        => "gap" 7 2 Strong "first-token gap: received by the tokenizer minus sent by the scheduler; still growing while it waits";
    duration_column("ttft_ns", |n| TtftPath::new(n).ttft_ns())
        => "ttft" 7 8 Strong "time to first token: from the first observed moment of the request to the first token's delivery";
    duration_column("ttft_socket_ns", |n| TtftPath::new(n).leg_ns_from(TtftMoment::Arrived));
    duration_column("ttft_preparation_ns", |n| TtftPath::new(n).leg_ns_from(TtftMoment::Read));
    duration_column("ttft_dispatch_ns", |n| TtftPath::new(n).leg_ns_from(TtftMoment::Dispatched));
    duration_column("ttft_intake_ns", |n| TtftPath::new(n).leg_ns_from(TtftMoment::SchedulerReceived));
    duration_column("ttft_queue_ns", |n| TtftPath::new(n).leg_ns_from(TtftMoment::Queued));
    duration_column("ttft_prefill_ns", |n| TtftPath::new(n).leg_ns_from(TtftMoment::BatchEntered));
    duration_column("ttft_output_ns", |n| TtftPath::new(n).leg_ns_from(TtftMoment::FirstSent));
    duration_column("ttft_processing_ns", |n| TtftPath::new(n).leg_ns_from(TtftMoment::FirstReceived));
    duration_column("ttft_delivery_ns", |n| TtftPath::new(n).leg_ns_from(TtftMoment::Processed));
    duration_column("longest_silence_ns", |n| n.silence_ns)
        => "silence" 7 11 None "longest time between two chunks sent by the scheduler";
    count_column("tokens_sent", |n| Some(n.tokens_sent.into())) => "sent" 6 7 None "tokens that the scheduler sent";
    count_column("tokens_received", |n| n.tokens_received.map(u64::from))
        => "recv" 6 10 None "tokens received by the tokenizer";
    count_column("tokens_delivered", |n| n.tokens_delivered.map(u64::from))
        => "deliv" 6 8 None "tokens delivered to the client";
    count_column("chunks_sent", |n| Some(n.chunks_sent.into())) => "chunks" 6 12 None "chunks that the scheduler sent";
    count_column("chunks_delivered", |n| n.delivered.map(u64::from));
    count_column("chunks_merged", |n| n.merged.map(u64::from))
        => "merged" 6 6 None "chunks delivered merged with a later one";
    count_column("chunks_dropped", |n| n.dropped.map(u64::from))
        => "drop" 5 4 Problem "chunks dropped: later ones were delivered, these were not";
    count_column("chunks_unjudged", |n| n.unjudged.map(u64::from));
    count_column("tokens_lost", |n| n.tokens_lost.map(u64::from))
        => "lost" 5 5 Problem "lost tokens: those of dropped chunks";
    count_column("worker", |n| n.worker.map(u64::from)) => "worker" 7 13 None "tokenizer worker of the request";
    count_column("prompt_tokens", |n| n.prompt_tokens.map(u64::from)) => "prompt" 0 0xff None "";
    count_column("retractions", |n| Some(n.retractions.into())) => "retract" 0 0xff None "";
    count_column("cached_tokens", |n| n.cached_tokens.map(u64::from));
    count_column("tokens_missing_on_wire", |n| Some(n.wire_missing.into()));
    duration_column("itl_client_p50_ns", |n| n.itl.delivered.map(|itl| itl.p50));
    duration_column("itl_client_p90_ns", |n| n.itl.delivered.map(|itl| itl.p90));
    duration_column("itl_client_p99_ns", |n| n.itl.delivered.map(|itl| itl.p99));
    duration_column("itl_sent_p50_ns", |n| n.itl.sent.map(|itl| itl.p50));
    duration_column("itl_sent_p90_ns", |n| n.itl.sent.map(|itl| itl.p90));
    duration_column("itl_sent_p99_ns", |n| n.itl.sent.map(|itl| itl.p99));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::ArrivalTimes;

    #[test]
    fn the_age_counts_from_the_arrival_as_the_begin_does() {
        let arrived = ArrivalTimes { arrived: MonoNs(1_000), read: MonoNs(1_200), connection: None };
        let seen = RequestNumbers { first_at: MonoNs(3_000), last_at: MonoNs(5_000), ..RequestNumbers::default() };
        let age = COLUMNS.iter().find(|column| column.on_screen.is_some_and(|shown| shown.head == "age"));
        let age_of = age.expect("a column").of;
        assert_eq!(age_of(&seen), Some(2_000), "without an arrival, from the first observation");
        assert_eq!(age_of(&RequestNumbers { arrival: Some(Ok(arrived)), ..seen }), Some(4_000));
    }
}
