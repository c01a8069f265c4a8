//! Tables of the report that Markdown and HTML have in common.

use trace::words::{bytes, count, decimal_percent, duration, known_or_dash, percent};

use super::hostile::escape_and_cut_line as escape_line;
use super::path::PathRow;
use super::stages::StageTable;
use super::{Clock, HopLine, LossList, PairLegLine, PairRequestLine, Report, StackLine, TtftGroupLine, text};

/// Content of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CellKind {
    Text,
    /// Aligned to the right.
    Number,
    /// A request id, or another long name without spaces.
    Rid,
    Hop,
}

use CellKind::{Hop, Number, Rid, Text};

/// A table of unescaped cells.
pub(crate) struct Table<'a, const N: usize, C = String> {
    pub(super) columns: [(&'a str, CellKind); N],
    pub(super) rows: Vec<[C; N]>,
}

/// Head and kind of a column, and the cell of an item in it.
type Column<'a, 'c, T, C> = (&'a str, CellKind, &'c dyn Fn(T) -> C);

impl<'a, const N: usize, C> Table<'a, N, C> {
    /// A table with a row for each item.
    pub(crate) fn new<T: Copy>(items: impl IntoIterator<Item = T>, columns: [Column<'a, '_, T, C>; N]) -> Self {
        let rows = items.into_iter().map(|item| columns.map(|(_, _, cell)| cell(item))).collect();
        Self { columns: columns.map(|(head, kind, _)| (head, kind)), rows }
    }
}

/// Table of the `max_requests` worst requests that lost tokens, each with at most `max_ranges` ranges of lost positions and as many token
/// ids. The others are counted.
pub(super) fn loss_table(list: &LossList, clock: &Clock, max_requests: usize, max_ranges: usize) -> Table<'static, 7> {
    Table::new(
        list.lines.iter().take(max_requests),
        [
            ("Request", Rid, &|line| line.rid.clone()),
            ("Tokens sent", Number, &|line| count(line.tokens_sent)),
            ("Delivered", Number, &|line| known_or_dash(line.tokens_delivered, count)),
            ("Lost", Number, &|line| count(line.tokens)),
            ("Chunks", Number, &|line| count(line.chunks)),
            ("First and last loss", Number, &|line| line.describe_loss_times(clock)),
            ("Positions in the output, from 1", Text, &|line| {
                let ids = line.list_and_count_ids(max_ranges);
                let ids_text = if ids.is_empty() { String::new() } else { format!(" (ids {ids})") };
                line.list_and_count_positions(max_ranges) + &ids_text
            }),
        ],
    )
}

/// Table of the legs, the parts of the time to first token, of a group of requests with the same observed moments.
pub(super) fn ttft_table(group: &TtftGroupLine) -> Table<'static, 7> {
    Table::new(
        &group.legs,
        [
            ("Leg", Text, &|leg| leg.words.clone()),
            ("Share", Number, &|leg| percent(leg.share)),
            ("Last 10 s", Number, &|leg| known_or_dash(leg.recent_share, percent)),
            ("Mean", Number, &|leg| duration(leg.mean_ns)),
            ("p50", Number, &|leg| duration(leg.ns.p50)),
            ("p99", Number, &|leg| duration(leg.ns.p99)),
            ("max", Number, &|leg| duration(leg.ns.max)),
        ],
    )
}

/// Table of the legs, the parts of the time to first token, on both servers of a pair.
pub(super) fn pair_table(legs: &[PairLegLine]) -> Table<'static, 6> {
    Table::new(
        legs,
        [
            ("Leg", Text, &|leg| leg.words.clone()),
            ("Share", Number, &|leg| percent(leg.share)),
            ("Mean", Number, &|leg| duration(leg.mean_ns)),
            ("p50", Number, &|leg| duration(leg.ns.p50)),
            ("p99", Number, &|leg| duration(leg.ns.p99)),
            ("max", Number, &|leg| duration(leg.ns.max)),
        ],
    )
}

/// The `max_requests` slowest requests of a pair, each with its legs on both servers.
pub(super) fn pair_request_table(slowest: &[PairRequestLine], clock: &Clock, max_requests: usize) -> Table<'static, 5> {
    Table::new(
        slowest.iter().take(max_requests),
        [
            ("Request", Rid, &|line| line.decode_rid.clone()),
            ("On the prefill server", Rid, &|line| line.prefill_rid.clone()),
            ("Began", Number, &|line| line.describe_ttft_begin(clock)),
            ("TTFT", Number, &|line| duration(line.ttft_ns)),
            ("Its legs, in order", Text, &|line| line.describe_legs()),
        ],
    )
}

/// Table of the path: first the hops that carry requests, then the legs of a chunk's way, which are hops and the processes between them.
pub(super) fn path_table(report: &Report) -> Table<'static, 6> {
    Table::new(
        &PathRow::all_rows(report),
        [
            ("Leg", Text, &|row| row.words()),
            ("First tokens", Number, &|row| known_or_dash(row.first_token_share, percent)),
            ("Chunks", Number, &|row| known_or_dash(row.share, percent)),
            ("Mean per chunk", Number, &|row| known_or_dash(row.mean_ns, duration)),
            ("Receiver busy, of the run", Number, &|row| known_or_dash(row.busy, percent)),
            ("Its thread while frames wait", Text, &|row| row.thread.clone()),
        ],
    )
}

/// Table of the hops; `None` if there are none.
pub(super) fn hop_table(report: &Report) -> Option<Table<'static, 12>> {
    let table = Table::new(
        &report.hops,
        [
            ("Hop", Hop, &|hop| {
                let receivers = text::describe_receivers(hop);
                let receivers_text = receivers.map_or_else(String::new, |receivers| format!(" ({receivers})"));
                hop.name.clone() + &receivers_text
            }),
            ("Frames sent", Number, &|hop| known_or_dash(hop.frames_sent, count)),
            ("Received", Number, &|hop| known_or_dash(hop.frames_received, count)),
            ("Chunks", Number, &HopLine::chunk_count),
            ("Bytes", Number, &|hop| bytes(hop.bytes)),
            ("Backlog, max", Number, &|hop| known_or_dash(hop.backlog_max_frames, count)),
            ("In libzmq's inbox, max", Number, &|hop| known_or_dash(hop.inbox_max_frames, count)),
            ("In the kernel, max", Number, &|hop| known_or_dash(hop.kernel_bytes_max, bytes)),
            ("Queue wait p50", Number, &|hop| known_or_dash(hop.queue_wait_ns, |wait| duration(wait.p50))),
            ("p99", Number, &|hop| known_or_dash(hop.queue_wait_ns, |wait| duration(wait.p99))),
            ("max", Number, &|hop| known_or_dash(hop.queue_wait_ns, |wait| duration(wait.max))),
            ("Frames per wakeup, max", Number, &|hop| known_or_dash(hop.wakeup_frames_max.map(u64::from), count)),
        ],
    );
    if report.hops.is_empty() { None } else { Some(table) }
}

/// Table of the time use of the engine's threads; `None` if none was sampled.
pub(super) fn cpu_table(report: &Report) -> Option<Table<'static, 6>> {
    let lines = report.cpu.as_ref().filter(|lines| !lines.is_empty())?;
    Some(Table::new(
        lines,
        [
            ("Thread", Text, &|line| format!("{} {}/{} {}", line.role, line.pid, line.tid, escape_line(&line.name))),
            ("On a CPU", Number, &|line| known_or_dash(line.on_cpu, decimal_percent)),
            ("Waiting for a CPU", Number, &|line| known_or_dash(line.run_wait, decimal_percent)),
            ("Throttled", Number, &|line| known_or_dash(line.throttled, decimal_percent)),
            ("Away from its poll", Number, &|line| known_or_dash(line.away_from_poll, decimal_percent)),
            ("Receives frames", Text, &|line| String::from(if line.receives { "yes" } else { "no" })),
        ],
    ))
}

/// Table of the `max_functions` Python functions in which a role's threads ran most.
pub(super) fn function_table(role: &StackLine, max_functions: usize) -> Table<'static, 5> {
    Table::new(
        role.functions.iter().take(max_functions),
        [
            ("Function", Rid, &|function| function.function.clone()),
            ("File", Rid, &|function| function.file.clone()),
            ("Innermost", Number, &|function| percent(function.all.own)),
            ("Anywhere", Number, &|function| percent(function.all.total)),
            ("Innermost while frames piled up", Number, &|function| {
                known_or_dash(function.growing, |share| percent(share.own))
            }),
        ],
    )
}

/// Table of the stages of a request, by the engine's log.
pub(super) fn stage_table(request: &StageTable, clock: &Clock) -> Table<'static, 7> {
    Table::new(
        &request.stages,
        [
            ("Stage", Rid, &|row| format!("{}{}", row.stage, if row.out_of_order { " (out of order)" } else { "" })),
            ("By", Text, &|row| row.by.clone()),
            ("At", Number, &|row| clock.describe_moment(row.at_ns)),
            ("Since the previous", Number, &|row| known_or_dash(row.delta_ns, duration)),
            ("Tokens", Number, &|row| known_or_dash(row.tokens.map(u64::from), count)),
            ("Pending", Number, &|row| known_or_dash(row.pending.map(u64::from), count)),
            ("States", Number, &|row| known_or_dash(row.states.map(u64::from), count)),
        ],
    )
}
