//! Drawing surface for a part of the screen: clipped text, columns, rules, clickable areas.

use std::borrow::Cow;

use outputs::report::hostile::is_unprintable;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Span;
use ratatui::widgets::{Clear, Widget};

use crate::state::action::Action;
use crate::theme::{Ink, Theme};

/// Row below what was drawn, in which the next part can begin.
pub(super) type NextRow = u16;

/// Column behind what was drawn, in which the next text can begin.
pub(super) type NextColumn = u16;

/// An area of the screen, with the action of a click in it.
#[derive(Clone, Debug)]
struct ClickArea {
    area: Rect,
    action: Action,
}

/// Clickable areas of the screen, and the page size of its list.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClickAreas {
    areas: Vec<ClickArea>,
    /// Visible rows of the list.
    pub(crate) page_rows: usize,
    /// Largest scroll offset of the help.
    pub(crate) last_scroll: usize,
}

impl ClickAreas {
    /// Action of a click at `(x, y)`; `None` outside all clickable areas.
    pub(crate) fn action_at(&self, x: u16, y: u16) -> Option<Action> {
        let clicked = self.areas.iter().find(|clickable| clickable.area.contains((x, y).into()))?;
        Some(clicked.action)
    }
}

/// Items of which one is selected.
pub(super) struct List<'a, T> {
    pub(super) items: &'a [T],
    pub(super) selected: usize,
    /// Maximum number of items drawn; at least 1.
    pub(super) max_items: u16,
}

/// Cells of equal width in one row.
#[derive(Clone, Copy)]
pub(super) struct CellRow {
    pub(super) x: u16,
    pub(super) y: u16,
    /// Distance between the starts of two cells.
    pub(super) pitch: u16,
    pub(super) width: u16,
}

/// A rectangle of the buffer with its own coordinates.
pub(super) struct Pad<'a> {
    buffer: &'a mut Buffer,
    area: Rect,
    pub(super) theme: Theme,
    pub(super) click_areas: &'a mut ClickAreas,
}

impl<'a> Pad<'a> {
    pub(super) fn new(frame: &'a mut Frame<'_>, theme: Theme, click_areas: &'a mut ClickAreas) -> Self {
        let area = frame.area();
        Self { buffer: frame.buffer_mut(), area, theme, click_areas }
    }

    /// A part of the pad, given in screen coordinates.
    pub(super) fn sub_pad(&mut self, area: Rect) -> Pad<'_> {
        let area = area.intersection(self.area);
        Pad { buffer: self.buffer, area, theme: self.theme, click_areas: self.click_areas }
    }

    /// Rows from `y` on, at most `height`, given in pad coordinates.
    pub(super) fn pad_of_rows(&mut self, y: u16, height: u16) -> Pad<'_> {
        let y = y.min(self.area.height);
        let height = height.min(self.area.height - y);
        self.sub_pad(Rect { y: self.area.y + y, height, ..self.area })
    }

    /// The first columns, at most `width`.
    pub(super) fn left_columns(&mut self, width: u16) -> Pad<'_> {
        self.sub_pad(Rect { width, ..self.area })
    }

    /// Makes an area clickable, given in pad coordinates.
    pub(super) fn add_click_area(&mut self, area: Rect, action: Action) {
        let area = Rect { x: self.area.x + area.x, y: self.area.y + area.y, ..area };
        self.click_areas.areas.push(ClickArea { area, action });
    }

    /// Draws the part of a list that includes the selected item, from row `y` on. If not all items fit, one more row has the number of the
    /// others. Returns the next free row.
    ///
    /// `draw_item` gets the pad, a row, and an item with its index. It draws the item and returns the next free row.
    pub(super) fn draw_list<T>(
        &mut self,
        mut y: u16,
        list: &List<'_, T>,
        draw_item: impl Fn(&mut Pad<'_>, u16, usize, &T) -> NextRow,
    ) -> NextRow {
        let max_items = usize::from(list.max_items);
        let fit_all = list.items.len() <= max_items;
        // Otherwise the last row has the number of items that are not shown.
        let visible_items = if fit_all { max_items } else { max_items.saturating_sub(1).max(1) };
        // Scrolled only as far as the selected item needs to be visible.
        let first_index = list.selected.saturating_sub(visible_items - 1);
        self.click_areas.page_rows = visible_items;
        for (index, item) in list.items.iter().enumerate().skip(first_index).take(visible_items) {
            let item_y = y;
            y = draw_item(self, item_y, index, item);
            self.make_list_row_selectable(item_y, index, index == list.selected);
        }
        let hidden = list.items.len().saturating_sub(visible_items);
        if hidden > 0 {
            self.draw_text(3, y, &format!("{hidden} more: Up Down"), Ink::Dim);
            y += 1;
        }
        y
    }

    /// Makes line `y` a row of a list: a click selects it, and the selected one is highlighted.
    pub(super) fn make_list_row_selectable(&mut self, y: u16, index: usize, is_selected: bool) {
        if is_selected {
            self.style_row(y, Ink::Selected);
        }
        self.add_click_area(Rect::new(0, y, self.area.width, 1), Action::SelectRow(index));
    }

    pub(super) fn width(&self) -> u16 {
        self.area.width
    }

    pub(super) fn height(&self) -> u16 {
        self.area.height
    }

    /// Writes from `x` to at most the right edge. Returns the next free column.
    pub(super) fn draw_text(&mut self, x: u16, y: u16, text: &str, ink: Ink) -> NextColumn {
        self.draw_clipped(x, y, self.area.width.saturating_sub(x), text, ink)
    }

    /// Writes `text` into `width` cells from `x` on. A text that is too long is cut, and ends in an ellipsis. The cut leaves out a number
    /// that would lose digits or its unit. Returns the next free column.
    pub(super) fn draw_clipped(&mut self, x: u16, y: u16, width: u16, text: &str, ink: Ink) -> NextColumn {
        if y >= self.area.height || x >= self.area.width || width == 0 {
            return x;
        }
        let width = width.min(self.area.width - x);
        let screen_x = self.area.x + x;
        let screen_y = self.area.y + y;
        let style = self.theme.style(ink);
        let ellipsis = self.theme.rich_or_ascii("…", "~");
        // Nearly all text takes this path, which is faster than measuring characters.
        if text.len() <= width.into() && text.bytes().all(is_printable_ascii) {
            let drawn = text.len() as u16;
            for (x, byte) in (screen_x..screen_x + drawn).zip(text.bytes()) {
                self.buffer[(x, screen_y)].set_char(byte.into()).set_style(style);
            }
            return x + drawn;
        }
        let text = replace_unprintable(text);
        let shown = part_shown_in_width(&text, width);
        // `set_stringn` returns the cell behind what it wrote.
        let shown_end = self.buffer.set_stringn(screen_x, screen_y, shown, width.into(), style).0;
        if shown.len() == text.len() {
            return shown_end - self.area.x;
        }
        self.buffer.set_stringn(shown_end, screen_y, ellipsis, 1, style);
        x + width
    }

    /// The id in at most `width` cells. A long id is shortened in the middle, because ids of one client begin alike.
    pub(super) fn shorten_id<'t>(&self, id: &'t str, width: u16) -> Cow<'t, str> {
        shorten_middle(id, width.into(), self.theme.rich_or_ascii("…", "~"))
    }

    /// Shortens an id that is shown together with others to `width` cells. Its first `common_start` bytes, which all of them share, are
    /// left out before the rest.
    pub(super) fn shorten_similar_id<'t>(&self, id: &'t str, common_start: usize, width: u16) -> Cow<'t, str> {
        shorten_after_start(id, common_start, width.into(), self.theme.rich_or_ascii("…", "~"))
    }

    /// Writes right-aligned into `width` cells from `x`. A number that does not fit loses digits. Cells beyond the edge stay blank.
    pub(super) fn draw_right_aligned(&mut self, x: u16, y: u16, width: u16, text: &str, ink: Ink) {
        // A part of a right-aligned number would be another number.
        if x + width > self.area.width {
            return;
        }
        let text = shorten_to_number(text, width);
        let drawn_width = text_width(&text).min(width);
        self.draw_clipped(x + width - drawn_width, y, drawn_width, &text, ink);
    }

    /// Writes each text right-aligned into a cell of the row.
    pub(super) fn draw_cells(&mut self, row: CellRow, texts: impl IntoIterator<Item = impl AsRef<str>>, ink: Ink) {
        for (x, text) in (row.x..).step_by(row.pitch.into()).zip(texts) {
            self.draw_right_aligned(x, row.y, row.width, text.as_ref(), ink);
        }
    }

    /// Writes right-aligned at the edge of the pad.
    pub(super) fn draw_at_right_edge(&mut self, y: u16, text: &str, ink: Ink) {
        let text_width = (text.chars().count() as u16).min(self.area.width);
        self.draw_text(self.area.width - text_width, y, text, ink);
    }

    /// Writes a text whose items are separated by two spaces. Items that do not fit whole are left out, and a note says that there are
    /// more.
    pub(super) fn draw_whole_items(&mut self, x: u16, y: u16, text: &str, ink: Ink) {
        const MORE: &str = "  more: enlarge";
        let free_width = self.area.width.saturating_sub(x);
        if text_width(text) <= free_width {
            self.draw_text(x, y, text, ink);
            return;
        }
        let item_ends = text.match_indices("  ").map(|(end, _)| end);
        // An item that ends at 0 is empty.
        let fits = |end: &usize| *end > 0 && text_width(&text[..*end]) + text_width(MORE) <= free_width;
        let Some(last_end) = item_ends.filter(fits).last() else {
            // Not even the first item fits, so it is cut.
            self.draw_text(x, y, text, ink);
            return;
        };
        let x = self.draw_text(x, y, &text[..last_end], ink);
        self.draw_text(x, y, MORE, Ink::Dim);
    }

    /// Changes the style of a whole row, and leaves its text.
    pub(super) fn style_row(&mut self, y: u16, ink: Ink) {
        if y < self.area.height {
            self.buffer.set_style(Rect { y: self.area.y + y, height: 1, ..self.area }, self.theme.style(ink));
        }
    }

    pub(super) fn clear(&mut self) {
        Clear.render(self.area, self.buffer);
    }

    /// Draws a heading with a rule to the right edge.
    pub(super) fn draw_heading(&mut self, y: u16, title: &str) {
        let x = self.draw_text(1, y, title, Ink::Head) + 1;
        let rest = usize::from(self.area.width.saturating_sub(x + 1));
        let line = self.theme.rich_or_ascii("─", "-").repeat(rest);
        self.draw_text(x, y, &line, Ink::Dim);
    }

    /// Writes word-wrapped text from row `y` on, at most `max_rows` rows, of which the last is clipped. Returns the row after the last one.
    pub(super) fn draw_paragraph(&mut self, x: u16, y: u16, max_rows: u16, text: &str, ink: Ink) -> NextRow {
        let width = usize::from(self.area.width.saturating_sub(x + 1)).max(1);
        let lines = wrap_text(text, width);
        // All rows but the last have one line each.
        let whole_lines = lines.len().min(usize::from(max_rows.max(1))) - 1;
        for (line_y, line) in (y..).zip(&lines[..whole_lines]) {
            self.draw_text(x, line_y, line, ink);
        }
        // The last row has the rest, whose end shows whether it is cut.
        let last_y = y + whole_lines as u16;
        self.draw_clipped(x, last_y, width as u16, &lines[whole_lines..].join(" "), ink);
        last_y + 1
    }

    /// Writes word-wrapped text over what is there, such that it ends in row `last_y`.
    pub(super) fn draw_note_above(&mut self, last_y: u16, text: &str, ink: Ink) {
        // As wide as `draw_paragraph` wraps it from column 1 on.
        let rows = wrap_text(text, usize::from(self.area.width.saturating_sub(2)).max(1)).len() as u16;
        let rows = rows.min(last_y + 1);
        let y = last_y + 1 - rows;
        self.pad_of_rows(y, rows).clear();
        self.draw_paragraph(1, y, rows, text, ink);
    }
}

/// Breaks text at spaces into lines of at most `width` characters. A longer word has a line of its own. There is at least one line.
pub(super) fn wrap_text(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        let width_with_word = line.chars().count() + 1 + word.chars().count();
        if !line.is_empty() && width_with_word > width {
            // Numbers at the end move to the next line, because the next word may be their unit. A line of nothing else stays.
            let kept_bytes = without_last_numbers(&line).len();
            let moved = if kept_bytes > 0 { line.split_off(kept_bytes) } else { String::new() };
            lines.push(line);
            line = String::from(moved.trim());
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

/// The part of the text that [`Pad::draw_clipped`] shows in `width` cells: all of it, or its beginning, which the ellipsis follows.
pub(super) fn part_shown_in_width(text: &str, width: u16) -> &str {
    if Span::raw(text).width() <= width.into() {
        return text;
    }
    // One cell is for the ellipsis.
    cut_before_number(text, width.saturating_sub(1).into())
}

/// The beginning of the text that fits into `width` cells, without a number that would lose digits or the unit after it.
fn cut_before_number(text: &str, width: usize) -> &str {
    let (start, rest) = text.split_at(byte_length_that_fits(text, width));
    // A single word is a name, of which any beginning may be shown.
    if !text.contains(' ') {
        return start;
    }
    let is_last_word_cut = !start.ends_with(' ') && !rest.starts_with(' ');
    let before_last_word = start[..last_word_start(start)].trim_end();
    let word_before_last = &before_last_word[last_word_start(before_last_word)..];
    // A cut word behind a number may be its unit, so both are left out.
    if is_last_word_cut && is_number(word_before_last) {
        return without_last_numbers(before_last_word);
    }
    without_last_numbers(start)
}

/// Number of bytes at the start of the text that fit into `width` cells.
fn byte_length_that_fits(text: &str, width: usize) -> usize {
    let mut cells = 0;
    for (start, character) in text.char_indices() {
        let character_end = start + character.len_utf8();
        cells += Span::raw(&text[start..character_end]).width();
        if cells > width {
            return start;
        }
    }
    text.len()
}

/// The text without the numbers at its end, which would be shown without their unit.
fn without_last_numbers(text: &str) -> &str {
    let text = text.trim_end();
    let last_word = last_word_start(text);
    // Several numbers may follow each other.
    if is_number(&text[last_word..]) { without_last_numbers(&text[..last_word]) } else { text }
}

/// Index of the first byte of the last word.
fn last_word_start(text: &str) -> usize {
    text.rfind(' ').map_or(0, |space| space + 1)
}

/// Whether the word, or its part after a `/`, begins with a digit. Signs and brackets before the digit are ignored.
fn is_number(word: &str) -> bool {
    let mut parts = word.split('/').map(|part| part.trim_start_matches(['+', '-', '~', '<', '>', '(']));
    parts.any(|part| part.starts_with(|first: char| first.is_ascii_digit()))
}

/// Drops words and digits until the text fits or nothing more can be dropped. A number never loses its unit.
pub(super) fn shorten_to_number(text: &str, width: u16) -> Cow<'_, str> {
    if text_width(text) <= width {
        return text.into();
    }
    let mut words: Vec<Cow<'_, str>> = text.split(' ').map(Cow::from).collect();
    while text_width(&words.join(" ")) > width {
        let has_dropped = drop_least_important(&mut words);
        if !has_dropped {
            break;
        }
    }
    words.join(" ").into()
}

/// Drops the least important part of the text, and returns whether there was any to drop. That is the first of these:
/// - a remark in brackets at the end,
/// - a second number with what follows it,
/// - the first of several words before the number,
/// - a decimal of the number,
/// - the last word before the number.
fn drop_least_important(words: &mut Vec<Cow<'_, str>>) -> bool {
    if let Some(remark) = index_of_last_remark(words) {
        words.truncate(remark);
        return true;
    }
    let begins_with_digit = |word: &Cow<'_, str>| word.starts_with(|c: char| c.is_ascii_digit());
    let Some(number) = words.iter().position(begins_with_digit) else { return false };
    let behind_number = number + 1;
    if let Some(words_between) = words[behind_number..].iter().position(begins_with_digit) {
        // The row is about the first number.
        words.truncate(behind_number + words_between);
        return true;
    }
    shorten_around_number(words, number)
}

/// Shortens a text with one number, the word at `number_index`, in the order of [`drop_least_important`]. Words before the number are
/// dropped only if a unit behind it says what it is. Returns whether anything was dropped.
fn shorten_around_number(words: &mut Vec<Cow<'_, str>>, number_index: usize) -> bool {
    let has_unit = number_index + 1 < words.len();
    let has_several_words_before = number_index > 1 && has_unit;
    if has_several_words_before {
        words.remove(0);
    } else if let Some(shorter) = with_fewer_digits(&words[number_index]) {
        words[number_index] = shorter.into();
    } else if number_index > 0 && has_unit {
        // The row of the number explains what it is.
        words.remove(0);
    } else {
        return false;
    }
    true
}

/// Index of the first word of a remark in brackets at the end; `None` without one, or if it is all of the text.
fn index_of_last_remark(words: &[Cow<'_, str>]) -> Option<usize> {
    let ends_with_remark = words.last().is_some_and(|last| last.ends_with(')'));
    if !ends_with_remark {
        return None;
    }
    words.iter().rposition(|word| word.starts_with('(')).filter(|index| *index > 0)
}

/// The number with one decimal less, or in thousands: `12.3k` as `12k`, `9,999` as `10k`. `None` if it has no digit that can be dropped.
fn with_fewer_digits(word: &str) -> Option<String> {
    let end = word.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',').unwrap_or(word.len());
    let (number, unit) = word.split_at(end);
    if number.contains(',') {
        let whole: f64 = number.replace(',', "").parse().ok()?;
        return Some(format!("{:.0}k{unit}", whole / 1e3));
    }
    let (_, decimals) = number.split_once('.')?;
    let fewer_decimals = decimals.len().checked_sub(1)?;
    let value: f64 = number.parse().ok()?;
    Some(format!("{value:.fewer_decimals$}{unit}"))
}

/// Shortens an id to `width` characters: both ends stay.
fn shorten_middle<'t>(id: &'t str, width: usize, ellipsis: &str) -> Cow<'t, str> {
    let length = id.chars().count();
    if length <= width || width == 0 {
        return id.into();
    }
    // One character is the ellipsis.
    let kept = width - 1;
    let kept_at_end = kept / 2;
    let start: String = id.chars().take(kept - kept_at_end).collect();
    let end: String = id.chars().skip(length - kept_at_end).collect();
    format!("{start}{ellipsis}{end}").into()
}

/// Shortens an id to `width` characters. Its first `common_start` bytes are those of other ids, too, so they are left out first.
fn shorten_after_start<'t>(id: &'t str, common_start: usize, width: usize, ellipsis: &str) -> Cow<'t, str> {
    /// A shorter start tells more than an ellipsis.
    const MIN_START: usize = 4;
    let length = id.chars().count();
    if length <= width || common_start < MIN_START || width < 2 {
        return shorten_middle(id, width, ellipsis);
    }
    // One character is the ellipsis in place of the start.
    let width_of_rest = width - 1;
    let differing = &id[common_start..];
    if differing.chars().count() <= width_of_rest {
        // There is room for a part of the common start.
        let end: String = id.chars().skip(length - width_of_rest).collect();
        return format!("{ellipsis}{end}").into();
    }
    format!("{ellipsis}{}", shorten_middle(differing, width_of_rest, ellipsis)).into()
}

/// Number of characters, for which as many columns are reserved.
pub(super) fn text_width(text: &str) -> u16 {
    text.chars().count() as u16
}

/// Such a character is one cell wide in any context.
fn is_printable_ascii(byte: u8) -> bool {
    (b' '..=b'~').contains(&byte)
}

/// Replaces characters that control the terminal, reverse text or are invisible: text from the wire may contain any.
fn replace_unprintable(text: &str) -> Cow<'_, str> {
    if text.contains(is_unprintable) {
        text.chars().map(|c| if is_unprintable(c) { '?' } else { c }).collect::<String>().into()
    } else {
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(draw: impl FnOnce(&mut Pad<'_>)) -> Vec<String> {
        let area = Rect::new(0, 0, 10, 3);
        let mut buffer = Buffer::empty(area);
        let theme = Theme::for_environment(None, |_| String::new());
        draw(&mut Pad { buffer: &mut buffer, area, theme, click_areas: &mut ClickAreas::default() });
        buffer.content.chunks(10).map(|row| row.iter().map(ratatui::buffer::Cell::symbol).collect()).collect()
    }

    #[test]
    fn truncated_text_is_marked_and_stays_inside_its_cells() {
        let rows = drawn(|pad| {
            pad.draw_clipped(0, 0, 5, "abcdefgh", Ink::Plain);
            pad.draw_right_aligned(0, 1, 6, "42", Ink::Plain);
            pad.draw_text(0, 2, "a\x1b[2Jb", Ink::Plain);
            pad.draw_text(50, 50, "lost", Ink::Plain);
        });
        assert_eq!(rows, ["abcd~     ", "    42    ", "a?[2Jb    "]);
    }

    #[test]
    fn clipped_text_ends_in_no_part_of_a_number() {
        let text = "up to 1,427 frames, p99 805 ms/12.5 s in 2 hops";
        for (width, expected) in [
            (44, "up to 1,427 frames, p99 805 ms/12.5 s in"),
            (37, "up to 1,427 frames, p99 805 ms/12.5 s"),
            (35, "up to 1,427 frames, p99"),
            (29, "up to 1,427 frames, p99"),
            (19, "up to 1,427 frames,"),
            (17, "up to"),
            (9, "up to"),
        ] {
            assert_eq!(cut_before_number(text, width), expected, "{width}");
        }
        assert_eq!(cut_before_number("+12.3 ms", 7), "");
        assert_eq!(cut_before_number("2.0-egress.tgap", 7), "2.0-egr");
    }

    #[test]
    fn a_shortened_cell_keeps_the_unit_of_its_number() {
        let wait = "wait p99 805 ms (run)";
        for (text, width, expected) in [
            (wait, 21, wait),
            (wait, 20, "wait p99 805 ms"),
            (wait, 14, "p99 805 ms"),
            (wait, 9, "805 ms"),
            ("12.3 ms", 6, "12 ms"),
            ("9,999", 4, "10k"),
            ("backlog 1,427 1.97 s", 19, "backlog 1,427"),
            ("dropped 12.3k", 12, "dropped 12k"),
            ("200 frames/s (10 s)", 14, "200 frames/s"),
            ("29.8 frames/s", 12, "30 frames/s"),
            ("lost 4.07k tok", 13, "lost 4.1k tok"),
            ("delivery unknown", 10, "delivery unknown"),
        ] {
            assert_eq!(shorten_to_number(text, width), expected);
        }
    }

    #[test]
    fn long_ids_keep_both_ends() {
        assert_eq!(shorten_middle("chatcmpl-bench-33312", 12, "…"), "chatcm…33312");
        assert_eq!(shorten_middle("5b92f00d", 8, "…"), "5b92f00d");
        assert_eq!(shorten_middle("äöüß", 3, "~"), "ä~ß");
    }

    #[test]
    fn similar_ids_keep_what_differs() {
        for (id, common_start, width, expected) in [
            ("chatcmpl-bench-3335eef3-129-92f07416", 24, 17, "…ef3-129-92f07416"),
            ("chatcmpl-bench-3335eef3-129-92f07416", 24, 10, "…129-…7416"),
            ("chatcmpl-1", 9, 10, "chatcmpl-1"),
            ("5b92f00d5b92f00d", 2, 9, "5b92…f00d"),
        ] {
            let shown = shorten_after_start(id, common_start, width, "…");
            assert_eq!(shown, expected, "{width}");
        }
    }

    #[test]
    fn a_paragraph_wraps_at_spaces_and_stops_at_its_line_limit() {
        let rows = drawn(|pad| {
            assert_eq!(pad.draw_paragraph(0, 0, 2, "one two three four five", Ink::Plain), 2);
        });
        let numbers = drawn(|pad| {
            pad.draw_paragraph(0, 0, 3, "p99 of 12 ms, 7 s", Ink::Plain);
        });
        assert_eq!(numbers, ["p99 of    ", "12 ms,    ", "7 s       "]);
        assert_eq!(rows, ["one two   ", "three fo~ ", "          "]);
    }
}
