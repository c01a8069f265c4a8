//! Rules for an engine's streaming: codec, mode, waiter. They combine release, flags and environment; if one of these is unreadable, the
//! result is `None`. The rules cover SGLang 0.4.0 to 0.5.23 and Dynamo 0.5 to 1.6 as released.

use trace::engine::{Mode, Waiter};

use super::launch::{Flags, Launcher};
use super::package::PythonVersion;
use super::release::{Release, Stage};
use super::setting::{Origin, Setting};

/// Serialisation format of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    /// `pickle`: the only one before 0.5.15, and the default since then.
    Pickle,
    /// `msgpack`, with `SGLANG_USE_PICKLE_IPC=0`.
    Msgpack,
}

impl Codec {
    /// Name of the codec.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pickle => "pickle",
            Self::Msgpack => "msgpack",
        }
    }
}

/// Side of an engine in a disaggregated pair of prefill and decode servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Disaggregation {
    /// Sends one frame per request, with the first token and the finish reason `length`.
    Prefill,
    /// Sends every token, beginning with the one from prefill.
    Decode,
}

impl Disaggregation {
    /// Value for `--disaggregation-mode`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }

    /// Description of the output on its hops.
    pub fn sends(self) -> &'static str {
        match self {
            Self::Prefill => "one frame a request, with its first token",
            Self::Decode => "every token, the one made by prefill first",
        }
    }
}

/// Environment variable that selects the codec.
pub(crate) const PICKLE_SWITCH: &str = "SGLANG_USE_PICKLE_IPC";
/// Environment variable of 0.5.17 and later: output goes through a ring inside the process instead of ZMQ.
pub(crate) const RUST_SERVER: &str = "SGLANG_RUST_SERVER";

/// Properties of an engine's main process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence<'a> {
    pub(crate) pid: u32,
    pub(crate) launcher: Option<Launcher>,
    pub(crate) flags: &'a Flags,
    /// Names and values of the relevant variables; `None` when the environment is unreadable.
    pub(crate) environment: Option<&'a [(String, String)]>,
    pub(crate) sglang: Option<Release>,
    pub(crate) dynamo: Option<Release>,
}

impl Evidence<'_> {
    fn variable(&self, name: &str) -> Option<&str> {
        self.environment?
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value.as_str())
    }

    /// Parses a variable like SGLang's `EnvBool`.
    fn switch(&self, name: &str) -> Option<Setting<bool>> {
        let value = self.variable(name)?;
        let on = match value.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "y" => true,
            "false" | "0" | "no" | "n" => false,
            _ => return None,
        };
        Some(Setting::new(
            on,
            Origin::Environment {
                pid: self.pid,
                variable: format!("{name}={value}"),
            },
        ))
    }

    /// Codec of the engine's frames.
    pub(crate) fn codec(&self) -> Option<Setting<Codec>> {
        let release = self.sglang?;
        if release < Release::new(0, 5, 15).rc(0) {
            return Some(Setting::new(
                Codec::Pickle,
                Origin::Release(format!("SGLang {release}")),
            ));
        }
        if let Some(pickle) = self.switch(PICKLE_SWITCH) {
            let codec = if pickle.value { Codec::Pickle } else { Codec::Msgpack };
            return Some(Setting::new(codec, pickle.origin));
        }
        let absent = self.environment.is_some() && self.variable(PICKLE_SWITCH).is_none();
        absent.then(|| {
            Setting::new(
                Codec::Pickle,
                Origin::NoVariable {
                    pid: self.pid,
                    variable: PICKLE_SWITCH,
                },
            )
        })
    }

    /// The variable that makes its output bypass ZMQ, if set (0.5.17 and later).
    pub(crate) fn output_avoids_zmq(&self) -> Option<String> {
        let on = self.switch(RUST_SERVER)?.value && self.sglang.is_none_or(|r| r >= Release::new(0, 5, 17));
        on.then(|| format!("{RUST_SERVER}={}", self.variable(RUST_SERVER).unwrap_or_default()))
    }

    /// Whether the scheduler sends token ids directly to the tokenizer.
    pub(crate) fn skip_tokenizer_init(&self) -> Option<Setting<bool>> {
        if let Some(argument) = &self.flags.skip_tokenizer_init {
            return Some(Setting::new(true, self.argument(argument)));
        }
        match self.launcher? {
            Launcher::Sglang => self
                .absent("--skip-tokenizer-init")
                .map(|origin| Setting::new(false, origin)),
            // Dynamo forced it before 1.1.0; later releases leave it to the user.
            Launcher::Dynamo if self.dynamo? < Release::new(1, 1, 0).rc(0) => match &self.flags.use_sglang_tokenizer {
                Some(argument) => Some(Setting::new(false, self.argument(argument))),
                None => Some(Setting::new(true, self.dynamo_does()?)),
            },
            Launcher::Dynamo => self
                .absent("--skip-tokenizer-init")
                .map(|origin| Setting::new(false, origin)),
        }
    }

    /// Side of a disaggregated pair, from its flag (0.4.4 and later).
    pub(crate) fn disaggregation(&self) -> Option<Setting<Disaggregation>> {
        let said = self.flags.disaggregation.as_deref()?;
        let side = [Disaggregation::Prefill, Disaggregation::Decode]
            .into_iter()
            .find(|side| side.word() == said)?;
        Some(Setting::new(
            side,
            self.argument(&format!("--disaggregation-mode {said}")),
        ))
    }

    /// Behaviour of a waiter with several queued chunks (changed in 0.5.10rc0 and 0.5.10).
    pub(crate) fn waiter(&self) -> Option<Setting<Waiter>> {
        let release = self.sglang?;
        let waiter = match release {
            r if r < Release::new(0, 5, 10).rc(0) => Waiter::KeepsLast,
            r if r.number == [0, 5, 10] && matches!(r.stage, Stage::Candidate(_)) => Waiter::YieldsAll,
            _ => Waiter::Merges,
        };
        Some(Setting::new(waiter, Origin::Release(format!("SGLang {release}"))))
    }

    /// Number of event-loop turns from the wake-up of a waiter to its run. Up to `CPython` 3.11, `asyncio.wait_for` creates an additional
    /// task. Known only for `SGLang`'s own server, since other consumers add turns or run in another thread.
    pub(crate) fn turnaround(&self, python: &Setting<PythonVersion>) -> Option<Setting<u8>> {
        let own = self.launcher == Some(Launcher::Sglang);
        let turns = if python.value < (PythonVersion { major: 3, minor: 12 }) {
            3
        } else {
            1
        };
        own.then(|| Setting::new(turns, python.origin.clone()))
    }

    /// Output mode of the tokenizer. `skip` is the result from flags or sockets.
    pub(crate) fn mode(&self, skip: Option<bool>) -> Option<Setting<Mode>> {
        let release = self.sglang?;
        let by_release = |mode| Some(Setting::new(mode, Origin::Release(format!("SGLang {release}"))));
        // Deltas exist on the skip path from 0.4.3.post4, on every path from 0.5.0, and depend on the flag alone from 0.5.6.
        if release < Release::new(0, 4, 3).post(4) {
            return by_release(Mode::Cumulative);
        }
        if release < Release::new(0, 5, 6).rc(0) {
            let text_path = if release < Release::new(0, 5, 0).rc(0) {
                Mode::Cumulative
            } else {
                Mode::Incremental
            };
            return match skip {
                Some(false) => by_release(text_path),
                Some(true) => self.by_flag(),
                // Without the flag, both paths of 0.4.x are cumulative.
                None => self.by_flag().filter(|flag| flag.value == text_path),
            };
        }
        self.by_flag()
    }

    /// Incremental if and only if the flag is set.
    fn by_flag(&self) -> Option<Setting<Mode>> {
        if let Some(argument) = self.flags.incremental.as_ref().or(self.flags.stream_output.as_ref()) {
            return Some(Setting::new(Mode::Incremental, self.argument(argument)));
        }
        match self.launcher? {
            Launcher::Sglang => {
                let renamed = self.sglang? >= Release::new(0, 5, 10).rc(0);
                let flag = if renamed {
                    "--incremental-streaming-output"
                } else {
                    "--stream-output"
                };
                self.absent(flag).map(|origin| Setting::new(Mode::Cumulative, origin))
            }
            // Dynamo forces it from 0.9.0. Earlier releases leave it off, and their handler slices the cumulative list.
            Launcher::Dynamo => {
                let forced = self.dynamo? >= Release::new(0, 9, 0).rc(0);
                let mode = if forced { Mode::Incremental } else { Mode::Cumulative };
                Some(Setting::new(mode, self.dynamo_does()?))
            }
        }
    }

    fn argument(&self, argument: &str) -> Origin {
        Origin::Argument {
            pid: self.pid,
            argument: argument.to_owned(),
        }
    }

    /// Origin for a missing argument. A missing argument proves nothing if a configuration file may contain it.
    fn absent(&self, argument: &'static str) -> Option<Origin> {
        self.flags.config_file.is_none().then_some(Origin::NoArgument {
            pid: self.pid,
            argument,
        })
    }

    fn dynamo_does(&self) -> Option<Origin> {
        Some(Origin::Release(format!("Dynamo {}", self.dynamo?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence<'a>(sglang: &str, launcher: Option<Launcher>, dynamo: Option<&str>, flags: &'a Flags) -> Evidence<'a> {
        Evidence {
            pid: 1,
            launcher,
            flags,
            environment: Some(&[]),
            sglang: Some(sglang.parse().unwrap()),
            dynamo: dynamo.map(|d| d.parse().unwrap()),
        }
    }

    fn flags(line: &str) -> Flags {
        Flags::parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn modes_of_the_releases() {
        use Mode::{Cumulative, Incremental};
        let none = flags("");
        let stream = flags("--stream-output");
        let incremental = flags("--incremental-streaming-output");
        let file = flags("--config x.yaml");
        let cases = [
            ("0.4.2", &stream, Some(true), Some(Cumulative)),
            ("0.4.6.post4", &stream, Some(true), Some(Incremental)),
            ("0.4.6.post4", &stream, Some(false), Some(Cumulative)),
            ("0.4.6.post4", &stream, None, None),
            ("0.4.6.post4", &none, None, Some(Cumulative)),
            ("0.5.5.post3", &none, Some(false), Some(Incremental)),
            ("0.5.5.post3", &none, Some(true), Some(Cumulative)),
            ("0.5.5.post3", &none, None, None),
            ("0.5.9", &none, Some(true), Some(Cumulative)),
            ("0.5.9", &stream, None, Some(Incremental)),
            ("0.5.9", &file, None, None),
            ("0.5.10rc0", &incremental, None, Some(Incremental)),
            ("0.5.23", &none, None, Some(Cumulative)),
        ];
        for (release, flags, skip, expected) in cases {
            let mode = evidence(release, Some(Launcher::Sglang), None, flags).mode(skip);
            assert_eq!(mode.map(|m| m.value), expected, "{release} {flags:?} skip {skip:?}");
        }
    }

    #[test]
    fn dynamo_decides_for_the_user() {
        let none = flags("");
        let kept = flags("--use-sglang-tokenizer");
        let read = |sglang, dynamo, flags| {
            let e = evidence(sglang, Some(Launcher::Dynamo), Some(dynamo), flags);
            let skip = e.skip_tokenizer_init().map(|s| s.value);
            (skip, e.mode(skip).map(|m| m.value), e.waiter().map(|w| w.value))
        };
        let keeps = Some(Waiter::KeepsLast);
        assert_eq!(
            read("0.5.6.post2", "0.8.1", &none),
            (Some(true), Some(Mode::Cumulative), keeps)
        );
        assert_eq!(
            read("0.5.8", "0.9.0", &none),
            (Some(true), Some(Mode::Incremental), keeps)
        );
        assert_eq!(
            read("0.5.9", "1.0.0", &kept),
            (Some(false), Some(Mode::Incremental), keeps)
        );
        assert_eq!(
            read("0.5.10.post1", "1.1.0", &none),
            (Some(false), Some(Mode::Incremental), Some(Waiter::Merges))
        );
    }

    #[test]
    fn the_codec_needs_a_readable_environment_from_0_5_15_on() {
        fn codec(release: &str, environment: Option<&[(String, String)]>) -> Option<Codec> {
            let none = flags("");
            Evidence {
                environment,
                ..evidence(release, None, None, &none)
            }
            .codec()
            .map(|c| c.value)
        }
        assert_eq!(codec("0.5.14", None), Some(Codec::Pickle));
        assert_eq!(codec("0.5.15", None), None);
        assert_eq!(codec("0.5.15", Some(&[])), Some(Codec::Pickle));
        for (value, expected) in [
            ("0", Some(Codec::Msgpack)),
            ("True", Some(Codec::Pickle)),
            ("perhaps", None),
        ] {
            let environment = [(PICKLE_SWITCH.to_owned(), value.to_owned())];
            assert_eq!(codec("0.5.23", Some(environment.as_slice())), expected, "{value}");
        }
    }

    #[test]
    fn an_unknown_launcher_leaves_the_mode_open() {
        assert_eq!(evidence("0.5.9", None, None, &flags("")).mode(None), None);
        assert_eq!(evidence("0.5.9", None, None, &flags("")).skip_tokenizer_init(), None);
    }

    #[test]
    fn turns_of_the_interpreters() {
        let none = flags("");
        let turns = |launcher, minor| {
            let python = Setting::new(PythonVersion { major: 3, minor }, Origin::Sockets);
            evidence("0.5.9", launcher, None, &none)
                .turnaround(&python)
                .map(|t| t.value)
        };
        assert_eq!(turns(Some(Launcher::Sglang), 11), Some(3));
        assert_eq!(turns(Some(Launcher::Sglang), 12), Some(1));
        assert_eq!(turns(Some(Launcher::Dynamo), 11), None);
    }

    #[test]
    fn waiters_of_the_releases() {
        let none = flags("");
        let waiter = |r| evidence(r, None, None, &none).waiter().unwrap().value;
        assert_eq!(waiter("0.5.9"), Waiter::KeepsLast);
        assert_eq!(waiter("0.5.10rc0"), Waiter::YieldsAll);
        assert_eq!(waiter("0.5.10"), Waiter::Merges);
    }
}
