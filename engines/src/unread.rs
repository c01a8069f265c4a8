//! Logs of engines that write no time of a request: `import` names them.

use logs::{Form, LogLines, Unread};

/// Logs without readable lines.
#[derive(Debug)]
pub(crate) struct Logs;

const VLLM: Unread = Unread {
    mark: "(APIServer pid=",
    name: "vLLM's log",
    advice: "vLLM logs averages over 10 seconds and no time of a request; `tokengap attach` observes its requests while they run",
};
const DYNAMO: Unread = Unread {
    mark: "dynamo_llm",
    name: "Dynamo's log",
    advice: "only the lines of the engine inside Dynamo are read; `tokengap attach` on its worker observes requests while they run",
};

impl LogLines for Logs {
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
        const MARKS: &[Unread] = &[
            VLLM,
            Unread { mark: "(EngineCore", ..VLLM },
            Unread { mark: "Avg prompt throughput: ", ..VLLM },
            Unread { mark: "[async_llm.py:", ..VLLM },
            Unread { mark: "vllm.v1.", ..VLLM },
            DYNAMO,
            Unread { mark: "dynamo_runtime", ..DYNAMO },
            Unread { mark: " dynamo.", ..DYNAMO },
        ];
        MARKS
    }
}
