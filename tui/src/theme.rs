//! Colours and symbols. Every colour is accompanied by a symbol or word, so that nothing is lost without colour.

use std::sync::OnceLock;

use ratatui::style::{Color, Modifier, Style};

use crate::state::flags::{Flag, Health};

/// Style of text by its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ink {
    Plain,
    Strong,
    Dim,
    /// Headings and labels.
    Head,
    Selected,
    /// Search matches. Uses no colour, so that they are visible on the selected line too.
    Found,
    Series,
    Health(Health),
    /// Health of the whole run, always bold.
    Verdict(Health),
    Flag(Flag),
}

/// The user's choice, set before a screen opens.
static CHOSEN: OnceLock<Option<Palette>> = OnceLock::new();

/// Sets the palette; `None` detects it from the terminal. Only the first call has an effect.
pub fn set_palette(palette: Option<Palette>) {
    CHOSEN.get_or_init(|| palette);
}

/// Colours and background of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Palette {
    /// 256 colours on a dark background.
    Dark,
    /// 256 colours on a light background.
    Light,
    /// The terminal's own 16 colours, which fit any background.
    Sixteen,
    /// Only bold, dim and reverse.
    Mono,
}

/// Style settings for all drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Theme {
    palette: Palette,
    /// Restricts symbols to ASCII.
    pub(crate) is_ascii_only: bool,
}

impl Theme {
    /// Theme of this process's terminal, with the user's choice.
    pub(crate) fn detect() -> Self {
        Self::for_environment(CHOSEN.get().copied().flatten(), |name| std::env::var(name).unwrap_or_default())
    }

    /// Selects the theme by environment variables, which `variable` returns, empty if not set. A chosen palette has precedence.
    pub(crate) fn for_environment(chosen_palette: Option<Palette>, variable: impl Fn(&str) -> String) -> Self {
        let term = variable("TERM");
        // The first one that is set decides the encoding, as in setlocale(3).
        let locales = ["LC_ALL", "LC_CTYPE", "LANG"].map(&variable);
        let locale = locales.into_iter().find(|value| !value.is_empty()).unwrap_or_default().to_lowercase();
        let is_utf8 = locale.contains("utf-8") || locale.contains("utf8");
        // The font of the Linux console lacks most symbols.
        let is_ascii_only = !is_utf8 || term == "linux";
        Self { palette: chosen_palette.unwrap_or_else(|| detect_palette(&term, &variable)), is_ascii_only }
    }

    /// Style with one of three foreground colours, by the palette. `dark_index` and `light_index` are indices of 256 colours for
    /// backgrounds of that kind, `sixteen_colour` is one of 16 colours.
    fn foreground(self, dark_index: u8, light_index: u8, sixteen_colour: Color) -> Style {
        match self.palette {
            Palette::Dark => Style::new().fg(Color::Indexed(dark_index)),
            Palette::Light => Style::new().fg(Color::Indexed(light_index)),
            Palette::Sixteen => Style::new().fg(sixteen_colour),
            Palette::Mono => Style::new(),
        }
    }

    /// Colours and modifiers of an ink in this palette.
    pub(crate) fn style(self, ink: Ink) -> Style {
        let plain = Style::new();
        let bold = Modifier::BOLD;
        // Numbers are indices of the 256 colours, of which those from 232 on are greys, the darkest first. `foreground` has one for a dark
        // background, one for a light background, and a colour for terminals with 16.
        match (ink, self.palette) {
            (Ink::Plain, _) => plain,
            (Ink::Strong, _) => plain.add_modifier(bold),
            (Ink::Dim | Ink::Health(Health::Unknown), Palette::Dark) => plain.fg(Color::Indexed(245)),
            (Ink::Dim | Ink::Health(Health::Unknown), Palette::Light) => plain.fg(Color::Indexed(242)),
            (Ink::Dim | Ink::Health(Health::Unknown), _) => plain.add_modifier(Modifier::DIM),
            (Ink::Head, _) => self.foreground(117, 25, Color::Cyan).add_modifier(bold),
            (Ink::Selected, Palette::Dark) => plain.bg(Color::Indexed(237)).add_modifier(bold),
            (Ink::Selected, Palette::Light) => plain.bg(Color::Indexed(253)).add_modifier(bold),
            (Ink::Selected, _) => plain.add_modifier(Modifier::REVERSED),
            (Ink::Found, _) => plain.add_modifier(bold | Modifier::UNDERLINED),
            (Ink::Series, _) => self.foreground(74, 31, Color::Cyan),
            (Ink::Health(Health::Good), _) => self.foreground(114, 28, Color::Green),
            (Ink::Health(Health::Info), _) => self.foreground(117, 25, Color::Blue),
            (Ink::Health(Health::Warning), _) => self.foreground(221, 130, Color::Yellow).add_modifier(bold),
            (Ink::Health(Health::Critical), _) => self.foreground(203, 160, Color::Red).add_modifier(bold),
            (Ink::Verdict(health), _) => self.style(Ink::Health(health)).add_modifier(bold),
            (Ink::Flag(flag), _) => self.style(Ink::Health(health_of_flag(flag))),
        }
    }

    /// Symbol of a health state, distinguishable without colour.
    pub(crate) fn health_symbol(self, health: Health) -> &'static str {
        match (health, self.is_ascii_only) {
            (Health::Unknown, _) => "?",
            (Health::Good, true) => "+",
            (Health::Good, false) => "✓",
            (Health::Info, _) => "i",
            (Health::Warning, _) => "!",
            (Health::Critical, true) => "X",
            (Health::Critical, false) => "✗",
        }
    }

    /// Returns `ascii` on terminals limited to ASCII, else `rich`.
    pub(crate) fn rich_or_ascii<T>(self, rich: T, ascii: T) -> T {
        if self.is_ascii_only { ascii } else { rich }
    }
}

/// Severity of a flag of a request: critical if the client lacks tokens or gets wrong ones.
fn health_of_flag(flag: Flag) -> Health {
    match flag {
        Flag::Loss | Flag::Dropped | Flag::ToolCall => Health::Critical,
        Flag::Moved | Flag::DropPredicted | Flag::Stall | Flag::Gap | Flag::Inflated | Flag::Abandoned => {
            Health::Warning
        }
        Flag::Aborted | Flag::Retracted => Health::Info,
    }
}

/// Indices of the two whites among the 16 colours.
const WHITES: [u8; 2] = [7, 15];

/// Palette for this type of terminal, by environment variables, which `variable` returns. If the background is unknown, it is the
/// terminal's own 16 colours.
fn detect_palette(term: &str, variable: impl Fn(&str) -> String) -> Palette {
    let has_no_colours = !variable("NO_COLOR").is_empty() || ["dumb", "vt100", "vt220"].contains(&term);
    if has_no_colours {
        return Palette::Mono;
    }
    let has_256_colours = term.contains("256color") || !variable("COLORTERM").is_empty();
    // rxvt and others set it to `foreground;background`, by indices of the 16 colours.
    let background = variable("COLORFGBG").rsplit(';').next().and_then(|index| index.parse::<u8>().ok());
    match background {
        Some(background) if has_256_colours && WHITES.contains(&background) => Palette::Light,
        Some(_) if has_256_colours => Palette::Dark,
        _ => Palette::Sixteen,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn theme(chosen: Option<Palette>, term: &str, colorfgbg: &str, no_color: &str) -> (Palette, bool) {
        let var = |name: &str| match name {
            "TERM" => term,
            "COLORFGBG" => colorfgbg,
            "NO_COLOR" => no_color,
            "LANG" => "C.UTF-8",
            _ => "",
        };
        let theme = Theme::for_environment(chosen, |name| var(name).to_owned());
        (theme.palette, theme.is_ascii_only)
    }

    #[test]
    fn colours_follow_the_terminal_environment() {
        for (term, colorfgbg, no_color, expected) in [
            ("xterm-256color", "0;15", "", (Palette::Light, false)),
            ("xterm-256color", "15;default;0", "", (Palette::Dark, false)),
            ("xterm-256color", "", "", (Palette::Sixteen, false)),
            ("xterm-256color", "15;0", "1", (Palette::Mono, false)),
            ("linux", "", "", (Palette::Sixteen, true)),
        ] {
            assert_eq!(theme(None, term, colorfgbg, no_color), expected);
        }
        assert!(Theme::for_environment(None, |_| String::new()).is_ascii_only);
    }

    #[test]
    fn a_chosen_theme_overrides_the_terminal_environment() {
        for chosen in [Palette::Dark, Palette::Light, Palette::Mono] {
            assert_eq!(theme(Some(chosen), "", "", "1").0, chosen);
        }
    }

    #[test]
    fn every_health_has_a_distinct_sign() {
        for is_ascii_only in [true, false] {
            let theme = Theme { palette: Palette::Mono, is_ascii_only };
            let mut signs = Health::ALL.map(|h| theme.health_symbol(h)).to_vec();
            signs.dedup();
            assert_eq!(signs.len(), Health::ALL.len());
        }
    }
}
