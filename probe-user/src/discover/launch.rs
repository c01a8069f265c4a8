//! Analysis of the command that started an engine.

use std::path::Path;

/// Program that started the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Launcher {
    /// `python -m sglang.launch_server`, `sglang serve`.
    Sglang,
    /// `python -m dynamo.sglang`: `sgl.Engine` inside a Dynamo worker.
    Dynamo,
}

impl Launcher {
    /// Name of the launcher.
    pub fn word(self) -> &'static str {
        match self {
            Self::Sglang => "sglang",
            Self::Dynamo => "dynamo",
        }
    }
}

/// Flags that affect how tokens are sent. Each holds the argument as written, or `None` if absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags {
    /// `--stream-output` (0.4.3 to 0.5.9; a deprecated alias after).
    pub(crate) stream_output: Option<String>,
    /// `--incremental-streaming-output` (0.5.10rc0 and later).
    pub(crate) incremental: Option<String>,
    /// `--skip-tokenizer-init`.
    pub(crate) skip_tokenizer_init: Option<String>,
    /// `--use-sglang-tokenizer` (Dynamo).
    pub(crate) use_sglang_tokenizer: Option<String>,
    /// Value of `--disaggregation-mode`: the side of a prefill and decode pair.
    pub(crate) disaggregation: Option<String>,
    /// `--config FILE`. The file may contain arguments, so a missing argument proves nothing.
    pub(crate) config_file: Option<String>,
}

/// The program that a Python interpreter runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program<'a> {
    /// `-m MODULE`.
    Module(&'a str),
    /// A script file.
    Script(&'a str),
}

/// Recognises the command line of an engine's main process; `None` for any other.
pub(crate) fn launcher(argv: &[String]) -> Option<Launcher> {
    let serves = || argv.iter().any(|argument| argument == "serve");
    match program(argv)? {
        Program::Module("sglang.launch_server" | "sglang.srt.server") => Some(Launcher::Sglang),
        Program::Module("sglang" | "sglang.cli" | "sglang.cli.main") if serves() => Some(Launcher::Sglang),
        Program::Module(module) => {
            let dynamo = module == "dynamo.sglang" || module.starts_with("dynamo.sglang.");
            dynamo.then_some(Launcher::Dynamo)
        }
        Program::Script(script) => {
            let path = Path::new(script);
            if path.ends_with("sglang/launch_server.py") || (path.file_name()? == "sglang" && serves()) {
                return Some(Launcher::Sglang);
            }
            let dynamo = path.ends_with("dynamo/sglang/main.py") || path.ends_with("dynamo/sglang/__main__.py");
            dynamo.then_some(Launcher::Dynamo)
        }
    }
}

/// Program in a Python command line; `None` for other commands, for `-c`, and for an interactive interpreter.
pub(crate) fn program(argv: &[String]) -> Option<Program<'_>> {
    let (python, rest) = argv.split_first()?;
    if !file_name(python).starts_with("python") {
        return None;
    }
    let mut arguments = rest.iter();
    while let Some(argument) = arguments.next() {
        let Some(letters) = argument.strip_prefix('-') else {
            return Some(Program::Script(argument));
        };
        // Single-letter options may be combined, up to one that takes the rest or the next argument: `-um race`.
        match letters.trim_start_matches(|c| "bBdEiIOPqsSuvVx".contains(c)) {
            "m" => return arguments.next().map(|module| Program::Module(module)),
            "c" => return None,
            "X" | "W" | "-check-hash-based-pycs" => drop(arguments.next()),
            joined => match joined.strip_prefix('m') {
                Some(module) => return Some(Program::Module(module)),
                None if letters.is_empty() || joined.starts_with('c') => return None,
                None => {}
            },
        }
    }
    None
}

impl Flags {
    pub(crate) fn parse(argv: &[String]) -> Self {
        Self {
            stream_output: flag(argv, "--stream-output", "--stream-o"),
            incremental: flag(argv, "--incremental-streaming-output", "--incr"),
            skip_tokenizer_init: flag(argv, "--skip-tokenizer-init", "--skip-t"),
            use_sglang_tokenizer: flag(argv, "--use-sglang-tokenizer", "--use-sg"),
            disaggregation: value(argv, "--disaggregation-mode", "--disaggregation-m"),
            config_file: flag(argv, "--config", "--config"),
        }
    }
}

/// Finds a switch. Python's argparse accepts any unambiguous prefix of a flag; `shortest` is the shortest accepted here. A switch with a
/// value such as `false` counts as absent.
fn flag(argv: &[String], name: &str, shortest: &str) -> Option<String> {
    let is_it = |argument: &&String| {
        let (flag, value) = argument.split_once('=').unwrap_or((argument, ""));
        name.starts_with(flag) && flag.len() >= shortest.len() && !matches!(value, "false" | "False" | "0")
    };
    argv.iter().find(is_it).cloned()
}

/// Value of a flag, from the next argument or after `=`.
fn value(argv: &[String], name: &str, shortest: &str) -> Option<String> {
    let at = argv.iter().position(|argument| {
        let flag = argument.split_once('=').map_or(argument.as_str(), |(flag, _)| flag);
        name.starts_with(flag) && flag.len() >= shortest.len()
    })?;
    match argv[at].split_once('=') {
        Some((_, value)) => Some(value.to_owned()),
        None => argv.get(at + 1).cloned(),
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn main_processes() {
        let cases = [
            ("python -m sglang.launch_server --model-path x", Some(Launcher::Sglang)),
            (
                "/opt/venv/bin/python3.12 -u -X faulthandler -m sglang.launch_server",
                Some(Launcher::Sglang),
            ),
            (
                "/usr/bin/python3 /opt/venv/bin/sglang serve --model-path x",
                Some(Launcher::Sglang),
            ),
            (
                "python3 /sgl-workspace/sglang/python/sglang/launch_server.py --port 1",
                Some(Launcher::Sglang),
            ),
            ("python3 -m dynamo.sglang --model-path x", Some(Launcher::Dynamo)),
            (
                "python3 -m dynamo.sglang.decode_worker --model x",
                Some(Launcher::Dynamo),
            ),
            ("python3 -m dynamo.frontend --http-port 8000", None),
            ("/opt/venv/bin/sglang serve", None),
            ("bash -c python -m sglang.launch_server", None),
            ("python -c import sglang.launch_server", None),
            ("python -m http.server sglang.launch_server", None),
            ("vi sglang/launch_server.py", None),
        ];
        for (line, expected) in cases {
            assert_eq!(launcher(&argv(line)), expected, "{line}");
        }
        assert_eq!(launcher(&[]), None);
    }

    #[test]
    fn flags_as_argparse_takes_them() {
        let flags = Flags::parse(&argv(
            "python -m x --stream-interval 4 --skip-tok --incremental-streaming-output",
        ));
        assert_eq!(flags.stream_output, None);
        assert_eq!(flags.skip_tokenizer_init.as_deref(), Some("--skip-tok"));
        assert_eq!(flags.incremental.as_deref(), Some("--incremental-streaming-output"));
        for line in ["--disaggregation-mode prefill --tp 2", "--disaggregation-mode=prefill"] {
            let flags = Flags::parse(&argv(&format!("python -m x {line}")));
            assert_eq!(flags.disaggregation.as_deref(), Some("prefill"));
        }
        assert_eq!(
            Flags::parse(&argv("python -m x --disaggregation-bootstrap-port 8998")).disaggregation,
            None
        );
        let flags = Flags::parse(&argv("python -m x --stream-output=false --config=/etc/engine.yaml"));
        assert_eq!(flags.stream_output, None);
        assert_eq!(flags.config_file.as_deref(), Some("--config=/etc/engine.yaml"));
    }

    #[test]
    fn the_program_is_the_first_argument_that_is_no_option() {
        assert_eq!(
            program(&argv("python3 -W error race.py 0.5.9")),
            Some(Program::Script("race.py"))
        );
        assert_eq!(program(&argv("python3 -um race")), Some(Program::Module("race")));
        assert_eq!(program(&argv("python3 -Xdev -Bc code race.py")), None);
        assert_eq!(program(&argv("python3 - race.py")), None);
        assert_eq!(program(&argv("python3 -mrace 0.5.9")), Some(Program::Module("race")));
        assert_eq!(program(&argv("bash race.sh")), None);
    }
}
