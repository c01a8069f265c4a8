//! What a key or a click means, and what the loop has to do for it.

use crate::observer::Wish;
use crate::replay::Play;
use crate::state::row::Column;
use crate::state::ui::{ExportAs, Tab};

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
    /// Sort by this column; by it already, the other way round.
    SortBy(Column),
    /// Worst first again.
    SortReset,
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
    /// Ask in which format to write what is known to a file.
    Export,
    /// Write it.
    ExportAs(ExportAs),
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
    /// Show the hop with this number.
    OpenHop(usize),
    /// Show the finding with this number.
    OpenFinding(usize),
    /// Go to this second of the run.
    At(u64),
    /// List all actions, to be found by a word.
    Palette,
    /// Do it on this tab.
    In(Tab, &'static Action),
    /// Move the selection in that list.
    Choose(isize),
    /// Put the saved filter with this number in force.
    Saved(usize),
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
    /// Write what is known to a file and say its name.
    Export(ExportAs),
    /// Have the run do it.
    Wish(Wish),
    /// Show another of the runs that are watched: this one,
    Run(usize),
    /// or one so many places further.
    NextRun(isize),
}
