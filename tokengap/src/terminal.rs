//! Whether the screen can be shown.

use std::io::IsTerminal;

/// Returns whether stdout is a terminal that can show the screen.
pub(crate) fn has_terminal() -> bool {
    no_terminal().is_none()
}

/// Reason why no screen can be drawn; `None` if it can.
fn no_terminal() -> Option<String> {
    if !std::io::stdout().is_terminal() {
        return Some(String::from("standard output is not a terminal"));
    }
    match std::env::var_os("TERM") {
        None => Some(String::from("TERM is not set")),
        Some(term) if term.is_empty() || term == "dumb" => {
            Some(format!("TERM={} does not support one", term.display()))
        }
        Some(_) => None,
    }
}

/// Prints why the screen is off, if it cannot be drawn.
pub(crate) fn report_no_terminal() {
    if let Some(why) = no_terminal() {
        errln!("tokengap: the screen is off: {why}; --headless runs without one");
    }
}
