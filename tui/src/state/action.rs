//! Tabs, the meaning of keys and clicks, and the resulting work for the run loop.

use session::ScreenCommand;

use super::Model;
use super::request_row::RequestColumn;

labelled! {
    /// A tab. To add one, add it here with a title, and draw it in `view::draw_open_tab`.
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
        Pods = "Runs",
    }
}

impl Tab {
    /// Returns whether the tab has anything to show.
    pub(crate) fn has_content(self, model: &Model) -> bool {
        match self {
            Self::Cpu => model.threads.is_some(),
            Self::Pods => !model.pods.is_empty(),
            _ => true,
        }
    }

    /// Number of items in its list.
    pub(super) fn item_count(self, model: &Model) -> usize {
        match self {
            Self::Overview => 0,
            Self::Requests => model.table.visible_count(),
            Self::Request => model.detail.as_ref().map_or(0, |detail| detail.chunks.len()),
            Self::Hops => model.hops.len(),
            // Missing observations are listed below the findings.
            Self::Findings => model.findings.len() + model.run.degraded.len(),
            Self::Cpu => model.threads.as_ref().map_or(0, Vec::len),
            Self::Pods => model.pods.len(),
        }
    }

    /// Existing tab `offset` positions to the right, wrapping at the ends.
    pub(super) fn neighbour_tab(self, offset: isize, model: &Model) -> Self {
        let tabs: Vec<Self> = Self::ALL.into_iter().filter(|tab| tab.has_content(model)).collect();
        let index = tabs.iter().position(|tab| *tab == self).unwrap_or(0);
        let neighbour_index = (index as isize + offset).rem_euclid(tabs.len() as isize);
        tabs[neighbour_index as usize]
    }
}

/// A user action. Applied by [`super::ui::Ui::apply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Quit,
    OpenTab(Tab),
    /// Switch to a later (positive) or earlier tab.
    StepTab(isize),
    /// Move the selection, or scroll if there is none. `isize::MIN` moves to the first item, `isize::MAX` to the last.
    MoveSelection(isize),
    MovePage(isize),
    /// Open details of the selected item.
    OpenSelection,
    /// Close a dialog, clear the filter, or go back; the first that applies.
    GoBack,
    ShowHelp,
    /// Start typing a filter.
    TypeFilter,
    /// List the requests of the selected finding.
    ListRequestsOfFinding,
    /// Sort by the column this many places to the right.
    StepSortColumn(isize),
    /// Sort by this column, or reverse the order if it is already sorted by it.
    SortBy(RequestColumn),
    /// Restore the default order, worst first.
    ResetSort,
    ReverseSort,
    /// Show the whole list that the tab cuts, in place of other parts, or these again.
    ToggleCutList,
    /// Go to the next (positive) or previous chunk that was or may have been lost or merged.
    SeekHarmedChunk(isize),
    /// Keep the worst request selected.
    FollowWorst,
    PinRequest,
    Pause,
    /// Zoom out (positive) or in on the time axis.
    ZoomTime(isize),
    /// Scroll to later (positive) or earlier times.
    ScrollTime(isize),
    /// Open the list of export formats.
    ShowExportFormats,
    ExportAs(ExportAs),
    CopyRid,
    Command(ScreenCommand),
    /// Start typing a time to seek to.
    TypeTime,
    /// Show a later (positive) or earlier run in the list of watched runs.
    StepRun(isize),
    /// Open the item with this index on the tab.
    OpenItem(Tab, usize),
    /// Go to this second of the run.
    GoToSecond(u64),
    ShowPalette,
    /// Perform the action on this tab.
    OnTab(Tab, &'static Action),
    /// Activate the saved filter with this index.
    ApplySavedFilter(usize),
    /// Select the visible row with this index, counted from the top of the table.
    SelectRow(usize),
    /// Text input: a character, and the keys to delete or accept it.
    TypeCharacter(char),
    EraseCharacter,
    EraseText,
    AcceptText,
}

/// Work that an action requires from the run loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Copy the text to the clipboard of the user's terminal.
    CopyToClipboard(String),
    /// Export to a file and show its name.
    Export(ExportAs),
    Command(ScreenCommand),
    /// Show this one of the watched runs.
    ShowRun(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExportAs {
    Html,
    Json,
    Perfetto,
}
