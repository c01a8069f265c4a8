//! NVIDIA Dynamo: a frontend and a response plane around workers of another engine. Recognises its processes, 0.5 to 1.6.

mod request_plane;
mod response_plane;

use std::path::Path;

use adapter::discover::{
    EngineKind, Evidence, FlagName, Origin, Package, Program, Recognise, Role, Setting, Settings, python_program,
};
use adapter::requests::ParseRequests;
use logs::UnreadFileKind;
use trace::engine::{Mode, Version};

use crate::EngineSupport;
use crate::sglang::discover::SKIP_TOKENIZER_INIT;
use crate::sglang::discover::role::TOKENIZER;
use crate::sglang::discover::streaming::{self, LauncherDefaults, default_setting_without_argument};
use crate::unread::UnreadLog;

pub use request_plane::RequestPlaneParser;
use response_plane::RESPONSE_PLANE;

/// What tokengap knows of it.
pub(crate) const SUPPORT: EngineSupport = EngineSupport {
    name: NAME,
    facts: None,
    formats: &[],
    kind: EngineKind::new(&Dynamo),
    protocols: &[RESPONSE_PLANE],
    log_lines: &UnreadLog {
        file_kinds: &[
            UNREAD,
            UnreadFileKind { mark: "dynamo_runtime", ..UNREAD },
            UnreadFileKind { mark: " dynamo.", ..UNREAD },
        ],
    },
};

const UNREAD: UnreadFileKind = UnreadFileKind {
    mark: "dynamo_llm",
    name: "Dynamo's log",
    advice: "only the lines of the engine inside Dynamo are read; `tokengap attach` on its worker observes requests while they run",
};

/// Name in records and tables.
const NAME: &str = "dynamo";

/// Flag of releases before 1.1.0; without it they skip the detokenizer.
const USE_TOKENIZER: &str = "--use-sglang-tokenizer";

/// Recognises a Dynamo worker. Its processes have the roles of the engine inside.
#[derive(Clone, Copy, Debug)]
pub struct Dynamo;

impl Recognise for Dynamo {
    fn name(&self) -> &'static str {
        NAME
    }

    fn title(&self) -> &'static str {
        "Dynamo"
    }

    fn package(&self) -> Option<Package> {
        Some(Package { name: "ai_dynamo", source: &[] })
    }

    fn recognise_command_line(&self, argv: &[String]) -> Option<(Role, &'static str)> {
        is_worker(argv).then_some((TOKENIZER, "python -m dynamo.sglang"))
    }

    fn flags(&self) -> &'static [FlagName] {
        const FLAGS: &[FlagName] = &[FlagName::switch(USE_TOKENIZER, "--use-sg")];
        FLAGS
    }

    /// Whether the mapped file is Dynamo's native module, `dynamo/_core.abi3.so` of `ai-dynamo-runtime`. A worker with this module connects
    /// to its clients, the frontends, to respond.
    fn connects_to_clients(&self, mapped_file: &Path) -> bool {
        let name = mapped_file.file_name().and_then(|name| name.to_str());
        let is_native_module = name.is_some_and(|name| name.starts_with("_core."))
            && mapped_file.extension().is_some_and(|extension| extension == "so");
        is_native_module && mapped_file.parent().is_some_and(|folder| folder.ends_with("dynamo"))
    }

    fn is_frontend(&self, argv: &[String]) -> bool {
        runs_package(argv, "dynamo.frontend", "dynamo/frontend")
    }

    fn ids_in_log<'a>(&self, line: &'a str) -> Option<(&'a str, &'a str)> {
        parse_context_and_rid(line)
    }

    /// Whether a frontend's message on a response stream cancels the request. Frontends send only these two, each in its own frame.
    fn cancels(&self, message: &[u8]) -> bool {
        message.ends_with(br#""stop""#) || message.ends_with(br#""kill""#)
    }

    fn request_parser(&self) -> Option<Box<dyn ParseRequests>> {
        Some(Box::new(RequestPlaneParser::default()))
    }

    fn settings(&self, evidence: &Evidence<'_>) -> Settings {
        streaming::infer_settings(evidence, &defaults_of_worker(evidence))
    }
}

/// Whether this is the command line of a worker with SGLang.
fn is_worker(argv: &[String]) -> bool {
    runs_package(argv, "dynamo.sglang", "dynamo/sglang")
}

/// Whether the command runs a Python package, by its name (`-m`) or by the path of its main script in `script_folder`.
fn runs_package(argv: &[String], package: &str, script_folder: &str) -> bool {
    match python_program(argv) {
        Some(Program::Module(module)) => {
            // The package itself, or a module inside it.
            let suffix = module.strip_prefix(package);
            suffix.is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('.'))
        }
        Some(Program::Script(script)) => {
            let path = Path::new(script);
            let main_scripts = ["main.py", "__main__.py"];
            main_scripts.iter().any(|name| path.ends_with(Path::new(script_folder).join(name)))
        }
        None => false,
    }
}

/// Settings that Dynamo's worker chooses if no flag of SGLang sets them. All are unknown without Dynamo's release.
fn defaults_of_worker(evidence: &Evidence<'_>) -> LauncherDefaults {
    let Some(release) = evidence.release(&Dynamo) else { return LauncherDefaults::default() };
    // In releases before 0.9.0 (`rc(0)` is before its pre-releases) each output repeats all earlier tokens.
    let is_incremental = release >= Version::new(0, 9, 0).rc(0);
    let mode = if is_incremental { Mode::Incremental } else { Mode::Cumulative };
    LauncherDefaults {
        skips_tokenizer_init: worker_skips_tokenizer_init(evidence, release),
        mode: Some(setting_by_release(release, mode)),
    }
}

/// Whether a worker that was started without SGLang's flag sends output without a detokenizer. From 1.1.0 on, only SGLang's flag skips the
/// detokenizer. Earlier releases skip it unless a flag of their own says otherwise.
fn worker_skips_tokenizer_init(evidence: &Evidence<'_>, release: Version) -> Option<Setting<bool>> {
    // `rc(0)` is before every pre-release of 1.1.0.
    let has_default_of_sglang = release >= Version::new(1, 1, 0).rc(0);
    if has_default_of_sglang {
        let skips_by_default = false;
        return default_setting_without_argument(evidence, SKIP_TOKENIZER_INIT, skips_by_default);
    }
    match evidence.flags.get(USE_TOKENIZER) {
        Some(argument) => Some(Setting::new(false, evidence.argument(argument))),
        None => Some(setting_by_release(release, true)),
    }
}

/// A setting that follows from Dynamo's release.
fn setting_by_release<T>(release: Version, value: T) -> Setting<T> {
    Setting::new(value, Origin::Release(format!("Dynamo {release}")))
}

/// Parses `Submitted SGLang Request ID: RID, Context: ID` with any text around it. Returns the context, which is the frontend's id, and
/// then SGLang's id. `None` for any other line.
pub(super) fn parse_context_and_rid(line: &str) -> Option<(&str, &str)> {
    let (_, ids) = line.split_once("Submitted SGLang Request ID: ")?;
    let (rid, rest) = ids.split_once(", Context: ")?;
    // The context ends before the first character that no id contains.
    let end = rest.find(|character| !is_id_character(character)).unwrap_or(rest.len());
    let context = &rest[..end];
    let is_rid = !rid.is_empty() && rid.chars().all(is_id_character);
    (is_rid && !context.is_empty()).then_some((context, rid))
}

fn is_id_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.:".contains(c)
}

#[cfg(test)]
mod tests {
    use super::parse_context_and_rid;
    use super::*;
    use crate::fixture::with_evidence_of_command;
    use trace::engine::Waiter;

    #[test]
    fn settings_follow_the_releases() {
        let read = |sglang, dynamo, flags: &str| {
            let releases = [("sglang", sglang), ("dynamo", dynamo)];
            let command = format!("python -m dynamo.sglang {flags}");
            let settings = with_evidence_of_command(&command, &releases, |evidence| Dynamo.settings(evidence));
            let skip = settings.skip_tokenizer_init.map(|skip| skip.value);
            let (mode, waiter) = (settings.mode.map(|mode| mode.value), settings.waiter);
            (skip, mode, waiter.map(|waiter| waiter.value))
        };
        let keeps = Some(Waiter::KeepsLast);
        assert_eq!(read("0.5.6.post2", "0.8.1", ""), (Some(true), Some(Mode::Cumulative), keeps));
        assert_eq!(read("0.5.8", "0.9.0", ""), (Some(true), Some(Mode::Incremental), keeps));
        assert_eq!(read("0.5.9", "1.0.0", "--use-sglang-tokenizer"), (Some(false), Some(Mode::Incremental), keeps));
        assert_eq!(read("0.5.10.post1", "1.1.0", ""), (Some(false), Some(Mode::Incremental), Some(Waiter::Merges)));
    }

    #[test]
    fn a_stop_message_on_the_stream_cancels() {
        let stop = [&[0; 7][..], &[6], &[0; 16], br#""stop""#].concat();
        assert!(Dynamo.cancels(&stop) && !Dynamo.cancels(b"GET "));
    }

    #[test]
    fn workers_are_recognised_by_their_command_line() {
        let cases = [
            ("python3 -m dynamo.sglang --model-path x", true),
            ("python3 -m dynamo.sglang.decode_worker --model x", true),
            ("python3 /opt/dynamo/sglang/main.py", true),
            ("python3 -m dynamo.frontend --http-port 8000", false),
            ("python -m sglang.launch_server", false),
            ("python3 -m dynamo.sglang_tools", false),
        ];
        for (line, expected) in cases {
            let argv: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(is_worker(&argv), expected, "{line}");
        }
    }

    #[test]
    fn frontends_are_recognised_by_their_command_line() {
        let is = |line: &str| Dynamo.is_frontend(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert!(is("python3 -m dynamo.frontend --http-port 8000"));
        assert!(is("python3 /opt/dynamo/frontend/main.py"));
        assert!(!is("python3 -m dynamo.sglang --model-path x"));
        assert!(!is("python3 -m http.server"));
    }

    #[test]
    fn the_runtime_is_recognised_by_its_module() {
        let is = |path| Dynamo.connects_to_clients(Path::new(path));
        assert!(is("/usr/lib/python3.12/site-packages/dynamo/_core.abi3.so"));
        assert!(!is("/usr/lib/python3.12/site-packages/pydantic_core/_core.abi3.so"));
        assert!(!is("/usr/lib/python3.12/site-packages/dynamo/_core.py"));
    }

    #[test]
    fn the_log_line_parses_as_text_and_as_json() {
        let plain =
            "2026-05-07T08:00:00.1Z  INFO decode_handler.generate: Submitted SGLang Request ID: 8f3a, Context: 1b-2c";
        let json = r#"{"level":"INFO","message":"Submitted SGLang Request ID: 8f3a, Context: 1b-2c","file":"x"}"#;
        for line in [plain, json] {
            assert_eq!(parse_context_and_rid(line), Some(("1b-2c", "8f3a")), "{line}");
        }
        for line in ["", "Submitted SGLang Request ID: , Context: a", "Submitted SGLang Request ID: a b, Context: c"] {
            assert_eq!(parse_context_and_rid(line), None, "{line}");
        }
    }
}
