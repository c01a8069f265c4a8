//! Logs of engines that write no time of a request: `import` names them.

use logs::{LineForm, LogLines, UnreadFileKind};

/// A log without readable lines.
#[derive(Debug)]
pub(crate) struct UnreadLog {
    pub(crate) file_kinds: &'static [UnreadFileKind],
}

impl LogLines for UnreadLog {
    fn engine_name(&self) -> &'static str {
        ""
    }

    fn forms_summary(&self) -> &'static str {
        ""
    }

    fn line_forms(&self) -> &'static [LineForm] {
        &[]
    }

    fn unread_file_kinds(&self) -> &'static [UnreadFileKind] {
        self.file_kinds
    }
}
