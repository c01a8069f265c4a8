//! Drawing surface for a part of the screen: clipped text, columns, rules, clickable areas.

use outputs::report::hostile::is_unprintable;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::widgets::{Clear, Widget};

use crate::state::action::Action;
use crate::theme::{Ink, Theme};

/// Clickable areas of the screen, and the page size of the list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hits {
    /// Areas, each with the action of a click in it.
    areas: Vec<(Rect, Action)>,
    /// Visible rows of the list.
    pub(crate) page: usize,
}

impl Hits {
    /// Action of a click at `(x, y)`.
    pub(crate) fn at(&self, x: u16, y: u16) -> Option<Action> {
        self.areas.iter().find(|(area, _)| area.contains((x, y).into())).map(|a| a.1)
    }
}

/// A rectangle of the buffer with its own coordinates.
pub(super) struct Pad<'a> {
    buffer: &'a mut Buffer,
    area: Rect,
    pub(super) theme: Theme,
    pub(super) hits: &'a mut Hits,
}

impl<'a> Pad<'a> {
    pub(super) fn new(frame: &'a mut Frame<'_>, theme: Theme, hits: &'a mut Hits) -> Self {
        let area = frame.area();
        Self { buffer: frame.buffer_mut(), area, theme, hits }
    }

    /// A part of the pad, given in screen coordinates.
    pub(super) fn part(&mut self, area: Rect) -> Pad<'_> {
        let area = area.intersection(self.area);
        Pad { buffer: self.buffer, area, theme: self.theme, hits: self.hits }
    }

    /// Rows from `y` on, at most `height`, given in pad coordinates.
    pub(super) fn below(&mut self, y: u16, height: u16) -> Pad<'_> {
        let y = y.min(self.area.height);
        let height = height.min(self.area.height - y);
        self.part(Rect { y: self.area.y + y, height, ..self.area })
    }

    /// Makes an area clickable, given in pad coordinates.
    pub(super) fn click(&mut self, (x, y): (u16, u16), (width, height): (u16, u16), action: Action) {
        self.hits.areas.push((Rect::new(self.area.x + x, self.area.y + y, width, height), action));
    }

    /// Draws the part of a list that includes the selected item, at most `rows` of its items. `draw` draws an item in a row and returns the
    /// next free row.
    pub(super) fn list<T>(
        &mut self,
        mut y: u16,
        items: &[T],
        (selected, rows): (usize, u16),
        draw: impl Fn(&mut Pad<'_>, u16, usize, &T) -> u16,
    ) -> u16 {
        let top = selected.saturating_sub(usize::from(rows) - 1);
        self.hits.page = rows.into();
        for (place, item) in items.iter().enumerate().skip(top).take(rows.into()) {
            let row = y;
            y = draw(self, row, place, item);
            self.list_row(row, place, place == selected);
        }
        y
    }

    /// Makes line `y` a row of a list: a click picks it, and the selected one is marked.
    pub(super) fn list_row(&mut self, y: u16, place: usize, selected: bool) {
        if selected {
            self.row_style(y, Ink::Selected);
        }
        self.click((0, y), (self.area.width, 1), Action::Pick(place));
    }

    pub(super) fn width(&self) -> u16 {
        self.area.width
    }

    pub(super) fn height(&self) -> u16 {
        self.area.height
    }

    /// Writes from `x` to at most the right edge. Returns the next free column.
    pub(super) fn text(&mut self, x: u16, y: u16, text: &str, ink: Ink) -> u16 {
        self.fit(x, y, self.area.width.saturating_sub(x), text, ink)
    }

    /// Writes into `width` cells from `x`. Clipped text ends in an ellipsis.
    pub(super) fn fit(&mut self, x: u16, y: u16, width: u16, text: &str, ink: Ink) -> u16 {
        if y >= self.area.height || x >= self.area.width {
            return x;
        }
        let width = width.min(self.area.width - x);
        let (x0, y0) = (self.area.x + x, self.area.y + y);
        let style = self.theme.style(ink);
        if text.bytes().all(is_plain) {
            let received = (text.len() as u64).min(width.into()) as u16;
            for (x, byte) in (x0..x0 + received).zip(text.bytes()) {
                self.buffer[(x, y0)].set_char(byte.into()).set_style(style);
            }
            if width > 1 && text.len() > width.into() {
                self.buffer[(x0 + width - 1, y0)].set_symbol(self.theme.pick("…", "~"));
            }
            return x + received;
        }
        let clean = clean(text);
        let end = self.buffer.set_stringn(x0, y0, &clean, width.into(), style).0;
        if width > 1 && ratatui::text::Span::raw(&*clean).width() > width.into() {
            let cut = self.theme.pick("…", "~");
            self.buffer.set_stringn(x0 + width - 1, y0, cut, 1, style);
            return x + width;
        }
        end - self.area.x
    }

    /// Writes right-aligned into `width` cells from `x`.
    pub(super) fn number(&mut self, x: u16, y: u16, width: u16, text: &str, ink: Ink) {
        let received = text.chars().count().min(width.into()) as u16;
        self.fit(x + width - received, y, received, text, ink);
    }

    /// Writes each cell right-aligned into `width` cells, one every `pitch` cells from `x`.
    pub(super) fn numbers(
        &mut self,
        (x, y): (u16, u16),
        (pitch, width): (u16, u16),
        cells: impl IntoIterator<Item = impl AsRef<str>>,
        ink: Ink,
    ) {
        for (x, text) in (x..).step_by(pitch.into()).zip(cells) {
            self.number(x, y, width, text.as_ref(), ink);
        }
    }

    /// Writes right-aligned at the edge of the pad.
    pub(super) fn right(&mut self, y: u16, text: &str, ink: Ink) {
        let received = (text.chars().count() as u16).min(self.area.width);
        self.text(self.area.width - received, y, text, ink);
    }

    pub(super) fn row_style(&mut self, y: u16, ink: Ink) {
        if y < self.area.height {
            self.buffer.set_style(Rect { y: self.area.y + y, height: 1, ..self.area }, self.theme.style(ink));
        }
    }

    pub(super) fn clear(&mut self) {
        Clear.render(self.area, self.buffer);
    }

    /// Draws a heading with a rule to the right edge.
    pub(super) fn rule(&mut self, y: u16, title: &str) {
        let x = self.text(1, y, title, Ink::Head) + 1;
        let rest = usize::from(self.area.width.saturating_sub(x + 1));
        let line = self.theme.pick("─", "-").repeat(rest);
        self.text(x, y, &line, Ink::Dim);
    }

    /// Writes word-wrapped text from row `y` on, at most `rows` rows. Returns the row after the last one.
    pub(super) fn paragraph(&mut self, x: u16, y: u16, rows: u16, text: &str, ink: Ink) -> u16 {
        let width = usize::from(self.area.width.saturating_sub(x + 1)).max(1);
        let mut line = String::new();
        let mut at = y;
        for word in text.split_whitespace() {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
                if at + 1 >= y + rows {
                    break;
                }
                self.text(x, at, &line, ink);
                line.clear();
                at += 1;
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        self.text(x, at, &line, ink);
        at + 1
    }
}

/// Printable ASCII: one cell wide in any context, and nearly all text drawn. It takes the fast path.
fn is_plain(byte: u8) -> bool {
    (b' '..=b'~').contains(&byte)
}

/// Replaces characters that control the terminal, reverse text or are invisible: text from the wire may contain any.
fn clean(text: &str) -> std::borrow::Cow<'_, str> {
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
        let theme = Theme::of(None, |_| String::new());
        draw(&mut Pad { buffer: &mut buffer, area, theme, hits: &mut Hits::default() });
        buffer.content.chunks(10).map(|row| row.iter().map(ratatui::buffer::Cell::symbol).collect()).collect()
    }

    #[test]
    fn truncated_text_is_marked_and_stays_inside_its_cells() {
        let rows = drawn(|pad| {
            pad.fit(0, 0, 5, "abcdefgh", Ink::Plain);
            pad.number(0, 1, 6, "42", Ink::Plain);
            pad.text(0, 2, "a\x1b[2Jb", Ink::Plain);
            pad.text(50, 50, "lost", Ink::Plain);
        });
        assert_eq!(rows, ["abcd~     ", "    42    ", "a?[2Jb    "]);
    }

    #[test]
    fn a_paragraph_wraps_at_spaces_and_stops_at_its_line_limit() {
        let rows = drawn(|pad| {
            assert_eq!(pad.paragraph(0, 0, 2, "one two three four five", Ink::Plain), 2);
        });
        assert_eq!(rows, ["one two   ", "three     ", "          "]);
    }
}
