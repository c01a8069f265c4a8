//! Drawing surface for a part of the screen: clipped text, columns, rules.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use crate::theme::Theme;

/// A rectangle of the buffer with its own coordinates.
pub(crate) struct Pad<'a> {
    buffer: &'a mut Buffer,
    area: Rect,
    theme: Theme,
}

impl<'a> Pad<'a> {
    pub(crate) fn new(buffer: &'a mut Buffer, area: Rect, theme: Theme) -> Self {
        let area = area.intersection(*buffer.area());
        Self { buffer, area, theme }
    }

    /// A part of the pad, given in screen coordinates.
    pub(crate) fn part(&mut self, area: Rect) -> Pad<'_> {
        let area = area.intersection(self.area);
        Pad { buffer: self.buffer, area, theme: self.theme }
    }

    /// Rows from `y` on, at most `height`, given in pad coordinates.
    pub(crate) fn below(&mut self, y: u16, height: u16) -> Pad<'_> {
        let y = y.min(self.area.height);
        let height = height.min(self.area.height - y);
        self.part(Rect { y: self.area.y + y, height, ..self.area })
    }

    pub(crate) fn area(&self) -> Rect {
        self.area
    }

    /// Area of a row, in screen coordinates.
    pub(crate) fn row(&self, y: u16) -> Rect {
        Rect { y: self.area.y + y, height: 1, ..self.area }
    }

    pub(crate) fn width(&self) -> u16 {
        self.area.width
    }

    pub(crate) fn height(&self) -> u16 {
        self.area.height
    }

    pub(crate) fn theme(&self) -> Theme {
        self.theme
    }

    /// Writes from `x` to at most the right edge. Returns the next free column.
    pub(crate) fn text(&mut self, x: u16, y: u16, text: &str, style: Style) -> u16 {
        self.fit(x, y, self.area.width.saturating_sub(x), text, style)
    }

    /// Writes into `width` cells from `x`. Clipped text ends in an ellipsis.
    pub(crate) fn fit(&mut self, x: u16, y: u16, width: u16, text: &str, style: Style) -> u16 {
        if y >= self.area.height || x >= self.area.width {
            return x;
        }
        let width = width.min(self.area.width - x);
        let (x0, y0) = (self.area.x + x, self.area.y + y);
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
    pub(crate) fn number(&mut self, x: u16, y: u16, width: u16, text: &str, style: Style) {
        let received = text.chars().count().min(width.into()) as u16;
        self.fit(x + width - received, y, received, text, style);
    }

    /// Writes each cell right-aligned into `width` cells, one every `pitch` cells from `x`.
    pub(crate) fn numbers(
        &mut self,
        (x, y): (u16, u16),
        (pitch, width): (u16, u16),
        cells: impl IntoIterator<Item = impl AsRef<str>>,
        style: Style,
    ) {
        for (x, text) in (x..).step_by(pitch.into()).zip(cells) {
            self.number(x, y, width, text.as_ref(), style);
        }
    }

    /// Writes right-aligned at the edge of the pad.
    pub(crate) fn right(&mut self, y: u16, text: &str, style: Style) {
        let received = (text.chars().count() as u16).min(self.area.width);
        self.text(self.area.width - received, y, text, style);
    }

    /// Sets the style of a row.
    pub(crate) fn row_style(&mut self, y: u16, style: Style) {
        if y < self.area.height {
            self.buffer.set_style(self.row(y), style);
        }
    }

    /// Clears the pad.
    pub(crate) fn clear(&mut self) {
        for y in 0..self.area.height {
            for x in 0..self.area.width {
                if let Some(cell) = self.buffer.cell_mut((self.area.x + x, self.area.y + y)) {
                    cell.reset();
                }
            }
        }
    }

    /// Draws a heading with a rule to the right edge.
    pub(crate) fn rule(&mut self, y: u16, title: &str) {
        let x = self.text(1, y, title, self.theme.head()) + 1;
        let rest = usize::from(self.area.width.saturating_sub(x + 1));
        let line = self.theme.pick("─", "-").repeat(rest);
        self.text(x, y, &line, self.theme.dim());
    }

    /// Writes word-wrapped text from row `y` on, at most `rows` rows. Returns the row after the last one.
    pub(crate) fn paragraph(&mut self, x: u16, y: u16, rows: u16, text: &str, style: Style) -> u16 {
        let width = usize::from(self.area.width.saturating_sub(x + 1)).max(1);
        let mut line = String::new();
        let mut at = y;
        for word in text.split_whitespace() {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
                if at + 1 >= y + rows {
                    break;
                }
                self.text(x, at, &line, style);
                line.clear();
                at += 1;
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        self.text(x, at, &line, style);
        at + 1
    }
}

/// Printable ASCII: one cell wide in any context, and nearly all text drawn. It takes the fast path.
fn is_plain(byte: u8) -> bool {
    (b' '..=b'~').contains(&byte)
}

/// Replaces control characters: text from the wire may contain any, and they must not reach the terminal.
fn clean(text: &str) -> std::borrow::Cow<'_, str> {
    if text.chars().any(char::is_control) {
        text.chars().map(|c| if c.is_control() { '?' } else { c }).collect::<String>().into()
    } else {
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theme::Environment;

    fn drawn(draw: impl FnOnce(&mut Pad<'_>)) -> Vec<String> {
        let area = Rect::new(0, 0, 10, 3);
        let mut buffer = Buffer::empty(area);
        draw(&mut Pad::new(&mut buffer, area, Theme::of(&Environment::default())));
        (0..3)
            .map(|y| (0..10).filter_map(|x| buffer.cell((x, y))).map(ratatui::buffer::Cell::symbol).collect())
            .collect()
    }

    #[test]
    fn truncated_text_is_marked_and_stays_inside_its_cells() {
        let rows = drawn(|pad| {
            pad.fit(0, 0, 5, "abcdefgh", Style::new());
            pad.number(0, 1, 6, "42", Style::new());
            pad.text(0, 2, "a\x1b[2Jb", Style::new());
            pad.text(50, 50, "lost", Style::new());
        });
        assert_eq!(rows, ["abcd~     ", "    42    ", "a?[2Jb    "]);
    }

    #[test]
    fn a_paragraph_wraps_at_spaces_and_stops_at_its_line_limit() {
        let rows = drawn(|pad| {
            assert_eq!(pad.paragraph(0, 0, 2, "one two three four five", Style::new()), 2);
        });
        assert_eq!(rows, ["one two   ", "three     ", "          "]);
    }
}
