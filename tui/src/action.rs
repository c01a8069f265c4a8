//! What a key or a click means, and what the loop has to do for it.

use crate::observer::Wish;
use crate::replay::Play;
use crate::state::ui::Tab;

/// A wish of the reader's. [`crate::state::ui::Ui::apply`] answers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Quit,
    /// Show a tab.
    Go(Tab),
    /// The next tab, or the one before.
    Turn(isize),
    /// Move the selection, or scroll where there is none.
    Move(isize),
    /// Move by a page.
    Page(isize),
    Home,
    End,
    /// Look closer at what is selected.
    Open,
    /// Close, clear or step back, whichever comes first.
    Back,
    Help,
    /// Begin to type a filter.
    Filter,
    /// Sort by the column so many places to the right.
    Sort(isize),
    Reverse,
    /// To the next chunk that was lost, merged or may have been; or to the one before.
    Seek(isize),
    /// Keep the worst request selected.
    Follow,
    Pin,
    Pause,
    /// Wider (positive) or narrower steps of time.
    Zoom(isize),
    /// Later (positive) or earlier.
    Scroll(isize),
    /// Write the report to a file.
    Export,
    CopyRid,
    /// Begin a recording of the run, or end it.
    Record,
    /// Write the hindsight ring out.
    Dump,
    /// Play a recording otherwise.
    Play(Play),
    /// Begin to type a time to go to.
    Time,
    /// Show the run so many places further in the list of those that are watched.
    NextRun(isize),
    /// Select the visible row with this number, counted from the top of the table.
    Pick(usize),
    /// Typing: a character, and the ways to take it back.
    Type(char),
    Erase,
    EraseAll,
    Accept,
}

/// What an action asks of the loop, because only it can do it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// End the run.
    Quit,
    /// Put the text on the clipboard of the reader's terminal.
    Copy(String),
    /// Write the report to a file and say its name.
    Export,
    /// Have the run do it.
    Wish(Wish),
    /// Show another of the runs that are watched: this one,
    Run(usize),
    /// or one so many places further.
    NextRun(isize),
}
