//! The curves as one SVG image, one panel each, with a logarithmic x axis.

use std::fmt::Write as _;

use super::Curve;

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 28.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 44.0;

pub(super) fn svg(curves: &[Curve]) -> String {
    let rows = curves.len().div_ceil(2) as f64;
    let (width, height) = (2.0 * WIDTH, rows * HEIGHT);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (place, curve) in curves.iter().enumerate() {
        let (x, y) = ((place % 2) as f64 * WIDTH, (place / 2) as f64 * HEIGHT);
        let _ = writeln!(out, "<g transform=\"translate({x} {y})\">");
        panel(&mut out, curve);
        out.push_str("</g>\n");
    }
    out.push_str("</svg>\n");
    out
}

fn panel(out: &mut String, curve: &Curve) {
    let widest = curve.points.iter().map(|p| f64::from(p.0)).fold(2.0, f64::max).log2();
    let step = step(curve.points.iter().map(|p| p.1).fold(0.0, f64::max));
    let lines = (curve.points.iter().map(|p| p.1).fold(0.0, f64::max) / step)
        .ceil()
        .max(1.0);
    let across = |many: u32| LEFT + (WIDTH - LEFT - RIGHT) * f64::from(many).log2() / widest;
    let up = |ns: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * ns / (lines * step);
    let (title, cost, grows) = (curve.title, curve.cost, curve.grows);
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"16\" font-weight=\"bold\">{title}: {cost}</text>"
    );
    for line in 0..=lines as u32 {
        let (ns, y) = (f64::from(line) * step, up(f64::from(line) * step));
        let (end, text) = (WIDTH - RIGHT, y + 4.0);
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {y:.1}H{end}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{text:.1}\" text-anchor=\"end\">{ns}</text>",
            LEFT - 6.0
        );
    }
    let mut path = String::new();
    for (place, &(many, ns)) in curve.points.iter().enumerate() {
        let (x, y) = (across(many), up(ns));
        let _ = write!(path, "{}{x:.1} {y:.1}", if place == 0 { 'M' } else { 'L' });
        let _ = writeln!(
            out,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"#1f6feb\"/>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{many}</text>",
            HEIGHT - BOTTOM + 16.0
        );
    }
    let _ = writeln!(
        out,
        "<path d=\"{path}\" fill=\"none\" stroke=\"#1f6feb\" stroke-width=\"1.5\"/>\
         <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{grows}</text>",
        f64::midpoint(LEFT, WIDTH - RIGHT),
        HEIGHT - 10.0
    );
}

/// A round step that divides the axis into a few intervals.
fn step(most: f64) -> f64 {
    let magnitude = 10_f64.powf((most / 4.0).max(1e-9).log10().floor());
    let times = [1.0, 2.0, 5.0, 10.0].into_iter().find(|n| n * magnitude * 4.0 >= most);
    times.unwrap_or(10.0) * magnitude
}
