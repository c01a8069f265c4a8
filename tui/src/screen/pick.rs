//! The picker on a terminal: handles keys and clicks until the user chooses.

use std::ops::ControlFlow;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use anyhow::Context;

use super::terminal::{self, Terminal};
use crate::keys;
use crate::log::LogHold;
use crate::state::pick::{Offer, Pick};
use crate::theme::Theme;
use crate::view;

/// Maximum wait for a key before the sources are updated.
const WAIT: Duration = Duration::from_millis(100);

/// Result of a search.
pub struct Found {
    /// All sources.
    pub offers: Vec<Offer>,
    /// Places that could not be searched.
    pub blind: Vec<String>,
}

/// Shows `offers`, then those that `found` sends, until the user chooses or quits. Returns the chosen command. Restores the terminal
/// afterwards.
pub fn pick(offers: Vec<Offer>, found: &Receiver<Found>) -> anyhow::Result<Option<Vec<String>>> {
    let mut pick = Pick::default();
    pick.offer(offers);
    let _log_hold = LogHold::begin();
    let mut terminal =
        Terminal::open().context("cannot take over the terminal; tokengap --help lists what can be run")?;
    let theme = Theme::detect();
    loop {
        if let Some(latest) = found.try_iter().last() {
            pick.looked = true;
            pick.blind = latest.blind;
            pick.offer(latest.offers);
        }
        let mut hits = view::Hits::default();
        if terminal.is_ready() {
            terminal
                .draw(|frame| hits = view::pick::draw(&pick, theme, frame))
                .context("cannot draw on the terminal")?;
            pick.page = hits.page;
        }
        let Some(input) = terminal::read(WAIT)? else { continue };
        let action = terminal::action(&input, &hits, 1, keys::picking);
        if let Some(ControlFlow::Break(chosen)) = action.map(|action| pick.apply(action)) {
            return Ok(chosen);
        }
    }
}
