//! Rules for an engine's streaming: codec, mode, waiter. They combine release, flags and environment; if one of these is unreadable, the
//! result is `None`. The rules cover SGLang 0.4.0 to 0.5.23 and Dynamo 0.5 to 1.6 as released.

use adapter::discover::{
    Carries, Codec, Disaggregation, End, Evidence, HopSeen, Origin, PythonVersion, Setting, Settings,
};
use trace::engine::{Behaviour, Mode, OutputModeRule, Version, VersionRange, Waiter};

use super::Sglang;
use super::launch::{
    CONFIG, DISAGGREGATION, INCREMENTAL, REASONING_PARSER, SKIP_TOKENIZER_INIT, STREAM_OUTPUT, TOOL_CALL_PARSER,
};
use super::role::{DETOKENIZER, DETOKENIZER_ROUTER, SCHEDULER};
use crate::sglang::releases::ReleaseBehaviour;

/// Sends one frame per request, with the first token and the finish reason `length`.
const PREFILL: Disaggregation = Disaggregation { word: "prefill", sends: "one frame a request, with its first token" };
/// Sends every token, beginning with the one from prefill.
const DECODE: Disaggregation = Disaggregation { word: "decode", sends: "every token, the one made by prefill first" };

/// Environment variable that selects the codec.
pub(super) const PICKLE_SWITCH: &str = "SGLANG_USE_PICKLE_IPC";
/// Environment variable of 0.5.17 and later: output goes through a ring inside the process instead of ZMQ.
pub(super) const RUST_SERVER: &str = "SGLANG_RUST_SERVER";

/// Settings that the launcher decides where the flags of the server leave them open.
#[derive(Clone, Debug, Default)]
pub(crate) struct LauncherDefaults {
    /// Whether output goes to the tokenizer without a detokenizer between them.
    pub(crate) skips_tokenizer_init: Option<Setting<bool>>,
    pub(crate) mode: Option<Setting<Mode>>,
}

impl LauncherDefaults {
    /// The defaults of SGLang's own server.
    pub(super) fn of_server(evidence: &Evidence<'_>) -> Self {
        // The flag for incremental output has another name in later releases.
        let known_flag = evidence.release(&Sglang).and_then(|release| behaviour_of(release).incremental_output_flag());
        let incremental_flag = known_flag.unwrap_or(STREAM_OUTPUT);
        let skips_by_default = false;
        Self {
            skips_tokenizer_init: default_setting_without_argument(evidence, SKIP_TOKENIZER_INIT, skips_by_default),
            mode: default_setting_without_argument(evidence, incremental_flag, Mode::Cumulative),
        }
    }
}

/// Setting with its default `default_value`, of a server that was started without `argument`. `None` if a configuration file may contain
/// the argument.
pub(crate) fn default_setting_without_argument<T>(
    evidence: &Evidence<'_>,
    argument: &'static str,
    default_value: T,
) -> Option<Setting<T>> {
    let has_config_file = evidence.flags.get(CONFIG).is_some();
    if has_config_file {
        return None;
    }
    Some(Setting::new(default_value, Origin::NoArgument { pid: evidence.pid, argument }))
}

/// Infers the settings of an engine from its release, flags, environment and sockets. Where its flags leave a setting open, `defaults`
/// decide. A waiter is the tokenizer's task that waits for the chunks of one request. The turnaround is the number of event-loop turns
/// until it runs.
pub(crate) fn infer_settings(evidence: &Evidence<'_>, defaults: &LauncherDefaults) -> Settings {
    let rules = StreamingRules { evidence, release: evidence.release(&Sglang), defaults };
    let avoids_zmq = rules.output_avoids_zmq();
    let skips_tokenizer_init = rules.skips_tokenizer_init().or_else(|| skips_tokenizer_by_sockets(evidence.hops));
    let mut settings = Settings {
        codec: rules.codec(),
        mode: rules.output_mode(skips_tokenizer_init.as_ref().map(|skips| skips.value)),
        skip_tokenizer_init: skips_tokenizer_init,
        disaggregation: rules.disaggregation_side(),
        waiter: rules.waiter_behaviour(),
        exact_text: rules.has_exact_text(),
        turnaround: evidence.python.and_then(|python| rules.turnaround_turns(python)),
        avoids_zmq,
    };
    if settings.avoids_zmq.is_some() {
        // The Rust server has no Python event loop, and its output passes no codec.
        settings.codec = None;
        settings.turnaround = None;
    }
    settings
}

/// Behaviour of a release between the wire and the client.
fn behaviour_of(release: Version) -> Behaviour {
    ReleaseBehaviour::of_range(VersionRange { first: release, last: release }).behaviour
}

/// A setting that follows from SGLang's release.
fn setting_by_release<T>(release: Version, value: T) -> Setting<T> {
    Setting::new(value, Origin::Release(format!("SGLang {release}")))
}

/// Whether the engine runs with `--skip-tokenizer-init`, by its connections. A scheduler connects to the detokenizer or, with this flag, a
/// second time to the tokenizer. `None` if neither is seen.
fn skips_tokenizer_by_sockets(hops: &[HopSeen]) -> Option<Setting<bool>> {
    let scheduler_hops = output_hops_of_schedulers(hops);
    for (_, receiver) in &scheduler_hops {
        let is_detokenizer = matches!(receiver.role, DETOKENIZER | DETOKENIZER_ROUTER);
        if is_detokenizer {
            return Some(Setting::new(false, Origin::Sockets));
        }
    }
    for (sender, receiver) in &scheduler_hops {
        let connects_twice = scheduler_hops.iter().any(|(other_sender, other_receiver)| {
            let is_other_socket = other_sender.inode != sender.inode;
            is_other_socket && other_sender.pid == sender.pid && other_receiver.pid == receiver.pid
        });
        if connects_twice {
            return Some(Setting::new(true, Origin::Sockets));
        }
    }
    None
}

/// Sending and receiving end of each output hop of a scheduler. A hop of which an end is not known is left out.
fn output_hops_of_schedulers(hops: &[HopSeen]) -> Vec<(End, End)> {
    let mut ends = Vec::new();
    for hop in hops.iter().filter(|hop| hop.carries == Carries::Output) {
        if let (Some(sender), Some(receiver)) = (hop.from, hop.to)
            && sender.role == SCHEDULER
        {
            ends.push((sender, receiver));
        }
    }
    ends
}

#[derive(Clone, Copy, Debug)]
struct StreamingRules<'a> {
    evidence: &'a Evidence<'a>,
    release: Option<Version>,
    defaults: &'a LauncherDefaults,
}

impl StreamingRules<'_> {
    /// Value of an environment variable that is parsed like SGLang's `EnvBool`. `None` if it is not set, not readable, or has no valid
    /// value.
    fn environment_switch(&self, name: &str) -> Option<Setting<bool>> {
        let value = self.evidence.variable(name)?;
        let is_on = match value.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "y" => true,
            "false" | "0" | "no" | "n" => false,
            _ => return None,
        };
        Some(Setting::new(is_on, Origin::Environment { pid: self.evidence.pid, variable: format!("{name}={value}") }))
    }

    /// Codec of the engine's frames. `None` if the release, or the environment of a release that may use both codecs, is not known.
    fn codec(&self) -> Option<Setting<Codec>> {
        let release = self.release?;
        // Earlier releases lack the variable that selects the codec, and always use pickle.
        if release < Version::new(0, 5, 15).rc(0) {
            return Some(setting_by_release(release, Codec::Pickle));
        }
        if let Some(pickle) = self.environment_switch(PICKLE_SWITCH) {
            let codec = if pickle.value { Codec::Pickle } else { Codec::Msgpack };
            return Some(Setting::new(codec, pickle.origin));
        }
        // An environment that could not be read proves nothing.
        let is_surely_unset = self.evidence.environment.is_some() && self.evidence.variable(PICKLE_SWITCH).is_none();
        if !is_surely_unset {
            return None;
        }
        let origin = Origin::NoVariable { pid: self.evidence.pid, variable: PICKLE_SWITCH };
        Some(Setting::new(Codec::Pickle, origin))
    }

    /// The environment variable that makes the engine's output bypass ZMQ, if it is set (0.5.17 and later).
    fn output_avoids_zmq(&self) -> Option<String> {
        let is_switched_on = self.environment_switch(RUST_SERVER)?.value;
        // Earlier releases ignore the variable. An unknown one may have the server.
        let has_rust_server = self.release.is_none_or(|release| release >= Version::new(0, 5, 17));
        if !is_switched_on || !has_rust_server {
            return None;
        }
        Some(format!("{RUST_SERVER}={}", self.evidence.variable(RUST_SERVER).unwrap_or_default()))
    }

    /// Whether responses contain exactly the text of the frames. `None` if it is not known: from 0.5.12 on, the model's chat template may
    /// also choose a parser.
    fn has_exact_text(&self) -> Option<Setting<bool>> {
        let flags = self.evidence.flags;
        // A parser moves parts of the text to other fields of the response.
        for flag in [REASONING_PARSER, TOOL_CALL_PARSER] {
            if let Some(parser) = flags.get(flag) {
                return Some(Setting::new(false, self.evidence.argument(&format!("{flag} {parser}"))));
            }
        }
        // Later releases, and other launchers, may choose a parser without a flag.
        let release = self.release?;
        let only_flags_choose_parsers = release < Version::new(0, 5, 12).rc(0) && self.evidence.is_launched_by(&Sglang);
        if !only_flags_choose_parsers {
            return None;
        }
        let is_exact = true;
        default_setting_without_argument(self.evidence, REASONING_PARSER, is_exact)
    }

    /// Value of `--skip-tokenizer-init`, with which the scheduler sends token ids to the tokenizer without a detokenizer between them.
    /// `None` if neither the command line nor the release tells.
    fn skips_tokenizer_init(&self) -> Option<Setting<bool>> {
        match self.evidence.flags.get(SKIP_TOKENIZER_INIT) {
            Some(argument) => Some(Setting::new(true, self.evidence.argument(argument))),
            None => self.defaults.skips_tokenizer_init.clone(),
        }
    }

    /// Side of a disaggregated pair, prefill or decode, from its flag (0.4.4 and later). `None` without the flag.
    fn disaggregation_side(&self) -> Option<Setting<Disaggregation>> {
        let value = self.evidence.flags.get(DISAGGREGATION)?;
        let side = [PREFILL, DECODE].into_iter().find(|side| side.word == value)?;
        Some(Setting::new(side, self.evidence.argument(&format!("{DISAGGREGATION} {value}"))))
    }

    /// What a waiter, the tokenizer's task that waits for the chunks of one request, does with several queued chunks. The Rust server
    /// writes an event for each chunk. `None` for an unknown release.
    fn waiter_behaviour(&self) -> Option<Setting<Waiter>> {
        let release = self.release?;
        let is_rust_server = self.output_avoids_zmq().is_some();
        let waiter = if is_rust_server { Waiter::YieldsAll } else { behaviour_of(release).waiter? };
        Some(setting_by_release(release, waiter))
    }

    /// Number of event-loop turns from the wake-up to the run of a waiter, the task that waits for a request's chunks. Up to `CPython`
    /// 3.11, `asyncio.wait_for` creates an additional task. Known only for `SGLang`'s own server, since other consumers add turns or run in
    /// another thread.
    fn turnaround_turns(&self, python_version: &Setting<PythonVersion>) -> Option<Setting<u8>> {
        if !self.evidence.is_launched_by(&Sglang) {
            return None;
        }
        let creates_task = python_version.value < (PythonVersion { major: 3, minor: 12 });
        // The additional task takes two more turns.
        let turns = if creates_task { 3 } else { 1 };
        Some(Setting::new(turns, python_version.origin.clone()))
    }

    /// Output mode of the tokenizer. An engine that `skips_tokenizer_init` uses the token path, on which token ids reach the tokenizer;
    /// another one uses the text path, with a detokenizer before it. `None` if the mode is not certain.
    fn output_mode(&self, skips_tokenizer_init: Option<bool>) -> Option<Setting<Mode>> {
        let release = self.release?;
        let behaviour = behaviour_of(release);
        let on_token_path = self.output_mode_by_rule(behaviour.token_path?, release);
        let on_text_path = self.output_mode_by_rule(behaviour.text_path?, release);
        match skips_tokenizer_init {
            Some(true) => on_token_path,
            Some(false) => on_text_path,
            // The path is unknown, which does not matter if both have the same mode.
            None => {
                let token_mode = on_token_path?;
                let have_same_mode = token_mode.value == on_text_path?.value;
                have_same_mode.then_some(token_mode)
            }
        }
    }

    /// Mode on a path with this rule: always the same one, or the one that the flag sets. Any name of the flag counts, not only that in the
    /// rule.
    fn output_mode_by_rule(&self, rule: OutputModeRule, release: Version) -> Option<Setting<Mode>> {
        match rule {
            OutputModeRule::Always(mode) => Some(setting_by_release(release, mode)),
            OutputModeRule::ByFlag(_) => self.output_mode_by_flag(),
        }
    }

    /// Incremental if the flag is set; otherwise as the launcher decides.
    fn output_mode_by_flag(&self) -> Option<Setting<Mode>> {
        let flags = self.evidence.flags;
        match flags.get(INCREMENTAL).or_else(|| flags.get(STREAM_OUTPUT)) {
            Some(argument) => Some(Setting::new(Mode::Incremental, self.evidence.argument(argument))),
            None => self.defaults.mode.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::with_evidence_of_command;

    const SERVER: &str = "python -m sglang.launch_server";

    fn rules<T>(command: &str, release: &str, see: impl FnOnce(StreamingRules<'_>) -> T) -> T {
        with_evidence_of_command(command, &[("sglang", release)], |evidence| {
            let defaults = if evidence.is_launched_by(&Sglang) {
                LauncherDefaults::of_server(evidence)
            } else {
                LauncherDefaults::default()
            };
            see(StreamingRules { evidence, release: evidence.release(&Sglang), defaults: &defaults })
        })
    }

    #[test]
    fn text_is_exact_only_without_a_parser() {
        let cases = [
            ("", "0.5.9", Some(true)),
            ("--incremental-streaming-output", "0.5.10", Some(true)),
            ("--reasoning-parser qwen3", "0.5.9", Some(false)),
            ("--tool-call-parser=qwen25", "0.5.23", Some(false)),
            ("--config x.yaml", "0.5.9", None),
            ("", "0.5.23", None),
        ];
        for (flags, release, expected) in cases {
            let exact = rules(&format!("{SERVER} {flags}"), release, |rules| rules.has_exact_text());
            assert_eq!(exact.map(|setting| setting.value), expected, "{flags} {release}");
        }
    }

    #[test]
    fn modes_follow_the_release() {
        use Mode::{Cumulative, Incremental};
        let (none, stream, file) = ("", "--stream-output", "--config x.yaml");
        let incremental = "--incremental-streaming-output";
        let cases = [
            ("0.4.2", stream, Some(true), Some(Cumulative)),
            ("0.4.6.post4", stream, Some(true), Some(Incremental)),
            ("0.4.6.post4", stream, Some(false), Some(Cumulative)),
            ("0.4.6.post4", stream, None, None),
            ("0.4.6.post4", none, None, Some(Cumulative)),
            ("0.5.5.post3", none, Some(false), Some(Incremental)),
            ("0.5.5.post3", none, Some(true), Some(Cumulative)),
            ("0.5.5.post3", none, None, None),
            ("0.5.9", none, Some(true), Some(Cumulative)),
            ("0.5.9", stream, None, Some(Incremental)),
            ("0.5.9", file, None, None),
            ("0.5.10rc0", incremental, None, Some(Incremental)),
            ("0.5.23", none, None, Some(Cumulative)),
        ];
        for (release, flags, skip, expected) in cases {
            let mode = rules(&format!("{SERVER} {flags}"), release, |rules| rules.output_mode(skip));
            assert_eq!(mode.map(|m| m.value), expected, "{release} {flags} skip {skip:?}");
        }
    }

    #[test]
    fn the_codec_needs_a_readable_environment_from_0_5_15_on() {
        fn codec(release: &str, environment: Option<&[(String, String)]>) -> Option<Codec> {
            rules("", release, |rules| {
                let evidence = &Evidence { environment, ..*rules.evidence };
                StreamingRules { evidence, ..rules }.codec().map(|codec| codec.value)
            })
        }
        assert_eq!(codec("0.5.14", None), Some(Codec::Pickle));
        assert_eq!(codec("0.5.15", None), None);
        assert_eq!(codec("0.5.15", Some(&[])), Some(Codec::Pickle));
        for (value, expected) in [("0", Some(Codec::Msgpack)), ("True", Some(Codec::Pickle)), ("perhaps", None)] {
            let environment = [(PICKLE_SWITCH.to_owned(), value.to_owned())];
            assert_eq!(codec("0.5.23", Some(environment.as_slice())), expected, "{value}");
        }
    }

    #[test]
    fn the_rust_server_has_no_waiters_of_python() {
        let with = |release: &str, value: &str| {
            let environment = [(RUST_SERVER.to_owned(), value.to_owned())];
            rules("", release, |rules| {
                let evidence = Evidence { environment: Some(environment.as_slice()), ..*rules.evidence };
                let settings = infer_settings(&evidence, rules.defaults);
                (settings.avoids_zmq, settings.codec.is_some(), settings.waiter.map(|waiter| waiter.value))
            })
        };
        let inside = (Some("SGLANG_RUST_SERVER=1".to_owned()), false, Some(Waiter::YieldsAll));
        assert_eq!(with("0.5.23", "1"), inside);
        assert_eq!(with("0.5.23", "0"), (None, true, Some(Waiter::Merges)));
        assert_eq!(with("0.5.16", "1"), (None, true, Some(Waiter::Merges)));
    }

    #[test]
    fn an_unknown_launcher_leaves_the_mode_open() {
        rules("python engine.py", "0.5.9", |rules| {
            assert_eq!((rules.output_mode(None), rules.skips_tokenizer_init()), (None, None));
        });
    }

    #[test]
    fn the_side_of_a_pair_is_an_argument() {
        let side = |flags: &str| {
            rules(&format!("{SERVER} {flags}"), "0.5.9", |rules| rules.disaggregation_side())
                .map(|side| side.value.word)
        };
        assert_eq!(side("--disaggregation-mode prefill --tp 2"), Some("prefill"));
        assert_eq!(side("--disaggregation-mode=decode"), Some("decode"));
        assert_eq!(side("--disaggregation-bootstrap-port 8998"), None);
    }

    #[test]
    fn event_loop_turns_follow_the_python_version() {
        let turns = |command, minor| {
            let python = Setting::new(PythonVersion { major: 3, minor }, Origin::Sockets);
            rules(command, "0.5.9", |rules| rules.turnaround_turns(&python)).map(|turns| turns.value)
        };
        assert_eq!(turns(SERVER, 11), Some(3));
        assert_eq!(turns(SERVER, 12), Some(1));
        assert_eq!(turns("python -m dynamo.sglang", 11), None);
    }
}
