//! Charts with two axes, as inline SVG. The page's style sheet defines colours and dashes as classes.

use std::ops::Range;

use maud::{Markup, PreEscaped, html};

use super::super::hostile::escape_and_cut_line as escape_line;

const WIDTH: f64 = 960.0;
const LEFT_MARGIN: f64 = 66.0;
/// Width reserved for the names of lines.
const RIGHT_MARGIN: f64 = 232.0;
const TOP_MARGIN: f64 = 24.0;
const BOTTOM_MARGIN: f64 = 36.0;
/// Maximum length of a line's name.
const MAX_NAME_CHARS: usize = 31;
/// Width of a finding marker.
const MARKER_WIDTH: f64 = 18.0;
/// Number of ticks that an axis asks for.
const X_TICKS: f64 = 8.0;
const Y_TICKS: f64 = 4.0;
/// Bound on ticks whatever the numbers of a report file.
const MAX_TICKS: usize = 40;
/// Smallest distance between two names.
const LINE_HEIGHT: f64 = 13.0;
/// Distance from the middle of a text down to its baseline, which is the `y` of the text.
const BASELINE: f64 = 4.0;
/// Space between a tick and its label on the left.
const LABEL_SPACE: f64 = 6.0;
/// Distance from the x axis down to the baseline of the labels below it.
const X_LABEL_DROP: f64 = 16.0;
/// Distance from a finding marker's centre down to the top of the plot.
const MARKER_HEIGHT: f64 = 10.0;

/// Maps values to positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    from: f64,
    to: f64,
    is_logarithmic: bool,
}

impl Axis {
    /// Linear scale; an axis of length zero gets length one.
    pub(super) fn linear(from: f64, to: f64) -> Self {
        let to = if to > from { to } else { from + 1.0 };
        Self { from, to, is_logarithmic: false }
    }

    /// Linear scale from zero to a round number of at least `max`.
    pub(super) fn from_zero_to_at_least(max: f64) -> Self {
        // An axis without length could not be divided.
        let max = if max > 0.0 { max } else { 1.0 };
        let step = round_up_step(max / Y_TICKS);
        Self::linear(0.0, (max / step).ceil() * step)
    }

    /// Logarithmic scale over whole decades; smaller values are drawn at its start.
    pub(super) fn logarithmic_over(min: f64, max: f64) -> Self {
        // Zero has no logarithm, and a single value still needs a decade.
        let from = 10_f64.powf(min.max(1.0).log10().floor());
        let to = 10_f64.powf(max.max(1.0).log10().ceil()).max(from * 10.0);
        Self { from, to, is_logarithmic: true }
    }

    /// Position of a value between both ends of the axis, from 0 to 1.
    fn position_of(&self, value: f64) -> f64 {
        let start = self.on_linear_scale(self.from);
        let length = self.on_linear_scale(self.to) - start;
        ((self.on_linear_scale(value) - start) / length).clamp(0.0, 1.0)
    }

    /// The value itself, or on a logarithmic axis its logarithm. A logarithmic axis starts above zero, so the logarithm is finite.
    fn on_linear_scale(&self, value: f64) -> f64 {
        if self.is_logarithmic { value.max(self.from).log10() } else { value }
    }

    /// About `wanted_count` round tick values. A logarithmic axis has one for each decade instead.
    fn tick_values(&self, wanted_count: f64) -> Vec<f64> {
        if self.is_logarithmic {
            let decades = (self.to / self.from).log10().round() as i32;
            return (0..=decades).map(|decade| self.from * 10_f64.powi(decade)).collect();
        }
        // Ticks are the multiples of the step within the axis.
        let step = round_up_step((self.to - self.from) / wanted_count);
        let first_multiple = (self.from / step).ceil();
        let further_ticks = ((self.to / step - first_multiple).floor().max(0.0) as usize).min(MAX_TICKS);
        (0..=further_ticks).map(|index| (first_multiple + index as f64) * step).collect()
    }
}

/// Smallest of 1, 2, 5, 10, 20 ... that is at least `step`.
fn round_up_step(step: f64) -> f64 {
    // Zero has no logarithm.
    let decade = 10_f64.powf(step.max(1e-12).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * decade);
    // By rounding, a `step` that is one of these may be slightly larger. It must not become the next larger one.
    steps.into_iter().find(|&round| round >= step * 0.999).unwrap_or(10.0 * decade)
}

/// A coordinate of the drawing, with one decimal.
pub(super) fn coordinate(n: f64) -> String {
    format!("{n:.1}")
}

/// One position of an area, with its lower and upper edge.
#[derive(Clone, Copy, Debug)]
pub(super) struct Band {
    pub(super) x: f64,
    pub(super) below: f64,
    pub(super) above: f64,
}

/// Label of a tick on the x axis.
pub(super) struct TickLabel {
    pub(super) value: String,
    pub(super) second_line: Option<String>,
}

/// A point of a curve, in values of both axes.
#[derive(Clone, Copy, Debug)]
pub(super) struct CurvePoint {
    pub(super) x: f64,
    pub(super) y: f64,
}

/// Name beside the plot at the height where its curve ends.
struct CurveName {
    y: f64,
    class: &'static str,
    text: String,
}

/// A chart that is being drawn.
pub(super) struct Plot {
    x: Axis,
    y: Axis,
    height: f64,
    body: String,
    /// Drawn over the body, so that no line crosses a text.
    notes: String,
    names: Vec<CurveName>,
    /// Position of the finding markers.
    marker_positions: Vec<f64>,
}

impl Plot {
    /// An empty chart with these axes. `height` includes the space for labels.
    pub(super) fn new(x: Axis, y: Axis, height: f64) -> Self {
        Self {
            x,
            y,
            height,
            body: String::new(),
            notes: String::new(),
            names: Vec::new(),
            marker_positions: Vec::new(),
        }
    }

    /// Appends a part of the drawing.
    fn append(&mut self, part: &Markup) {
        self.body.push_str(&part.0);
    }

    /// Position of a value on the x axis, from the left of the drawing.
    fn x_at(&self, value: f64) -> f64 {
        LEFT_MARGIN + self.x.position_of(value) * (WIDTH - LEFT_MARGIN - RIGHT_MARGIN)
    }

    /// Position of a value on the y axis, from the top of the drawing.
    fn y_at(&self, value: f64) -> f64 {
        self.bottom() - self.y.position_of(value) * (self.bottom() - TOP_MARGIN)
    }

    /// Position of the x axis, from the top of the drawing.
    fn bottom(&self) -> f64 {
        self.height - BOTTOM_MARGIN
    }

    /// Ticks on the left, each with a label and a grid line. In an SVG path, `M` moves to a point, and `H` draws a line to an x.
    pub(super) fn draw_y_ticks(&mut self, format_tick: impl Fn(f64) -> String) {
        for tick in self.y.tick_values(Y_TICKS) {
            let y = self.y_at(tick);
            self.append(&html! {
                path.grid d={ "M" (LEFT_MARGIN) " " (coordinate(y)) "H" (coordinate(WIDTH - RIGHT_MARGIN)) } {}
                text.tick x=(coordinate(LEFT_MARGIN - LABEL_SPACE)) y=(coordinate(y + BASELINE)) text-anchor="end" { (format_tick(tick)) }
            });
        }
    }

    /// The x axis with its ticks, each with a label of one or two lines. In an SVG path, `M` moves to a point, `H` draws a line to an x,
    /// and `v4` draws one of 4 down.
    pub(super) fn draw_x_ticks(&mut self, label_of: impl Fn(f64) -> TickLabel) {
        let bottom = self.bottom();
        self.append(&html! { path.axis d={ "M" (LEFT_MARGIN) " " (coordinate(bottom)) "H" (coordinate(WIDTH - RIGHT_MARGIN)) } {} });
        for tick in self.x.tick_values(X_TICKS) {
            let x = coordinate(self.x_at(tick));
            let TickLabel { value, second_line } = label_of(tick);
            self.append(&html! {
                path.axis d={ "M" (x) " " (coordinate(bottom)) "v4" } {}
                text.tick x=(x) y=(coordinate(bottom + X_LABEL_DROP)) text-anchor="middle" { (value) }
                @if let Some(second_line) = second_line {
                    text.tick.dim x=(x) y=(coordinate(bottom + X_LABEL_DROP + LINE_HEIGHT)) text-anchor="middle" { (second_line) }
                }
            });
        }
    }

    /// A line through `points` with its name at the end; missing points break it.
    pub(super) fn draw_line(&mut self, class: &'static str, name: &str, points: &[Option<CurvePoint>]) {
        let mut path = String::new();
        for part in points.split(Option::is_none) {
            // Moves to the first point, then draws lines.
            let mut command = 'M';
            for CurvePoint { x, y } in part.iter().flatten() {
                append!(path, "{command}{:.1} {:.1}", self.x_at(*x), self.y_at(*y));
                command = 'L';
            }
            if part.len() == 1 {
                // For a single point, the round line cap draws a dot.
                path.push_str("h.1");
            }
        }
        self.append(&html! { path.line.(class) d=(path) {} });
        if let Some(last) = points.iter().rev().flatten().next() {
            self.add_curve_name(class, name, last.y);
        }
    }

    /// Area between the lower and the upper edges.
    pub(super) fn draw_area(&mut self, class: &'static str, bands: &[Band]) {
        // A single position has no area.
        let [first, _, ..] = bands else { return };
        let mut path = format!("M{:.1} {:.1}", self.x_at(first.x), self.y_at(first.below));
        // Along the upper edge, then back along the lower one.
        for band in bands {
            append!(path, "L{:.1} {:.1}", self.x_at(band.x), self.y_at(band.above));
        }
        for band in bands.iter().rev() {
            append!(path, "L{:.1} {:.1}", self.x_at(band.x), self.y_at(band.below));
        }
        self.append(&html! { path.area.(class) d={ (path) "Z" } {} });
    }

    /// Name on the right at height `y`.
    pub(super) fn add_curve_name(&mut self, class: &'static str, name: &str, y: f64) {
        self.names.push(CurveName { y: self.y_at(y), class, text: name.to_owned() });
    }

    /// Bar over an interval of the x axis, with a tooltip.
    pub(super) fn draw_bar(&mut self, class: &'static str, interval: Range<f64>, value: f64, tooltip: &str) {
        /// Space between neighbours.
        const SPACE: f64 = 0.6;
        const LEAST_WIDTH: f64 = 0.8;
        let x = self.x_at(interval.start);
        // A bar of a narrow interval or a small count stays visible.
        let width = (self.x_at(interval.end) - x - SPACE).max(LEAST_WIDTH);
        let least_height = if value > 0.0 { 1.0 } else { 0.0 };
        let height = (self.bottom() - self.y_at(value)).max(least_height);
        let top = self.bottom() - height;
        self.append(&html! {
            rect.bar.(class) x=(coordinate(x)) y=(coordinate(top)) width=(coordinate(width)) height=(coordinate(height)) { title { (tooltip) } }
        });
    }

    /// Tooltip of an interval of the x axis.
    pub(super) fn add_tooltip(&mut self, interval: Range<f64>, tooltip: &str) {
        /// The pointer can still hit a short interval.
        const LEAST_WIDTH: f64 = 0.5;
        let x = self.x_at(interval.start);
        let width = (self.x_at(interval.end) - x).max(LEAST_WIDTH);
        let height = self.bottom() - TOP_MARGIN;
        self.append(&html! {
            rect.hover x=(coordinate(x)) y=(TOP_MARGIN) width=(coordinate(width)) height=(coordinate(height)) { title { (tooltip) } }
        });
    }

    /// The first position from `x` to the right where a marker covers no other one: findings of the same time are drawn side by side.
    fn free_marker_position(&self, x: f64) -> f64 {
        let mut free_x = x;
        while self.marker_positions.iter().any(|occupied| (occupied - free_x).abs() < MARKER_WIDTH) {
            free_x += MARKER_WIDTH;
        }
        free_x
    }

    /// Vertical line with a numbered marker that links to the finding with that number.
    pub(super) fn draw_finding_marker(&mut self, number: usize, class: &str, when: f64, tooltip: &str) {
        // The line stands at the time of the finding, and the marker beside those of earlier findings.
        let x = self.x_at(when);
        let marker_x = self.free_marker_position(x);
        self.marker_positions.push(marker_x);
        let bottom = self.bottom();
        self.append(&html! {
            a.mark.(class) href={ "#finding-" (number) } {
                title { (tooltip) }
                path d={ "M" (coordinate(x)) " " (TOP_MARGIN) "V" (coordinate(bottom)) } {}
                circle cx=(coordinate(marker_x)) cy=(coordinate(TOP_MARGIN - MARKER_HEIGHT)) r="8" {}
                text x=(coordinate(marker_x)) y=(coordinate(TOP_MARGIN - MARKER_HEIGHT + BASELINE)) text-anchor="middle" { (number) }
            }
        });
    }

    /// Vertical line with a name. Lines close together have different rows, so that their names do not overlap.
    pub(super) fn draw_vertical_line(&mut self, name: &str, value: f64, row: usize) {
        /// Space between the line and its name.
        const SPACE: f64 = 4.0;
        /// Distance from the top of the plot down to the baseline of the first row.
        const FIRST_ROW: f64 = 9.0;
        let x = self.x_at(value);
        let y = TOP_MARGIN + FIRST_ROW + row as f64 * LINE_HEIGHT;
        let bottom = self.bottom();
        self.append(&html! { path.upright d={ "M" (coordinate(x)) " " (TOP_MARGIN) "V" (coordinate(bottom)) } {} });
        self.notes.push_str(&html! { text.note x=(coordinate(x + SPACE)) y=(coordinate(y)) { (name) } }.0);
    }

    /// Draws the names of the curves beside their ends, moved up or down so that none covers another.
    fn draw_curve_names(&mut self) {
        /// Space between the plot and a sample of the curve's line, which is 14 long.
        const SPACE: f64 = 8.0;
        /// Distance from the start of the sample to the name.
        const NAME_INDENT: f64 = 18.0;
        /// The lowest name may lie this far below the x axis.
        const BELOW_AXIS: f64 = 4.0;
        let mut names = std::mem::take(&mut self.names);
        names.sort_by(|left, right| left.y.total_cmp(&right.y));
        let x = WIDTH - RIGHT_MARGIN + SPACE;
        let lowest_y = self.bottom() + BELOW_AXIS;
        let mut highest_y = TOP_MARGIN;
        let lowest_index = names.len().saturating_sub(1);
        for (index, CurveName { y, class, text }) in names.into_iter().enumerate() {
            // Coordinates grow downwards. A name moves up if the names below it would have no room, and never covers the name above it.
            let names_below = lowest_index - index;
            let room_for_names_below = LINE_HEIGHT * names_below as f64;
            let lowest_y_with_room = lowest_y - room_for_names_below;
            let y = y.min(lowest_y_with_room).max(highest_y);
            highest_y = y + LINE_HEIGHT;
            let shown = cut_name(text);
            self.append(&html! {
                path.line.(class) d={ "M" (coordinate(x)) " " (coordinate(y)) "h14" } {}
                text.name x=(coordinate(x + NAME_INDENT)) y=(coordinate(y + BASELINE)) { (escape_line(&shown)) }
            });
        }
    }

    /// Renders the chart with a heading and a text description for screen readers.
    pub(super) fn into_figure(mut self, id: &str, heading: &str, description: &str) -> Markup {
        self.draw_curve_names();
        let described_by = format!("{id}-description");
        html! {
            figure {
                figcaption id=(id) { (heading) }
                svg viewBox={ "0 0 " (WIDTH) " " (self.height) } role="img" aria-labelledby={ (id) " " (described_by) } {
                    desc id=(described_by) { (description) }
                    (PreEscaped(&self.body)) (PreEscaped(&self.notes))
                }
            }
        }
    }
}

/// Cuts a name of more than [`MAX_NAME_CHARS`] characters, and ends it with an ellipsis.
fn cut_name(name: String) -> String {
    let is_long = name.chars().count() > MAX_NAME_CHARS;
    if is_long { name.chars().take(MAX_NAME_CHARS - 1).chain(['\u{2026}']).collect() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within_the_axis() {
        assert_eq!(Axis::from_zero_to_at_least(9_100.0).tick_values(4.0), [0.0, 5_000.0, 10_000.0]);
        assert_eq!(Axis::logarithmic_over(2e3, 8e6).tick_values(4.0), [1e3, 1e4, 1e5, 1e6, 1e7]);
        assert!((Axis::from_zero_to_at_least(0.0).position_of(0.5) - 0.5).abs() < 1e-9);
        assert!(Axis::linear(0.0, 7.3).tick_values(8.0).iter().all(|t| (0.0..=7.3).contains(t)));
    }

    #[test]
    fn curve_names_do_not_overlap_and_stay_inside_the_plot() {
        let mut plot = Plot::new(Axis::linear(0.0, 1.0), Axis::from_zero_to_at_least(1.0), 150.0);
        for n in 0..6 {
            plot.add_curve_name("c0", &format!("name {n}"), 0.0);
        }
        let svg = plot.into_figure("x", "Heading", "description").into_string();
        let ys: Vec<f64> = svg
            .split(r#"class="name""#)
            .skip(1)
            .filter_map(|part| part.split(r#"y=""#).nth(1)?.split('"').next()?.parse().ok())
            .collect();
        assert_eq!(ys.len(), 6);
        assert!(ys.windows(2).all(|w| w[1] - w[0] >= LINE_HEIGHT - 0.2) && ys[5] < 140.0, "{ys:?}");
    }
}
