//! Renders a terminal screen as SVG: text runs with the colours of tmux's SGR sequences.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

/// Width and height of a cell in pixels, at a font size of 14.
const CELL: (f32, f32) = (8.4, 18.0);
const FOREGROUND: &str = "#d0d0d0";
const BACKGROUND: &str = "#1c1c1c";

/// Colours and weight of a text run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Style {
    bold: bool,
    dim: bool,
    reverse: bool,
    foreground: Option<u8>,
    background: Option<u8>,
}

impl Style {
    /// Applies the parameters of one SGR sequence.
    fn apply(&mut self, numbers: &str) -> Result<()> {
        let mut numbers = numbers
            .split(';')
            .map(|n| if n.is_empty() { Ok(0) } else { n.parse::<u8>() });
        while let Some(number) = numbers.next() {
            match number? {
                0 => *self = Self::default(),
                1 => self.bold = true,
                2 => self.dim = true,
                7 => self.reverse = true,
                22 => (self.bold, self.dim) = (false, false),
                27 => self.reverse = false,
                n @ 30..=37 => self.foreground = Some(n - 30),
                n @ 90..=97 => self.foreground = Some(n - 82),
                n @ 40..=47 => self.background = Some(n - 40),
                n @ 100..=107 => self.background = Some(n - 92),
                39 => self.foreground = None,
                49 => self.background = None,
                n @ (38 | 48) => {
                    let colour = numbers.nth(1).context("38 and 48 need 5 and a colour")??;
                    let place = if n == 38 {
                        &mut self.foreground
                    } else {
                        &mut self.background
                    };
                    *place = Some(colour);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn colours(&self) -> (String, Option<String>) {
        let front = self.foreground.map_or_else(|| FOREGROUND.to_owned(), rgb);
        let back = self.background.map(rgb);
        if self.reverse {
            (back.unwrap_or_else(|| BACKGROUND.to_owned()), Some(front))
        } else {
            (front, back)
        }
    }
}

/// A colour of xterm's 256-colour palette.
fn rgb(colour: u8) -> String {
    const FIRST: [&str; 16] = [
        "#000000", "#cd3131", "#0dbc79", "#e5e510", "#2472c8", "#bc3fbc", "#11a8cd", "#e5e5e5", "#666666", "#f14c4c",
        "#23d18b", "#f5f543", "#3b8eea", "#d670d6", "#29b8db", "#ffffff",
    ];
    let level = |step: u8| if step == 0 { 0 } else { 55 + 40 * step };
    match colour {
        0..16 => FIRST[usize::from(colour)].to_owned(),
        16..232 => {
            let cube = colour - 16;
            let (red, green, blue) = (level(cube / 36), level(cube / 6 % 6), level(cube % 6));
            format!("#{red:02x}{green:02x}{blue:02x}")
        }
        232.. => {
            let grey = 8 + 10 * (colour - 232);
            format!("#{grey:02x}{grey:02x}{grey:02x}")
        }
    }
}

/// Draws `pane`, in the format of `tmux capture-pane -e -p`.
pub(super) fn svg(pane: &str, (columns, rows): (u16, u16)) -> Result<String> {
    let (width, height) = (f32::from(columns) * CELL.0 + 16.0, f32::from(rows) * CELL.1 + 16.0);
    let mut picture = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" \
         font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"14\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"{BACKGROUND}\"/>\n"
    );
    let mut style = Style::default();
    for (row, line) in (0_u16..).zip(pane.lines()) {
        let mut column = 0;
        for (at, part) in line.split("\x1b[").enumerate() {
            let text = if at == 0 {
                part
            } else {
                let (numbers, text) = part.split_once('m').context("only SGR sequences are understood")?;
                style.apply(numbers)?;
                text
            };
            draw(&mut picture, &style, (column, row), text)?;
            column += u16::try_from(text.chars().count())?;
        }
    }
    picture.push_str("</svg>\n");
    Ok(picture)
}

fn draw(picture: &mut String, style: &Style, (column, row): (u16, u16), text: &str) -> Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let (x, y) = (8.0 + f32::from(column) * CELL.0, 8.0 + f32::from(row) * CELL.1);
    let wide = f32::from(u16::try_from(text.chars().count())?) * CELL.0;
    let (front, back) = style.colours();
    if let Some(back) = back {
        writeln!(
            picture,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"{:.1}\" fill=\"{back}\"/>",
            CELL.1
        )?;
    }
    if text.trim().is_empty() {
        return Ok(());
    }
    let weight = if style.bold { " font-weight=\"bold\"" } else { "" };
    let faint = if style.dim { " opacity=\"0.6\"" } else { "" };
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    writeln!(
        picture,
        "<text x=\"{x:.1}\" y=\"{:.1}\" textLength=\"{wide:.1}\" xml:space=\"preserve\" fill=\"{front}\"{weight}{faint}>{escaped}</text>",
        y + 13.5
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_keeps_its_place_and_colour() -> Result<()> {
        let picture = svg("a<b \x1b[1;38;5;203mred\x1b[0m\n\x1b[7m x", (10, 2))?;
        assert!(picture.contains(">a&lt;b </text>"), "{picture}");
        assert!(
            picture.contains("<text x=\"41.6\" y=\"21.5\" textLength=\"25.2\" xml:space=\"preserve\" fill=\"#ff5f5f\" font-weight=\"bold\">red"),
            "{picture}"
        );
        assert!(picture.contains(&format!("fill=\"{BACKGROUND}\"> x")), "{picture}");
        Ok(())
    }
}
