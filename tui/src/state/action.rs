//! Tabs, the meaning of keys and clicks, and the resulting work for the run loop.

use session::ScreenCommand;

use super::Model;
use super::row::Column;

labelled! {
    /// A tab. To add one, add it here with a title, and draw it in `view::draw_tab`.
    #[derive(Default)]
    pub(crate) Tab {
        #[default]
        Overview = "Overview",
        Requests = "Requests",
        Request = "Request",
        Hops = "Hops",
        Findings = "Findings",
        /// Exists only if the source observes threads.
        Cpu = "CPU",
        /// Exists only when watching runs of other tokengap processes.
        Pods = "Pods",
    }
}

impl Tab {
    /// Returns whether the tab has anything to show.
    pub(crate) fn exists(self, model: &Model) -> bool {
        match self {
            Self::Cpu => model.threads.is_some(),
            Self::Pods => !model.pods.is_empty(),
            _ => true,
        }
    }

    /// Number of items in its list.
    pub(super) fn items(self, model: &Model) -> usize {
        match self {
            Self::Overview => 0,
            Self::Requests => model.table.visible_count(),
            Self::Request => model.detail.as_ref().map_or(0, |detail| detail.chunks.len()),
            Self::Hops => model.hops.len(),
            Self::Findings => model.findings.len(),
            Self::Cpu => model.threads.as_ref().map_or(0, Vec::len),
            Self::Pods => model.pods.len(),
        }
    }

    pub(super) fn step(self, by: isize, model: &Model) -> Self {
        let all: Vec<Self> = Self::ALL.into_iter().filter(|t| t.exists(model)).collect();
        let at = all.iter().position(|t| *t == self).unwrap_or(0);
        all[(at as isize + by).rem_euclid(all.len() as isize) as usize]
    }
}

/// A user action. Applied by [`super::ui::Ui::apply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Quit,
    Go(Tab),
    /// Switch to a later (positive) or earlier tab.
    Turn(isize),
    /// Move the selection, or scroll if there is none. `isize::MIN` moves to the first item, `isize::MAX` to the last.
    Move(isize),
    Page(isize),
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
    ExportAs(ExportAs),
    CopyRid,
    Command(ScreenCommand),
    /// Start typing a time to seek to.
    Time,
    /// Show a later (positive) or earlier run in the list of watched runs.
    NextRun(isize),
    /// Open the item with this index on the tab.
    OpenAt(Tab, usize),
    /// Go to this second of the run.
    At(u64),
    Palette,
    /// Perform the action on this tab.
    In(Tab, &'static Action),
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
    /// Copy the text to the clipboard of the user's terminal.
    Copy(String),
    /// Export to a file and show its name.
    Export(ExportAs),
    Command(ScreenCommand),
    /// Show this one of the watched runs.
    Run(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExportAs {
    Html,
    Json,
    Perfetto,
}
