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

/// Clickable areas of the screen, and the page size of its list.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClickAreas {
    /// Areas, each with the action of a click in it.
    areas: Vec<(Rect, Action)>,
    /// Visible rows of the list.
    pub(crate) page_rows: usize,
}

impl ClickAreas {
    /// Action of a click at `(x, y)`.
    pub(crate) fn action_at(&self, x: u16, y: u16) -> Option<Action> {
        self.areas.iter().find(|(area, _)| area.contains((x, y).into())).map(|(_, action)| *action)
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
    pub(super) fn rows_from(&mut self, y: u16, height: u16) -> Pad<'_> {
        let y = y.min(self.area.height);
        let height = height.min(self.area.height - y);
        self.sub_pad(Rect { y: self.area.y + y, height, ..self.area })
    }

    /// Makes an area clickable, given in pad coordinates.
    pub(super) fn add_click_area(&mut self, area: Rect, action: Action) {
        let area = Rect { x: self.area.x + area.x, y: self.area.y + area.y, ..area };
        self.click_areas.areas.push((area, action));
    }

    /// Draws the part of a list that includes the selected item, from row `y` on. `draw_item` draws an item in a row and returns the next
    /// free row.
    pub(super) fn draw_list<T>(
        &mut self,
        mut y: u16,
        list: &List<'_, T>,
        draw_item: impl Fn(&mut Pad<'_>, u16, usize, &T) -> u16,
    ) -> u16 {
        let max_items = usize::from(list.max_items);
        let first = list.selected.saturating_sub(max_items - 1);
        self.click_areas.page_rows = max_items;
        for (index, item) in list.items.iter().enumerate().skip(first).take(max_items) {
            let item_y = y;
            y = draw_item(self, item_y, index, item);
            self.finish_list_row(item_y, index, index == list.selected);
        }
        y
    }

    /// Makes line `y` a row of a list: a click selects it, and the selected one is highlighted.
    pub(super) fn finish_list_row(&mut self, y: u16, index: usize, is_selected: bool) {
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
    pub(super) fn draw_text(&mut self, x: u16, y: u16, text: &str, ink: Ink) -> u16 {
        self.draw_clipped(x, y, self.area.width.saturating_sub(x), text, ink)
    }

    /// Writes into `width` cells from `x`. Clipped text ends in an ellipsis.
    pub(super) fn draw_clipped(&mut self, x: u16, y: u16, width: u16, text: &str, ink: Ink) -> u16 {
        if y >= self.area.height || x >= self.area.width {
            return x;
        }
        let width = width.min(self.area.width - x);
        let screen_x = self.area.x + x;
        let screen_y = self.area.y + y;
        let style = self.theme.style(ink);
        let ellipsis = self.theme.rich_or_ascii("…", "~");
        // Nearly all text takes this path, which is faster than measuring characters.
        if text.bytes().all(is_printable_ascii) {
            let drawn = (text.len() as u64).min(width.into()) as u16;
            for (x, byte) in (screen_x..screen_x + drawn).zip(text.bytes()) {
                self.buffer[(x, screen_y)].set_char(byte.into()).set_style(style);
            }
            if width > 1 && text.len() > width.into() {
                self.buffer[(screen_x + width - 1, screen_y)].set_symbol(ellipsis);
            }
            return x + drawn;
        }
        let text = replace_unprintable(text);
        let screen_end = self.buffer.set_stringn(screen_x, screen_y, &text, width.into(), style).0;
        if width > 1 && Span::raw(&*text).width() > width.into() {
            self.buffer.set_stringn(screen_x + width - 1, screen_y, ellipsis, 1, style);
            return x + width;
        }
        screen_end - self.area.x
    }

    /// Writes right-aligned into `width` cells from `x`.
    pub(super) fn draw_right_aligned(&mut self, x: u16, y: u16, width: u16, text: &str, ink: Ink) {
        let text_width = text.chars().count().min(width.into()) as u16;
        self.draw_clipped(x + width - text_width, y, text_width, text, ink);
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

    /// Writes word-wrapped text from row `y` on, at most `max_rows` rows. Returns the row after the last one.
    pub(super) fn draw_paragraph(&mut self, x: u16, y: u16, max_rows: u16, text: &str, ink: Ink) -> u16 {
        let width = usize::from(self.area.width.saturating_sub(x + 1)).max(1);
        let mut line = String::new();
        let mut line_y = y;
        for word in text.split_whitespace() {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
                if line_y + 1 >= y + max_rows {
                    break;
                }
                self.draw_text(x, line_y, &line, ink);
                line.clear();
                line_y += 1;
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        self.draw_text(x, line_y, &line, ink);
        line_y + 1
    }
}

/// Number of characters, as columns are reserved.
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
    fn a_paragraph_wraps_at_spaces_and_stops_at_its_line_limit() {
        let rows = drawn(|pad| {
            assert_eq!(pad.draw_paragraph(0, 0, 2, "one two three four five", Ink::Plain), 2);
        });
        assert_eq!(rows, ["one two   ", "three     ", "          "]);
    }
}
