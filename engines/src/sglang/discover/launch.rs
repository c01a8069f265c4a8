//! Commands and flags of SGLang's server.

use std::path::Path;

use adapter::discover::{FlagName, Program, python_program};

/// 0.4.3 to 0.5.9; a deprecated alias in later releases.
pub(super) const STREAM_OUTPUT: &str = "--stream-output";
/// 0.5.10rc0 and later.
pub(super) const INCREMENTAL: &str = "--incremental-streaming-output";
pub(crate) const SKIP_TOKENIZER_INIT: &str = "--skip-tokenizer-init";
/// Side of a prefill and decode pair.
pub(super) const DISAGGREGATION: &str = "--disaggregation-mode";
/// Moves text of a response to another field, and removes its tags.
pub(super) const REASONING_PARSER: &str = "--reasoning-parser";
/// Turns text of a response into tool calls.
pub(super) const TOOL_CALL_PARSER: &str = "--tool-call-parser";
/// The file may contain arguments, so a missing argument proves nothing.
pub(super) const CONFIG: &str = "--config";

/// Flags that affect how tokens are sent, and text written.
pub(super) const FLAGS: &[FlagName] = &[
    FlagName::switch(STREAM_OUTPUT, "--stream-o"),
    FlagName::switch(INCREMENTAL, "--incr"),
    FlagName::switch(SKIP_TOKENIZER_INIT, "--skip-t"),
    FlagName::value(DISAGGREGATION, "--disaggregation-m"),
    FlagName::value(REASONING_PARSER, "--reasoning-p"),
    FlagName::value(TOOL_CALL_PARSER, "--tool-c"),
    FlagName::switch(CONFIG, "--config"),
];

/// Whether this command line starts a server of SGLang: by a Python module, a script, or the installed command with `serve`.
pub(super) fn is_server_command(argv: &[String]) -> bool {
    let has_serve_command = argv.iter().any(|argument| argument == "serve");
    match python_program(argv) {
        Some(Program::Module("sglang.launch_server" | "sglang.srt.server")) => true,
        Some(Program::Module("sglang" | "sglang.cli" | "sglang.cli.main")) => has_serve_command,
        Some(Program::Script(script)) => {
            let path = Path::new(script);
            let is_launcher = path.ends_with("sglang/launch_server.py");
            let is_installed_command = path.file_name().is_some_and(|name| name == "sglang");
            is_launcher || (is_installed_command && has_serve_command)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn main_processes_are_recognised_by_their_command_line() {
        let cases = [
            ("python -m sglang.launch_server --model-path x", true),
            ("/opt/venv/bin/python3.12 -u -X faulthandler -m sglang.launch_server", true),
            ("/usr/bin/python3 /opt/venv/bin/sglang serve --model-path x", true),
            ("python3 /sgl-workspace/sglang/python/sglang/launch_server.py --port 1", true),
            ("python3 -m dynamo.sglang --model-path x", false),
            ("python3 -m dynamo.sglang.decode_worker --model x", false),
            ("python3 -m dynamo.frontend --http-port 8000", false),
            ("/opt/venv/bin/sglang serve", false),
            ("bash -c python -m sglang.launch_server", false),
            ("python -c import sglang.launch_server", false),
            ("python -m http.server sglang.launch_server", false),
            ("vi sglang/launch_server.py", false),
        ];
        for (line, expected) in cases {
            let argv: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(is_server_command(&argv), expected, "{line}");
        }
        assert!(!is_server_command(&[]));
    }
}
