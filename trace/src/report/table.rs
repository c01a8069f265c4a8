//! Tables of the report that Markdown and HTML have in common.

use super::hostile::plain;
use super::stages::StageTable;
use super::{Clock, LegLine, LossList, Report, Spread, StackLine, path_text};
use crate::words::{bytes, count, duration, known, percent};

/// Content of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    /// Aligned to the right.
    Number,
    /// A request id, or another long name without spaces.
    Rid,
    Hop,
}

use Kind::{Hop, Number, Rid, Text};

/// A table of unescaped cells.
pub(super) struct Table<const N: usize> {
    pub(super) columns: [(&'static str, Kind); N],
    pub(super) rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    fn new(columns: [(&'static str, Kind); N], rows: impl Iterator<Item = [String; N]>) -> Self {
        let rows = rows.collect();
        Self { columns, rows }
    }
}

/// The `limit` worst requests that lost tokens, each with as many `places`.
pub(super) fn losses(list: &LossList, limit: usize, places: usize) -> Table<6> {
    let columns = [
        ("Request", Rid),
        ("Tokens sent", Number),
        ("Delivered", Number),
        ("Lost", Number),
        ("Chunks", Number),
        ("Positions in the output, from 1", Text),
    ];
    let rows = list.lines.iter().take(limit).map(|line| {
        let ids = Some(line.ids(places)).filter(|ids| !ids.is_empty());
        [
            line.rid.clone(),
            count(line.tokens_sent),
            known(line.tokens_delivered, count),
            count(line.tokens),
            count(line.chunks),
            line.places(places) + &ids.map_or_else(String::new, |ids| format!(" (ids {ids})")),
        ]
    });
    Table::new(columns, rows)
}

/// Attribution of first tokens' and chunks' time.
pub(super) fn path(legs: &[LegLine]) -> Table<6> {
    let columns = [
        ("Leg", Text),
        ("First tokens", Number),
        ("Chunks", Number),
        ("Mean per chunk", Number),
        ("Receiver busy", Number),
        ("Its thread while frames wait", Text),
    ];
    let rows = legs.iter().map(|leg| {
        [
            leg.words(),
            known(leg.first_token_share, percent),
            percent(leg.share),
            duration(leg.mean_ns),
            known(leg.busy, percent),
            leg.thread.map_or("", super::ThreadState::as_str).to_owned(),
        ]
    });
    Table::new(columns, rows)
}

pub(super) fn hops(report: &Report) -> Option<Table<12>> {
    let columns = [
        ("Hop", Hop),
        ("Frames sent", Number),
        ("Received", Number),
        ("Chunks", Number),
        ("Bytes", Number),
        ("Backlog, max", Number),
        ("In libzmq's inbox, max", Number),
        ("In the kernel, max", Number),
        ("Queue wait p50", Number),
        ("p99", Number),
        ("max", Number),
        ("Frames per wakeup, max", Number),
    ];
    let rows = report.hops.iter().map(|hop| {
        let queue_wait = |of: fn(&Spread) -> u64| known(hop.queue_wait_ns.as_ref().map(of), duration);
        let workers = path_text::behind(hop).map_or_else(String::new, |workers| format!(" ({workers})"));
        [
            hop.name.clone() + &workers,
            known(hop.frames_sent, count),
            known(hop.frames_received, count),
            count(hop.chunks),
            bytes(hop.bytes),
            known(hop.backlog_max_frames, count),
            known(hop.inbox_max_frames, count),
            known(hop.kernel_bytes_max, bytes),
            queue_wait(|s| s.p50),
            queue_wait(|s| s.p99),
            queue_wait(|s| s.max),
            known(hop.wakeup_frames_max.map(u64::from), count),
        ]
    });
    (!report.hops.is_empty()).then(|| Table::new(columns, rows))
}

pub(super) fn cpu(report: &Report) -> Option<Table<6>> {
    let lines = report.cpu.as_ref().filter(|lines| !lines.is_empty())?;
    let columns = [
        ("Thread", Text),
        ("On a CPU", Number),
        ("Waiting for a CPU", Number),
        ("Throttled", Number),
        ("Away from its poll", Number),
        ("Receives frames", Text),
    ];
    let rows = lines.iter().map(|line| {
        let share = |of: Option<f64>| known(of, |share| format!("{:.1} %", 100.0 * share));
        [
            format!("{} {}/{} {}", line.role, line.pid, line.tid, plain(&line.name)),
            share(line.on_cpu),
            share(line.run_wait),
            share(line.throttled),
            share(line.away_from_poll),
            String::from(if line.receives { "yes" } else { "" }),
        ]
    });
    Some(Table::new(columns, rows))
}

/// The `limit` Python functions in which a role's threads ran most.
pub(super) fn functions(role: &StackLine, limit: usize) -> Table<5> {
    let columns = [
        ("Function", Rid),
        ("File", Rid),
        ("Innermost", Number),
        ("Anywhere", Number),
        ("Innermost while frames piled up", Number),
    ];
    let rows = role.functions.iter().take(limit).map(|function| {
        [
            function.function.clone(),
            function.file.clone(),
            percent(function.all.own),
            percent(function.all.total),
            known(function.growing, |share| percent(share.own)),
        ]
    });
    Table::new(columns, rows)
}

/// A request of the engine's log, stage by stage.
pub(super) fn stages(request: &StageTable, clock: &Clock) -> Table<7> {
    let columns = [
        ("Stage", Rid),
        ("By", Text),
        ("At", Number),
        ("Since the previous", Number),
        ("Tokens", Number),
        ("Pending", Number),
        ("States", Number),
    ];
    let rows = request.stages.iter().map(|row| {
        [
            format!("{}{}", row.stage, if row.out_of_order { " (out of order)" } else { "" }),
            row.by.clone(),
            clock.time_of_day(row.at_ns).unwrap_or_else(|| duration(row.at_ns)),
            known(row.delta_ns, duration),
            known(row.tokens.map(u64::from), count),
            known(row.pending.map(u64::from), count),
            known(row.states.map(u64::from), count),
        ]
    });
    Table::new(columns, rows)
}
