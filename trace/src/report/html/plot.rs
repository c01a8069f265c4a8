//! Charts with two axes, as inline SVG. The page's style sheet defines colours and dashes as classes.

use std::fmt::{Display, Write as _};

use super::super::hostile::{Html, plain};

const WIDTH: f64 = 960.0;
const LEFT: f64 = 66.0;
/// Width reserved for the names of lines.
const RIGHT: f64 = 168.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 36.0;
/// Maximum length of a line's name.
const NAME: usize = 25;
/// Width of a finding marker.
const RING: f64 = 18.0;
/// Smallest distance between two names.
const LINE_HEIGHT: f64 = 13.0;

/// Maps values to positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    from: f64,
    to: f64,
    log: bool,
}

impl Axis {
    /// Linear scale; an axis of length zero gets length one.
    pub(super) fn linear(from: f64, to: f64) -> Self {
        let to = if to > from { to } else { from + 1.0 };
        Self { from, to, log: false }
    }

    /// Linear scale from zero to a round number of at least `most`.
    pub(super) fn counting(max: f64) -> Self {
        let max = if max > 0.0 { max } else { 1.0 };
        let step = round_step(max / 4.0);
        Self::linear(0.0, (max / step).ceil() * step)
    }

    /// Logarithmic scale over whole decades; smaller values are drawn at its start.
    pub(super) fn decades(min: f64, max: f64) -> Self {
        let from = 10_f64.powf(min.max(1.0).log10().floor());
        let to = 10_f64.powf(max.max(1.0).log10().ceil()).max(from * 10.0);
        Self { from, to, log: true }
    }

    fn share(&self, value: f64) -> f64 {
        let of = |v: f64| if self.log { v.max(self.from).log10() } else { v };
        ((of(value) - of(self.from)) / (of(self.to) - of(self.from))).clamp(0.0, 1.0)
    }

    /// About `most` round tick values; on a logarithmic axis its decades.
    fn ticks(&self, max: f64) -> Vec<f64> {
        let steps = |step: f64| {
            let first = (self.from / step).ceil();
            let count = ((self.to / step - first).floor().max(0.0) as usize).min(40);
            (0..=count).map(|n| (first + n as f64) * step).collect()
        };
        if self.log {
            let decades = (self.to / self.from).log10().round() as i32;
            (0..=decades).map(|n| self.from * 10_f64.powi(n)).collect()
        } else {
            steps(round_step((self.to - self.from) / max))
        }
    }
}

/// Smallest of 1, 2, 5, 10, 20 ... that is at least `step`.
fn round_step(step: f64) -> f64 {
    let decade = 10_f64.powf(step.max(1e-12).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|n| n * decade);
    steps.into_iter().find(|&n| n >= step * 0.999).unwrap_or(10.0 * decade)
}

/// One chart.
pub(super) struct Plot {
    x: Axis,
    y: Axis,
    height: f64,
    body: String,
    names: Vec<(f64, String, String)>,
    /// Position of the finding markers.
    rings: Vec<f64>,
}

impl Plot {
    pub(super) fn new(x: Axis, y: Axis, height: f64) -> Self {
        Self {
            x,
            y,
            height,
            body: String::new(),
            names: Vec::new(),
            rings: Vec::new(),
        }
    }

    pub(super) fn x_at(&self, value: f64) -> f64 {
        LEFT + self.x.share(value) * (WIDTH - LEFT - RIGHT)
    }

    fn y_at(&self, value: f64) -> f64 {
        self.bottom() - self.y.share(value) * (self.bottom() - TOP)
    }

    fn bottom(&self) -> f64 {
        self.height - BOTTOM
    }

    /// Ticks on the left, each with a grid line.
    pub(super) fn y_ticks(&mut self, label: impl Fn(f64) -> String) {
        for tick in self.y.ticks(4.0) {
            let (y, end) = (self.y_at(tick), WIDTH - RIGHT);
            let _ = write!(
                self.body,
                r#"<path class="grid" d="M{LEFT} {y:.1}H{end:.1}"/><text class="tick" x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
                LEFT - 6.0,
                y + 4.0,
                Html(&label(tick))
            );
        }
    }

    /// Ticks at the bottom: a value and an optional second line.
    pub(super) fn x_ticks(&mut self, label: impl Fn(f64) -> (String, Option<String>)) {
        let bottom = self.bottom();
        let _ = write!(
            self.body,
            r#"<path class="axis" d="M{LEFT} {bottom:.1}H{:.1}"/>"#,
            WIDTH - RIGHT
        );
        for tick in self.x.ticks(8.0) {
            let x = self.x_at(tick);
            let (first, second) = label(tick);
            let _ = write!(
                self.body,
                r#"<path class="axis" d="M{x:.1} {bottom:.1}v4"/><text class="tick" x="{x:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
                bottom + 16.0,
                Html(&first)
            );
            if let Some(second) = second {
                let _ = write!(
                    self.body,
                    r#"<text class="tick dim" x="{x:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
                    bottom + 29.0,
                    Html(&second)
                );
            }
        }
    }

    /// A line through `points` with its name at the end; missing points break it.
    pub(super) fn line(&mut self, class: &str, name: &str, points: &[Option<(f64, f64)>]) {
        let mut path = String::new();
        for (n, point) in points.iter().enumerate() {
            let Some((x, y)) = *point else { continue };
            let begun = n > 0 && points[n - 1].is_some();
            let (x, y) = (self.x_at(x), self.y_at(y));
            let _ = write!(path, "{}{x:.1} {y:.1}", if begun { 'L' } else { 'M' });
            if !begun && points.get(n + 1).copied().flatten().is_none() {
                // For a single point, the round line cap draws a dot.
                path.push_str("h.1");
            }
        }
        let _ = write!(self.body, r#"<path class="line {class}" d="{path}"/>"#);
        if let Some((_, y)) = points.iter().rev().flatten().next() {
            self.names.push((self.y_at(*y), class.to_owned(), name.to_owned()));
        }
    }

    /// Area between two series of `y`.
    pub(super) fn area(&mut self, class: &str, points: &[(f64, f64, f64)]) {
        let (Some(first), false) = (points.first(), points.len() < 2) else {
            return;
        };
        let mut path = format!("M{:.1} {:.1}", self.x_at(first.0), self.y_at(first.1));
        for &(x, _, above) in points {
            let _ = write!(path, "L{:.1} {:.1}", self.x_at(x), self.y_at(above));
        }
        for &(x, below, _) in points.iter().rev() {
            let _ = write!(path, "L{:.1} {:.1}", self.x_at(x), self.y_at(below));
        }
        let _ = write!(self.body, r#"<path class="area {class}" d="{path}Z"/>"#);
    }

    /// Name on the right at height `y`.
    pub(super) fn name(&mut self, class: &str, name: &str, y: f64) {
        self.names.push((self.y_at(y), class.to_owned(), name.to_owned()));
    }

    /// Bar over `from..to` with a tooltip.
    pub(super) fn bar(&mut self, class: &str, (from, to): (f64, f64), value: f64, tooltip: &str) {
        let (x, y) = (self.x_at(from), self.y_at(value));
        let width = (self.x_at(to) - x - 0.6).max(0.8);
        let height = (self.bottom() - y).max(if value > 0.0 { 1.0 } else { 0.0 });
        let _ = write!(
            self.body,
            r#"<rect class="bar {class}" x="{x:.1}" y="{:.1}" width="{width:.1}" height="{height:.1}"><title>{}</title></rect>"#,
            self.bottom() - height,
            Html(tooltip)
        );
    }

    /// Tooltip of an interval of the x axis.
    pub(super) fn hover(&mut self, (from, to): (f64, f64), tooltip: &str) {
        let x = self.x_at(from);
        let _ = write!(
            self.body,
            r#"<rect class="hover" x="{x:.1}" y="{TOP}" width="{:.1}" height="{:.1}"><title>{}</title></rect>"#,
            (self.x_at(to) - x).max(0.5),
            self.bottom() - TOP,
            Html(tooltip)
        );
    }

    /// Vertical line with a numbered marker that links to the finding with that number.
    pub(super) fn finding(&mut self, number: usize, class: &str, at: f64, tooltip: &str) {
        let x = self.x_at(at);
        // Findings of the same time are drawn side by side.
        let mut ring = x;
        while self.rings.iter().any(|occupied| (occupied - ring).abs() < RING) {
            ring += RING;
        }
        self.rings.push(ring);
        let _ = write!(
            self.body,
            concat!(
                r##"<a href="#finding-{n}" class="mark {class}"><title>{tooltip}</title><path d="M{x:.1} {TOP}V{bottom:.1}"/>"##,
                r#"<circle cx="{ring:.1}" cy="{cy:.1}" r="8"/><text x="{ring:.1}" y="{ty:.1}" text-anchor="middle">{n}</text></a>"#
            ),
            n = number,
            class = class,
            tooltip = Html(tooltip),
            x = x,
            ring = ring,
            TOP = TOP,
            bottom = self.bottom(),
            cy = TOP - 10.0,
            ty = TOP - 6.0
        );
    }

    /// Named vertical line; its name is in one of several rows.
    pub(super) fn vertical_line(&mut self, name: &str, at: f64, row: usize) {
        let (x, y) = (self.x_at(at), TOP + 9.0 + row as f64 * LINE_HEIGHT);
        let left = x > WIDTH - RIGHT - 60.0;
        let (anchor, x_name) = if left { ("end", x - 4.0) } else { ("start", x + 4.0) };
        let _ = write!(
            self.body,
            r#"<path class="upright" d="M{x:.1} {TOP}V{:.1}"/><text class="note" x="{x_name:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#,
            self.bottom(),
            Html(name)
        );
    }

    /// Renders the chart with a heading and a text description for screen readers.
    pub(super) fn finish(mut self, id: &str, heading: &str, description: impl Display) -> String {
        let mut names = std::mem::take(&mut self.names);
        names.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut min = TOP;
        let max = self.bottom() + 4.0;
        let space = max - LINE_HEIGHT * names.len() as f64;
        for (n, (y, class, name)) in names.into_iter().enumerate() {
            let y = y.min(space + LINE_HEIGHT * (n + 1) as f64).max(min);
            min = y + LINE_HEIGHT;
            let short: String = if name.chars().count() > NAME {
                name.chars().take(NAME - 1).chain(['\u{2026}']).collect()
            } else {
                name
            };
            let x = WIDTH - RIGHT + 8.0;
            let _ = write!(
                self.body,
                r#"<path class="line {class}" d="M{x:.1} {y:.1}h14"/><text class="name" x="{:.1}" y="{:.1}">{}</text>"#,
                x + 18.0,
                y + 4.0,
                Html(&plain(&short))
            );
        }
        format!(
            concat!(
                r#"<figure><figcaption id="{id}">{heading}</figcaption><svg viewBox="0 0 {WIDTH} {height}" role="img" "#,
                r#"aria-labelledby="{id} {id}-description"><desc id="{id}-description">{description}</desc>{body}</svg></figure>"#
            ),
            id = id,
            heading = Html(heading),
            WIDTH = WIDTH,
            height = self.height,
            description = Html(&description.to_string()),
            body = self.body
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within_the_axis() {
        assert_eq!(Axis::counting(9_100.0).ticks(4.0), [0.0, 5_000.0, 10_000.0]);
        assert_eq!(Axis::decades(2e3, 8e6).ticks(4.0), [1e3, 1e4, 1e5, 1e6, 1e7]);
        assert!((Axis::counting(0.0).share(0.5) - 0.5).abs() < 1e-9);
        assert!(
            Axis::linear(0.0, 7.3)
                .ticks(8.0)
                .iter()
                .all(|t| (0.0..=7.3).contains(t))
        );
    }

    #[test]
    fn curve_names_do_not_overlap_and_stay_inside_the_plot() {
        let mut plot = Plot::new(Axis::linear(0.0, 1.0), Axis::counting(1.0), 150.0);
        for n in 0..6 {
            plot.name("c0", &format!("name {n}"), 0.0);
        }
        let svg = plot.finish("x", "Heading", "description");
        let ys: Vec<f64> = svg
            .split(r#"class="name""#)
            .skip(1)
            .filter_map(|part| part.split(r#"y=""#).nth(1)?.split('"').next()?.parse().ok())
            .collect();
        assert_eq!(ys.len(), 6);
        assert!(
            ys.windows(2).all(|w| w[1] - w[0] >= LINE_HEIGHT - 0.2) && ys[5] < 140.0,
            "{ys:?}"
        );
    }
}
