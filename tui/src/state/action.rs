//! Meaning of keys and clicks, and the resulting work for the run loop.

use session::ScreenCommand;
use session::playback::Play;

use super::row::Column;
use super::tab::Tab;

/// A user action. Applied by [`super::ui::Ui::apply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Quit,
    Go(Tab),
    /// Switch to a later (positive) or earlier tab.
    Turn(isize),
    /// Move the selection, or scroll if there is none.
    Move(isize),
    /// Move by a page.
    Page(isize),
    Home,
    End,
    /// Open details of the selected item.
    Open,
    /// Close a dialog, clear the filter, or go back; the first that applies.
    Back,
    Help,
    /// Start typing a filter.
    Filter,
    /// Sort by the column this many places to the right.
    Sort(isize),
    /// Sort by this column, or reverse the order if it is already sorted by it.
    SortBy(Column),
    /// Restore the default order, worst first.
    SortReset,
    Reverse,
    /// Go to the next (positive) or previous chunk that was or may have been lost or merged.
    Seek(isize),
    /// Keep the worst request selected.
    Follow,
    Pin,
    Pause,
    /// Zoom out (positive) or in on the time axis.
    Zoom(isize),
    /// Scroll to later (positive) or earlier times.
    Scroll(isize),
    /// Open the list of export formats.
    Export,
    /// Export in this format.
    ExportAs(ExportAs),
    CopyRid,
    /// Start or stop a recording of the run.
    Record,
    /// Dump the hindsight ring into a recording.
    Dump,
    /// Control playback of a recording.
    Play(Play),
    /// Start typing a time to seek to.
    Time,
    /// Show a later (positive) or earlier run in the list of watched runs.
    NextRun(isize),
    /// Open the item with this index on the tab.
    OpenAt(Tab, usize),
    /// Go to this second of the run.
    At(u64),
    /// Open the command palette.
    Palette,
    /// Perform the action on this tab.
    In(Tab, &'static Action),
    /// Move the selection in the palette.
    Choose(isize),
    /// Activate the saved filter with this index.
    Saved(usize),
    /// Select the visible row with this index, counted from the top of the table.
    Pick(usize),
    /// Text input: a character, and the keys to delete or accept it.
    Type(char),
    Erase,
    EraseAll,
    Accept,
}

/// Work that an action requires from the run loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Quit,
    /// Copy the text to the clipboard of the user's terminal.
    Copy(String),
    /// Export to a file and show its name.
    Export(ExportAs),
    /// Pass the request to the run.
    Command(ScreenCommand),
    /// Show this one of the watched runs.
    Run(usize),
}

/// Export format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExportAs {
    Html,
    Json,
    Perfetto,
}
