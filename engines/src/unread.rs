//! Logs of engines that write no time of a request: `import` names them.

use logs::{Form, LogLines, Unread};

/// A log without readable lines.
#[derive(Debug)]
pub(crate) struct UnreadLog(pub(crate) &'static [Unread]);

impl LogLines for UnreadLog {
    fn name(&self) -> &'static str {
        ""
    }

    fn summary(&self) -> &'static str {
        ""
    }

    fn forms(&self) -> &'static [Form] {
        &[]
    }

    fn unread(&self) -> &'static [Unread] {
        self.0
    }
}
