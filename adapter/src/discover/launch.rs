//! Analysis of a command line: the program that Python runs, and flags as argparse reads them.

/// A flag that is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlagName {
    name: &'static str,
    /// Shortest accepted prefix, since Python's argparse accepts any unambiguous one.
    shortest: &'static str,
    has_value: bool,
}

impl FlagName {
    /// A switch, which counts as absent with a value such as `false`.
    pub const fn switch(name: &'static str, shortest: &'static str) -> Self {
        Self { name, shortest, has_value: false }
    }

    /// A flag with a value.
    pub const fn value(name: &'static str, shortest: &'static str) -> Self {
        Self { name, shortest, has_value: true }
    }

    /// Value of the flag: the text after `=`, or else the next argument. A switch has no value, so the argument itself is returned. A
    /// switch that is set to `false` or `0` counts as absent. `None` if the flag is absent.
    fn find_value_in_command(&self, argv: &[String]) -> Option<String> {
        for (index, argument) in argv.iter().enumerate() {
            let (flag, value_after_equals) = match argument.split_once('=') {
                Some((flag, value)) => (flag, Some(value)),
                None => (argument.as_str(), None),
            };
            if !self.may_be_written_as(flag) {
                continue;
            }
            if self.has_value {
                let next_argument = argv.get(index + 1).map(String::as_str);
                return value_after_equals.or(next_argument).map(str::to_owned);
            }
            let is_switched_off = matches!(value_after_equals, Some("false" | "False" | "0"));
            // If it is switched off, a later argument may still switch it on.
            if !is_switched_off {
                return Some(argument.clone());
            }
        }
        None
    }

    /// Whether `written` is the flag or an abbreviation of it. Python's `argparse` accepts every prefix that fits no other flag.
    fn may_be_written_as(&self, written: &str) -> bool {
        self.name.starts_with(written) && written.len() >= self.shortest.len()
    }
}

/// Flags found in a command line, each with its value, or with the argument as written for a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    found: Vec<(&'static str, String)>,
}

/// The program that a Python interpreter runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program<'a> {
    /// `-m MODULE`.
    Module(&'a str),
    /// A script file.
    Script(&'a str),
}

/// Single-letter options of Python that take no value.
const OPTIONS_WITHOUT_VALUE: &str = "bBdEiIOPqsSuvVx";

/// The module or script that a Python command line runs. `None` for other commands, for `-c`, and for an interactive interpreter.
pub fn python_program(argv: &[String]) -> Option<Program<'_>> {
    let (python, rest) = argv.split_first()?;
    if !file_name(python).starts_with("python") {
        return None;
    }
    let mut arguments = rest.iter();
    while let Some(argument) = arguments.next() {
        let Some(letters) = argument.strip_prefix('-') else {
            return Some(Program::Script(argument));
        };
        match PythonOption::parse(letters) {
            PythonOption::Module(module) => return Some(Program::Module(module)),
            PythonOption::ModuleIsNext => return arguments.next().map(|module| Program::Module(module)),
            PythonOption::OtherProgram => return None,
            PythonOption::ValueIsNext => {
                arguments.next();
            }
            PythonOption::Complete => {}
        }
    }
    None
}

/// What an argument with options of Python says of the program.
enum PythonOption<'a> {
    /// `-mMODULE`.
    Module(&'a str),
    /// `-m`, with the module in the next argument.
    ModuleIsNext,
    /// `-`, which reads the program from standard input, or `-c`, whose program is an argument.
    OtherProgram,
    /// An option whose value is the next argument.
    ValueIsNext,
    /// Options that say nothing of the program.
    Complete,
}

impl<'a> PythonOption<'a> {
    /// Parses an argument without its first dash. Single-letter options may be combined, as in `-um race`. The last of them may take the
    /// rest of the argument, or the next argument.
    fn parse(letters: &'a str) -> Self {
        let last_option = letters.trim_start_matches(|letter| OPTIONS_WITHOUT_VALUE.contains(letter));
        // A single dash is a program on standard input, and `-c` one in the command itself.
        if letters.is_empty() || last_option.starts_with('c') {
            return Self::OtherProgram;
        }
        match last_option {
            "m" => Self::ModuleIsNext,
            // The last one is `--check-hash-based-pycs` without its first dash.
            "X" | "W" | "-check-hash-based-pycs" => Self::ValueIsNext,
            _ => last_option.strip_prefix('m').map_or(Self::Complete, Self::Module),
        }
    }
}

impl Flags {
    /// Finds the flags `names` in a command line.
    pub fn parse<'a>(argv: &[String], names: impl IntoIterator<Item = &'a FlagName>) -> Self {
        let found = names.into_iter().filter_map(|name| Some((name.name, name.find_value_in_command(argv)?)));
        Self { found: found.collect() }
    }

    /// Value of a flag, or the argument as written for a switch; `None` if it is absent.
    pub fn get(&self, name: &str) -> Option<&str> {
        let (_, argument) = self.found.iter().find(|(known, _)| *known == name)?;
        Some(argument)
    }
}

/// Value of a flag in a command line, `--flag VALUE` or `--flag=VALUE`. An abbreviated flag is not found.
pub fn flag_value<'a>(argv: &'a [String], name: &str) -> Option<&'a str> {
    for (index, argument) in argv.iter().enumerate() {
        let Some(rest) = argument.strip_prefix(name) else { continue };
        if let Some(value) = rest.strip_prefix('=') {
            return Some(value);
        }
        if rest.is_empty() {
            return argv.get(index + 1).map(String::as_str);
        }
    }
    None
}

/// Port in a server's command line: the value of `--port`, or the default. `None` if a configuration file may contain the port, or if it is
/// invalid.
pub fn port_of_command(argv: &[String], default_port: u16) -> Option<u16> {
    match flag_value(argv, "--port") {
        Some(port) => port.parse().ok(),
        None => flag_value(argv, "--config").is_none().then_some(default_port),
    }
}

/// Last part of a path.
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
    fn flags_parse_as_in_argparse() {
        const WANTED: &[FlagName] = &[
            FlagName::switch("--stream-output", "--stream-o"),
            FlagName::switch("--skip-init", "--skip"),
            FlagName::switch("--config", "--config"),
            FlagName::value("--side-mode", "--side-m"),
        ];
        let flags = |line: &str| Flags::parse(&argv(line), WANTED);
        let found = flags("python -m x --stream-interval 4 --skip-in");
        assert_eq!(found.get("--stream-output"), None);
        assert_eq!(found.get("--skip-init"), Some("--skip-in"));
        for line in ["--side-mode prefill --tp 2", "--side-mode=prefill"] {
            assert_eq!(flags(&format!("python -m x {line}")).get("--side-mode"), Some("prefill"));
        }
        assert_eq!(flags("python -m x --side-port 8998").get("--side-mode"), None);
        let found = flags("python -m x --stream-output=false --config=/etc/engine.yaml");
        assert_eq!(found.get("--stream-output"), None);
        assert_eq!(found.get("--config"), Some("--config=/etc/engine.yaml"));
    }

    #[test]
    fn the_program_is_the_first_non_option_argument() {
        assert_eq!(python_program(&argv("python3 -W error race.py 0.5.9")), Some(Program::Script("race.py")));
        assert_eq!(python_program(&argv("python3 -um race")), Some(Program::Module("race")));
        assert_eq!(python_program(&argv("python3 -Xdev -Bc code race.py")), None);
        assert_eq!(python_program(&argv("python3 - race.py")), None);
        assert_eq!(python_program(&argv("python3 -mrace 0.5.9")), Some(Program::Module("race")));
        assert_eq!(python_program(&argv("bash race.sh")), None);
    }
}
