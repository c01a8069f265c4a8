//! Drawing. Views only read the model and the user interface state.

mod chart;
mod cpu;
mod findings;
mod help;
mod hops;
mod overview;
mod pad;
mod path;
pub(crate) mod picker;
mod pods;
mod position;
mod request;
mod requests;

use std::borrow::Cow;

use ratatui::Frame;
use ratatui::layout::Rect;
use session::units::{
    format_bytes, format_count, format_duration, format_elapsed_clock, format_wall_time, known_or_dash,
};
use trace::stats::Spread;
use trace::words::{decimal_percent, plural};

use crate::keys::{BINDINGS, Binding, IN_FINDINGS, IN_REQUEST, KeyContext};
use crate::state::Model;
use crate::state::action::{Action, Tab};
use crate::state::flags::{Health, RunVerdict};
use crate::state::pods::KeyFigures;
use crate::state::ui::{Dialog, Ui};
use crate::theme::{Ink, Theme};
pub(crate) use pad::ClickAreas;
use pad::{NextColumn, NextRow, Pad, part_shown_in_width, text_width};

/// Smallest supported screen.
const MIN_COLUMNS: u16 = 60;
const MIN_ROWS: u16 = 20;

/// Before what to do about the verdict.
const TO_DO: &str = "  to do: ";
/// With fewer cells behind the verdict, what to do is not shown there.
const MIN_ADVICE_COLUMNS: u16 = 30;
/// The same where what to do is shown only as a whole: no screen has so many cells.
const ONLY_WHOLE_ADVICE: u16 = u16::MAX;

/// Draws everything: tabs, verdict, the open tab, status, dialogs. Returns what can be clicked.
pub(crate) fn draw_screen(model: &Model, ui: &Ui, theme: Theme, frame: &mut Frame<'_>) -> ClickAreas {
    let area = frame.area();
    let mut click_areas = ClickAreas::default();
    let mut pad = Pad::new(frame, theme, &mut click_areas);
    if area.width < MIN_COLUMNS || area.height < MIN_ROWS {
        draw_too_small(&mut pad, model);
        return click_areas;
    }
    let bottom = area.y + area.height;
    let line = |y| Rect { y, height: 1, ..area };
    draw_tab_bar(&mut pad.sub_pad(line(area.y)), model, ui);
    // The overview has what to do in a row of its own, unless all of it fits here.
    let min_advice_width = if ui.tab == Tab::Overview { ONLY_WHOLE_ADVICE } else { MIN_ADVICE_COLUMNS };
    let verdict = shown_verdict(model, ui);
    draw_verdict(&mut pad.sub_pad(line(area.y + 1)), &verdict, min_advice_width);
    // Without the tab bar and the verdict above, and the status and the bottom line below.
    let tab_area = Rect { y: area.y + 2, height: area.height - 4, ..area };
    draw_open_tab(&mut pad.sub_pad(tab_area), model, ui);
    let status_line = &mut pad.sub_pad(line(bottom - 2));
    match &model.position {
        Some(position) => position::draw_playback_position(status_line, model, position),
        None => draw_own_status(status_line, model),
    }
    match &ui.dialog {
        Dialog::Help(scrolled) => help::draw_help(&mut pad.sub_pad(tab_area), *scrolled, ui, model),
        Dialog::Palette { words, selected } => {
            help::draw_palette(&mut pad.sub_pad(tab_area), words, *selected, ui);
        }
        // The other dialogs need only the bottom line.
        _ => {}
    }
    // Last, because a long text covers the rows above.
    draw_bottom_line(&mut pad.sub_pad(area), ui, model);
    click_areas
}

/// Verdict in the second row of the screen. On the list of runs it is that of the worst run, with the run's name.
fn shown_verdict<'m>(model: &'m Model, ui: &Ui) -> Cow<'m, RunVerdict> {
    if ui.tab == Tab::Pods {
        Cow::Owned(KeyFigures::combine(&model.pods).verdict)
    } else {
        Cow::Borrowed(&model.verdict)
    }
}

/// Draws the tab that is open.
fn draw_open_tab(pad: &mut Pad<'_>, model: &Model, ui: &Ui) {
    match ui.tab {
        Tab::Overview => overview::draw_overview_tab(pad, model, ui),
        Tab::Requests => requests::draw_requests_tab(pad, model, ui),
        Tab::Request => request::draw_request_tab(pad, model, ui),
        Tab::Hops => hops::draw_hops_tab(pad, model, ui),
        Tab::Findings => findings::draw_findings_tab(pad, model, ui),
        Tab::Cpu => cpu::draw_cpu_tab(pad, model, ui),
        Tab::Pods => pods::draw_pods_tab(pad, model, ui),
    }
}

/// Draws what replaces the tabs on a screen that is too small: verdict, worst hop, and the size that is required.
fn draw_too_small(pad: &mut Pad<'_>, model: &Model) {
    draw_verdict(pad, &model.verdict, ONLY_WHOLE_ADVICE);
    if let Some(hop) = hops::worst_hop(model) {
        let text = format!(
            "{} {}{}{} backlog {}, oldest {}",
            path::problem_sign(hop.health, hop.has_recovered, pad.theme),
            hop.ends.from,
            pad.theme.rich_or_ascii("→", ">"),
            hop.ends.to,
            known_or_dash(hop.backlog_frames, format_count),
            hops::describe_oldest_wait(hop, model)
        );
        // A sign in brackets begins one cell further left, so that it is below that of the verdict.
        let sign_x = u16::from(!hop.has_recovered);
        pad.draw_text(sign_x, 1, &text, Ink::Health(hop.health));
    }
    let text = format!(
        "needs {MIN_COLUMNS}x{MIN_ROWS}; this is {}x{}: enlarge it, or press q to quit",
        pad.width(),
        pad.height()
    );
    pad.draw_text(1, 2, &text, Ink::Dim);
}

/// Draws the names of the tabs, and the state of the run at the right edge.
fn draw_tab_bar(pad: &mut Pad<'_>, model: &Model, ui: &Ui) {
    let mut x = pad.draw_text(1, 0, "tokengap", Ink::Head) + 1;
    let run_states = describe_run_state(model, ui);
    let [.., shortest_run_state] = &run_states;
    let tabs = Tab::ALL.into_iter().enumerate().filter(|(_, tab)| tab.has_content(model));
    // A space, the number and another space come before a name.
    let names_width: u16 = tabs.clone().map(|(_, tab)| text_width(tab.label()) + 3).sum();
    let has_room_for_names = x + names_width + text_width(shortest_run_state) <= pad.width();
    for (index, tab) in tabs {
        let is_shown = tab == ui.tab;
        // The number is the tab's key.
        let name = if is_shown || has_room_for_names { tab.label() } else { "" };
        let ink = if is_shown { Ink::Selected } else { Ink::Dim };
        let end = pad.draw_text(x, 0, format!(" {} {name}", index + 1).trim_end(), ink);
        pad.add_click_area(Rect::new(x, 0, end - x, 1), Action::OpenTab(tab));
        x = end;
    }
    // The longest text that fits.
    let fitting = run_states.iter().find(|text| x + text_width(text) <= pad.width());
    let ink = if ui.paused_at_second.is_some() { Ink::Selected } else { Ink::Dim };
    pad.draw_at_right_edge(0, fitting.unwrap_or(shortest_run_state), ink);
}

/// Source, state and time of the run, in texts of three lengths, the longest first. On the list of runs, it is about all runs.
fn describe_run_state(model: &Model, ui: &Ui) -> [String; 3] {
    let is_paused = ui.paused_at_second.is_some();
    if ui.tab == Tab::Pods {
        let state = if is_paused { "PAUSED" } else { model.run.stage };
        let runs = plural(model.pods.len() as u64, "run");
        let time = format_elapsed_clock(model.running_ns);
        return [format!(" {runs} {state} {time} "), format!(" {state} {time} "), format!(" {time} ")];
    }
    let watched = model.pods.get(model.shown_pod);
    let source = watched.map_or(&model.run.source, |pod| &pod.name);
    let state = if let Some(pod) = watched
        && !is_paused
    {
        // A watched run has a state of its own, such as a lost connection.
        pod.state.label()
    } else if model.position.is_some() {
        "replay"
    } else if is_paused {
        "PAUSED"
    } else {
        model.run.stage
    };
    let begun = watched.and_then(|pod| format_wall_time(pod.begun_wall_ns?));
    let since = begun.map_or_else(String::new, |begun| format!("since {begun} "));
    let time = format_elapsed_clock(model.running_ns);
    [format!(" {source} {state} {since}{time} "), format!(" {state} {since}{time} "), format!(" {state} {time} ")]
}

/// Draws the health of the run, and why. Then draws what to do, if there are free cells for the whole of it, or at least
/// `min_advice_width`.
fn draw_verdict(pad: &mut Pad<'_>, verdict: &RunVerdict, min_advice_width: u16) {
    let health = describe_health(pad.theme, verdict);
    let x = pad.draw_text(1, 0, &health, Ink::Verdict(verdict.health));
    let x = draw_headline(pad, x + 2, verdict);
    let Some(advice) = &verdict.advice else { return };
    let free_width = pad.width().saturating_sub(x + TO_DO.len() as u16);
    let fits_whole = free_width >= text_width(advice);
    if fits_whole || free_width >= min_advice_width {
        let x = pad.draw_text(x, 0, TO_DO, Ink::Head);
        pad.draw_text(x, 0, advice, Ink::Plain);
    }
}

/// A headline that keeps fewer cells is not cut further for its number of requests.
const MIN_HEADLINE_WIDTH: u16 = 30;

/// The headline, which is the text of the verdict, as its row shows it.
struct ShownHeadline {
    /// Cells of the text, with the ellipsis if it is cut.
    width: u16,
    /// Number of requests that the text is about, ` (34 requests hit)`, if it is cut before that number. Otherwise empty.
    suffix: String,
}

impl ShownHeadline {
    /// The headline of this verdict in `free_width` cells. A text that is too long is cut. If the cut part has the number of affected
    /// requests, a suffix repeats that number, unless too few cells would be left for the text.
    fn in_width(verdict: &RunVerdict, free_width: u16) -> Self {
        let text_alone = Self { width: free_width, suffix: String::new() };
        let Some(requests_hit) = &verdict.requests_hit else { return text_alone };
        if text_width(&verdict.text) <= free_width {
            return text_alone;
        }
        let suffix = format!(" ({requests_hit} hit)");
        let width_beside_suffix = free_width.saturating_sub(text_width(&suffix));
        // One cell has the ellipsis.
        let keeps_enough_text = width_beside_suffix > MIN_HEADLINE_WIDTH + 1;
        let text_beside_suffix = part_shown_in_width(&verdict.text, width_beside_suffix);
        let needs_suffix = !text_beside_suffix.contains(requests_hit.as_str());
        if needs_suffix && keeps_enough_text { Self { width: width_beside_suffix, suffix } } else { text_alone }
    }
}

/// Draws the headline from `x` on. Returns the next free column.
fn draw_headline(pad: &mut Pad<'_>, x: u16, verdict: &RunVerdict) -> NextColumn {
    let shown = ShownHeadline::in_width(verdict, pad.width().saturating_sub(x));
    let x = pad.draw_clipped(x, 0, shown.width, &verdict.text, Ink::Strong);
    pad.draw_text(x, 0, &shown.suffix, Ink::Strong)
}

/// Symbol and word of the verdict's health.
fn describe_health(theme: Theme, verdict: &RunVerdict) -> String {
    format!("{} {}", theme.health_symbol(verdict.health), verdict.health.label())
}

/// Draws what to do about the verdict into row `y`. Draws nothing if the row of the verdict has room for the advice. If the verdict is cut
/// before the share of the time to first token, that share comes before the advice. Returns the next free row.
fn draw_advice(pad: &mut Pad<'_>, y: u16, model: &Model) -> NextRow {
    let verdict = &model.verdict;
    let Some(advice) = &verdict.advice else { return y };
    // First cell of the verdict's text, where `draw_verdict` draws it.
    let text_x = 1 + text_width(&describe_health(pad.theme, verdict)) + 2;
    let free_width = pad.width().saturating_sub(text_x);
    let advice_width = TO_DO.len() as u16 + text_width(advice);
    let fits_behind_verdict = text_width(&verdict.text) + advice_width <= free_width;
    if fits_behind_verdict {
        return y;
    }
    let headline = ShownHeadline::in_width(verdict, free_width);
    // The headline may have the share itself, in these words.
    let shows_share = part_shown_in_width(&verdict.text, headline.width).contains("of the TTFT of");
    let share = match &verdict.ttft_share {
        Some(share) if !shows_share => format!("{share}: "),
        _ => String::new(),
    };
    let x = pad.draw_text(1, y, TO_DO.trim_start(), Ink::Head);
    pad.draw_text(x, y, &format!("{share}{advice}"), Ink::Plain);
    y + 1
}

/// Draws the outputs that are written, tokengap's own resource use, and how many observations it missed and frames it could not decode.
fn draw_own_status(pad: &mut Pad<'_>, model: &Model) {
    let own = &model.run;
    let cpu = known_or_dash(own.cpu_share, decimal_percent);
    // The simulated engine runs in this process, too.
    let label = if model.run.source == "demo" { "self+demo" } else { "self" };
    let cost = format!("{label}: cpu {cpu}  rss {}  ", known_or_dash(own.rss_bytes, format_bytes));
    let x = draw_outputs(pad, 1, model);
    let mut x = pad.draw_text(x, 0, &cost, Ink::Dim);
    for (word, count) in [("missed", own.missed), ("undecoded", own.undecoded)] {
        let ink = if count > 0 { Ink::Health(Health::Warning) } else { Ink::Dim };
        x = pad.draw_text(x, 0, &format!("{word} {}  ", format_count(count)), ink);
    }
    draw_degraded_or_text(pad, x, "", model);
}

/// Draws the first degradation (a missing observation) from `x` on. If none is known, draws `fallback_text`. The engine and its release
/// follow at the right edge, if they fit, because some advice depends on the release.
fn draw_degraded_or_text(pad: &mut Pad<'_>, x: u16, fallback_text: &str, model: &Model) {
    let label = degraded_label(model);
    // The label alone is the shortest form of a degradation.
    let shortest = if label.is_empty() { fallback_text } else { &label };
    let engine = format!(" {} ", model.engine);
    let engine_x = pad.width().saturating_sub(text_width(&engine));
    let mut end = pad.width();
    if x + text_width(shortest) <= engine_x {
        pad.draw_at_right_edge(0, &engine, Ink::Dim);
        end = engine_x;
    }
    if label.is_empty() {
        pad.draw_clipped(x, 0, end.saturating_sub(x), fallback_text, Ink::Dim);
    } else {
        draw_degraded(pad, x, end, model);
    }
}

/// Minimum width of the shown part of a degradation.
const MIN_DEGRADED_WIDTH: u16 = 12;

/// Draws the first degradation between `x` and `end`, and the tab that has the whole text of each. Draws nothing if none is known.
fn draw_degraded(pad: &mut Pad<'_>, x: u16, end: u16, model: &Model) {
    let Some(first) = model.run.degraded.first() else { return };
    let label = degraded_label(model);
    let free = end.saturating_sub(x);
    let has_room_for_text = text_width(&label) + MIN_DEGRADED_WIDTH <= free;
    let text = if has_room_for_text { format!("{label}: {first}") } else { label };
    pad.draw_clipped(x, 0, free, &text, Ink::Health(Health::Warning));
}

/// Number of degradations, with the key of the tab Findings; empty if there is none.
fn degraded_label(model: &Model) -> String {
    match model.run.degraded.len() {
        0 => String::new(),
        1 => "! degraded (5)".to_owned(),
        count => format!("! {count} degraded (5)"),
    }
}

/// Draws the outputs that are written, which are the recording, the hindsight ring and the HTTP endpoint, with their dropped records.
/// Returns the next free column.
fn draw_outputs(pad: &mut Pad<'_>, mut x: u16, model: &Model) -> NextColumn {
    let writing = &model.writing;
    // Two columns separate the outputs.
    if let Some(recording) = &writing.recording {
        let text = format!("{} {}", recording.name, format_bytes(recording.bytes));
        x = draw_output(pad, x, "REC", &text);
        x = draw_output_losses(pad, x, recording.dropped, "dropped") + 2;
    }
    if let Some(ring) = &writing.ring {
        x = draw_output(pad, x, "ring", &format_bytes(ring.bytes));
        x = draw_output_losses(pad, x, ring.dropped, "dropped") + 2;
    }
    if let Some(endpoint) = &writing.endpoint {
        x = draw_output(pad, x, "http", &format!("{} {} watching", endpoint.address, endpoint.clients));
        x = draw_output_losses(pad, x, endpoint.dropped, "dropped");
        x = draw_output_losses(pad, x, endpoint.refused, "refused") + 2;
    }
    x
}

/// Draws the kind of an output, and what is written to it. Returns the next free column.
fn draw_output(pad: &mut Pad<'_>, x: u16, kind: &str, text: &str) -> NextColumn {
    let x = pad.draw_text(x, 0, kind, Ink::Health(Health::Info));
    pad.draw_text(x + 1, 0, text, Ink::Plain)
}

/// Draws the number of records or clients that an output has lost, if any, with the `verb` for the loss. Returns the next free column.
fn draw_output_losses(pad: &mut Pad<'_>, x: u16, lost_count: u64, verb: &str) -> NextColumn {
    if lost_count == 0 {
        return x;
    }
    pad.draw_text(x + 1, 0, &format!("({} {verb})", format_count(lost_count)), Ink::Health(Health::Warning))
}

/// Inter-token latency at both ends of the path, with the title of its quantiles.
struct ItlQuantiles {
    title: &'static str,
    client: Option<Spread>,
    engine: Option<Spread>,
}

/// Draws the inter-token latency at the client and at the engine. An unknown one comes last, with the reason. Returns the next free row.
fn draw_inter_token_latency(pad: &mut Pad<'_>, y: u16, model: &Model, itl: &ItlQuantiles) -> NextRow {
    let why_client_unknown = why_client_itl_unknown(model);
    let why_engine_unknown = if model.tokens.sent == 0 { "no tokens were sent" } else { "no two chunks were sent" };
    let client = ItlEnd { name: "client", spread: itl.client, reason_unknown: why_client_unknown, ink: Ink::Plain };
    let engine = ItlEnd { name: "engine", spread: itl.engine, reason_unknown: why_engine_unknown, ink: Ink::Dim };
    let is_only_engine_known = client.spread.is_none() && engine.spread.is_some();
    let ends = if is_only_engine_known { [engine, client] } else { [client, engine] };
    let mut x = pad.draw_text(1, y, itl.title, Ink::Head);
    for end in ends {
        // Two spaces come before the text.
        let free_width = pad.width().saturating_sub(x + 2);
        let text = end.describe(free_width);
        if text_width(&text) <= free_width {
            x = pad.draw_text(x + 2, y, &text, end.ink);
        }
    }
    y + 1
}

/// Why the inter-token latency at the client is unknown, if it is.
fn why_client_itl_unknown(model: &Model) -> &'static str {
    if model.chunks.delivered.is_none() {
        model.explain_unobserved_deliveries()
    } else if model.tokens.delivered.is_none() {
        "responses carry text only"
    } else {
        "no two chunks were delivered"
    }
}

/// Inter-token latency at one end, or why it is unknown.
struct ItlEnd {
    name: &'static str,
    spread: Option<Spread>,
    reason_unknown: &'static str,
    ink: Ink,
}

impl ItlEnd {
    /// Quantiles or reason, with the name of the end. A shorter text if that does not fit into `free_width`, which may not fit either.
    fn describe(&self, free_width: u16) -> String {
        let Self { name, reason_unknown, .. } = self;
        let whole_text = match self.spread {
            Some(spread) => format!("{name} {}", format_itl_quantiles(spread)),
            None => format!("{name}: {reason_unknown}"),
        };
        if text_width(&whole_text) <= free_width {
            whole_text
        } else if self.spread.is_some() {
            String::from("more: enlarge")
        } else {
            // The Overview has the reason in other rows, too.
            format!("{name} unknown")
        }
    }
}

/// The median, the 90th and the 99th percentile, separated by slashes.
fn format_itl_quantiles(itl: Spread) -> String {
    [itl.p50, itl.p90, itl.p99].map(format_duration).join("/")
}

/// Draws the dialog that reads text, else the message, else key hints, into the last row of the screen.
fn draw_bottom_line(pad: &mut Pad<'_>, ui: &Ui, model: &Model) {
    let y = pad.height() - 1;
    match &ui.dialog {
        Dialog::Time(text) => draw_time_input(pad, text, model),
        Dialog::Palette { words, .. } => {
            draw_text_input(pad, ":", words, "Up Down: choose   Enter: run   Esc: cancel", Ink::Dim);
        }
        Dialog::Filter(text) => draw_filter_input(pad, text, ui, model),
        Dialog::Export => {
            let x = pad.draw_text(1, y, "write: ", Ink::Head);
            pad.draw_text(x, y, "h HTML report  j Enter JSON report  p trace for Perfetto  Esc: cancel", Ink::Plain);
        }
        Dialog::None | Dialog::Help(_) => match &ui.message {
            Some(message) => pad.draw_note_above(y, message, Ink::Head),
            None => draw_key_hints(&mut pad.pad_of_rows(y, 1), ui),
        },
    }
}

/// Draws the typed filter with the keys, or with why it is refused or matches nothing.
fn draw_filter_input(pad: &mut Pad<'_>, typed: &str, ui: &Ui, model: &Model) {
    let problem = match ui.parse_filter(typed, model) {
        Ok(filter) => model.explain_unobserved_term(&filter),
        Err(error) => Some(error.to_string()),
    };
    match problem {
        Some(problem) => {
            draw_text_input(pad, "filter: ", typed, &format!("! {problem}"), Ink::Health(Health::Warning));
        }
        None => draw_text_input(pad, "filter: ", typed, &filter_hint(ui), Ink::Dim),
    }
}

/// Draws the typed time with what it means, why it is refused, or which times there are.
fn draw_time_input(pad: &mut Pad<'_>, typed: &str, model: &Model) {
    // Only a recording has a time to go to.
    let Some(position) = &model.position else { return };
    if typed.is_empty() {
        let hint = format!("{}, also 3.9s, +10s, -1m", position.describe_run_range());
        draw_text_input(pad, "go to: ", typed, &hint, Ink::Dim);
        return;
    }
    match position.parse_target_ns(typed) {
        Ok(target_ns) => {
            let hint = format!("Enter: go to {}   Esc: cancel", position.format_time_in_run(target_ns));
            draw_text_input(pad, "go to: ", typed, &hint, Ink::Dim);
        }
        Err(error) => draw_text_input(pad, "go to: ", typed, &format!("! {error}"), Ink::Health(Health::Warning)),
    }
}

/// Draws the typed text into the last row of the screen. The hint follows behind it, or stands above it if it does not fit there.
fn draw_text_input(pad: &mut Pad<'_>, title: &str, typed: &str, hint: &str, hint_ink: Ink) {
    let y = pad.height() - 1;
    let x = pad.draw_text(1, y, title, Ink::Head);
    let cursor = pad.theme.rich_or_ascii("▏", "_");
    let x = pad.draw_text(x, y, &format!("{typed}{cursor}"), Ink::Strong);
    if x + 1 + text_width(hint) <= pad.width() {
        pad.draw_text(x + 1, y, hint, hint_ink);
    } else {
        pad.draw_note_above(y - 1, hint, hint_ink);
    }
}

/// Hint beside a filter that is typed: the keys, and the names after `@` by which saved filters are applied.
fn filter_hint(ui: &Ui) -> String {
    if ui.options.filters.is_empty() {
        return "Enter: apply   Esc: cancel   (syntax: see the help, ?)".into();
    }
    let names: Vec<String> = ui.options.filters.iter().map(|saved| format!("@{}", saved.name)).collect();
    format!("Enter: apply   Esc: cancel   {}", names.join(" "))
}

/// Keys with the same hint.
struct KeyHint {
    keys: String,
    hint: &'static str,
}

impl KeyHint {
    /// Cells of the hint without its distance to the next.
    fn width(&self) -> u16 {
        (self.keys.len() + self.hint.len()) as u16
    }
}

/// Draws the keys that apply now with what they do, as many as fit.
fn draw_key_hints(pad: &mut Pad<'_>, ui: &Ui) {
    // A space after the keys, and two after the hint.
    const SPACES: u16 = 3;
    // Help and quit stay visible; the other hints are cut first.
    let (always_shown, mut others): (Vec<KeyHint>, Vec<KeyHint>) =
        key_hints(ui).into_iter().partition(|hint| ["help", "quit"].contains(&hint.hint));
    let reserved_width: u16 = always_shown.iter().map(|hint| hint.width() + SPACES).sum();
    // The first column stays empty.
    let mut spare_width = pad.width().saturating_sub(1 + reserved_width);
    let mut fitting = 0;
    for hint in &others {
        if hint.width() >= spare_width {
            break;
        }
        spare_width = spare_width.saturating_sub(hint.width() + SPACES);
        fitting += 1;
    }
    others.truncate(fitting);
    let mut x = 1;
    for KeyHint { keys, hint } in others.iter().chain(&always_shown) {
        x = pad.draw_text(x, 0, keys, Ink::Head);
        x = pad.draw_text(x + 1, 0, hint, Ink::Dim) + 2;
    }
}

/// Keys that apply now and have a hint. A narrow screen has no room for all: keys that only this tab has come first, then those of a
/// playback.
fn hinted_bindings(ui: &Ui) -> Vec<&'static Binding> {
    let mut bindings: Vec<&Binding> =
        BINDINGS.iter().filter(|binding| !binding.hint.is_empty() && binding.is_active(ui)).collect();
    bindings.sort_by_key(|binding| match binding.context {
        IN_FINDINGS | IN_REQUEST => 0,
        KeyContext::Replay => 1,
        _ => 2,
    });
    bindings
}

/// Key hints in the current state; keys with the same hint are joined.
fn key_hints(ui: &Ui) -> Vec<KeyHint> {
    let mut hints: Vec<KeyHint> = Vec::new();
    for binding in hinted_bindings(ui) {
        // One of several keys is enough for a hint.
        let key = binding.shown_keys.split(' ').next().unwrap_or(binding.shown_keys);
        match hints.iter_mut().find(|hint| hint.hint == binding.hint) {
            Some(joined) => {
                // Keys of one character need no space between them.
                joined.keys.push_str(if key.len() > 1 { " " } else { "" });
                joined.keys.push_str(key);
            }
            None => hints.push(KeyHint { keys: key.to_owned(), hint: binding.hint }),
        }
    }
    hints
}

#[cfg(test)]
mod tests;
