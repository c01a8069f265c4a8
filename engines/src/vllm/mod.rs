//! vLLM's V1 engine, 0.6.4 to 0.33.0.

mod decoder;
pub mod discover;
mod facts;
mod format;
mod layout;
mod requests;
mod response_id;

use adapter::discover::EngineKind;
use logs::UnreadFileKind;

use crate::EngineSupport;
use crate::unread::UnreadLog;

pub use crate::undecoded::Undecoded;
pub use decoder::Decoder;
pub use facts::Vllm;
pub use format::FORMAT;

/// What tokengap knows of it.
pub(crate) const SUPPORT: EngineSupport = EngineSupport {
    name: NAME,
    facts: Some(&Vllm),
    formats: &[FORMAT],
    kind: EngineKind::new(&discover::VllmServer),
    protocols: &[],
    log_lines: &UnreadLog {
        file_kinds: &[
            UNREAD,
            UnreadFileKind { mark: "(EngineCore", ..UNREAD },
            UnreadFileKind { mark: "Avg prompt throughput: ", ..UNREAD },
            UnreadFileKind { mark: "[async_llm.py:", ..UNREAD },
            UnreadFileKind { mark: "vllm.v1.", ..UNREAD },
        ],
    },
};

const UNREAD: UnreadFileKind = UnreadFileKind {
    mark: "(APIServer pid=",
    name: "vLLM's log",
    advice: "vLLM logs averages over 10 seconds and no time of a request; `tokengap attach` observes its requests while they run",
};

/// Name in reports, metrics and exports.
pub const NAME: &str = "vllm";
