//! Numbers keep their digits and units at every size.

use super::*;
use crate::state::tests::agreement::Replayed;

/// Cells of this width below the end of the heading; none if the heading is not on the screen.
fn cells_below(drawn: &str, heading: &str, width: usize, rows: usize) -> Vec<String> {
    let lines: Vec<Vec<char>> = drawn.lines().map(|line| line.chars().collect()).collect();
    let heading: Vec<char> = format!(" {heading}").chars().collect();
    let end_in = |line: &[char]| {
        let start = line.windows(heading.len()).position(|part| part == heading)?;
        let end = start + heading.len();
        line.get(end).is_none_or(|next| *next == ' ').then_some(end)
    };
    // The verdict is a sentence.
    let found = lines.iter().enumerate().skip(2).find_map(|(y, line)| Some((y, end_in(line)?)));
    let Some((y, end)) = found else { return Vec::new() };
    let cell = |line: &Vec<char>| line.iter().take(end).skip(end.saturating_sub(width)).collect::<String>();
    lines.iter().skip(y + 1).take(rows).map(|line| cell(line).trim().to_owned()).collect()
}

/// `805 ms`, `2m05s`, or a statement that there is none.
fn is_duration(text: &str) -> bool {
    let has_unit = [" ns", " us", " ms", " s", "s", "m", "h", "d"].iter().any(|unit| text.ends_with(unit));
    has_unit && text.starts_with(|c: char| c.is_ascii_digit()) || ["", "-", "none"].contains(&text)
}

fn assert_no_number_is_cut(drawn: &str) {
    let is_number = |word: &str| word.trim_start_matches(['+', '(', '<']).starts_with(|c: char| c.is_ascii_digit());
    for line in drawn.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        for (index, word) in words.iter().enumerate() {
            let before = index.checked_sub(1).map_or("", |before| words[before]);
            if let Some(start) = word.strip_suffix('…') {
                assert!(!is_number(start), "{word} in {line}");
                let is_cut_unit = ["m", "u", "n", "K", "Ki", "M", "Mi", "G", "Gi"].contains(&start);
                assert!(!(is_cut_unit && is_number(before)), "{before} {word} in {line}");
            }
            // Otherwise it ends a sentence, or has its unit in it.
            let is_bare = word.chars().all(|c| c.is_ascii_digit() || ".,".contains(c));
            if ["p50", "p90", "p99"].contains(&before) && is_bare {
                // Behind a whole unit, a line may be cut; a cut unit is rejected above.
                let next = words.get(index + 1).map_or("", |next| next.trim_end_matches([';', ',', ')', '…']));
                assert!(is_duration(&format!("{word} {next}")), "{word} {next} in {line}");
            }
        }
        if let Some(shown) = line.strip_prefix(" gap p99 ") {
            let is_whole = ["ns", "us", "ms", "s", "none"].iter().any(|unit| shown.ends_with(&format!(" {unit}")));
            assert!(
                is_whole || is_duration(words.last().expect("a word")) || !shown.contains(|c: char| c.is_ascii_digit()),
                "{line}"
            );
        }
    }
}

#[test]
fn numbers_of_recordings_keep_their_units_at_every_size() {
    let mut checked = 0;
    for (name, run) in Replayed::all() {
        let mut fixture = Fixture::of(Scene::delivering());
        fixture.scene.analysis = run.analysis;
        fixture.refresh();
        for tab in Tab::ALL {
            fixture.press(&[Action::OpenTab(tab)]);
            for (width, height) in [(60, 20), (72, 24), (79, 24), (80, 24), (100, 30), (140, 40), (200, 60)] {
                let drawn = fixture.drawn((width, height), "C.UTF-8");
                let what = format!("{name}, {tab:?} at {width}x{height}:\n{drawn}");
                assert!(drawn.lines().skip(2).filter(|line| !line.is_empty()).count() >= 3, "blank: {what}");
                assert_no_number_is_cut(&drawn);
                let columns: &[&str] = match fixture.ui.tab {
                    Tab::Overview => &["p50", "p90"],
                    Tab::Requests => &["age", "gap", "silence"],
                    Tab::Request => &["sent at", "waited"],
                    Tab::Hops => &["p50", "p99"],
                    _ => &[],
                };
                // The rows below the other tables have other columns.
                let rows = if fixture.ui.tab == Tab::Requests { 4 } else { 1 };
                for cell in columns.iter().flat_map(|heading| cells_below(&drawn, heading, 7, rows)) {
                    assert!(is_duration(&cell), "{cell:?} of {what}");
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 300, "{checked} cells");
}
