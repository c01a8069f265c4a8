//! `cargo xtask fuzz`: fuzzes every parser with libFuzzer, starting from real messages. A finding fails the command and is kept below
//! `target/fuzz` with the command line that reproduces it.
//!
//! Needs only the stable compiler: cargo-fuzz is installed below `.tools` and runs with `RUSTC_BOOTSTRAP`.

mod agree;
mod run;
mod seeds;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

const CARGO_FUZZ: &str = "0.13.2";

/// A fuzz target: a file of this name below `fuzz/fuzz_targets`.
pub(crate) struct Target {
    name: &'static str,
    /// Description for the table.
    what: &'static str,
    /// Maximum input length in bytes.
    longest: usize,
    /// Memory limit in MiB; higher for targets that leak by design, such as proptest strategies.
    memory: u32,
    /// The input only seeds a random generator, so inputs similar to an interesting one are not interesting.
    seeded: bool,
}

const fn target(name: &'static str, what: &'static str, longest: usize) -> Target {
    Target {
        name,
        what,
        longest,
        memory: 1024,
        seeded: false,
    }
}

/// All fuzz targets.
const TARGETS: &[Target] = &[
    target(
        "wire",
        "messages: pickle VM, msgpack, schemas; fresh against used decoder",
        16 << 10,
    ),
    target("msgpack", "msgpack messages against rmpv", 16 << 10),
    target("zmtp", "ZMTP from the greeting on: whole against pieces", 8 << 10),
    target(
        "zmtp_midstream",
        "ZMTP entered in its middle: whole against pieces",
        32 << 10,
    ),
    target(
        "egress",
        "HTTP, SSE, JSON answers: whole against pieces, with holes",
        16 << 10,
    ),
    target(
        "response_plane",
        "Dynamo's response plane: whole against pieces",
        16 << 10,
    ),
    target("recording", "any file as a recording", 64 << 10),
    target("block", "any columns of a block, with a right header", 8 << 10),
    Target {
        memory: 4096,
        seeded: true,
        ..target(
            "recording_roundtrip",
            "any events: written against read, live report against replay's",
            4 << 10,
        )
    },
    target("import", "any text as logs", 16 << 10),
    target(
        "probe_record",
        "records of the ring, and the matcher behind them",
        4 << 10,
    ),
    target("sites", "any file as a library", 64 << 10),
    target("proc", "the kernel's tables", 4 << 10),
    target(
        "relay",
        "the relay between two sockets: output against input, what it tells against a scanner",
        16 << 10,
    ),
    target(
        "feed",
        "a feed's messages and states; its connections whole against pieces",
        16 << 10,
    ),
    target("query", "the request table's filter, against its terms one by one", 256),
    target(
        "config",
        "any text as a configuration file; printed and read again",
        1 << 10,
    ),
];

/// Fuzz every parser from real messages on; fails on whatever is found
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only this target; repeatable
    #[arg(long, value_name = "NAME")]
    target: Vec<String>,
    /// How long each target runs, in seconds; 600 for a night
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    time: u64,
    /// Targets that run at once, as many as there are cores
    #[arg(long, value_name = "N", default_value_t = std::thread::available_parallelism().map_or(2, usize::from))]
    jobs: usize,
    /// Where libFuzzer's random numbers begin, for a run that looks at the same inputs again; 0 is elsewhere every time
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u32,
    /// Build the targets and run none
    #[arg(long)]
    no_run: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask has no parent folder")?;
    for name in &options.target {
        ensure!(
            TARGETS.iter().any(|target| target.name == name),
            "no target {name}: there are {}",
            TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(", ")
        );
    }
    let wanted: Vec<&Target> = TARGETS
        .iter()
        .filter(|target| options.target.is_empty() || options.target.iter().any(|name| name == target.name))
        .collect();
    let place = Place::at(root);
    place.build()?;
    if options.no_run {
        return Ok(());
    }
    for target in &wanted {
        seeds::write(root, target.name, &place.seeds(target.name))?;
    }
    let results = run::all(&place, &wanted, options);
    println!("| target | what | executions | edges | features | corpus | largest memory |");
    println!("|---|---|---|---|---|---|---|");
    let mut found = Vec::new();
    for (target, result) in wanted.iter().zip(results) {
        match result {
            Ok(stats) => println!("| `{}` | {} | {stats} |", target.name, target.what),
            Err(error) => found.push(format!("{}: {error:#}", target.name)),
        }
    }
    if wanted.iter().any(|target| target.name == "wire") {
        match agree::check(root, &place.corpus("wire"), &place.seeds("wire")) {
            Ok(said) => println!("{said}"),
            Err(error) => found.push(format!("{error:#}")),
        }
    }
    if !found.is_empty() {
        bail!("{}", found.join("\n"));
    }
    Ok(())
}

/// Folders for fuzzing data.
pub(crate) struct Place {
    root: PathBuf,
    dir: PathBuf,
}

impl Place {
    fn at(root: &Path) -> Self {
        Self {
            root: root.to_path_buf(),
            dir: root.join("target/fuzz"),
        }
    }

    /// Corpus: inputs that reached new code, kept between runs.
    fn corpus(&self, target: &str) -> PathBuf {
        self.dir.join("corpus").join(target)
    }

    fn seeds(&self, target: &str) -> PathBuf {
        self.dir.join("seeds").join(target)
    }

    fn findings(&self, target: &str) -> PathBuf {
        self.dir.join("findings").join(target)
    }

    fn program(&self, target: &str) -> PathBuf {
        self.dir.join("x86_64-unknown-linux-gnu/release").join(target)
    }

    fn build(&self) -> Result<()> {
        let tools = self.root.join(".tools");
        let cargo_fuzz = tools.join("bin/cargo-fuzz");
        if !cargo_fuzz.is_file() {
            eprintln!(
                "installing cargo-fuzz {CARGO_FUZZ} into {} (less than a minute, once)",
                tools.display()
            );
            let mut install = Command::new("cargo");
            // A debug build is enough, because it only starts cargo.
            install
                .args(["install", "--quiet", "--debug", "--locked", "cargo-fuzz"])
                .args(["--version", CARGO_FUZZ, "--root"])
                .env("CARGO_PROFILE_DEV_DEBUG", "0")
                .env("CARGO_TARGET_DIR", self.root.join("target/tools"));
            let status = install.arg(&tools).status().context("start cargo")?;
            ensure!(status.success(), "cargo-fuzz cannot be installed: {status}");
        }
        let status = Command::new(&cargo_fuzz)
            .current_dir(&self.root)
            .args([
                "build",
                "--codegen-units=16",
                "--target",
                "x86_64-unknown-linux-gnu",
                "--target-dir",
            ])
            .arg(&self.dir)
            .env("RUSTC_BOOTSTRAP", "1")
            .env_remove("CARGO_TARGET_DIR")
            .status()
            .with_context(|| format!("start {}", cargo_fuzz.display()))?;
        ensure!(status.success(), "the fuzz targets do not build: {status}");
        Ok(())
    }
}
