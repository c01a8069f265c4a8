//! What the user does with findings: selects one, opens it, lists its requests.

use std::time::Duration;

use session::playback::FindingKey;
use trace::detect::Finding;

use super::{SCROLL_COLUMNS, SECONDS_PER_COLUMN, Ui};
use crate::state::Model;
use crate::state::action::Tab;
use crate::state::filter::RequestFilter;

impl Ui {
    /// Selects the finding that the user has sought in the playback (keys `{` and `}`). Does nothing if it was selected before.
    pub(super) fn select_sought_finding(&mut self, model: &Model) {
        let sought = model.position.as_ref().and_then(|position| position.sought.as_ref());
        // It was selected before. The user may have selected another one since, which stays selected.
        if sought == self.selected_sought.as_ref() {
            return;
        }
        let Some(sought) = sought else {
            self.selected_sought = None;
            return;
        };
        let Some(index) = index_of_sought(&model.findings, sought) else {
            // The model is older than the position, so the next draw tries again.
            return;
        };
        self.selected_sought = Some(sought.clone());
        self.selected_indices[Tab::Findings as usize] = index;
        // The key of that tab is `5`.
        let details = if self.tab == Tab::Findings { "" } else { ": 5 has its details" };
        self.show_message(format!("{} is first seen here{details}", sought.kind));
    }

    /// Filters the requests to those that the finding is about, and selects the one that the finding names as its worst.
    pub(super) fn list_requests_of_finding(&mut self, model: &Model) {
        let Some(finding) = model.findings.get(self.selected_index(Tab::Findings)) else {
            self.show_message("there is no finding");
            return;
        };
        let requests = model.requests_of_finding(finding);
        // The text was not typed, so it is always valid.
        let Ok(filter) = RequestFilter::parse(&requests.filter) else { return };
        self.show_message(requests.description);
        self.sort = requests.order.unwrap_or(self.sort);
        self.open_tab(Tab::Requests);
        self.apply_filter(filter);
        let worst_rid = &finding.verdict.rid;
        if !worst_rid.is_empty() {
            // Otherwise the next refresh would select another request.
            self.follows_worst = false;
            self.choose_request(Some(worst_rid.clone()));
        }
    }

    /// Opens the finding's request, else its hop, else its time in the overview.
    pub(super) fn open_finding(&mut self, model: &Model) {
        let Some(finding) = model.findings.get(self.selected_index(Tab::Findings)) else {
            self.show_message("there is no finding");
            return;
        };
        if !finding.verdict.rid.is_empty() {
            // Otherwise the next refresh would select another request.
            self.follows_worst = false;
            self.open_request(Some(finding.verdict.rid.clone()));
        } else if let Some(index) = model.hops.iter().position(|hop| hop.name == finding.verdict.hop) {
            self.open_item(Tab::Hops, index);
        } else {
            self.scroll_to_start_of(finding, model);
            self.open_tab(Tab::Overview);
        }
    }

    /// Scrolls the curves so that they end a few columns after the start of the finding, where its effect is visible too.
    fn scroll_to_start_of(&mut self, finding: &Finding, model: &Model) {
        let newest_s = self.paused_at_second.unwrap_or(model.curves.newest_second());
        let start_s = Duration::from_nanos(model.finding_start_ns(finding)).as_secs();
        let shown_after_start_s = SECONDS_PER_COLUMN[self.zoom_level] * SCROLL_COLUMNS;
        let seconds_back = newest_s.saturating_sub(start_s + shown_after_start_s);
        // At most to the oldest second that is kept.
        self.scrolled_back_s = Some(seconds_back.min(model.curves.seconds_before_newest()));
    }
}

/// Index of the finding with this key, else of the first one of its kind: a finding about all hops names the one that is worst now, so its
/// key may have changed. `None` without either.
fn index_of_sought(findings: &[Finding], sought: &FindingKey) -> Option<usize> {
    let exact = findings.iter().position(|finding| FindingKey::from(finding) == *sought);
    exact.or_else(|| findings.iter().position(|finding| finding.kind == sought.kind))
}
