//! A one-line bar of the parts of a whole, with a legend.

use trace::path::Ends;
use trace::words::percent;

use super::{LegKind, LegLine};

/// Smaller parts share a segment.
const SMALLEST_SHARE: f64 = 0.02;
/// Symbols of the segments in path order; further segments share the last.
const SEGMENT_SYMBOLS: &[u8] = b"#=+-:.";

/// One part of the whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// Name of the part.
    pub name: String,
    /// Share from 0 to 1.
    pub share: f64,
}

/// Segments of the bar, one for each large leg of the path (a hop or a process). They show where first tokens spend their time, or where
/// chunks do if no first token was observed. Empty without either.
pub fn path_segments(path: &[LegLine]) -> Vec<Segment> {
    let has_first_tokens = path.iter().any(|leg| leg.first_token_share.is_some_and(|share| share > 0.0));
    merge_small_segments(path.iter().map(|leg| Segment {
        name: leg.words(),
        share: if has_first_tokens { leg.first_token_share.unwrap_or(0.0) } else { leg.share },
    }))
}

/// Roles between which first tokens spend the time of these legs; `None` without a hop.
pub fn ends_of_path(path: &[LegLine]) -> Option<Ends<&str>> {
    // The name of a hop is `sender->receiver`.
    let mut hops = path.iter().filter(|leg| leg.kind == LegKind::Wait);
    let first = hops.next()?;
    // A single hop is the last one, too.
    let last = hops.next_back().unwrap_or(first);
    Some(Ends { from: Ends::from(first.name.as_str()).from, to: Ends::from(last.name.as_str()).to })
}

/// The parts large enough for their own segment, and one segment for all others. Empty if no part is large enough.
pub fn merge_small_segments(parts: impl Iterator<Item = Segment>) -> Vec<Segment> {
    let (mut segments, small): (Vec<_>, Vec<_>) = parts.partition(|part| part.share >= SMALLEST_SHARE);
    let others: f64 = small.iter().map(|part| part.share).sum();
    if others > 0.0 && !segments.is_empty() {
        segments.push(Segment { name: String::from("elsewhere"), share: others });
    }
    segments
}

/// Number of a bar's `width` cells that each segment takes, at least one.
pub fn cells_per_segment(segments: &[Segment], width: usize) -> Vec<usize> {
    let mut cells: Vec<usize> =
        segments.iter().map(|segment| ((segment.share * width as f64).round() as usize).max(1)).collect();
    // The cells must fill the bar exactly, so the largest segment absorbs the rounding error.
    let sum: usize = cells.iter().sum();
    if let Some(largest) = cells.iter_mut().max() {
        *largest = (*largest + width).saturating_sub(sum).max(1);
    }
    cells
}

/// Symbol of the segment with this index.
fn symbol_of_segment(index: usize) -> char {
    char::from(SEGMENT_SYMBOLS[index.min(SEGMENT_SYMBOLS.len() - 1)])
}

/// A bar of `width` characters with its legend: `[####=-] # 94 % waiting on a->b, = 5 % inside the b`. `None` without a leg that is large
/// enough for the bar.
pub(super) fn describe_bar(path: &[LegLine], width: usize) -> Option<String> {
    let segments = path_segments(path);
    if segments.is_empty() {
        return None;
    }
    let mut bar = String::new();
    for (index, cells) in cells_per_segment(&segments, width).into_iter().enumerate() {
        bar.extend(std::iter::repeat_n(symbol_of_segment(index), cells));
    }
    Some(format!("[{bar}] {}", describe_bar_legend(&segments)))
}

/// Legend of a bar: symbol, share and name of each segment.
fn describe_bar_legend(segments: &[Segment]) -> String {
    let labels = segments
        .iter()
        .enumerate()
        .map(|(index, segment)| format!("{} {} {}", symbol_of_segment(index), percent(segment.share), segment.name));
    labels.collect::<Vec<String>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_fill_the_width_and_every_segment_has_one() {
        let segment = |share| Segment { name: String::new(), share };
        for shares in [vec![0.94, 0.03, 0.03], vec![1.0], vec![0.5, 0.5], vec![0.335, 0.335, 0.33]] {
            let segments: Vec<Segment> = shares.into_iter().map(segment).collect();
            let cells = cells_per_segment(&segments, 20);
            assert_eq!(cells.iter().sum::<usize>(), 20, "{cells:?}");
            assert!(cells.iter().all(|&n| n > 0));
        }
    }
}
