//! One line that shows parts of a whole: a bar of signs, and what each sign stands for.

use super::LegLine;
use crate::words::percent;

/// Parts smaller than this share a segment.
const SMALLEST: f64 = 0.02;
/// One sign a segment, in the order of the path; further segments share the last.
const SIGNS: &[u8] = b"#=+-:.";

/// One part of the whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// What it is.
    pub name: String,
    /// From 0 to 1.
    pub share: f64,
}

/// Where first tokens' time went, or chunks' where no first token was seen; empty where neither was.
pub fn segments(path: &[LegLine]) -> Vec<Segment> {
    let first = path
        .iter()
        .any(|leg| leg.first_token_share.is_some_and(|share| share > 0.0));
    let share = |leg: &LegLine| {
        if first {
            leg.first_token_share.unwrap_or(0.0)
        } else {
            leg.share
        }
    };
    gathered(path.iter().map(|leg| Segment {
        name: leg.words(),
        share: share(leg),
    }))
}

/// The parts that are large enough to be told apart, and one for all others.
pub fn gathered(parts: impl Iterator<Item = Segment>) -> Vec<Segment> {
    let (mut segments, small): (Vec<_>, Vec<_>) = parts.partition(|part| part.share >= SMALLEST);
    let others: f64 = small.iter().map(|part| part.share).sum();
    if others > 0.0 && !segments.is_empty() {
        segments.push(Segment {
            name: String::from("elsewhere"),
            share: others,
        });
    }
    segments
}

/// How many of `width` cells each segment takes; at least one each.
pub fn cells(segments: &[Segment], width: usize) -> Vec<usize> {
    let mut cells: Vec<usize> = segments
        .iter()
        .map(|segment| ((segment.share * width as f64).round() as usize).max(1))
        .collect();
    // Rounding is settled with the largest.
    let sum: usize = cells.iter().sum();
    if let Some(largest) = cells.iter_mut().max() {
        *largest = (*largest + width).saturating_sub(sum).max(1);
    }
    cells
}

/// `[####=-]  # 94 % waiting on a->b, = 5 % inside the b`
pub(super) fn line(path: &[LegLine], width: usize) -> Option<String> {
    let segments = segments(path);
    if segments.is_empty() {
        return None;
    }
    let sign = |place: usize| char::from(SIGNS[place.min(SIGNS.len() - 1)]);
    let bar: String = cells(&segments, width)
        .into_iter()
        .enumerate()
        .flat_map(|(place, cells)| std::iter::repeat_n(sign(place), cells))
        .collect();
    let told: Vec<String> = segments
        .iter()
        .enumerate()
        .map(|(place, segment)| format!("{} {} {}", sign(place), percent(segment.share), segment.name))
        .collect();
    Some(format!("[{bar}] {}", told.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_fill_the_width_and_none_is_empty() {
        let segment = |share| Segment {
            name: String::new(),
            share,
        };
        for shares in [
            vec![0.94, 0.03, 0.03],
            vec![1.0],
            vec![0.5, 0.5],
            vec![0.335, 0.335, 0.33],
        ] {
            let segments: Vec<Segment> = shares.into_iter().map(segment).collect();
            let cells = cells(&segments, 20);
            assert_eq!(cells.iter().sum::<usize>(), 20, "{cells:?}");
            assert!(cells.iter().all(|&n| n > 0));
        }
    }
}
