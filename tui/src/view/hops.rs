//! Hops tab: one line per hop, and details of the selected one (queue wait, wakeups, backlog over time, workers).

use session::units::{format_bytes, format_count, format_duration, format_rate_per_second, known_or_dash};
use trace::stats::Spread;
use trace::time_series::SlotValues;
use trace::words::{percent, plural};

use super::chart::{self, ChartSeries, SeriesNumbers, TimeWindow};
use super::pad::{CellRow, List, NextRow, Pad, text_width};
use super::path;
use crate::state::Model;
use crate::state::action::Tab;
use crate::state::flags::Health;
use crate::state::model::{HopMember, HopSummary, QUEUE_WAIT_BOUNDS_NS};
use crate::state::ui::Ui;
use crate::theme::Ink;

/// Hops that the list shows at least.
const MIN_LISTED_HOPS: u16 = 4;
/// Cells for the name of a fact about a hop, and first cell of its text.
const FACT_NAME_WIDTH: u16 = 14;
const FACT_X: u16 = 15;
/// Index of the first class of waits above one second, behind the bound of one second.
const FIRST_CLASS_ABOVE_1_S: usize = 5;
/// Cells for the labels of the histogram bars.
const BAR_LABEL_WIDTH: u16 = 8;
/// First cell of the histogram bars, behind their labels.
const BAR_X: u16 = 10;
/// Cells of the longest histogram bar.
const MAX_BAR_WIDTH: u16 = 24;
/// Minimum cells of a time series: its name and numbers.
const MIN_TREND_WIDTH: u16 = 26;
/// Rows of the heading and the facts of a hop, and one above them.
const FACT_ROWS: usize = 10;
/// Cells for the name of a worker, and first cell of its numbers behind a short name.
const MEMBER_NAME_WIDTH: u16 = 14;
const MEMBER_NUMBERS_X: u16 = 16;
/// Minimum cells of an endpoint that tell it from others.
const MIN_ENDPOINT_WIDTH: u16 = 12;
/// First cell of the time series on a screen narrower than [`WIDE_COLUMNS`], right of the longest bar of the histogram with its number.
const NARROW_TREND_X: u16 = 45;
/// From this width on, the time series have the right half of the screen.
const WIDE_COLUMNS: u16 = 120;
/// Rows of one time series, of which the first is its title and the last its time axis.
const TREND_ROWS: u16 = 9;
const TITLE_AND_AXIS_ROWS: u16 = 2;

/// Draws the table of hops, the connections between the engine's processes, with the workers of the selected hop, and its details below.
pub(super) fn draw_hops_tab(pad: &mut Pad<'_>, model: &Model, ui: &Ui) {
    if model.hops.is_empty() {
        pad.draw_text(2, 1, "no hop observed yet", Ink::Dim);
        return;
    }
    let layout = HopTableLayout::for_width(pad.width(), &model.hops);
    let knows_rates = model.hops.iter().any(|hop| hop.rates.is_some());
    let heading = if knows_rates { format!("hop, rates of {}", model.format_rate_window()) } else { "hop".to_owned() };
    pad.draw_text(3, 0, &heading, Ink::Dim);
    let headings = layout.columns.iter().map(|column| column.heading);
    pad.draw_cells(layout.number_cells(0), headings, Ink::Dim);
    // The other rows are for the details of the selected hop.
    let max_items = (pad.height() / 3).max(MIN_LISTED_HOPS);
    let selected = ui.selected_index(Tab::Hops);
    let list = List { items: &model.hops, selected, max_items };
    let y = pad.draw_list(1, &list, |pad, y, index, hop| {
        draw_hop(pad, y, hop, &layout);
        if index == selected && hop.members.len() > 1 {
            // The hops behind this one in the list keep their rows.
            let hops_below = model.hops.len() - index - 1;
            draw_receiving_workers(pad, y + 1, hop, max_members(pad, y + 1, hops_below, ui))
        } else {
            y + 1
        }
    });
    if let Some(hop) = model.hops.get(selected) {
        // All rows that are left below the table.
        let height = pad.height();
        draw_hop_detail(&mut pad.pad_of_rows(y + 1, height), hop, model, ui);
    }
}

struct HopColumn {
    heading: &'static str,
    format: fn(&HopSummary) -> String,
    /// Columns with the lowest priority are hidden to make room for long names. The detail below still shows them for the selected hop.
    priority: HopColumnPriority,
}

/// Chunks per second; `none` for a hop to the scheduler, which carries requests and no chunks.
fn format_chunk_rate(hop: &HopSummary) -> String {
    if hop.carries_requests {
        "none".to_owned()
    } else {
        known_or_dash(hop.rates, |rates| format_rate_per_second(rates.chunks))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum HopColumnPriority {
    HiddenFirst,
    HiddenSecond,
    HiddenThird,
    Always,
}

const COLUMNS: [HopColumn; 7] = [
    HopColumn {
        heading: "frame/s",
        format: |hop| known_or_dash(hop.rates, |rates| format_rate_per_second(rates.frames)),
        priority: HopColumnPriority::Always,
    },
    HopColumn { heading: "chunk/s", format: format_chunk_rate, priority: HopColumnPriority::HiddenSecond },
    HopColumn {
        heading: "byte/s",
        format: |hop| known_or_dash(hop.rates, |rates| format_bytes(rates.bytes as u64)),
        priority: HopColumnPriority::HiddenFirst,
    },
    HopColumn {
        heading: "backlog",
        format: |hop| known_or_dash(hop.backlog_frames, format_count),
        priority: HopColumnPriority::Always,
    },
    HopColumn {
        heading: "run max",
        format: |hop| known_or_dash(hop.backlog_max_frames, format_count),
        priority: HopColumnPriority::HiddenThird,
    },
    HopColumn {
        heading: "run p50",
        format: |hop| known_or_dash(hop.queue_wait, |wait| format_duration(wait.p50)),
        priority: HopColumnPriority::Always,
    },
    HopColumn {
        heading: "run p99",
        format: |hop| known_or_dash(hop.queue_wait, |wait| format_duration(wait.p99)),
        priority: HopColumnPriority::Always,
    },
];
const NUMBER_WIDTH: u16 = 8;
/// Cells for the name if all names are short.
const MIN_NAME_WIDTH: u16 = 21;
/// First cell of the name if no sign has brackets.
const NAME_X: u16 = 3;

/// Division of the width between names and numbers.
struct HopTableLayout {
    /// First cell of the names: behind the widest sign, which has brackets if the problem of a hop is over.
    name_x: u16,
    name_width: u16,
    columns: Vec<&'static HopColumn>,
}

impl HopTableLayout {
    /// Hides columns for which the screen has no room beside the names, the least important first. Names that are still too long are cut.
    fn for_width(width: u16, hops: &[HopSummary]) -> Self {
        let name_widths = hops.iter().map(|hop| text_width(&hop.ends.from) + 1 + text_width(&hop.ends.to));
        let longest_name = name_widths.max().unwrap_or(0).max(MIN_NAME_WIDTH);
        let mut columns: Vec<&HopColumn> = COLUMNS.iter().collect();
        // A column is hidden if the names would get less than this width. The last one stays as long as shortened names have room.
        let hidden_in_order = [
            (HopColumnPriority::HiddenFirst, longest_name),
            (HopColumnPriority::HiddenSecond, longest_name),
            (HopColumnPriority::HiddenThird, MIN_NAME_WIDTH),
        ];
        for (hidden, min_name_width) in hidden_in_order {
            if Self::width_for_name(width, columns.len()) < min_name_width {
                columns.retain(|column| column.priority != hidden);
            }
        }
        let free_width = Self::width_for_name(width, columns.len());
        let name_width = longest_name.min(free_width.max(MIN_NAME_WIDTH));
        let has_brackets = hops.iter().any(|hop| hop.has_recovered);
        Self { name_x: NAME_X + u16::from(has_brackets), name_width, columns }
    }

    fn width_for_name(width: u16, column_count: usize) -> u16 {
        width.saturating_sub(NAME_X + NUMBER_WIDTH * column_count as u16)
    }

    fn number_cells(&self, y: u16) -> CellRow {
        CellRow { x: NAME_X + self.name_width, y, pitch: NUMBER_WIDTH, width: NUMBER_WIDTH }
    }
}

/// Draws a hop in one row: health, name and numbers.
fn draw_hop(pad: &mut Pad<'_>, y: u16, hop: &HopSummary, layout: &HopTableLayout) {
    let sign_x = u16::from(!hop.has_recovered);
    pad.draw_text(sign_x, y, &path::problem_sign(hop.health, hop.has_recovered, pad.theme), Ink::Health(hop.health));
    let name = format!("{}{}{}", hop.ends.from, pad.theme.rich_or_ascii("→", ">"), hop.ends.to);
    // If some sign has brackets, names begin further right, and are cut to end at the same column.
    let name_width = NAME_X + layout.name_width - layout.name_x;
    pad.draw_clipped(layout.name_x, y, name_width, &name, Ink::Strong);
    let numbers = layout.columns.iter().map(|column| (column.format)(hop));
    pad.draw_cells(layout.number_cells(y), numbers, Ink::Plain);
}

/// Hop with the worst health, of several the one with the oldest waiting frame; `None` without hops.
pub(super) fn worst_hop(model: &Model) -> Option<&HopSummary> {
    model.hops.iter().max_by_key(|hop| (hop.health, hop.oldest_wait_ns, hop.backlog_frames))
}

/// Draws the facts about a hop in rows of their own, and below them the histogram of queue waits, if it is known, with the time series
/// beside it.
fn draw_hop_detail(pad: &mut Pad<'_>, hop: &HopSummary, model: &Model, ui: &Ui) {
    pad.draw_heading(0, &format!("{} {} {}", hop.ends.from, pad.theme.rich_or_ascii("→", "->"), hop.ends.to));
    let mut y = 1;
    for HopFact { name, text } in hop_facts(hop, model) {
        pad.draw_clipped(1, y, FACT_NAME_WIDTH, name, Ink::Head);
        // As everywhere on the screen, `-` stands for what is not observed.
        if text == "-" {
            pad.draw_text(FACT_X, y, "not observed here", Ink::Dim);
        } else {
            pad.draw_whole_items(FACT_X, y, &text, Ink::Plain);
        }
        y += 1;
    }
    if hop.undecoded > 0 {
        pad.draw_text(1, y, &describe_undecoded(hop), Ink::Health(Health::Warning));
        y += 1;
    }
    if hop.queue_wait_histogram.is_empty() {
        return;
    }
    let trend_x = if pad.width() >= WIDE_COLUMNS { pad.width() / 2 } else { NARROW_TREND_X };
    if pad.width() >= trend_x + MIN_TREND_WIDTH {
        draw_trends(pad, trend_x, y, hop, model, ui);
    } else {
        pad.draw_at_right_edge(y, "curves: enlarge ", Ink::Dim);
    }
    draw_histogram(pad, y, hop);
}

/// A line of a hop's details; the text `-` stands for one that is not observed.
struct HopFact {
    name: &'static str,
    text: String,
}

/// Number of frames that were not decoded, with the reasons.
fn describe_undecoded(hop: &HopSummary) -> String {
    let reasons = hop.undecoded_reasons.iter().map(|(reason, frames)| format!("{reason} {}", format_count(*frames)));
    let reasons: Vec<String> = reasons.collect();
    format!("cannot decode {} frames: {}", format_count(hop.undecoded), reasons.join(", "))
}

/// The lines of a hop's details, in their order.
fn hop_facts(hop: &HopSummary, model: &Model) -> Vec<HopFact> {
    let per_wakeup = known_or_dash(hop.wakeup_frames_max, |frames| format!("up to {}", plural(frames, "frame")));
    let mut facts = vec![HopFact { name: "passed", text: describe_passed_traffic(hop, model) }];
    // Most hops have neither of these, so they have no lines that say so.
    if hop.send_wait.is_some() {
        facts.push(HopFact { name: "in the sender", text: known_or_dash(hop.send_wait, format_quantiles) });
    }
    if hop.relay_delay.is_some() {
        facts.push(HopFact { name: "in the relay", text: known_or_dash(hop.relay_delay, format_quantiles) });
    }
    facts.extend([
        HopFact { name: "queue wait", text: describe_queue_wait(hop) },
        HopFact { name: "processing", text: describe_processing(hop) },
        HopFact { name: "thread", text: hop.thread.clone().unwrap_or_else(|| "-".to_owned()) },
        HopFact { name: "per wakeup", text: per_wakeup },
        HopFact { name: "kernel queue", text: describe_receiver_queues(hop, model) },
        HopFact { name: "oldest", text: describe_oldest_wait(hop, model) },
    ]);
    facts
}

/// Describes what passed the hop. If the observation of its sends has ended, adds since when: the hop has no rates from then on.
fn describe_passed_traffic(hop: &HopSummary, model: &Model) -> String {
    let content =
        if hop.carries_requests { "requests".to_owned() } else { format!("{} chunks", format_count(hop.chunks)) };
    let passed = format!("{} frames  {content}  {}", format_count(hop.frames), format_bytes(hop.bytes));
    match model.sends_end {
        Some(end) if hop.observes_sends => format!("{passed}  {}", model.describe_observation_end(end)),
        _ => passed,
    }
}

/// Text of the queue wait. A hop whose receives are observed may have had none yet.
fn describe_queue_wait(hop: &HopSummary) -> String {
    // Only observed receives show a backlog.
    let observes_receives = hop.backlog_max_frames.is_some();
    match hop.queue_wait {
        None if observes_receives => "nothing received yet".to_owned(),
        queue_wait => known_or_dash(queue_wait, format_quantiles),
    }
}

/// Text of the quantiles of durations.
fn format_quantiles(spread: Spread) -> String {
    format!(
        "p50 {}  p90 {}  p99 {}  max {}",
        format_duration(spread.p50),
        format_duration(spread.p90),
        format_duration(spread.p99),
        format_duration(spread.max)
    )
}

/// Busy share of the receivers and processing time per frame. The share comes first, because it shows whether the receivers are the limit.
fn describe_processing(hop: &HopSummary) -> String {
    let busy = hop.busy_share.map(|busy| format!("busy {} of the run", percent(busy)));
    let times = hop.processing_time.map(format_quantiles);
    let known: Vec<String> = busy.into_iter().chain(times).collect();
    if known.is_empty() { "-".to_owned() } else { known.join("  ") }
}

/// Age of the oldest waiting frame; `none` without one, `-` if unknown. If the observation of receives has ended, says since when instead.
pub(super) fn describe_oldest_wait(hop: &HopSummary, model: &Model) -> String {
    if let Some(end) = hop.receives_end {
        return format!("receives are {}", model.describe_observation_end(end));
    }
    if hop.backlog_frames == Some(0) {
        return "none".to_owned();
    }
    match hop.oldest_wait_ns {
        Some(0) => "sent just now".to_owned(),
        wait_ns => known_or_dash(wait_ns, format_duration),
    }
}

/// Describes the two places where frames wait for the receivers. The kernel queue is the bytes in their socket buffers. The inbox is the
/// frames that libzmq has read from these buffers, and the receivers have not. It can hold the backlog while the kernel queue is empty.
fn describe_receiver_queues(hop: &HopSummary, model: &Model) -> String {
    let kernel_queue = known_or_dash(hop.kernel_queue, |queue| {
        let current = match queue.ended_at {
            Some(end) => format!("not sampled since {}", model.format_moment(end.since(model.started_at))),
            None if model.is_at_end() => format!("{} at the end", format_bytes(queue.current)),
            None => format!("{} now", format_bytes(queue.current)),
        };
        format!("{current}, max {}", format_bytes(queue.max))
    });
    match hop.inbox_max_frames {
        Some(frames) => format!("{kernel_queue}  libzmq's inbox max {}", plural(frames, "frame")),
        None => kernel_queue,
    }
}

/// Draws a bar for each class of queue waits, from row `y` on. A class is the frames whose waits lie between two bounds.
fn draw_histogram(pad: &mut Pad<'_>, y: u16, hop: &HopSummary) {
    let title_end = pad.draw_text(1, y, "frames by queue wait", Ink::Head);
    // At least 1, because the bars are shares of it.
    let max = hop.queue_wait_histogram.iter().copied().max().unwrap_or(0).max(1);
    let classes = hop.queue_wait_histogram.iter().copied().enumerate();
    let rows = usize::from(pad.height().saturating_sub(y + 1));
    // A low screen has no room for empty classes.
    let shows_all = classes.len() <= rows;
    let shown: Vec<(usize, u64)> = classes.filter(|(_, frames)| shows_all || *frames > 0).collect();
    let hidden = shown.len().saturating_sub(rows);
    if hidden > 0 {
        pad.draw_text(title_end + 1, y, &format!("{hidden} more: enlarge"), Ink::Dim);
    }
    if shown.is_empty() {
        pad.draw_text(BAR_X, y + 1, "none received", Ink::Dim);
    }
    // The first classes are hidden, because the longest waits matter most.
    for (class_y, &(class, frames)) in (y + 1..).zip(&shown[hidden..]) {
        draw_wait_class(pad, class_y, class, frames, max);
    }
}

/// Draws the class of queue waits with this index in one row: its upper bound, a bar, and its frames. The longest bar stands for
/// `max_frames`.
fn draw_wait_class(pad: &mut Pad<'_>, y: u16, class_index: usize, frames: u64, max_frames: u64) {
    let label = match QUEUE_WAIT_BOUNDS_NS.get(class_index) {
        Some(&bound) => format!("<{}", format_duration(bound)),
        None => "more".into(),
    };
    pad.draw_right_aligned(1, y, BAR_LABEL_WIDTH, &label, Ink::Dim);
    let cells = (u128::from(frames) * u128::from(MAX_BAR_WIDTH) / u128::from(max_frames)) as usize;
    // A small class must look different from an empty one.
    let bar = pad.theme.rich_or_ascii("█", "#").repeat(cells.max(usize::from(frames > 0)));
    let health = if class_index >= FIRST_CLASS_ABOVE_1_S { Health::Warning } else { Health::Good };
    let x = pad.draw_text(BAR_X, y, &bar, Ink::Health(health));
    pad.draw_text(x + 1, y, &format_count(frames), Ink::Plain);
}

/// Draws the time series of the hop right of the histogram: the backlog, and below it queue wait and rate if there is room.
fn draw_trends(pad: &mut Pad<'_>, x: u16, y: u16, hop: &HopSummary, model: &Model, ui: &Ui) {
    // No second of the run has begun.
    if model.curves.is_empty() {
        return;
    }
    let window = TimeWindow::selected(model, ui);
    let trends = trend_series(hop, model);
    // The first one is drawn even if it has fewer rows.
    let shown = (pad.height().saturating_sub(y) / TREND_ROWS).clamp(1, trends.len() as u16);
    let mut trend_y = y;
    for series in trends.iter().take(shown.into()) {
        draw_trend(&mut pad.pad_of_rows(trend_y, TREND_ROWS), x, series, window, model);
        trend_y += TREND_ROWS;
    }
}

/// Title of a time series, and its numbers at the right edge of the same row.
struct TrendHeading {
    title: String,
    numbers: String,
}

impl TrendHeading {
    /// Label and shown time, or only the label if both do not fit into `width` cells: the axis has the shown time, too.
    fn with_time(label: &str, shown_time: &str, numbers: String, width: u16) -> Self {
        let whole = Self { title: format!("{label}, {shown_time}"), numbers };
        if whole.fits(width) { whole } else { Self { title: label.to_owned(), ..whole } }
    }

    /// Heading of a curve that has no room: the label, and the hint that a larger screen has the curve. If that does not fit into `width`
    /// cells beside the numbers, the last value is left out, and then the label. The hint always stays: without it, the curve would seem to
    /// be unobserved.
    fn without_curve(label: &str, numbers: String, max: &str, width: u16) -> Self {
        const HINT: &str = "curve: enlarge";
        let whole = Self { title: format!("{label}, {HINT}"), numbers };
        if whole.fits(width) {
            return whole;
        }
        // The table of hops has the last value, too.
        let without_last_value = Self { numbers: format!(" max {max} "), ..whole };
        if without_last_value.fits(width) {
            return without_last_value;
        }
        Self { title: HINT.to_owned(), ..without_last_value }
    }

    fn fits(&self, width: u16) -> bool {
        text_width(&self.title) + text_width(&self.numbers) <= width
    }
}

/// Draws a time series from column `x` on: its title with the last value and the maximum, its bars, and the time axis.
fn draw_trend(pad: &mut Pad<'_>, x: u16, series: &ChartSeries<'_>, window: TimeWindow, model: &Model) {
    let columns = pad.width().saturating_sub(x + 1);
    // `Err` with the reason if there is nothing to draw.
    let values = series.column_values(&model.curves, window, columns);
    let has_room_for_curve = pad.height() > TITLE_AND_AXIS_ROWS;
    // The numbers end with a space, which may be beyond the columns of the curve.
    let heading_width = columns + 1;
    let shown_time = window.describe(columns, &model.curves);
    let heading = match &values {
        Ok(values) => {
            let SeriesNumbers { last, max } = series.format_numbers(values, window);
            let numbers = format!(" {}: {last}, max {max} ", window.title_of_last_value(model));
            if has_room_for_curve {
                TrendHeading::with_time(series.label, &shown_time, numbers, heading_width)
            } else {
                TrendHeading::without_curve(series.label, numbers, &max, heading_width)
            }
        }
        Err(reason) => TrendHeading::with_time(series.label, &shown_time, format!(" {reason} "), heading_width),
    };
    let title_width = heading_width.saturating_sub(text_width(&heading.numbers));
    pad.draw_clipped(x, 0, title_width, &heading.title, Ink::Head);
    pad.draw_at_right_edge(0, &heading.numbers, Ink::Dim);
    if let Ok(values) = &values
        && has_room_for_curve
    {
        let bar_rows = pad.height() - TITLE_AND_AXIS_ROWS;
        chart::draw_bars(&mut pad.pad_of_rows(1, bar_rows), x, values, Ink::Series);
        window.draw_axis(pad, x, 1 + bar_rows, columns, model);
    }
}

/// Largest backlog of a group in the slot; `None` if its receives were not observed any more.
pub(super) fn max_backlog_of_group(slot: &SlotValues, group_index: usize) -> Option<f64> {
    // In a slot from before the hop appeared, no frame waited on it.
    let Some(values) = slot.hops.get(group_index) else { return Some(0.0) };
    (!values.receives_ended).then_some(values.backlog_max as f64)
}

/// Time series of a hop, the most important first. Each reads its value from the slot, which has the counts of one second.
pub(super) fn trend_series<'a>(hop: &'a HopSummary, model: &Model) -> [ChartSeries<'a>; 3] {
    // Only observed receives show a backlog.
    let observes_receives = hop.backlog_max_frames.is_some();
    let end = hop.receives_end;
    // A slot from before the hop appeared has no values of it.
    [
        ChartSeries::new("backlog", chart::format_whole, |slot| max_backlog_of_group(slot, hop.group))
            .observed_if(observes_receives, model.explain_unobserved_receives())
            .observed_until(end, model),
        ChartSeries::new("queue wait p99", chart::format_ns, |slot| {
            chart::p99_ns(&slot.hops.get(hop.group)?.queue_wait)
        })
        .observed_if(observes_receives, model.explain_unobserved_receives())
        .observed_until(end, model),
        ChartSeries::new("frames/s", chart::format_whole, |slot| passed_frames(slot, hop))
            .observed_until(if hop.observes_sends { model.sends_end } else { end }, model),
    ]
}

/// Number of frames that passed the hop in the slot, counted where they are sent if that is observed, otherwise where they are received.
/// `None` if neither was observed any more.
fn passed_frames(slot: &SlotValues, hop: &HopSummary) -> Option<f64> {
    let values = slot.hops.get(hop.group);
    // In a slot from before the hop appeared, no frame passed it.
    let passed = values.map(|values| values.passed).unwrap_or_default();
    if hop.observes_sends {
        return (!slot.sends_ended).then_some(passed.frames_sent as f64);
    }
    let is_known = values.is_none_or(|values| !values.receives_ended);
    is_known.then_some(passed.frames_received as f64)
}

/// Maximum number of rows for workers from row `y` on, if `hops_below` hops follow them. The facts of the hop keep their room, but workers
/// have at least a third of the rows. They have all rows if the user lists all workers.
fn max_members(pad: &Pad<'_>, y: u16, hops_below: usize, ui: &Ui) -> usize {
    let rows = usize::from(pad.height().saturating_sub(y)).saturating_sub(hops_below);
    if ui.shows_cut_list { rows.max(1) } else { (rows / 3).max(rows.saturating_sub(FACT_ROWS)) }
}

/// Draws one branch per receiving worker below the hop. Returns the next free row.
fn draw_receiving_workers(pad: &mut Pad<'_>, y: u16, hop: &HopSummary, max_lines: usize) -> NextRow {
    // At least 1, because it is a divisor.
    let total_chunks = hop.members.iter().map(|member| member.chunks).sum::<u64>().max(1);
    // The last row has the number of workers that are not shown.
    let shown = if hop.members.len() > max_lines { max_lines.saturating_sub(1) } else { hop.members.len() };
    for (row, member) in hop.members.iter().take(shown).enumerate() {
        let is_last = row + 1 == shown;
        let branch = if is_last { pad.theme.rich_or_ascii("└", "`") } else { pad.theme.rich_or_ascii("├", "|") };
        // A hop that carries requests has no chunks to share.
        let share_of_chunks =
            if hop.carries_requests { None } else { Some(member.chunks as f64 / total_chunks as f64) };
        draw_receiving_worker(pad, y + row as u16, branch, member, share_of_chunks);
    }
    let next_y = y + shown as u16;
    let hidden = hop.members.len() - shown;
    if hidden == 0 {
        return next_y;
    }
    // Below the names of the workers, behind their branches. The key `m` shows all.
    pad.draw_text(NAME_X + 2, next_y, &format!("{hidden} more: m"), Ink::Dim);
    next_y + 1
}

/// Draws a worker with its share of the hop's chunks, if the hop carries any, and its endpoint if there is room.
fn draw_receiving_worker(pad: &mut Pad<'_>, y: u16, branch: &str, member: &HopMember, share_of_chunks: Option<f64>) {
    let name = format!("{branch} {}", known_or_dash(member.worker, |worker| format!("worker {worker}")));
    // The most important first: a narrow screen leaves out the last ones. Padded, so that those of all workers are below each other.
    let numbers = [
        format!("busy {:>5}", known_or_dash(member.busy_share, percent)),
        format!("backlog {:>5}", known_or_dash(member.backlog_frames, format_count)),
        share_of_chunks.map_or_else(String::new, |share| {
            format!("{:>6} chunks {:>5}", format_count(member.chunks), percent(share))
        }),
        format!("{:>6} frames", format_count(member.frames)),
    ];
    let mut x = pad.draw_clipped(NAME_X, y, MEMBER_NAME_WIDTH, &name, Ink::Strong).max(MEMBER_NUMBERS_X);
    for number in numbers.iter().filter(|number| !number.is_empty()) {
        if x + text_width(number) <= pad.width() {
            x = pad.draw_text(x, y, number, Ink::Plain) + 2;
        }
    }
    let free_width = pad.width().saturating_sub(x + 1);
    if free_width >= MIN_ENDPOINT_WIDTH {
        let endpoint = pad.shorten_id(&member.endpoint, free_width);
        pad.draw_text(x, y, &endpoint, Ink::Dim);
    }
}
