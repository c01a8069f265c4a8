//! Arbitrary text as a configuration file: reading it yields flags that the command line accepts, or an error with a location. The printed
//! configuration parses back to the same flags.
#![no_main]
#![allow(dead_code, unused_imports, reason = "the target uses only a part of these files")]

use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;

use clap::{Command, CommandFactory as _};
use libfuzzer_sys::fuzz_target;
use rustix::fs::{MemfdFlags, memfd_create};

#[path = "../../tokengap/src/config/mod.rs"]
mod config;

#[path = "../../tokengap/src/named_file.rs"]
mod named_file;

/// Returns a command with a flag of each kind in each section.
mod cli {
    use std::path::PathBuf;

    use clap::{Args, Parser, Subcommand, ValueEnum};

    #[derive(Parser)]
    #[command(name = "tokengap")]
    pub(crate) struct Cli {
        #[arg(long, short, global = true, action = clap::ArgAction::Count)]
        verbose: u8,
        #[command(subcommand)]
        command: Sources,
    }

    #[derive(Subcommand)]
    enum Sources {
        Attach(Attach),
        Demo(Demo),
        Tap(Demo),
        Run(Attach),
    }

    #[derive(Args)]
    struct Attach {
        #[command(flatten)]
        live: LiveArgs,
        #[arg(long)]
        pid: Vec<u32>,
        #[arg(long, conflicts_with = "pid")]
        pod: Option<String>,
    }

    #[derive(Args)]
    struct Demo {
        #[command(flatten)]
        live: LiveArgs,
        #[arg(long, default_value_t = 7)]
        seed: u64,
    }

    #[derive(Args)]
    pub(crate) struct LiveArgs {
        #[arg(long)]
        pub(crate) config: Option<PathBuf>,
        #[arg(long)]
        headless: bool,
        #[arg(long, default_value_t = 1.5)]
        rate: f64,
        #[arg(long, default_value = "safe")]
        payload: Payload,
        #[arg(long)]
        name: Option<String>,
    }

    #[derive(Clone, Copy, ValueEnum)]
    enum Payload {
        Safe,
        Tokens,
    }
}

mod args {
    pub(crate) use crate::cli::LiveArgs;
}

mod log {
    pub(crate) fn init_or_change_level(_: u8) {}
}

/// Returns the flags that a file sets for `section`; `None` if they conflict.
fn printed(command: &Command, section: &str, text: &str) -> Result<Option<String>, String> {
    let mut file = File::from(memfd_create("config", MemfdFlags::CLOEXEC).expect("a file in memory"));
    file.write_all(text.as_bytes()).expect("written");
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let line: Vec<OsString> = ["tokengap", section, "--config", &path].map(Into::into).into();
    let line = config::add_flags_of_file(command, line).map_err(|mistake| {
        let message = mistake.to_string();
        let location = message.strip_prefix(&path).and_then(|rest| rest.strip_prefix(':'));
        assert!(location.is_some_and(|location| location.starts_with(|c: char| c.is_ascii_digit())), "{message}");
        message
    })?;
    let Ok(matches) = command.clone().try_get_matches_from(line) else { return Ok(None) };
    let of = matches.subcommand_matches(section).expect("the section");
    Ok(Some(config::effective_config(command, section, of)))
}

thread_local! {
    static COMMAND: Command = cli::Cli::command();
}

fuzz_target!(|text: &str| {
    COMMAND.with(|command| {
        for section in ["attach", "tap"] {
            if let Ok(Some(first)) = printed(command, section, text) {
                assert_eq!(printed(command, section, &first), Ok(Some(first)));
            }
        }
    });
});
