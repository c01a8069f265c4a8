//! `cargo xtask pod`: the released program alone in a root folder, and in containers beside a running engine with all privileges that a pod
//! may grant. Prints the table in docs/install.md.

mod container;
mod diagnosed;
mod fresh;
mod level;
mod observed;
mod seccomp;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use self::fresh::Fresh;
use self::level::{APART, LEVELS, Level};
use self::observed::{LETTERS, works};
use crate::dist;
use crate::e2e::plan::{Engine, Plan};
use crate::e2e::session::{Session, Setting};
use crate::e2e::setup::Home;
use crate::e2e::tap::Relay;
use crate::toolchain::{output, succeed};

/// SGLang release of the engine to attach to.
const RELEASE: &str = "0.5.23";
/// Arguments of attach at every level.
const ATTACH: &[&str] = &[
    "attach",
    "--headless",
    "--json",
    "--slowest",
    "0",
    "--duration",
    "2500ms",
    "--python-stacks",
    "50",
];
/// Default capabilities of the engine's own container.
const USUAL: &str = "-all,+chown,+dac_override,+fsetid,+fowner,+mknod,+net_raw,+setgid,+setuid,+setfcap,+setpcap,\
                     +net_bind_service,+sys_chroot,+kill,+audit_write";

/// Run the released program in an empty root and in containers, at every level of privilege
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The static program; what `cargo xtask dist` made when not given.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// The command already runs in its own PID namespace.
    #[arg(long, hide = true)]
    inside: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let program = match &options.program {
        Some(program) => program.clone(),
        None => dist::program()?,
    };
    let program = fs::canonicalize(&program)
        .with_context(|| format!("there is no {}: `cargo xtask dist` makes it", program.display()))?;
    ensure!(rustix::process::geteuid().is_root(), "containers need root");
    if options.inside {
        return inside(&program);
    }
    Home::find().prepare(&[RELEASE])?;
    // The pod: engine and containers share a PID namespace in which nothing else runs, and which takes all of them along.
    succeed(
        Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .arg(std::env::current_exe()?)
            .args(["pod", "--inside", "--program"])
            .arg(program),
    )
}

fn inside(program: &Path) -> Result<()> {
    let dir = tempfile::tempdir()?;
    // The engine of another user writes here too.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777))?;
    let fresh = Fresh::new(program, dir.path())?;
    fresh.alone(&dist::root()?.join("zmq-tap/fixtures/messages/0.5.9/str_delta_3rid.pkl"))?;
    let mut table = Table::new(program, dir.path())?;
    let setting = setting();
    {
        let _engine = engine(&setting, dir.path(), "root", "0")?;
        let found = works(Some(&fresh.attach()?));
        println!("a root with only /proc: attach, as root: {found}");
        // Other processes' sockets are found through it too; nothing of /sys is needed.
        ensure!(found == "fhswqdp", "attach in a root with only /proc: {found}");
        for level in LEVELS.iter().filter(|level| !level.other_user) {
            table.row(level)?;
        }
        table.recorded()?;
        table.apart()?;
    }
    {
        let _engine = engine(&setting, dir.path(), "user", "1000")?;
        for level in LEVELS.iter().filter(|level| level.other_user) {
            table.row(level)?;
        }
    }
    table.end()
}

/// An engine that answers over HTTP until it is dropped, as this user and with a container's usual capabilities.
fn engine<'a>(setting: &'a Setting, dir: &Path, name: &str, uid: &str) -> Result<Session<'a>> {
    let real = Home::find();
    let python = dir.join(format!("python-{name}"));
    fs::write(
        &python,
        format!(
            "#!/bin/sh\nexec setpriv --reuid {uid} --regid {uid} --clear-groups --inh-caps -all --bounding-set {USUAL} {} \"$@\"\n",
            real.python.display()
        ),
    )?;
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755))?;
    let home = Home {
        python,
        root: real.root,
    };
    let dir = dir.join(name);
    fs::create_dir(&dir)?;
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777))?;
    let mut session = Session::start(&home, setting, &Relay::Absent, &dir)?;
    session.go()?;
    Ok(session)
}

/// Sends requests continuously, 8 at a time.
fn setting() -> Setting {
    let engine = Engine {
        release: RELEASE.into(),
        msgpack: false,
    };
    Setting {
        http: true,
        gap_ms: 5,
        plan: Plan {
            requests: 8,
            rounds: 0,
            ..Plan::PLAIN
        },
        ..Setting::new(&engine)
    }
}

/// The rows of the document's table, as they are found.
struct Table {
    image: PathBuf,
    dir: PathBuf,
    rows: Vec<String>,
    wrong: Vec<String>,
}

impl Table {
    fn new(program: &Path, dir: &Path) -> Result<Self> {
        println!("{}", head());
        Ok(Self {
            image: container::image(program, dir)?,
            dir: dir.to_owned(),
            rows: Vec::new(),
            wrong: Vec::new(),
        })
    }

    fn row(&mut self, level: &Level) -> Result<()> {
        let name = format!("level{}", self.rows.len());
        let (well, said, words) = container::run(level, &self.image, &self.dir, &name, ATTACH)?;
        let report = if well { Some(serde_json::from_str(&said)?) } else { None };
        let found = works(report.as_ref());
        let row = row(level.name, &found);
        println!("{row}");
        let told = report
            .as_ref()
            .map_or(words, |report| report["self"]["degraded"].to_string());
        if let Err(error) = self.diagnosed(level, &name, &found, &told) {
            self.wrong.push(format!("{}: {error:#}", level.name));
        }
        if found != level.works {
            self.wrong.push(format!(
                "{}: {found} works, expected {}; it said: {told}",
                level.name, level.works
            ));
        }
        self.rows.push(row);
        Ok(())
    }

    /// Doctor, in such a container, says of each feature what attach was found to do with it, and why in attach's words.
    fn diagnosed(&self, level: &Level, name: &str, found: &str, attach: &str) -> Result<()> {
        let name = format!("{name}-doctor");
        let (_, said, words) = container::run(level, &self.image, &self.dir, &name, &["doctor", "--json"])?;
        let diagnosis = serde_json::from_str(&said).with_context(|| format!("doctor said no JSON: {said}{words}"))?;
        let says = diagnosed::works(&diagnosis);
        ensure!(says == found, "doctor says {says} works, attach did {found}: {said}");
        // JSON within JSON: quotes in attach's lines are escaped.
        diagnosed::same_words(&diagnosis, &attach.replace("\\\"", "\""))
    }

    /// A container that may write nowhere leaves its recording in another process's root.
    fn recorded(&self) -> Result<()> {
        let level = LEVELS
            .iter()
            .find(|level| level.works == "fhswqdp")
            .context("no level sees everything")?;
        let kept = self.dir.join("run.tgap");
        let there = format!("/proc/1/root{}", kept.display());
        let (well, _, words) = container::run(
            level,
            &self.image,
            &self.dir,
            "recorded",
            &[ATTACH, &["--record", &there]].concat(),
        )?;
        ensure!(well && kept.is_file(), "no recording at {there}: {words}");
        println!("{}: recorded into {there}", level.name);
        Ok(())
    }

    /// In a container that does not see the engine's processes, attach says so and names the remedy.
    fn apart(&self) -> Result<()> {
        const SEES_ITSELF: &str = "only the processes of this container are visible";
        let (well, _, words) = container::run(&APART, &self.image, &self.dir, "apart", ATTACH)?;
        ensure!(
            !well && words.contains(SEES_ITSELF),
            "{}: attach said {words}",
            APART.name
        );
        let (_, said, words) = container::run(&APART, &self.image, &self.dir, "apart-doctor", &["doctor", "--json"])?;
        let diagnosis: Value = serde_json::from_str(&said).with_context(|| format!("doctor said {said}{words}"))?;
        let engine = &diagnosis["features"][0];
        ensure!(
            engine["state"] == "missing"
                && engine["reasons"].to_string().contains(SEES_ITSELF)
                && engine["reasons"][0]["fix"].is_string(),
            "{}: doctor said {engine}",
            APART.name
        );
        println!("{}: {SEES_ITSELF}; {}", APART.name, engine["reasons"][0]["fix"]);
        Ok(())
    }

    fn end(self) -> Result<()> {
        ensure!(self.wrong.is_empty(), "{}", self.wrong.join("\n"));
        let document = dist::root()?.join("docs/install.md");
        let text = fs::read_to_string(&document)?;
        let untold: Vec<&String> = self.rows.iter().filter(|row| !text.contains(row.as_str())).collect();
        ensure!(
            untold.is_empty(),
            "{} lacks these rows of what was found:\n{untold:#?}",
            document.display()
        );
        println!("{} levels are what docs/install.md says", self.rows.len());
        println!(
            "runc: {}",
            output(Command::new("runc").arg("--version"))?
                .lines()
                .next()
                .unwrap_or_default()
        );
        Ok(())
    }
}

fn head() -> String {
    let words: Vec<&str> = LETTERS.iter().map(|(_, word)| *word).collect();
    format!(
        "| container | {} |\n|{}",
        words.join(" | "),
        "---|".repeat(LETTERS.len() + 1)
    )
}

fn row(name: &str, works: &str) -> String {
    let cells: Vec<&str> = works.chars().map(|c| if c == '-' { "-" } else { "yes" }).collect();
    format!("| {name} | {} |", cells.join(" | "))
}
